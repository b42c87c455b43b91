"""`headrace env`: what this machine and installation are, for reports and bug tickets."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from typing import Annotated, Any

import typer

from headrace import __version__

_PACKAGES = ("numpy", "tokenizers", "safetensors", "jinja2", "huggingface-hub", "torch",
             "transformers", "gguf", "llama-cpp-python")  # fmt: skip


def describe() -> dict[str, Any]:
    """Facts about the machine, the native core and the packages; never raises, imports no torch."""
    return {
        "headrace": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "native": _native(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("HEADRACE_")},
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _native() -> dict[str, Any]:
    try:
        from headrace.native import core

        return {"isas": list(core().available_isas())}
    except Exception as error:  # a report must not fail because the core does
        return {"error": str(error)}


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what this machine and installation are (collect-env)."""
    facts = describe()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        if isinstance(value, dict):
            typer.echo(f"{key}:")
            for name, entry in value.items():
                typer.echo(f"  {name}: {entry if entry is not None else 'not installed'}")
        else:
            typer.echo(f"{key}: {value}")
