"""MHA, GQA and MQA with equal numbers of parameters, and what they are trained on.

Fewer KV heads need smaller K and V matrices. What they save goes into the MLP of the same model, so
that all three have the same number of parameters and, but for attention, the same operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.lab.training.jobs import Job
from headrace.lab.training.settings import Settings
from headrace.models.outline import ModelOutline, outline_from_hf, uniform
from headrace.quant.formats import F32

#: Parameters of the variants differ by no more than this share.
EQUAL = 0.005
#: The MLP grows in steps of this many columns.
_STEP = 2
NAMES = ("MHA", "GQA", "MQA")


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model and its training. intermediate: of the MHA variant. context: positions that the
    native path may use; trainings see `length` of them. Letters as everywhere: E = hidden,
    H = heads, D = head_dim."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    intermediate: int
    batch: int
    length: int
    settings: Settings
    context: int = 2048

    def kv_heads(self, name: str) -> int:
        """H, H/4, 1."""
        return {"MHA": self.heads, "GQA": max(self.heads // 4, 2), "MQA": 1}[name]

    def description(self, name: str, vocab_size: int) -> dict[str, object]:
        """The variant as config.json. F grows by what K and V lost: 2·(H − K)·D·E parameters are
        2·(H − K)·D / 3 columns of gate, up and down."""
        kv_heads = self.kv_heads(name)
        grown = 2 * (self.heads - kv_heads) * self.head_dim / 3
        return {
            "model_type": "llama",
            "vocab_size": vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate + _STEP * round(grown / _STEP),
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": True,
            "hidden_act": "silu",
        }

    def outline(self, name: str, vocab_size: int) -> ModelOutline:
        """The variant without numbers."""
        return outline_from_hf(self.description(name, vocab_size), format_of=uniform(F32))


@dataclass(frozen=True, slots=True)
class Recall:
    """The recall task of lab/training/recall.py; its models have two layers."""

    facts: int
    keys: int
    values: int
    sizes: Sizes

    @property
    def vocab_size(self) -> int:
        return self.keys * (self.values + 1) + self.values


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does. batches × depths: the decode cases, of `outputs` tokens each."""

    vocab_size: int
    language: Sizes
    recall: Recall
    batch: int
    depth: int
    outputs: int
    repetitions: int


#: Sizes of the recall models: small, so that their trainings take seconds.
def _recall_sizes(facts: int, steps: int) -> Sizes:
    settings = Settings(steps, rate=4e-3, decay=0.01, save_every=steps)
    return Sizes(64, 2, 4, 16, 128, batch=32, length=2 * facts, settings=settings)


QUICK = Plan(
    vocab_size=1024,
    language=Sizes(
        128, 4, 8, 16, 344, batch=8, length=128,
        settings=Settings(steps=640, rate=6e-3, warmup=60, save_every=100, report_every=20),
    ),
    recall=Recall(24, 32, 8, _recall_sizes(24, 700)),
    batch=16,
    depth=1024,
    outputs=32,
    repetitions=9,
)  # fmt: skip
FULL = Plan(
    vocab_size=2048,
    language=Sizes(
        256, 6, 8, 32, 688, batch=8, length=256,
        settings=Settings(steps=1000, rate=3e-3, warmup=100, save_every=50, report_every=20),
    ),
    recall=Recall(48, 64, 8, _recall_sizes(48, 2000)),
    batch=16,
    depth=1024,
    outputs=64,
    repetitions=15,
)  # fmt: skip


def num_parameters(outline: ModelOutline) -> int:
    """Numbers in all weights."""
    return sum(tensor.rows * tensor.columns for tensor in outline.weights.values())


def spread(counts: Mapping[str, int]) -> float:
    """By how much the largest exceeds the smallest, as a share."""
    return max(counts.values()) / min(counts.values()) - 1


def language_job(plan: Plan, name: str, seed: int, tokens: Path, directory: Path) -> Job:
    """Windows of the text at places that depend on the seed alone: every variant sees the same
    tokens in the same order."""
    sizes = plan.language
    data = {
        "kind": "text", "path": str(tokens), "batch": sizes.batch, "length": sizes.length,
        "seed": seed,
    }  # fmt: skip
    label = f"text-{name}-{seed}"
    description = sizes.description(name, plan.vocab_size)
    return Job(label, description, data, sizes.settings, seed, directory / label)


def recall_job(plan: Plan, name: str, seed: int, directory: Path) -> Job:
    """The same sequences for every variant of a seed."""
    task, sizes = plan.recall, plan.recall.sizes
    data = {
        "kind": "recall", "facts": task.facts, "keys": task.keys, "values": task.values,
        "batch": sizes.batch, "seed": seed,
    }  # fmt: skip
    label = f"recall-{name}-{seed}"
    description = sizes.description(name, task.vocab_size)
    return Job(label, description, data, sizes.settings, seed, directory / label)


def work(job: Job) -> float:
    """What a job costs next to others: operations of its steps, roughly."""
    hidden, layers = job.model["hidden_size"], job.model["num_hidden_layers"]
    vocab, ffn = job.model["vocab_size"], job.model["intermediate_size"]
    assert isinstance(hidden, int)
    assert isinstance(layers, int)
    assert isinstance(vocab, int)
    assert isinstance(ffn, int)
    facts, length = job.data.get("facts"), job.data.get("length")
    positions = 2 * facts if isinstance(facts, int) else length
    batch = job.data["batch"]
    assert isinstance(positions, int)
    assert isinstance(batch, int)
    # 3·F·E and about 3·E² per layer; small matrices run at half the speed of larger ones.
    return job.settings.steps * batch * positions * hidden * (layers * 3 * (ffn + hidden) + vocab)
