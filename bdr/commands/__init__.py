"""What the commands do: the side of the command line that may import everything."""
