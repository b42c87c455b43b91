"""Parts of the experiment `paging` (lab/experiments/paging.py).

strategies.py  ways to give out memory, and what each holds, from lengths alone
serving.py     requests on a random model, and what is held after every step
checks.py      the same logits with every allocator and with shared beginnings
trace.py       the trace with every allocator
sharing.py     requests that begin alike, with the prefix tree and without
"""
