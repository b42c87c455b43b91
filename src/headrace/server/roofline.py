"""What a dashboard needs to draw the roofline of the served model: facts, rates, and what a decode
and a prefill step cost, by kind of op. Shapes and rates only; measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from headrace.engine.account import StepRecord
from headrace.engine.config import EngineConfig
from headrace.engine.model import OpenModel
from headrace.limits.bound import Peaks, bound_of, limiting_unit
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, OpCost, kind_of


class Roofline:
    """Of one model on one machine. rates: as measured at the start; None = not known: then there
    are costs and no seconds. Counting a step takes about a millisecond."""

    def __init__(self, model: OpenModel, config: EngineConfig, rates: MachineRates | None) -> None:
        self._model = model
        self._config = config
        self._rates = rates

    @cached_property
    def _costs(self) -> CostModel:
        rates = self._rates
        return CostModel(
            self._model.program,
            kv_format=self._config.kv_format,
            cache_bytes=None if rates is None else rates.llc_bytes,
        )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Of the model as it is served."""
        config, costs = self._model.program.config, self._costs
        formats: Counter[str] = Counter()
        for tensor in self._model.program.weights.values():
            formats[tensor.format.name] += tensor.num_bytes
        return {
            "name": self._model.name,
            "architecture": config.architecture,
            "parameters": costs.num_parameters,
            "weight_bytes": costs.weight_bytes,
            "quantization": formats.most_common(1)[0][0],
            "layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "query_heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "vocabulary": config.vocab_size,
            "kv_bytes_per_token": costs.kv_bytes_per_position,
            "kv_dtype": self._config.kv_format.value,
            "max_model_len": self._config.max_model_len,
        }

    @property
    def machine(self) -> dict[str, Any] | None:
        """Rates in GB/s and Gop/s."""
        rates = self._rates
        if rates is None:
            return None
        parts = {"threads": rates.num_threads, "isa": rates.isa, "llc_bytes": rates.llc_bytes}
        return rates.to_dict() | parts

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """A step of one token for each of `batch` sequences, whose caches then hold `context`
        positions."""
        costs = self._costs.step([Chunk(1, context)] * batch).ops
        return {"batch": batch, "context": context, **self._step(costs, batch)}

    def prefill(self, prompt: int) -> dict[str, Any]:
        """A prompt of so many tokens in one step."""
        costs = self._costs.step([Chunk(prompt, prompt)]).ops
        return {"prompt": prompt, **self._step(costs, prompt)}

    def _step(self, costs: Iterable[OpCost], num_tokens: int) -> dict[str, Any]:
        groups: dict[str, list[OpCost]] = {}
        for cost in costs:
            groups.setdefault(_name(cost), []).append(cost)
        every = [cost for group in groups.values() for cost in group]
        whole: dict[str, Any] = {"bound_s": None, "limited_by": None, "tok_per_s": None}
        if self._rates is not None:
            limit = bound_of(every, self._rates)
            whole = {
                "bound_s": limit.bound_s,
                "limited_by": limit.limited_by,
                "tok_per_s": num_tokens / limit.bound_s,
            }
        ops = [self._op(name, group) for name, group in groups.items()]
        return {**whole, **_work(every), "ops": ops}

    def _op(self, name: str, group: list[OpCost]) -> dict[str, Any]:
        unit = limiting_unit(group[0].op, group[0].unit, Peaks.STANDARD)
        limit = None if self._rates is None else bound_of(group, self._rates).bound_s
        work = _work(group)
        return {"name": name, "count": len(group), **work, "unit": unit.value, "limit_s": limit}


def step_point(record: StepRecord) -> dict[str, Any]:
    """A step that was run, as a point under the roof; null where its limit is not known."""
    limit = record.limit
    return {
        "kind": "prefill" if record.num_prefill_tokens else "decode",
        "tokens": record.num_decode_tokens + record.num_prefill_tokens,
        "seconds": record.step_s,
        "bound_s": None if limit is None else limit.bound_s,
        "operations": None if limit is None else limit.operations,
        "bytes": None if limit is None else limit.read_bytes + limit.written_bytes,
    }


def _name(cost: OpCost) -> str:
    kind = kind_of(cost.op)
    return kind if cost.format is None else f"{kind} {cost.format}"


def _work(costs: Iterable[OpCost]) -> dict[str, int]:
    costs = tuple(costs)
    return {
        "operations": sum(cost.operations for cost in costs),
        "bytes": sum(cost.num_bytes for cost in costs),
    }
