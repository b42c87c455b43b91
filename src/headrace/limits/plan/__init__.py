"""What a model will need and reach on some hardware, before anything is bought or fetched.

    resolve.py   MODEL → PlanModel        hardware.py  --hardware → Hardware
    question.py  what is asked            memory.py, times.py, paper.py  the numbers of one row
    table.py     the rows                 advice.py, engines.py, flags.py  what to make of them
    answer.py    plan(question) → BudgetTable
    why.py, differences.py, report.py  every formula with its numbers, and the pages people read

Reads file headers and descriptions only: no weights, no torch. docs/plan.md explains the numbers.
"""

from headrace.limits.plan.answer import BudgetTable, plan
from headrace.limits.plan.hardware import Hardware
from headrace.limits.plan.question import Question, ask
from headrace.limits.plan.resolve import PlanModel, resolve_model
from headrace.limits.plan.row import Row

__all__ = [
    "BudgetTable",
    "Hardware",
    "PlanModel",
    "Question",
    "Row",
    "ask",
    "plan",
    "resolve_model",
]
