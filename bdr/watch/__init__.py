"""A local web page that shows runs while they train: it reads run directories, serves one machine, changes nothing.

folders  whether runs have changed since they were read
epochs   the lines of epochs.jsonl as columns; how far a run is and how long the rest will take
state    whether a run is running, waiting, stopped, failed or finished, as its files tell
curves   series with as many points as can be seen
kept     what is remembered of a run, so that an unchanged one is not read again
board    all of them, and what has changed since somebody looked
server   the pages, the numbers as JSON, and the changes as server-sent events
command  `bdr watch`: which runs, which address
"""
