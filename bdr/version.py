"""The version, in a file of its own so that `bdr --version` imports nothing."""

__version__ = "0.1.0"
