"""Written caches over layers, KV heads and context, against the formula."""

from __future__ import annotations

from headrace.lab.lab import Lab
from headrace.lab.parts.kv_memory import CHECK_VALUES, KVShape, measured_bytes, variations
from headrace.lab.parts.memory import FreshProcesses
from headrace.lab.plots import style
from headrace.lab.statistics import (
    exact,
)
from headrace.lab.values import Findings, Table


def measure_memory(lab: Lab, found: Findings) -> None:
    """Writes caches of the model's shape and of others; adds the table `memory` and the picture."""
    [*_, group] = lab.open().program.kv_groups
    base = KVShape(len(group.layers), group.kv_heads, group.k_dim, 2048)
    shapes = variations(base)
    measured: dict[KVShape, int | None] = {}
    with FreshProcesses(["headrace.lab.parts.kv_memory"]) as fresh:
        wanted = [s for group in shapes.values() for s in group] + list(CHECK_VALUES)
        for number, shape in enumerate(wanted):
            if shape not in measured:
                measured[shape] = measured_bytes(fresh, shape)
            lab.tell("memory", (number + 1) / len(wanted))
    for shape in CHECK_VALUES:
        taken = measured[shape]
        if taken is not None:
            found.measured[f"memory_{shape.kv_heads}"] = exact(taken / 2**20, "one allocation")
        else:
            found.notes.append(f"{shape}: left out, there is not enough free memory for it.")
    rows = [(what, s) for what, group in shapes.items() for s in group]
    rows += [("check value", s) for s in CHECK_VALUES]
    found.tables.append(
        Table(
            "memory",
            ["varied", "L", "K", "D", "S", "formula MiB", "allocated MiB", "measured MiB",
             "measured ÷ formula"],
            [
                [what, s.layers, s.kv_heads, s.head_dim, s.positions, _mib(s.formula_bytes),
                 _mib(s.allocated_bytes), _mib(measured[s]), _share(measured[s], s.formula_bytes)]
                for what, s in rows
            ],
            "Measured: anonymous memory of a fresh process, before a pool was allocated and after "
            "every position of it was written; bf16, check values f16. Allocated: whole blocks of "
            "16 positions, each an odd number of pages long.",
        )
    )  # fmt: skip
    shares = [taken / s.formula_bytes for s, taken in measured.items() if taken is not None]
    blocks = [taken / s.allocated_bytes for s, taken in measured.items() if taken is not None]
    found.conclude(
        f"{len(shares)} written caches took {min(shares):.3f} … {max(shares):.3f} × the formula; "
        f"of what their blocks should take with the pages between them "
        f"{min(blocks):.3f} … {max(blocks):.3f} ×. So memory is proportional to layers, KV heads "
        f"and context.",
        max(blocks) < 1.02 and min(blocks) > 0.98,
    )
    _draw_memory(lab, shapes, measured)


def _draw_memory(
    lab: Lab, shapes: dict[str, list[KVShape]], measured: dict[KVShape, int | None]
) -> None:
    numbers = {"layers": "layers", "KV heads": "kv_heads", "context": "positions"}
    with lab.figure(
        "memory",
        "Memory of a written KV cache: formula (lines) and the kernel's count (points).",
        "Three panels: MiB over layers, KV heads and context; points beside the formula's lines.",
        columns=len(shapes),
    ) as (_, axes):
        for number, (what, group) in enumerate(shapes.items()):
            x = [getattr(s, numbers[what]) for s in group]
            axis = axes[number]
            axis.plot(
                x, [_mib(s.formula_bytes) for s in group], color="#555555", marker="",
                linestyle="-", linewidth=1.2, label="2 · L · K · D · S · bytes",
            )  # fmt: skip
            look = style(number) | {"linestyle": "none"}
            axis.plot(x, [_mib(measured[s]) for s in group], label="measured", **look)
            axis.set_xlabel(what)
            axis.set_xlim(0, None)
            axis.set_ylim(0, None)
            axis.set_title(_str_of_fixed(group[0], what))
        axes[0].set_ylabel("MiB")
        axes[0].legend()


def _str_of_fixed(shape: KVShape, what: str) -> str:
    """What does not vary in a panel."""
    letter = {"layers": "L", "KV heads": "K", "context": "S"}[what]
    return ", ".join(part for part in str(shape).split(", ") if not part.startswith(letter))


def _mib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / 2**20, 2)


def _share(taken: int | None, formula: int) -> float | None:
    return None if taken is None else round(taken / formula, 4)
