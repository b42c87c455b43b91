"""Parts of the experiment `batching` (lab/experiments/batching.py).

workload.py    the trace, what follows from its lengths, and an engine that serves it
checks.py      the same logits and texts alone, in static and in continuous batches
trace.py       the trace served both ways, timed
steps.py       one decode step over the batch
"""
