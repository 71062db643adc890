"""Benchmarks: whatever is compared is measured in the same run and reported as ratios."""
