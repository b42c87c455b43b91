"""A small training library over the reference interpreter: the program that is trained is the one
that the native path runs and the cost interpreter counts.

    model.py       Trainee: a model of ours with torch parameters under logical names
    ops.py         TrainingOps: the reference's answers, faster where all sequences are equally long
    text.py        tokenizer, split and windows of a text
    recall.py      key-value pairs to remember: a task without language
    batch.py       what a training and a validation step are given
    objective.py   cross entropy, and its sum over a validation set
    adamw.py       AdamW, decay on matrices only
    schedule.py    warm-up, then a cosine
    checkpoint.py  one file per training, replaced as a whole
    settings.py    Settings of a training
    loop.py        Trainer: steps, validation, checkpoints, progress
    jobs.py        several trainings at once, each in a one-threaded process of its own (worker.py)

Everything is a function of the seed and the step number, so an interrupted training that is resumed
gives the bits of one that ran through. Settings, data and jobs are usable without loading torch.
"""
