"""Records what `transformers` computes in float32 on a file's dequantised weights.

    python tests/oracles/record_transformers.py smollm2-135m smollm2-135m-q8_0 …

32 prompts (prompts.json), tokenised by llama.cpp, 64 greedy tokens each; of every row of logits a
token was taken from, a part is kept (recording.py). The Q8_0 copy is fed the sequences of the file
it was made from, which must be recorded first. Wants about 5 bytes of memory per parameter; one
process at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import torch
from dequantised import Metadata, load_model
from jinja2.sandbox import ImmutableSandboxedEnvironment
from llama_cpp_model import tokenize
from recorded_models import BY_NAME, RecordedModel
from recording import Recording, Sequence, load, reference_of, save

from headrace.verify.statistics import PromptReference

PROMPTS = Path(__file__).parent / "prompts.json"
NUM_NEW = 64
#: The turns of Gemma 3, whose file has no template.
GEMMA_TEMPLATE = """{{ bos_token }}{% for m in messages %}<start_of_turn>\
{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content }}<end_of_turn>
{% endfor %}<start_of_turn>model{{ '\\n' }}"""


def prompt_ids(path: Path) -> list[list[int]]:
    """The prompts as ids; chats are rendered with the file's own template."""
    metadata = Metadata(gguf.GGUFReader(path))
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    template = environment.from_string(metadata("tokenizer.chat_template", GEMMA_TEMPLATE))
    tokens = metadata("tokenizer.ggml.tokens")
    bos = metadata("tokenizer.ggml.bos_token_id")
    texts, special = [], []
    for prompt in json.loads(PROMPTS.read_text(encoding="utf-8")):
        if "text" in prompt:
            texts.append(prompt["text"])
        else:
            rendered = template.render(
                messages=prompt["messages"],
                add_generation_prompt=True,
                bos_token=tokens[bos] if bos is not None else "",
            )
            texts.append(rendered)
        special.append("text" in prompt)
    return tokenize(path, texts, special)


def _raise(message: str) -> None:
    raise ValueError(message)


@torch.inference_mode()
def continue_greedily(
    model: torch.nn.Module, prompts: list[list[int]]
) -> tuple[list[Sequence], list[PromptReference]]:
    """64 more ids per prompt and what is kept of the logits they were taken from.

    All prompts in one batch, padded on the left, with a KV cache in float32.
    """
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    cache = None
    fed = ids
    steps = []
    for _ in range(NUM_NEW):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -fed.shape[1] :]
        out = model(
            input_ids=fed,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = out.past_key_values
        logits = out.logits[:, -1]
        steps.append(reference_of(logits.numpy()))
        fed = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, fed], dim=1)
        mask = torch.cat([mask, torch.ones_like(fed)], dim=1)
    new = ids[:, longest:].tolist()
    sequences = [Sequence(p + n, len(p)) for p, n in zip(prompts, new, strict=True)]
    return sequences, [_of_prompt(steps, i) for i in range(len(prompts))]


def _of_prompt(steps: list[PromptReference], index: int) -> PromptReference:
    """Row `index` of every step: from one reference per step to one per prompt."""
    return PromptReference(
        *(np.stack([getattr(s, f.name)[index] for s in steps]) for f in fields(PromptReference))
    )


@torch.inference_mode()
def logits_of(model: torch.nn.Module, sequence: Sequence) -> np.ndarray:
    """Float32 logits [N, V] of the recorded rows: one pass, no cache, no padding."""
    out = model(
        input_ids=torch.tensor([sequence.fed]),
        use_cache=False,
        logits_to_keep=sequence.num_rows,
    )
    result: np.ndarray = out.logits[0].numpy()
    return result


def check(model: torch.nn.Module, sequence: Sequence, reference: PromptReference) -> None:
    """The batched, padded, cached run says what a plain pass over the sequence says."""
    alone = np.take_along_axis(logits_of(model, sequence), reference.kept_ids, axis=1)
    error = float(np.abs(alone - reference.kept_logits).max())
    if error > 2e-3:
        raise ValueError(f"batched and plain runs differ by {error} in a logit")


def record(target: RecordedModel) -> None:
    started = time.monotonic()
    path = target.path()
    model = load_model(path)
    print(f"{target.name}: loaded in {time.monotonic() - started:.0f} s", flush=True)
    if target.q8_0:
        sequences = load(BY_NAME[target.alias].recording).sequences
        references = [reference_of(logits_of(model, sequence)) for sequence in sequences]
    else:
        sequences, references = continue_greedily(model, prompt_ids(path))
        for i in (0, 20, 29):
            check(model, sequences[i], references[i])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    about = {
        "model": target.name,
        "file_sha256": digest,
        "weights": "dequantised to float32 with gguf " + version("gguf"),
        "implementation": f"transformers {version('transformers')}, torch {version('torch')}, "
        "float32, eager attention",
        "tokenizer": f"llama-cpp-python {version('llama-cpp-python')}",
    }
    save(target.recording, Recording(sequences, references, about), model.config.vocab_size)
    size = target.recording.stat().st_size
    print(f"{target.name}: {size / 1e6:.2f} MB, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(BY_NAME))
    for name in parser.parse_args().models:
        record(BY_NAME[name])
