"""Which engine suits a plan, and why. Facts about engines are data with sources: engines.toml.

An engine suits if it runs on the platform, takes the weights and knows the architecture. Those that
suit come in the order of engines.toml; one that takes the weights as they are goes before one that
needs a conversion, and that before one whose support is experimental.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from headrace.limits.plan.hardware import Hardware
from headrace.quant.formats import FORMATS

_PLAIN = ("F32", "F16", "BF16")
_GRADES = ("native", "convert", "experimental")
_X86 = ("intel", "amd", "")
_PLATFORM_NAMES: Mapping[str, str] = {
    "nvidia": "NVIDIA GPUs",
    "amd-gpu": "AMD GPUs",
    "gpu": "this GPU, whose vendor is not known",
    "apple": "Apple silicon",
    "x86": "x86-64 processors",
    "arm": "ARM processors",
}


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """One engine. suits: whether it can serve the plan. why: one sentence. url: where the fact
    stands. quote: its words there."""

    engine: str
    suits: bool
    why: str
    url: str = ""
    quote: str = ""


@dataclass(frozen=True, slots=True)
class FormatSupport:
    """How an engine takes one kind of weights. do: what to know or to do first."""

    grade: str
    quote: str
    do: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """What engines.toml says of one engine. platforms: the words that say it runs there."""

    name: str
    url: str
    few: str
    many: str
    elsewhere: str
    platforms: Mapping[str, str]
    formats: Mapping[str, FormatSupport]
    architectures: Sequence[str] | None = None
    not_architectures: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class EngineTable:
    """few_requests: up to so many at once count as few. order: platform → situation → names."""

    few_requests: int
    order: Mapping[str, Mapping[str, Sequence[str]]]
    engines: Mapping[str, Engine]


def known_engines() -> EngineTable:
    """The table of engines.toml."""
    text = files(__package__).joinpath("engines.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    engines = {name: _engine(name, table) for name, table in tables["engines"].items()}
    return EngineTable(int(tables["few_requests"]), tables["order"], engines)


def _engine(name: str, table: Mapping[str, Any]) -> Engine:
    formats = {key: FormatSupport(**value) for key, value in table["formats"].items()}
    taken = {key: value for key, value in table.items() if key not in ("formats", "date")}
    return Engine(name, formats=formats, **taken)


def engines_for(
    hardware: Hardware, *, architecture: str, weight_format: str, concurrency: int
) -> tuple[EngineChoice, ...]:
    """Engines for a model on some hardware, the best first, those that do not suit last.

    architecture: a family's name ("llama", "gemma3", …). weight_format: of most matrices ("BF16",
    "Q4_K", "FP8", "INT4"). concurrency: requests at once."""
    table = known_engines()
    platform, kind = platform_of(hardware), weight_kind(weight_format)
    crowd = "few" if concurrency <= table.few_requests else "many"
    orders = table.order.get(platform, {})
    order = orders.get(f"{crowd}_{kind}", orders.get(crowd, ()))
    places = {name: place for place, name in enumerate(order)}
    ranked: list[tuple[tuple[bool, int, int], EngineChoice]] = []
    for engine in table.engines.values():
        choice, grade = _judge(engine, platform, kind, weight_format, architecture, crowd)
        place = places.get(engine.name, len(places))
        ranked.append(((not choice.suits, grade, place), choice))
    return tuple(choice for _, choice in sorted(ranked, key=lambda pair: pair[0]))


def platform_of(hardware: Hardware) -> str:
    """nvidia | amd-gpu | gpu (of nobody known) | apple | x86 | arm. A processor of nobody known
    is taken for x86-64."""
    if hardware.kind == "apple":
        return "apple"
    if hardware.kind == "gpu":
        return {"nvidia": "nvidia", "amd": "amd-gpu"}.get(hardware.vendor, "gpu")
    return "x86" if hardware.vendor in _X86 else "arm"


def weight_kind(weight_format: str) -> str:
    """plain | gguf | the name itself in small letters."""
    name = weight_format.upper()
    if name in _PLAIN:
        return "plain"
    return "gguf" if name in FORMATS else name.lower()


def _judge(
    engine: Engine, platform: str, kind: str, weight_format: str, architecture: str, crowd: str
) -> tuple[EngineChoice, int]:
    """The choice and its grade, 0 the best."""

    def no(why: str) -> tuple[EngineChoice, int]:
        return EngineChoice(engine.name, False, why, engine.url), len(_GRADES)

    there = engine.platforms.get(platform)
    if there is None:
        where = _PLATFORM_NAMES[platform]
        return no(f"{engine.elsewhere}; nothing that was read says that it runs on {where}.")
    known = engine.architectures
    if architecture in engine.not_architectures or (known and architecture not in known):
        return no(f"the architecture {architecture} is not among those it lists.")
    support = engine.formats.get(kind)
    if support is None:
        return no(f"nothing that was read says that it takes {weight_format} weights.")
    reason = engine.few if crowd == "few" else engine.many
    note = f"; {support.do}" if support.do else f"; it takes {weight_format} weights as they are"
    choice = EngineChoice(
        engine.name, True, f"{reason}{note}.", support.url or engine.url, support.quote
    )
    return choice, _GRADES.index(support.grade)
