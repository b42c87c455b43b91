"""Stamp: everything that saved KV must have in common with the engine that wants to use it.

Two stamps are equal, or the saved blocks are never looked at; `difference` says in words what
differs. Knows no files and no tree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.ops.kv import KVFormat, KVGroupSpec

_MAX_NAME = 200
_MAX_GROUPS = 64


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model by content. name: for people. weights: see ops.weight_key.content_key. tokenizer: a
    hash of its token table."""

    name: str
    weights: str
    tokenizer: str


@dataclass(frozen=True, slots=True)
class GroupStamp:
    """One KV group; block_bytes over all its layers."""

    layers: tuple[int, ...]
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """numerics: Executor.kv_identity, which holds the numerics_id. num_ids: size of the tokenizer.
    model_name is for people and is not compared."""

    model_name: str
    weights: str
    numerics: str
    kv_format: str
    block_size: int
    groups: tuple[GroupStamp, ...]
    num_ids: int
    tokenizer: str

    @property
    def key(self) -> str:
        """32 hexadecimal digits of all that is compared: equal for equal stamps."""
        parts = {name: value for name, value in asdict(self).items() if name != "model_name"}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> Stamp:
        """Raises ValueError for anything that is not a stamp."""
        try:
            values = json.loads(raw)
            groups = [_group(group) for group in values.pop("groups")]
            stamp = cls(groups=tuple(groups), **values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ValueError("not a stamp") from None
        texts = (
            stamp.model_name, stamp.weights, stamp.numerics, stamp.kv_format, stamp.tokenizer
        )  # fmt: skip
        if not (
            all(type(text) is str and len(text) <= _MAX_NAME for text in texts)
            and all(type(number) is int for number in (stamp.block_size, stamp.num_ids))
            and len(groups) <= _MAX_GROUPS
        ):
            raise ValueError("not a stamp")
        return stamp

    def difference(self, saved: Stamp) -> str | None:
        """How `saved` differs from this one, "another model (NAME)" and the like, the gravest
        first; None when it does not."""
        if saved.key == self.key:
            return None
        if saved.weights != self.weights:
            return f"another model ({saved.model_name})"
        if (saved.num_ids, saved.tokenizer) != (self.num_ids, self.tokenizer):
            sizes = f"{saved.num_ids:,} tokens, here {self.num_ids:,}"
            return f"another tokenizer ({'same size' if saved.num_ids == self.num_ids else sizes})"
        if saved.numerics != self.numerics:
            return f"other arithmetic ({saved.numerics}, here {self.numerics})"
        if saved.kv_format != self.kv_format:
            return f"another KV number format ({saved.kv_format}, here {self.kv_format})"
        if saved.block_size != self.block_size:
            return f"another block size ({saved.block_size}, here {self.block_size})"
        return "other KV groups"


def stamp_of(
    identity: ModelIdentity,
    numerics: str,
    kv_format: KVFormat,
    block_size: int,
    groups: Sequence[KVGroupSpec],
    block_bytes: Sequence[int],
    num_ids: int,
) -> Stamp:
    """The stamp of an engine. block_bytes: of each group."""
    return Stamp(
        identity.name[:_MAX_NAME],
        identity.weights,
        numerics,
        kv_format.value,
        block_size,
        tuple(
            GroupStamp(g.layers, g.kv_heads, g.k_dim, g.v_dim, g.window, size)
            for g, size in zip(groups, block_bytes, strict=True)
        ),
        num_ids,
        identity.tokenizer,
    )


def _group(values: Mapping[str, Any]) -> GroupStamp:
    layers = tuple(values["layers"])
    group = GroupStamp(**{**values, "layers": layers})
    numbers = [*layers, group.kv_heads, group.k_dim, group.v_dim, group.block_bytes]
    if group.window is not None:
        numbers.append(group.window)
    if not all(type(number) is int for number in numbers):
        raise TypeError
    return group


#: Gives the identity when it is first asked for: to hash a model takes a moment.
IdentityOf = Callable[[], ModelIdentity]
