"""Perplexity of a text: exp of the mean negative log-likelihood of its tokens.

The text is cut into chunks of `context` tokens; in each, the tokens of the second half are scored,
so that every scored token has at least context/2 tokens before it. This is llama.cpp's method, so
figures compare with its `perplexity` tool at equal context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headrace.engine.params import SamplingParams
from headrace.errors import PromptError

if TYPE_CHECKING:
    from headrace.engine.llm import LLM

Progress = Callable[[Iterable[int], int, str], Iterable[int]]


@dataclass(frozen=True, slots=True)
class TextScore:
    """perplexity and its standard error (delta method over tokens); negative_logprob in nats."""

    perplexity: float
    standard_error: float
    negative_logprob: float
    num_scored: int
    num_chunks: int
    context: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_text(
    llm: LLM,
    text: str,
    *,
    context: int,
    max_chunks: int | None = None,
    progress: Progress | None = None,
) -> TextScore:
    """Scores a text. Raises PromptError when it is shorter than one chunk.

    Every chunk begins with BOS where the model's tokenizer adds one.
    """
    ids = llm.tokenizer.encode(text, add_special=False)
    num_chunks = len(ids) // context
    if max_chunks is not None:
        num_chunks = min(num_chunks, max_chunks)
    if num_chunks < 1:
        raise PromptError(
            f"The text has {len(ids)} tokens, fewer than one chunk of {context}; "
            f"give a longer text or a smaller context."
        )
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    bos = llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
    nll: list[float] = []
    chunks: Iterable[int] = range(num_chunks)
    for index in progress(chunks, num_chunks, "scoring") if progress else chunks:
        chunk = ids[index * context : (index + 1) * context]
        if bos is not None:
            chunk = [bos, *chunk[1:]]
        output = llm.generate([{"prompt_token_ids": chunk}], params)[0]
        entries = output.prompt_logprobs
        assert entries is not None
        for token, entry in zip(chunk[context // 2 :], entries[context // 2 :], strict=True):
            assert entry is not None
            nll.append(-entry[token].logprob)
    mean = math.fsum(nll) / len(nll)
    variance = math.fsum((x - mean) ** 2 for x in nll) / max(len(nll) - 1, 1)
    value = math.exp(mean)
    return TextScore(
        perplexity=value,
        standard_error=value * math.sqrt(variance / len(nll)),
        negative_logprob=math.fsum(nll),
        num_scored=len(nll),
        num_chunks=num_chunks,
        context=context,
    )
