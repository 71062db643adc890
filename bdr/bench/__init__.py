"""Benchmarks: all that is compared is measured in one run, and said as ratios."""
