"""Many runs from one command, also side by side; a stopped sweep goes on when the command is typed again."""
