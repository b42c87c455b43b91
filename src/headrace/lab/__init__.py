"""Experiments that reproduce what is taught about inference on the user's own machine.

    experiment.py  what an experiment is: question, prediction, check, measurement
    lab.py         what an experiment is given: models, text, the machine, figures, progress
    runner.py      predict → check → measure → verdict → files
    catalog.py     name → experiment

    experiments/   one module per experiment; parts/, faults/, heads/, speculation/: what they are
                   made of; training/: a training loop over the reference interpreter

May import anything; only the command line imports it.
"""
