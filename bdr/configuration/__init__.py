"""What a run is made of, as it is typed: a frozen configuration, settings over it, frames and recipes."""
