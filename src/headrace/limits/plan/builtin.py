"""Models by name: models.toml beside this file, read as config.json files are."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One description. config: as config.json has it. url: where it stands. read: the day it was
    opened, as text. note: what is different there."""

    name: str
    title: str
    url: str
    read: str
    config: Mapping[str, Any]
    note: str = ""


def built_in_models() -> dict[str, BuiltIn]:
    """Every built-in model, by name."""
    text = files(__package__).joinpath("models.toml").read_text(encoding="utf-8")
    return {
        name: BuiltIn(
            name,
            table["title"],
            table.get("url", ""),
            str(table.get("date", "")),
            table["config"],
            table.get("note", ""),
        )
        for name, table in tomllib.loads(text).items()
    }
