"""What a plan is asked: the model, the hardware, the load, the formats, the targets.

`ask` reads it from the words of a command line or a page; `plan` (table.py) answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import UsageError
from headrace.limits.estimate import Calibration
from headrace.limits.plan import formats
from headrace.limits.plan.hardware import Hardware, find_hardware, load_hardware
from headrace.limits.plan.local import local_hardware
from headrace.limits.plan.overrides import changed_hardware, changed_model, parse_overrides
from headrace.limits.plan.resolve import PlanModel, resolve_model
from headrace.limits.plan.words import parse_count, parse_counts, parse_duration, parse_real
from headrace.limits.rates import MachineRates
from headrace.models.fields import MAX_CONTEXT
from headrace.ops.kv import KVElement, KVFormat

#: The context where none is given, if the model has as much.
DEFAULT_CONTEXT = 8192
MAX_CONCURRENCY = 1 << 16
FORMULAS = ("program", "paper")
#: Most tokens of a step: what Headrace takes by default on CPUs; a usual choice on accelerators.
STEP_TOKENS = {"cpu": 512, "gpu": 2048, "apple": 512}


@dataclass(frozen=True, slots=True)
class Question:
    """See `ask`. context: positions of a sequence. prompt, output: tokens of a request; output
    None: not said. formula: "program" sums the model's own ops, "paper" takes the closed forms.
    step_tokens: most tokens of a step (None: by kind of hardware). quantized: --quant."""

    model: PlanModel
    hardware: tuple[Hardware, ...]
    context: int
    concurrency: tuple[int, ...] = (1,)
    prompt: int = 0
    output: int | None = None
    kv_format: KVElement = KVFormat.BF16
    ttft_s: float | None = None
    tpot_s: float | None = None
    formula: str = "program"
    step_tokens: int | None = None
    block_size: int = 16
    quantized: str | None = None
    calibration: Calibration | None = None

    def budget(self, kind: str, concurrency: int) -> int:
        """Most tokens of a step on a kind of hardware: room for every sequence and as many prompt
        tokens."""
        return max(self.step_tokens or STEP_TOKENS[kind], 2 * concurrency)


def ask(
    model: str | PlanModel,
    *,
    hardware: str | Sequence[Hardware] = "local",
    context: str | None = None,
    concurrency: str = "1",
    prompt: str | None = None,
    output: str | None = None,
    quant: str | None = None,
    kv_cache_dtype: str = "bf16",
    ttft: str | None = None,
    tpot: str | None = None,
    price: str | None = None,
    settings: Sequence[str] = (),
    formula: str = "program",
    rates: MachineRates | None = None,
    calibration: Calibration | None = None,
) -> Question:
    """A question in people's words; every option as `headrace plan` has it. rates: of this machine,
    measured before (default: `local` measures them). Raises UsageError, ModelFileError."""
    if formula not in FORMULAS:
        raise UsageError(f"--formula must be {' or '.join(FORMULAS)}, not {formula!r}.")
    overrides = parse_overrides(settings)
    found = resolve_model(model) if isinstance(model, str) else model
    program = changed_model(found.program, overrides)
    if quant is not None:
        program = formats.requantized(program, formats.weight_format(quant))
    machines = _hardware(hardware, rates) if isinstance(hardware, str) else tuple(hardware)
    machines = tuple(changed_hardware(h, overrides) for h in machines)
    if price is not None:
        dollars = parse_real(price.removeprefix("$"), "--price", "2.50")
        machines = tuple(replace(h, price_usd_per_hour=dollars) for h in machines)
    num_context, num_prompt, num_output = _lengths(context, prompt, output, program.max_context)
    return Question(
        model=replace(found, program=program),
        hardware=machines,
        context=num_context,
        concurrency=parse_counts(concurrency, "--concurrency", MAX_CONCURRENCY),
        prompt=num_prompt,
        output=num_output,
        kv_format=formats.kv_format(kv_cache_dtype),
        ttft_s=None if ttft is None else parse_duration(ttft, "--ttft"),
        tpot_s=None if tpot is None else parse_duration(tpot, "--tpot"),
        formula=formula,
        step_tokens=overrides.constants.get("step_tokens"),
        block_size=overrides.constants.get("block_size", 16),
        quantized=quant,
        calibration=calibration,
    )


def _hardware(text: str, rates: MachineRates | None) -> tuple[Hardware, ...]:
    """Names, `local` and files, with commas between."""
    found: list[Hardware] = []
    for word in (part.strip() for part in text.split(",")):
        if word.lower() == "local":
            found.append(local_hardware(rates))
        elif word.endswith(".toml"):
            found.extend(load_hardware(Path(word).expanduser()))
        else:
            found.append(find_hardware(word))
    return tuple({h.name: h for h in found}.values())


def _lengths(
    context: str | None, prompt: str | None, output: str | None, max_context: int
) -> tuple[int, int, int | None]:
    """Context, prompt and output from what is given of them."""
    num_prompt = None if prompt is None else parse_count(prompt, "--prompt", MAX_CONTEXT)
    num_output = None if output is None else parse_count(output, "--output", MAX_CONTEXT)
    if context is not None:
        num_context = parse_count(context, "--ctx", MAX_CONTEXT)
    elif num_prompt is not None and num_output is not None:
        num_context = num_prompt + num_output
    else:
        num_context = min(max_context, DEFAULT_CONTEXT)
    if num_context > max_context:
        raise UsageError(
            f"A context of {num_context:,} is longer than the model's {max_context:,}; lower "
            f"--ctx, or plan beyond it with --set max_context={num_context}."
        )
    if num_prompt is None:
        num_prompt = num_context - (num_output or 0)
    if num_prompt < 1 or num_prompt + (num_output or 0) > num_context:
        raise UsageError(
            f"--prompt {num_prompt:,} and --output {num_output or 0:,} do not fit the context of "
            f"{num_context:,}; raise --ctx."
        )
    return num_context, num_prompt, num_output
