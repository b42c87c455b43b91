"""SamplingParams: what a request asks of generation, checked once, then trusted everywhere.

Field names are vLLM's where vLLM has the field. Every value that is out of range, not a number, of
the wrong type, or under an unknown name raises UsageError with one sentence that names the field,
the value and what is allowed. docs/sampling.md defines what the fields do. This file knows no
model: ids are checked against a vocabulary by `validate_for`.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headrace.engine.speculation.choice import MAX_DRAFT_TOKENS, Acceptance, Speculative
from headrace.errors import UsageError
from headrace.structured.spec import StructuredOutputs

#: The two stages that edit logits; they come first, in this order.
EDITING_STAGES = ("bias", "penalties")
#: The stages whose order a request may choose, in their default order.
ORDERED_STAGES = ("temperature", "top_k", "typical", "top_p", "min_p")
DEFAULT_STAGES = EDITING_STAGES + ORDERED_STAGES

MIN_TEMPERATURE = 1e-5
MAX_TRACE = 1000
MAX_LOGPROBS = 1_000_000


class DefaultLimit(int):
    """A max_tokens that nobody asked for: so many tokens, or fewer where the context ends. A number
    that was asked for and does not fit is refused instead."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled and when it stops. Immutable; `replace` gives a changed copy.
    Sequences are kept as tuples, a single stop string as a tuple of one.

    n: number of samples of one prompt; they share the prompt's KV.
    temperature: 0 = greedy (argmax after bias and penalties, ties to the lowest id).
    top_p: 1 or more = off; 0 = greedy, exactly as temperature 0.
    top_k: 0, −1 or ≥ vocabulary = off.
    min_p: 0 = off. typical_p: 1 = off.
    repetition_penalty: divides positive and multiplies negative logits of ids seen in prompt or
        output; 1 = off. presence_penalty, frequency_penalty: subtracted for ids seen in the output
        (once, and per occurrence); 0 = off.
    logit_bias: id → added to its logit. allowed_token_ids: only these may be drawn.
    banned_token_ids: these may not.
    seed: 0 … 2⁶⁴−1; None = one from the operating system, reported with the output.
    max_tokens: None = up to the end of the context; not given = 16, or fewer where the context
        ends. One that was given and does not fit behind the prompt is refused. 0 = only the prompt
        is computed, and nothing drawn: for prompt_logprobs, or to fill the prefix cache.
    min_tokens: stop ids and end-of-text ids cannot be drawn before so many output tokens.
    stop: string or strings that end the text; stop_token_ids: ids that end it.
    ignore_eos: the model's own end ids do not stop.
    logprobs: None = none; k = the drawn token's and the k highest. prompt_logprobs: the same for
        every prompt token. logprobs_mode: "raw" = the model's own, before all stages; "processed" =
        after all stages.
    stages: the order of the stages; bias and penalties stay in front.
    structured_outputs: what the text has to look like (from_dict takes a mapping of its fields).
        Compiled by whoever queues the request; LLM does.
    speculative, num_draft_tokens, acceptance: this request's own choice of "off" | "ngram" |
        "draft", drafts of every round (1 … 64), and "coupled" | "rejection"; None = the engine's.
        See docs/speculation.md.
    trace: 0 = off; N = per step and stage the N most probable candidates, entropy and tail mass.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] = ()
    seed: int | None = None
    max_tokens: int | None = DefaultLimit(16)
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: str = "raw"
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    stages: Sequence[str] = DEFAULT_STAGES
    trace: int = 0
    structured_outputs: StructuredOutputs | None = None
    speculative: str | None = None
    num_draft_tokens: int | None = None
    acceptance: str | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> SamplingParams:
        """Turns an unknown keyword into a UsageError that suggests the nearest field."""
        _check_names(kwargs)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._normalise_numbers()
        self._normalise_ids()
        self._normalise_choices()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens = {self.min_tokens} is larger than max_tokens = {self.max_tokens}."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """From a mapping of field names, as JSON brings it. Raises UsageError; see the class."""
        if not isinstance(values, Mapping):
            raise UsageError(f"Sampling parameters must be a mapping, not {_show(values)}.")
        return cls(**{_field_name(name): value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Field names → plain values; `from_dict` takes it back."""
        return asdict(self)

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, checked like a new one."""
        _check_names(changes)
        return replace(self, **changes)

    @property
    def greedy(self) -> bool:
        """Whether every draw is the argmax after bias and penalties."""
        return self.temperature == 0.0 or self.top_p == 0.0

    @property
    def counts_output(self) -> bool:
        """Whether a draw depends on the tokens drawn before it (besides the model's logits)."""
        penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        return self.min_tokens > 0 or penalties != (1.0, 0.0, 0.0)

    @property
    def num_listed_ids(self) -> int:
        """Ids in all lists together: what the size of a request's sampler grows with."""
        lists = (
            self.logit_bias,
            self.allowed_token_ids,
            self.banned_token_ids,
            self.stop_token_ids,
        )
        return sum(len(ids or ()) for ids in lists)

    def validate_for(self, num_ids: int) -> None:
        """Checks every id against a vocabulary of ids 0 … num_ids−1. Raises UsageError. Many
        requests may share one object: what was found good is not checked again."""
        if self.__dict__.get("_valid_for") == num_ids:
            return
        self._check_ids(num_ids)
        self._set("_valid_for", num_ids)

    def _check_ids(self, num_ids: int) -> None:
        lists: dict[str, Iterable[int]] = {
            "logit_bias": self.logit_bias or (),
            "allowed_token_ids": self.allowed_token_ids or (),
            "banned_token_ids": self.banned_token_ids,
            "stop_token_ids": self.stop_token_ids,
        }
        for name, ids in lists.items():
            for token in ids:
                if not 0 <= token < num_ids:
                    raise UsageError(
                        f"{name} holds id {token}, outside the vocabulary 0 … {num_ids - 1}."
                    )
        if self.allowed_token_ids is not None:
            if not set(self.allowed_token_ids) - set(self.banned_token_ids):
                raise UsageError("banned_token_ids bans every id of allowed_token_ids.")
        elif len(set(self.banned_token_ids)) >= num_ids:
            raise UsageError("banned_token_ids bans the whole vocabulary.")

    # ---- normalising; each writes checked, plain values back --------------------------------

    def _normalise_numbers(self) -> None:
        for name, low, high in (
            ("n", 1, 1024),
            ("top_k", -1, None),
            ("min_tokens", 0, None),
            ("trace", 0, MAX_TRACE),
        ):
            self._set(name, _integer(name, getattr(self, name), low, high))
        for name, low, high in (
            ("seed", 0, 2**64 - 1),
            ("max_tokens", 0, None),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
            ("num_draft_tokens", 1, MAX_DRAFT_TOKENS),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, DefaultLimit):
                self._set(name, _integer(name, value, low, high))
        for name, lowest, highest in (
            ("temperature", 0.0, 1000.0),
            ("top_p", 0.0, None),
            ("min_p", 0.0, 1.0),
            ("typical_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("frequency_penalty", -100.0, 100.0),
        ):
            self._set(name, _real(name, getattr(self, name), lowest, highest))
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise UsageError(
                f"temperature = {self.temperature} is out of range: "
                f"0 (greedy) or {MIN_TEMPERATURE:g} … 1000."
            )
        if self.typical_p == 0.0:
            raise UsageError("typical_p = 0 is out of range: above 0, up to 1 (off).")

    def _normalise_ids(self) -> None:
        if self.logit_bias is not None:
            self._set("logit_bias", _bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = _ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise UsageError("allowed_token_ids is empty: no token could be drawn.")
            self._set("allowed_token_ids", allowed)
        for name in ("banned_token_ids", "stop_token_ids"):
            self._set(name, _ids(name, getattr(self, name)))

    def _normalise_choices(self) -> None:
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false, not {_show(getattr(self, name))}.")
        if self.logprobs_mode not in ("raw", "processed"):
            raise UsageError(
                f'logprobs_mode = {_show(self.logprobs_mode)} is unknown: "raw" or "processed".'
            )
        for name, kinds in (("speculative", Speculative), ("acceptance", Acceptance)):
            known = [kind.value for kind in kinds]
            if getattr(self, name) not in (None, *known):
                allowed = " or ".join(f'"{value}"' for value in known)
                raise UsageError(f"{name} = {_show(getattr(self, name))} is unknown: {allowed}.")
        self._set("stop", _stop_strings(self.stop))
        self._set("stages", _stages(self.stages))
        if not isinstance(self.structured_outputs, StructuredOutputs | None):  # from JSON
            self._set("structured_outputs", StructuredOutputs.from_dict(self.structured_outputs))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _check_names(names: Iterable[str]) -> None:
    known = {field.name for field in fields(SamplingParams)}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name[:80], known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"Unknown sampling parameter {_show(name)}.{hint}")


def _field_name(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(f"Unknown sampling parameter {_show(name)}.")
    return name


def _show(value: object) -> str:
    """A value for an error message, never longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _integer(name: str, value: object, low: int, high: int | None) -> int:
    allowed = f"{low} … {high}" if high is not None else f"{low} or more"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name} must be an integer ({allowed}), not {_show(value)}.") from None
    if number < low or (high is not None and number > high):
        raise UsageError(f"{name} = {_show(number)} is out of range: {allowed}.")
    return number


def _real(name: str, value: object, low: float, high: float | None) -> float:
    allowed = f"{low:g} … {high:g}" if high is not None else f"{low:g} or more"
    if isinstance(value, bool | str | bytes):
        raise UsageError(f"{name} must be a number ({allowed}), not {_show(value)}.")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} must be a number ({allowed}), not {_show(value)}.") from None
    if not math.isfinite(number) or number < low or (high is not None and number > high):
        raise UsageError(f"{name} = {_show(number)} is out of range: {allowed}.")
    return number


def _ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"{name} must be a list of token ids, not {_show(value)}.")
    return tuple(_integer(f"An id in {name}", item, 0, 2**31 - 1) for item in value)


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise UsageError(f"logit_bias must map token ids to numbers, not {_show(value)}.")
    result: dict[int, float] = {}
    for key, bias in value.items():
        if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10:
            key = int(key)  # JSON object keys are strings
        token = _integer("An id in logit_bias", key, 0, 2**31 - 1)
        result[token] = _real(f"logit_bias[{token}]", bias, -1000.0, 1000.0)
    return result


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    items = (value,) if isinstance(value, str) else value
    if isinstance(items, bytes | Mapping) or not isinstance(items, Iterable):
        raise UsageError(f"stop must be a string or a list of strings, not {_show(value)}.")
    result = tuple(items)
    for item in result:
        if not isinstance(item, str):
            raise UsageError(f"stop must hold strings only, not {_show(item)}.")
        if not item:
            raise UsageError("stop holds an empty string, which would stop at once; remove it.")
    return result


def _stages(value: object) -> tuple[str, ...]:
    rule = (
        f"stages must name each of {', '.join(DEFAULT_STAGES)} once, with "
        f"{' and '.join(EDITING_STAGES)} first"
    )
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"{rule}; got {_show(value)}.")
    result = tuple(value)
    for name in result:
        if name not in DEFAULT_STAGES:
            near = difflib.get_close_matches(str(name)[:80], DEFAULT_STAGES, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"stages holds the unknown stage {_show(name)}.{hint} {rule}.")
    if result[:2] != EDITING_STAGES or sorted(result) != sorted(DEFAULT_STAGES):
        raise UsageError(f"{rule}; got {_show(', '.join(map(str, result[:20])))}.")
    return result
