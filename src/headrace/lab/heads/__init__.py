"""Parts of the experiment `heads` (lab/experiments/heads.py).

variants.py    MHA, GQA and MQA with equal numbers of parameters, and what they are trained on
checks.py      the variants compute right, untrained and trained
decoding.py    how fast the trained ones decode on the native path
pictures.py    the figure
"""
