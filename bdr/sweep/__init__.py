"""Many runs from one command: a grid, side by side, that can be stopped and gone on with by typing it again."""
