"""From a configuration to an experiment: names become parts, what cannot be is refused, and its work is planned."""
