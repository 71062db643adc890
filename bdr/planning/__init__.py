"""From a configuration to an experiment: names become parts, mistakes are refused, and the work is planned."""
