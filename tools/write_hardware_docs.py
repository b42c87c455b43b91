"""Writes the tables of docs/hardware.md from what `headrace plan` knows: machines, models, engines.

    python tools/write_hardware_docs.py [--check]

--check: changes nothing, exits 1 when the page is not up to date (a test runs it).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.limits.plan.builtin import BuiltIn, built_in_models
from headrace.limits.plan.engines import Engine, known_engines
from headrace.limits.plan.hardware import Hardware, Source, known_hardware
from headrace.models.outline import outline_from_hf

PAGE = Path(__file__).parent.parent / "docs" / "hardware.md"
#: Column → number, and what it is divided by.
COLUMNS: Mapping[str, tuple[str, float]] = {
    "GB": ("memory_bytes", 1e9),
    "GB/s": ("read_bytes_per_s", 1e9),
    "int8": ("int8_ops_per_s", 1e12),
    "fp8": ("fp8_ops_per_s", 1e12),
    "bf16": ("bf16_ops_per_s", 1e12),
    "f32": ("f32_ops_per_s", 1e12),
    "cache, MB": ("cache_bytes", 1e6),
    "$/h": ("price_usd_per_hour", 1),
}
GRADES = {"native": "as they are", "convert": "after conversion", "experimental": "experimental"}
PLATFORMS = {
    "nvidia": "NVIDIA GPU",
    "amd-gpu": "AMD GPU",
    "apple": "Apple silicon",
    "x86": "x86-64",
    "arm": "ARM",
}


def machines() -> str:
    """Every number a link to its page, its words as the link's title."""
    head = f"| name | | {' | '.join(COLUMNS)} |\n|---|---|{'--:|' * len(COLUMNS)}"
    return "\n".join([head, *map(_machine, known_hardware().values())])


def _machine(hardware: Hardware) -> str:
    cells = [f"`{hardware.name}`", hardware.title]
    for name, divisor in COLUMNS.values():
        value: float | None = getattr(hardware, name)
        source = hardware.sources.get(name)
        shown = "—" if value is None else f"{value / divisor:,.4g}"
        if value is not None and value / divisor >= 1000:
            shown = f"{value / divisor:,.0f}"
        cells.append(_link(shown, source) if source else shown)
    return f"| {' | '.join(cells)} |"


def _link(text: str, source: Source) -> str:
    words = source.quote + (f" ({source.how})" if source.how else "")
    title = words.replace('"', "'").replace("|", "/").replace("\\", "")
    return f'[{text}]({source.url} "{title}")'


def derivations() -> str:
    """The numbers that are not the figure of their page itself."""
    titles = {name: title for title, (name, _) in COLUMNS.items()}
    lines = []
    for hardware in known_hardware().values():
        for name, source in hardware.sources.items():
            if source.how:
                lines.append(f"- `{hardware.name}`, {titles[name]}: {source.how}.")
    return "\n".join(lines)


def models() -> str:
    """Names, parameters as the description gives them, and the page of the description."""
    head = "| name | | parameters | context | described in | |\n|---|---|--:|--:|---|---|"
    return "\n".join([head, *map(_model, built_in_models().values())])


def _model(model: BuiltIn) -> str:
    words = {key: value for key, value in model.config.items() if key != "rope_scaling"}
    program = outline_from_hf(words, source=model.name)
    parameters = sum(math.prod(weight.shape) for weight in program.weights.values())
    cells = (
        f"`{model.name}`",
        model.title,
        f"{parameters:,}",
        f"{program.max_context:,}",
        f"[{model.url.split('/')[2]}]({model.url})",
        model.note,
    )
    return f"| {' | '.join(cells)} |"


def engines() -> str:
    """Where each engine runs and what weights it takes."""
    head = f"| engine | runs on | weights {' | weights '.join(GRADES.values())} |"
    lines = [head, f"|---|---|{'---|' * len(GRADES)}"]
    return "\n".join([*lines, *map(_engine, known_engines().engines.values())])


def _engine(engine: Engine) -> str:
    by_grade = {
        grade: ", ".join(kind for kind, support in engine.formats.items() if support.grade == grade)
        for grade in GRADES
    }
    url = engine.url if engine.url.startswith("https://") else Path(engine.url).name
    platforms = ", ".join(PLATFORMS[platform] for platform in engine.platforms)
    return f"| [{engine.name}]({url}) | {platforms} | {' | '.join(by_grade.values())} |"


PARTS: Mapping[str, Callable[[], str]] = {
    "machines": machines,
    "derivations": derivations,
    "models": models,
    "engines": engines,
}


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    written = page
    for name, part in PARTS.items():
        begin = f"<!-- {name}: written by tools/write_hardware_docs.py -->"
        end = f"<!-- end of {name} -->"
        inside = f"{begin}\n{part()}\n{end}"
        before, found, rest = written.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{PAGE} has no part called {name}.")
        written = before + inside + after
    if "--check" in sys.argv[1:]:
        if written != page:
            print(f"{PAGE} is out of date; run python tools/write_hardware_docs.py")
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
