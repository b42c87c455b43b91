"""Parts of the experiment `kv-cache` (lab/experiments/kv_cache.py).

checks.py      the same logits with and without the cache, and those of the reference
steps.py       single steps over the length of the history, and how they grow
answers.py     whole answers
memory.py      written caches against the formula
"""
