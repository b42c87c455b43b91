"""Parts of the experiment `attention` (lab/experiments/attention.py).

cells.py         attention computed in several ways on the same numbers, each in a fresh process
problems.py      which ways, at which lengths, and what the machine says of them
checks.py        every way against float64
measurement.py   all cells in turns, and what people are told
findings.py      growth, ratios, the table and the picture
"""
