"""The work behind the commands: unlike `bdr.cli`, it may import everything."""
