"""The heavy-tailed trace with every allocator: the useful share of what is held, and what that does
to the requests. Knows nothing of sharing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.engine.config import EngineOptions
from headrace.lab.lab import Lab
from headrace.lab.paging.serving import Occupancy, noise, serve_counting
from headrace.lab.paging.strategies import BLOCK, CONTEXT, Strategy, useful_share
from headrace.lab.parts.random_model import engine_on
from headrace.lab.parts.traces import Job, Lengths, heavy_tailed
from headrace.lab.plots import style
from headrace.lab.statistics import exact
from headrace.lab.values import Cell, Findings, Table
from headrace.models.load import LoadedModel
from headrace.ops.kv import KVFormat

#: The pool: so many whole contexts.
NUM_CONTEXTS = 4
#: About the means of public chat logs: 160 and 340 tokens.
_PROMPTS, _OUTPUTS = Lengths(115, 0.8, 512), Lengths(210, 1.0, 1500)


def trace(lab: Lab) -> list[Job]:
    """The requests of the first part."""
    return heavy_tailed(lab.random(), 64 if lab.quick else 256, _PROMPTS, _OUTPUTS)


def run_strategy(
    lab: Lab, model: LoadedModel, jobs: Sequence[Job], strategy: Strategy
) -> Occupancy:
    """The trace on a pool of NUM_CONTEXTS contexts. Clients leave when they have what they
    wanted."""
    [group] = model.kv_groups
    options = EngineOptions(
        max_model_len=CONTEXT,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        block_size=strategy.block_size,
        kv_cache_memory=NUM_CONTEXTS * CONTEXT * group.bytes_per_position(KVFormat.BF16),
        kv_allocator=strategy.allocator,
        enable_prefix_caching=False,
        num_threads=1,
    )
    prompts = noise(lab, model, [job.num_prompt for job in jobs])
    limits = [job.num_output if strategy.told else None for job in jobs]
    return serve_counting(engine_on(model, options), prompts, jobs, limits)


def report_trace(
    lab: Lab, jobs: Sequence[Job], runs: Mapping[Strategy, Occupancy], found: Findings
) -> None:
    """Adds the table `allocators`, what of the memory was useful, and the picture."""
    rows: list[list[Cell]] = []
    for strategy, run in runs.items():
        found.measured[strategy.key] = exact(run.useful_share)
        rows.append(
            [
                strategy.name,
                f"{run.useful_share:.1%}",
                f"{run.while_waiting(run.used) / run.total:.1%}",
                round(run.while_waiting(run.running), 1),
                len(run.held),
                run.preemptions,
                run.copied,
            ]
        )
    found.tables.append(
        Table(
            "allocators",
            ["allocator", "useful share of what is held", "of the whole pool",
             "sequences at a time", "steps", "preemptions", "blocks copied"],
            rows,
            f"{len(jobs)} requests at once, prompts of {min(j.num_prompt for j in jobs)} … "
            f"{max(j.num_prompt for j in jobs)} and answers of {min(j.num_output for j in jobs)} … "
            f"{max(j.num_output for j in jobs)} tokens; a pool of {NUM_CONTEXTS} contexts of "
            f"{CONTEXT:,}. Shares are summed over steps; pool and sequences over those in which "
            f"somebody waited. Counted, not sampled: the same seed gives the same figures.",
        )
    )  # fmt: skip
    reserve, oracle, growing, paged, _ = runs.values()
    found.conclude(
        f"On this trace {reserve.useful_share:.0%} of the memory reserved to the maximum was "
        f"useful, {growing.useful_share:.0%} of what grew by doubling, {paged.useful_share:.0%} of "
        f"the paged; knowing every answer's length beforehand would give "
        f"{oracle.useful_share:.0%}. People are told 20-40 % for reserving; it is the mean of what "
        f"is held over the maximum, so it follows from lengths and context alone."
    )
    others = [heavy_tailed(lab.random(100 + i), len(jobs), _PROMPTS, _OUTPUTS) for i in range(20)]
    first, *_, fourth, _ = runs
    spans = [[useful_share(other, strategy) for other in others] for strategy in (first, fourth)]
    told = [f"{min(span):.0%} … {max(span):.0%}" for span in spans]
    found.conclude(
        f"Twenty other traces of the same distribution would, by their lengths, leave {told[0]} of "
        f"the reserved memory useful and {told[1]} of the paged."
    )
    more = paged.while_waiting(paged.running) / reserve.while_waiting(reserve.running)
    found.conclude(
        f"The same pool ran {more:.1f}× as many sequences at a time paged as reserved, and the "
        f"trace took {len(reserve.held) / len(paged.held):.1f}× fewer steps."
    )
    _draw_trace(lab, runs)


def _draw_trace(lab: Lab, runs: Mapping[Strategy, Occupancy]) -> None:
    shown = [(s, r) for s, r in runs.items() if s.block_size == BLOCK]
    with lab.figure(
        "memory",
        "KV memory over the steps of one trace: held by requests, and the part of it in which "
        "something lies.",
        "A panel per allocator: memory held and memory used, per cent of the pool, over steps.",
        columns=len(shown),
    ) as (_, axes):
        last = max(len(run.held) for _, run in shown)
        for number, (strategy, run) in enumerate(shown):
            axis, steps = axes[number], range(len(run.held))
            colour = style(number)["color"]
            held, used = ([100 * v / run.total for v in kind] for kind in (run.held, run.used))
            axis.fill_between(steps, held, color=colour, alpha=0.25, label="held", linewidth=0)
            axis.fill_between(steps, used, color=colour, alpha=0.9, label="used", linewidth=0)
            axis.set_title(f"{strategy.name}\n{run.useful_share:.0%} useful", fontsize=9)
            axis.set_xlim(0, last)
            axis.set_ylim(0, 102)
            axis.set_xlabel("step")
            if number:
                axis.set_yticklabels([])
        axes[0].set_ylabel("% of the pool")
        axes[-1].legend(loc="upper right")
