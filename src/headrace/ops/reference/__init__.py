"""The reference interpreter: torch, float32 or float64, differentiable, slow and obvious.

The oracle of every test and of `verify`. Nothing here is fast, fused or cached on purpose; the one
exception is `ReferenceExecutor`, which keeps KV in pages so that the engine can run on torch.
Importing this package imports torch; nothing else in Headrace does.

    functions.py  the mathematics of each op, on plain tensors
    ops.py        ReferenceOps: answers a program's calls with those functions
    weights.py    stored weights as torch tensors, when they are needed
    model.py      ReferenceModel: token ids in, logits out
    executor.py   ReferenceExecutor: steps of the engine, KV in pages
    replay.py     Replay: op by op, on the inputs another interpreter's ops had
    apply.py      apply_op: one op on numpy arrays, for checking another interpreter's op
"""

from headrace.ops.reference.apply import apply_op
from headrace.ops.reference.executor import ReferenceExecutor
from headrace.ops.reference.model import ReferenceModel, Trace
from headrace.ops.reference.ops import ReferenceOps

__all__ = ["ReferenceExecutor", "ReferenceModel", "ReferenceOps", "Trace", "apply_op"]
