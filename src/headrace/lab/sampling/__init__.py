"""Parts of the experiment `sampling` (lab/experiments/sampling.py).

definition.py     sampling by its definitions, in numpy; how much of a text repeats
inputs.py         logits and prompts from all over a real text
checks.py         the sampler does what its definitions say
distributions.py  entropy over temperature, and what each stage keeps
texts.py          texts at several temperatures, and how they break
"""
