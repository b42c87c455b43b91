"""Rotary frequencies from a model file's words: plain and llama3, all in float64.

Any other scaling (linear, dynamic, yarn, longrope, …) changes the table in a way that is not
implemented, so it is refused by name instead of being ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.errors import ModelFileError
from headrace.models.fields import MAX_CONTEXT, Fields
from headrace.ops.contract import RopeSpec

#: Rotary bases outside this range are damage, not design.
MIN_BASE, MAX_BASE = 1.0, 1e12
DEFAULT_BASE = 10_000.0
SUPPORTED = "only plain and llama3 rotary embeddings are supported"


def plain(rotary_dim: int, base: float) -> RopeSpec:
    """θ_i = base^(−2i / rotary_dim), i = 0 … rotary_dim/2 − 1. Source: arXiv:2104.09864, 3.2.2."""
    exponents = (2 * i / rotary_dim for i in range(rotary_dim // 2))
    return RopeSpec(rotary_dim, tuple(base**-e for e in exponents))


def divided(spec: RopeSpec, factors: Sequence[float]) -> RopeSpec:
    """Every frequency divided by its own factor (GGUF's rope_freqs.weight)."""
    pairs = zip(spec.frequencies, factors, strict=True)
    return RopeSpec(spec.rotary_dim, tuple(f / d for f, d in pairs), spec.layout)


def llama3(
    spec: RopeSpec, factor: float, low_freq: float, high_freq: float, original_context: int
) -> RopeSpec:
    """Llama 3.1's scaling: wavelengths beyond original_context / low_freq are stretched by
    `factor`, those under original_context / high_freq stay, between them it blends linearly in
    original_context / wavelength. Source: the reference code released with Llama 3.1."""

    def scaled(frequency: float) -> float:
        turns = original_context * frequency / (2 * math.pi)  # over the original context
        if turns < low_freq:
            return frequency / factor
        if turns > high_freq:
            return frequency
        blend = (turns - low_freq) / (high_freq - low_freq)
        return (1 - blend) * frequency / factor + blend * frequency

    return RopeSpec(spec.rotary_dim, tuple(map(scaled, spec.frequencies)), spec.layout)


def from_gguf(
    fields: Fields,
    head_dim: int,
    *,
    default_base: float = DEFAULT_BASE,
    factors: Sequence[float] | None = None,
) -> RopeSpec:
    """The table of <arch>.rope.* keys, divided by `factors` if there are any."""
    kind = fields.text("rope.scaling.type", default="none")
    if kind != "none":
        raise fields.error("rope.scaling.type", f'is "{kind[:40]}"; {SUPPORTED}')
    if fields.has("rope.scale_linear") and fields.real("rope.scale_linear", 0, 1e6) != 1:
        raise fields.error("rope.scale_linear", f'asks for "linear" scaling; {SUPPORTED}')
    rotary_dim = fields.count("rope.dimension_count", head_dim, default=head_dim)
    if rotary_dim != head_dim:
        problem = f"is {rotary_dim}, expected the head dimension {head_dim}"
        raise fields.error("rope.dimension_count", problem)
    spec = plain(head_dim, fields.real("rope.freq_base", MIN_BASE, MAX_BASE, default=default_base))
    if factors is None:
        return spec
    usable = all(math.isfinite(f) and 0 < f < 1e6 for f in factors)
    if len(factors) != rotary_dim // 2 or not usable:
        raise ModelFileError(
            f"{fields.source}: tensor rope_freqs.weight needs {rotary_dim // 2} positive factors."
        )
    return divided(spec, factors)


def from_hf(
    fields: Fields, head_dim: int, max_context: int, *, default_base: float = DEFAULT_BASE
) -> RopeSpec:
    """The table of a config.json: `rope_parameters` (new form) or `rope_theta` with
    `rope_scaling` (old form)."""
    # As everywhere in the field, the old name wins where a file has both.
    table = fields.table("rope_scaling") or fields.table("rope_parameters")
    base = fields.real("rope_theta", MIN_BASE, MAX_BASE, default=default_base)
    partial = fields.real("partial_rotary_factor", 0, 1, default=1.0)
    if partial != 1:
        raise fields.error("partial_rotary_factor", f"is {partial:g}; only 1 is supported")
    return _from_table(table, head_dim, base, max_context)


def by_layer_type(
    fields: Fields, head_dim: int, max_context: int, full_base: float, window_base: float
) -> tuple[RopeSpec, RopeSpec]:
    """The tables for full and for window layers.

    New form: `rope_parameters` nested by layer type. Old form: `rope_theta` with `rope_scaling` for
    full layers; window layers are plain with base `window_base`.
    """
    nested = fields.table("rope_parameters")
    if nested is None or not (nested.has("full_attention") or nested.has("sliding_attention")):
        full = from_hf(fields, head_dim, max_context, default_base=full_base)
        return full, plain(head_dim, window_base)
    full_base = fields.real("rope_theta", MIN_BASE, MAX_BASE, default=full_base)
    return (
        _from_table(nested.table("full_attention"), head_dim, full_base, max_context),
        _from_table(nested.table("sliding_attention"), head_dim, window_base, max_context),
    )


def _from_table(table: Fields | None, head_dim: int, base: float, max_context: int) -> RopeSpec:
    if table is None:
        return plain(head_dim, base)
    kind = table.text("rope_type", default=table.text("type", default="default"))
    table.require("partial_rotary_factor", (1.0, 1), absent=1.0)
    spec = plain(head_dim, table.real("rope_theta", MIN_BASE, MAX_BASE, default=base))
    if kind == "default":
        return spec
    if kind != "llama3":
        raise table.error("rope_type", f'is "{kind[:40]}"; {SUPPORTED}')
    low = table.real("low_freq_factor", 1e-6, 1e6)
    high = table.real("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise table.error("high_freq_factor", f"is {high:g}, expected more than {low:g}")
    return llama3(
        spec,
        table.real("factor", 1e-6, 1e6),
        low,
        high,
        table.count("original_max_position_embeddings", MAX_CONTEXT, default=max_context),
    )
