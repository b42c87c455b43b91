"""`headrace perplexity MODEL FILE`: how well a model predicts a text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import options as o
from headrace.cli.progress import StderrReporter
from headrace.cli.text_input import read_text
from headrace.errors import UsageError


def perplexity(
    model: o.Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="UTF-8 text; - = stdin.")],
    context: Annotated[
        int, typer.Option("--context", "-c", help="Tokens per chunk; its second half is scored.")
    ] = 512,
    max_chunks: Annotated[
        int | None, typer.Option("--chunks", help="Score only the first N chunks.",
                                 show_default=False)
    ] = None,
    threads: o.Threads = None,
    quantize: o.Quantize = None,
    weight_cache: o.WeightCache = None,
    kv_cache_dtype: o.KVFormat = "bf16",
    offline: o.Offline = False,
    as_json: o.AsJson = False,
) -> None:  # fmt: skip
    """Perplexity over chunks of the text, scoring the second half of each (llama.cpp's method)."""
    if context < 4:
        raise UsageError(f"--context must be at least 4, not {context}.")
    if max_chunks is not None and max_chunks < 1:
        raise UsageError(f"--chunks must be at least 1, not {max_chunks}.")
    text = read_text(file)

    from headrace.engine.llm import LLM
    from headrace.engine.perplexity import score_text

    llm = LLM(
        model, kv_cache_dtype=kv_cache_dtype, max_model_len=context + 1, max_num_seqs=1,
        offline=offline, progress=StderrReporter(),
        **o.given(num_threads=threads, quantize=quantize, weight_cache=weight_cache),
    )  # fmt: skip
    score = score_text(llm, text, context=context, max_chunks=max_chunks, progress=o.progress)
    if as_json:
        typer.echo(json.dumps(score.to_dict() | {"kv_format": kv_cache_dtype}))
    else:
        typer.echo(
            f"perplexity {score.perplexity:.4f} ± {score.standard_error:.4f} "
            f"(mean nll {math.log(score.perplexity):.5f}, {score.num_scored} tokens, "
            f"chunks of {context}: {score.num_chunks}, KV {kv_cache_dtype})"
        )
