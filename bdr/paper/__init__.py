"""The numbers of the BDR paper (arXiv 2308.01698), and what this library makes of each of them.

cells      every number of every table, as the paper prints it
only       the little language that chooses among them
mapping    the configuration that a number asks for, or the reason why there is none
beyond     rows that the paper does not have, by a plug-in more
found      the finished runs that are exactly such a configuration
verdicts   paper against ours: reached, missed, above; the gain of BDR
cost       how long missing runs take
sheets     all of it as tables
reproduce  the command
layout     how each table is laid out
grid       a table with ours under the paper's
latex      that as LaTeX
table      the command `bdr table`
printed    the paper's names and numbers beside ours in figures
"""
