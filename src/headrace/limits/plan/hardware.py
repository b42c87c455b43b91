"""Hardware: memory, bandwidth and peak rates of one machine or accelerator, each with its source.

The table is hardware.toml beside this file; a user's own file has the same form, and may leave the
sources away. A number that nobody could be quoted for is None and is shown as "—". This file
measures nothing: `local` hardware comes from local.py.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from headrace.errors import UsageError
from headrace.formats.files import read_small_file, shorten
from headrace.limits.rates import MachineRates

KINDS = ("gpu", "cpu", "apple")
#: The numbers of a Hardware, and the words for each.
NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "memory_bytes": "memory",
        "read_bytes_per_s": "bandwidth",
        "cache_bytes": "last-level cache",
        "int8_ops_per_s": "int8",
        "fp8_ops_per_s": "fp8",
        "bf16_ops_per_s": "bf16",
        "f32_ops_per_s": "f32",
        "price_usd_per_hour": "price",
    }
)
MAX_FILE_BYTES = 1 << 20
#: A number of a hardware is at least 1, or this, and below MOST: no quotient of them is infinite.
LEAST: Mapping[str, float] = MappingProxyType({"price_usd_per_hour": 1e-6})
MOST = 1e30


@dataclass(frozen=True, slots=True)
class Source:
    """Where a number stands. date: when it was read. quote: the words that give it. how: how the
    number follows from them, where it is not the figure itself."""

    url: str
    date: date | None = None
    quote: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One machine or accelerator. Numbers are of the whole of it, dense (no sparsity); a
    multiply-add counts as two operations. None: not known.

    kind: "gpu" | "cpu" | "apple". vendor: "nvidia", "amd", …; "" where nobody said. memory_bytes:
    what models may use. read_bytes_per_s: from that memory. …_ops_per_s: matrix products of that
    number format, with the usual accumulation. cache_bytes: last-level cache; None: activations
    are not counted as traffic. sources: by name of the number. measured: the rates come from a
    probe of the machine itself. rates: of that probe, where it is the machine that plans.
    """

    name: str
    title: str
    kind: str
    memory_bytes: float | None = None
    read_bytes_per_s: float | None = None
    int8_ops_per_s: float | None = None
    bf16_ops_per_s: float | None = None
    f32_ops_per_s: float | None = None
    fp8_ops_per_s: float | None = None
    price_usd_per_hour: float | None = None
    cache_bytes: float | None = None
    vendor: str = ""
    sources: Mapping[str, Source] = field(default_factory=lambda: MappingProxyType({}))
    measured: bool = False
    rates: MachineRates | None = None


def known_hardware() -> dict[str, Hardware]:
    """The built-in table, by name."""
    text = files(__package__).joinpath("hardware.toml").read_text(encoding="utf-8")
    return parse_hardware(text, "hardware.toml", sourced=True)


def find_hardware(name: str) -> Hardware:
    """Raises UsageError with the nearest names there are."""
    table = known_hardware()
    found = table.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), [*table, "local"], n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(table)}."
        raise UsageError(
            f"There is no hardware {name[:80]!r}. {hint} Also local (this machine) or a .toml file."
        )
    return found


def load_hardware(path: Path) -> tuple[Hardware, ...]:
    """Every entry of a user's file. Raises UsageError or ModelFileError naming it."""
    text = read_small_file(path, MAX_FILE_BYTES).decode("utf-8", errors="replace")
    found = tuple(parse_hardware(text, str(path)).values())
    if not found:
        raise UsageError(f'{path} has no hardware: it needs a table like [name], with a "kind".')
    return found


def parse_hardware(text: str, source: str, *, sourced: bool = False) -> dict[str, Hardware]:
    """TOML → Hardware by name, in order. sourced: refuse a number without url, date and quote.

    [name]                               title, kind, vendor (optional)
    [name.memory_bytes]                  value, url, date, quote, how   or   memory_bytes = 80e9
    """
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply.") from None
    except ValueError as error:  # syntax, or a number of thousands of digits
        raise UsageError(f"{source} is not TOML: {error}.") from None
    found = {name.lower(): _entry(name, table, source) for name, table in tables.items()}
    if sourced:
        for hardware in found.values():
            _require_sources(hardware, source)
    return found


def _entry(name: str, table: object, source: str) -> Hardware:
    label = f"{source}: [{name}]"
    if not isinstance(table, dict):
        raise UsageError(f"{source}: {name} stands outside of a [table] of some hardware.")
    kind, title, vendor = table.get("kind"), table.get("title", name), table.get("vendor", "")
    if kind not in KINDS:
        raise UsageError(f"{label} kind must be one of {', '.join(KINDS)}, not {kind!r}.")
    if not isinstance(title, str) or not isinstance(vendor, str):
        raise UsageError(f"{label} title and vendor must be text.")
    if not (name + title + vendor).isprintable():
        raise UsageError(f"{source}: {shorten(name)}: name, title and vendor must be printable.")
    entry = Hardware(name.lower(), title, kind, vendor=vendor.lower())
    sources: dict[str, Source] = {}
    for key, value in table.items():
        if key in ("kind", "title", "vendor"):
            continue
        number, where = _number(value, f"{label} {key}", source)
        entry = with_number(entry, key, number, label)
        sources[key] = where
    return replace(entry, sources=MappingProxyType(sources))


def _number(value: object, label: str, file: str) -> tuple[object, Source]:
    if not isinstance(value, dict):
        return value, Source(file)
    unknown = set(value) - {"value", "url", "date", "quote", "how"}
    if unknown or "value" not in value:
        raise UsageError(f"{label} takes value, url, date, quote and how, and needs value.")
    read = value.get("date")
    day = read if isinstance(read, date) else None
    text = {key: str(value.get(key, "")) for key in ("quote", "how")}
    return value["value"], Source(str(value.get("url", file)), day, **text)


def _require_sources(hardware: Hardware, file: str) -> None:
    for name in NUMBERS:
        if getattr(hardware, name) is None:
            continue
        source = hardware.sources[name]
        if not (source.url.startswith("https://") and source.date and source.quote):
            label = f"{file}: [{hardware.name}] {name}"
            raise UsageError(f"{label} has no source: it needs url, date and quote.")


def with_number(hardware: Hardware, name: str, value: object, label: str) -> Hardware:
    """The hardware with one number replaced. label: what to call it in messages. Raises UsageError
    for an unknown name, with the nearest, and for what is no number of a machine."""
    if name not in NUMBERS:
        near = difflib.get_close_matches(name, NUMBERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NUMBERS)}."
        raise UsageError(f"{label} {name!r} is no number of a hardware: {hint}")
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not LEAST.get(name, 1.0) <= value < MOST  # nan is not, either
    ):
        raise UsageError(
            f"{label} {name} must be a positive number, from {LEAST.get(name, 1.0):g} to below "
            f"{MOST:g}."
        )
    changes: dict[str, float] = {name: float(value)}
    sources = {key: src for key, src in hardware.sources.items() if key != name}
    return replace(hardware, sources=MappingProxyType(sources), **changes)  # type: ignore[arg-type]
