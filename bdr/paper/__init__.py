"""The numbers of the BDR paper (arXiv 2308.01698), and what this library makes of each of them.

cells      every number of every table, as the paper prints it
only       the little language that chooses among them
mapping    the configuration that a number asks for, or the reason why there is none
beyond     rows that the paper does not have: those with one more plug-in
found      the finished runs that have exactly such a configuration
verdicts   the paper's numbers against ours: reached, missed, above; the gain of BDR
cost       how many images a configuration trains on
schedule   which runs are missing and how long they take
sheets     cells, runs and records as tables
reproduce  the command `bdr reproduce`
layout     how each table is laid out
grid       a table of the paper with our numbers under its own
latex      a grid as LaTeX
table      the command `bdr table`
printed    the paper's names and numbers, to be drawn beside ours in figures
"""
