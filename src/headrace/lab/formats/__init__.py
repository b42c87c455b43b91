"""Parts of the experiment `formats` (lab/experiments/formats.py).

number_formats.py  one model in many number formats, and how far its predictions move
checks.py          the worked example, and every quantiser on random numbers
measurement.py     each format's sizes, predictions and speed
findings.py        tables, conclusions and the picture
"""
