"""faults: what each mistake looks like from outside, and what a signature gives away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.lab.experiment import Experiment
from headrace.lab.faults.oddities import (
    HELD,
    HISTORIES,
    held_share,
    measure_gains,
    measure_memory,
    promised_gain,
)
from headrace.lab.faults.signatures import (
    FAMILIES,
    Signature,
    family_of,
    largest_difference,
    signature,
)
from headrace.lab.faults.situations import SITUATIONS, Seen, Text, see, text_for
from headrace.lab.lab import Lab
from headrace.lab.parts.tiny import tiny_model
from headrace.lab.statistics import exact
from headrace.lab.values import Check, Findings, Kind, Prediction, Table
from headrace.ops.cost import CostModel
from headrace.verify.faults import FAULTS, NO_FAULT, Fault
from headrace.verify.subject import Subject

#: Fault → the family that its description in docs/verify.md points at.
EXPECTED: Mapping[str, str] = {
    "cache-position": "position",
    "rope-offset": "position",
    "mask-off-by-one": "mask",
    "window-edge": "window",
    "kv-head-map": "mathematics",
    "skipped-norm": "fusion",
    "dropped-chunk": "chunks",
    "row-swap": "batch",
    "freed-block": "batch",
    "stale-block-table": "batch",
    "long-match": "match",
    "saved-neighbour": "restore",
    "kept-draft": "drafts",
    "noise-key": "noise",
}
#: Situations whose logits must be those of the text alone, bit for bit.
_SAME = tuple(name for name in SITUATIONS if name not in ("guesses", "sampled"))


class Faults(Experiment):
    """See docs/lab/faults.md."""

    name = "faults"
    title = "Faults and what they look like"
    question = (
        "When an engine computes wrong, where and when does it show, and what does that tell about "
        "the cause?"
    )
    claim = (
        "First token right and later ones wrong: cache position or rotary offset. Right alone and "
        "wrong when the batch changes: order or mask. A cache slower than no cache: sizes too "
        "small. Memory unlike the estimate: allocator, reserve, element type."
    )
    quick_s = 35.0
    full_s = 90.0
    faults = tuple(FAULTS)
    try_this = (
        "`headrace lab run faults --quick --inject cache-position`: the engine under test has the "
        "fault, and the check must say so before anything is measured.",
        "`--model gemma3-270m`: layers with a window, so `window-edge` can exist; a single KV "
        "head, so `kv-head-map` cannot.",
        "`headrace verify MODEL --inject row-swap`: which rung of the ladder catches it.",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        rates = lab.rates()
        model = lab.open()
        possible = _possible(lab.subject(fault=NO_FAULT))
        tiny = tiny_model()
        costs = ((model.name, lab.costs()), ("tiny model", CostModel(tiny)))
        how = (
            "bound of a step over all positions ÷ bound of one that reads them from the cache: "
            "while weights dominate both, there is nothing to gain"
        )
        gains = [
            Prediction(f"gain {name} {history}",
                       f"{name}: gain of the cache at {history} positions",
                       promised_gain(cost, rates, history), "×", how, tolerance=1.5)
            for name, cost in costs for history in HISTORIES
        ]  # fmt: skip
        return [
            Prediction(
                "named",
                "faults whose family the rule names, of those that can exist in this model",
                len(possible),
                "faults",
                "docs/verify.md gives each fault a symptom of its own",
                Kind.AT_LEAST,
                tolerance=1.0,
            ),
            *gains,
            Prediction(
                "paged", "KV memory held, paged in blocks of 16, over the formula",
                held_share(16), "×",
                f"{HELD} positions take {-(-HELD // 16)} blocks", tolerance=1.001,
            ),
            Prediction(
                "f32", "the same with f32 keys and values", 2 * held_share(16), "×",
                "four bytes instead of the formula's two", tolerance=1.001,
            ),
        ]  # fmt: skip

    def check(self, lab: Lab) -> list[Check]:
        """The engine under test against a second one, without a fault, in every situation; and the
        situations against each other."""
        sound = lab.subject(fault=NO_FAULT)
        under_test = lab.subject(weights=None)
        text = text_for(sound)
        clean = _see_all(sound, text)
        broken = [f"{name}: {seen.error}" for name, seen in clean.items() if seen.error]
        if broken:
            return [Check("a sound engine runs in every situation", False, "; ".join(broken))]
        under_test.weights = sound.weights
        found = signature(clean, _see_all(under_test, text), text, _window(sound))
        checks = []
        for name, profile in found.situations.items():
            detail = profile.error or f"max |Δ| {profile.worst:g} at {len(profile.delta)} positions"
            if not profile.delta:
                detail = f"{len(clean[name].tokens)} tokens drawn with a seed"
            if profile.text_differs:
                detail += "; another text"
            passed = not profile.wrong and not profile.text_differs
            checks.append(
                Check(f"{name}: signature of the engine under test is zero", passed, detail)
            )
        alone = clean["alone"]
        worst = 0.0
        for name in _SAME:
            same = {p: alone.logits[p] for p in clean[name].logits}
            worst = max(worst, *largest_difference(Seen(same), clean[name]).values())
        checks.append(
            Check("a sound engine gives the same bits in every situation", worst == 0.0,
                  f"max |Δ| {worst:g} over {len(_SAME)} situations")
        )  # fmt: skip
        return checks

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        findings = Findings()
        sound = lab.subject(fault=NO_FAULT)
        text = text_for(sound)
        with lab.stage("planting faults", 0.7):
            found = _signatures(lab, sound, text)
        named = {name: family_of(found[name]) for name in found}
        right = [name for name in named if name != "none" and named[name] == EXPECTED[name]]
        findings.measured["named"] = exact(len(right))
        findings.tables += [_table(found, named), _families()]
        _draw(lab, found, text)
        self._conclude(findings, found, named)
        with lab.stage("cache against no cache", 0.25):
            measure_gains(lab, findings)
        measure_memory(lab, findings)
        return findings

    def _conclude(
        self, findings: Findings, found: Mapping[str, Signature], named: Mapping[str, str]
    ) -> None:
        wrong = [n for n in named if n != "none" and named[n] != EXPECTED[n]]
        findings.conclude(
            "The rule sees only the signature, and names the family of "
            f"{len(named) - 1 - len(wrong)} of {len(named) - 1} faults"
            + (f"; it errs for {', '.join(wrong)}" if wrong else "")
            + ". Nothing here is sampled: the same model and text give the same signature again."
        )
        early = [n for n in found if n != "none" and found[n].situations["alone"].wrong]
        hidden = [n for n in named if n != "none" and n not in early]
        findings.conclude(
            f"One text alone shows {len(early)} of them ({', '.join(early)}). "
            f"{', '.join(hidden)} need pieces, company, a cache or guesses to be seen: a test at "
            "batch 1 proves little."
        )


def _possible(subject: Subject) -> list[Fault]:
    return [f for f in FAULTS.values() if f.refusal(subject.program) is None]


def _window(subject: Subject) -> int | None:
    return min((g.window for g in subject.program.kv_groups if g.window is not None), default=None)


def _see_all(subject: Subject, text: Text) -> dict[str, Seen]:
    return {name: see(subject, name, text) for name in SITUATIONS}


def _signatures(lab: Lab, sound: Subject, text: Text) -> dict[str, Signature]:
    """Fault → signature; "none" is a second sound engine."""
    clean = _see_all(sound, text)
    found = {}
    faults = [NO_FAULT, *_possible(sound)]
    for number, fault in enumerate(faults):
        lab.tell(fault.name, number / len(faults))
        faulty = lab.subject(fault=fault, weights=sound.weights)
        found[fault.name] = signature(clean, _see_all(faulty, text), text, _window(sound))
    return found


def _table(found: Mapping[str, Signature], named: Mapping[str, str]) -> Table:
    rows: list[list[Any]] = []
    for name, one in found.items():
        alone = one.situations["alone"]
        others = [n for n, p in one.situations.items() if p.wrong or p.text_differs]
        rows.append(
            [name, alone.in_prompt, alone.at_first, alone.later,
             ", ".join(n for n in others if n != "alone") or "nowhere", named[name]]
        )  # fmt: skip
    return Table(
        "signatures",
        ["fault", "inside the prompt", "first new token", "later tokens", "wrong also", "family"],
        rows,
        "max |Δlogit| of one text alone against the sound engine; —: not a number.",
    )


def _families() -> Table:
    return Table(
        "families", ["family", "symptom and suspects"], [[k, v] for k, v in FAMILIES.items()]
    )


# ---- the picture -------------------------------------------------------------------------------


def _draw(lab: Lab, found: Mapping[str, Signature], text: Text) -> None:
    names = list(found)
    caption = (
        "Left: one text alone, position by position. Right: the worst position in each situation. "
        "White: exactly 0, the bits of the sound engine. Grey: the request had ended with an "
        "error. “T”: equal logits and another text."
    )
    alt = "Two heat maps of the largest logit difference: fault by position, fault by situation"
    positions = list(text.positions)[:-1]  # the last token is drawn, not computed
    columns = [n for n in SITUATIONS if n != "sampled"] + ["sampled"]
    alone = [found[name].situations["alone"].delta for name in names]
    left = np.array([[delta.get(p, np.nan) for p in positions] for delta in alone])
    right = np.array([[found[n].situations[c].worst for c in columns] for n in names])
    with lab.figure("signatures", caption, alt, columns=2) as (figure, axes):
        figure.set_size_inches(11.0, 0.34 * len(names) + 2.0)
        image = _heat(axes[0], left)
        _heat(axes[1], right)
        first = positions.index(text.num_prompt - 1)
        axes[0].axvline(first - 0.5, color="#000000", linewidth=1, linestyle=":")
        axes[0].set_title("alone: inside the prompt ┊ new tokens", fontsize=10)
        shown = range(0, len(positions), max(1, len(positions) // 6))
        axes[0].set_xticks(list(shown), [str(positions[i]) for i in shown])
        axes[0].set_xlabel("position")
        axes[0].set_yticks(range(len(names)), names, fontsize=8)
        axes[1].set_title("in every situation", fontsize=10)
        axes[1].set_xticks(range(len(columns)), columns, rotation=40, ha="right", fontsize=8)
        axes[1].set_yticks([])
        for row, name in enumerate(names):
            for column, situation in enumerate(columns):
                profile = found[name].situations[situation]
                if profile.text_differs and not profile.wrong:
                    axes[1].text(column, row, "T", ha="center", va="center", fontsize=9)
        bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)
        bar.set_label("max |Δlogit|")
        bar.set_ticks([-2, -1, 0, 1, 2], labels=["≤ 0.01", "0.1", "1", "10", "≥ 100"])


def _heat(axis: Any, values: np.ndarray[Any, Any]) -> Any:
    """log₁₀, zeros white; positions that were never computed are grey."""
    with np.errstate(divide="ignore"):
        logs = np.log10(np.minimum(values, 1e3))
    masked = np.ma.masked_where((values == 0) | np.isnan(values), logs)
    axis.grid(False)
    never = np.ma.masked_where(~np.isnan(values), np.ones_like(values))
    axis.imshow(never, aspect="auto", cmap="Greys", vmin=0, vmax=5, interpolation="none")
    image = axis.imshow(
        masked, aspect="auto", cmap="cividis_r", vmin=-2, vmax=2, interpolation="none"
    )
    axis.set_yticks(np.arange(len(values) + 1) - 0.5, minor=True)
    axis.grid(True, axis="y", which="minor")
    axis.tick_params(which="minor", left=False)
    return image
