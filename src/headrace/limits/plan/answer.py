"""plan: a question → everything there is to say: rows, advice, engines, the command to start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headrace.limits.plan.advice import Recommendation, recommend
from headrace.limits.plan.engines import EngineChoice, engines_for
from headrace.limits.plan.flags import ServeCommand, serve_command
from headrace.limits.plan.formats import main_format
from headrace.limits.plan.hardware import NUMBERS
from headrace.limits.plan.question import Question
from headrace.limits.plan.row import Row
from headrace.limits.plan.table import Planner


@dataclass(frozen=True, slots=True)
class BudgetTable:
    """The answer. rows: hardware by hardware, in the order asked. engines, serve: for the row that
    the recommendation is about; empty and None where there is none, or nothing to start."""

    question: Question
    rows: tuple[Row, ...]
    recommendation: Recommendation
    engines: tuple[EngineChoice, ...]
    serve: ServeCommand | None

    @property
    def estimated(self) -> bool:
        """Whether times of this machine are calibrated estimates; all others are bounds."""
        return self.question.calibration is not None and self.question.formula == "program"

    def to_dict(self) -> dict[str, Any]:
        """JSON values: bytes, seconds, dollars; null where a number is not known."""
        q, program = self.question, self.question.model.program
        config = program.config
        return {
            "model": {
                "name": q.model.name,
                "description": q.model.description,
                "source": q.model.source,
                "weight_format": main_format(program).name,
                "layers": config.num_layers,
                "hidden_size": config.hidden_size,
                "query_heads": config.num_heads,
                "kv_heads": config.num_kv_heads,
                "head_dim": config.head_dim,
                "vocabulary_rows": config.vocab_size,
                "max_context": config.max_context,
            },
            "question": {
                "context": q.context,
                "prompt": q.prompt,
                "output": q.output,
                "kv_cache_dtype": q.kv_format.value,
                "quant": q.quantized,
                "ttft_s": q.ttft_s,
                "tpot_s": q.tpot_s,
                "formula": q.formula,
                "times_of_this_machine": "estimate" if self.estimated else "bound",
            },
            "hardware": [
                {"name": h.name, "title": h.title, "kind": h.kind, "measured": h.measured}
                | {name: getattr(h, name) for name in NUMBERS}
                for h in q.hardware
            ],
            "rows": [row.to_dict() for row in self.rows],
            "recommendation": {
                "verdicts": list(self.recommendation.verdicts),
                "choice": self.recommendation.choice,
                "note": self.recommendation.note,
                "steps": [
                    {"stage": s.stage.value, "title": s.title, "worth": s.worth, "text": s.text}
                    for s in self.recommendation.steps
                ],
            },
            "engines": [
                {"engine": e.engine, "suits": e.suits, "why": e.why, "url": e.url}
                for e in self.engines
            ],
            "serve": None
            if self.serve is None
            else {"command": list(self.serve.command), "notes": list(self.serve.notes)},
        }


def plan(question: Question) -> BudgetTable:
    """Answers a question; some 0.1 s, without any weights."""
    planner = Planner(question)
    rows = planner.rows()
    recommendation = recommend(planner, rows)
    focus = recommendation.focus
    if focus is None:
        return BudgetTable(question, rows, recommendation, (), None)
    program = question.model.program
    engines = engines_for(
        focus.hardware,
        architecture=program.family.name,
        weight_format=main_format(program).name,
        concurrency=focus.concurrency,
    )
    if question.formula == "paper":  # which knows no blocks and no buffers
        program_question = replace(question, formula="program")
        focus = planner.asked(program_question).row(focus.hardware, focus.concurrency)
    serve = None if focus.max_concurrency == 0 else serve_command(question, focus)
    return BudgetTable(question, rows, recommendation, engines, serve)
