"""Other engines on the same model, for `headrace bench compare`. Each runs in a process of its own,
and none is imported anywhere else: `catalog` only looks whether it is installed."""
