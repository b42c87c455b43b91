"""Real English text for the lab: what models are trained on, and what others are tested with.

    a file that the user names  →  that file
    the cache                   →  the Jargon File, fetched earlier
    apt-get (Debian, Ubuntu)    →  the Jargon File 4.4.7 (jargon-text, public domain, 1.7 MB)
    Python itself               →  the topics of its reference manual (0.5 MB), always there

Which text it was, and its hash, stand in every result: figures of different texts do not compare.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UsageError
from headrace.formats.cache_dirs import atomic_write, cache_root
from headrace.formats.fetching import Reporter, Silent, fetch_lock, offline_wanted

#: A text shorter than this trains nothing.
LEAST_CHARACTERS = 20_000
#: A file larger than this is a mistake.
MOST_BYTES = 256 << 20
_PACKAGE = "jargon-text"
_MEMBER = "./usr/share/doc/jargon-text/jargon.txt.gz"
_FETCH_S = 120


@dataclass(frozen=True, slots=True)
class English:
    """text: paragraphs, each on one line, with an empty line between two. name: what to call it.
    sha256: of the text as it stands here."""

    text: str
    name: str
    sha256: str

    def describe(self) -> str:
        """For a report."""
        return f"{self.name}, {len(self.text):,} characters, sha256 {self.sha256[:12]}"


def english(
    path: Path | None = None, *, offline: bool | None = None, reporter: Reporter | None = None
) -> English:
    """The text, from the first place that has one. path: the user's own file (UTF-8).

    May write the cache. A text that cannot be fetched is no error: a note says what stands in.
    Raises UsageError for a path that cannot be used.
    """
    if path is not None:
        return _english(_own(path), path.name)
    told = reporter or Silent()
    cached = cache_root() / "texts" / "jargon-4.4.7.txt"
    if not cached.is_file() and not offline_wanted(offline):
        with fetch_lock(cached.with_name(f".{cached.name}.lock"), told):
            if not cached.is_file():
                _fetch(cached, told)
    try:
        return _english(prose(cached.read_text(encoding="utf-8")), "the Jargon File 4.4.7")
    except (OSError, UnicodeDecodeError):
        told.note("the Jargon File is not at hand; the text is Python's own reference manual")
        return _english(prose(_manual()), "Python's reference manual (pydoc topics)")


def prose(text: str) -> str:
    """Hard-wrapped paragraphs as one line each; indentation and rules are dropped."""
    paragraphs = re.split(r"\n[ \t]*\n", text)
    joined = (" ".join(line.strip() for line in part.splitlines()) for part in paragraphs)
    return "\n\n".join(part.strip() for part in joined if re.search(r"\w", part)) + "\n"


def _english(text: str, name: str) -> English:
    return English(text, name, hashlib.sha256(text.encode()).hexdigest())


def _own(path: Path) -> str:
    try:
        if not stat.S_ISREG((found := path.stat()).st_mode):  # a device might never end
            raise UsageError(f"{path} is not a file; give a text.")
        if found.st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than {MOST_BYTES >> 20} MB; give a shorter text.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no UTF-8 text.") from None
    if len(text) < LEAST_CHARACTERS:
        raise UsageError(
            f"{path} has {len(text)} characters; the lab needs {LEAST_CHARACTERS} or more."
        )
    return text


def _manual() -> str:
    from pydoc_data import topics

    found: dict[str, str] = topics.topics
    return "\n\n".join(found[name] for name in sorted(found))


def _fetch(target: Path, told: Reporter) -> None:
    """Makes `target` from the Debian package, if apt-get is there and has it. Never raises for a
    failed fetch; `target` appears whole or not at all."""
    apt = shutil.which("apt-get")
    if apt is None:
        return
    told.note("fetching the Jargon File (650 kB, Debian's jargon-text)")
    with tempfile.TemporaryDirectory() as directory:
        command = [apt, "download", "--quiet", _PACKAGE]
        try:
            subprocess.run(
                command, cwd=directory, check=True, capture_output=True, timeout=_FETCH_S,
                env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
            (package,) = Path(directory).glob("*.deb")
            data = package_member(package.read_bytes(), _MEMBER)
            text = gzip.decompress(data)
            text.decode("utf-8")
        except (OSError, ValueError, KeyError, EOFError, tarfile.TarError,
                subprocess.SubprocessError) as error:  # fmt: skip
            told.note(f"the Jargon File cannot be fetched ({type(error).__name__})")
            return
    with atomic_write(target) as file:
        file.write(text)


def package_member(package: bytes, name: str) -> bytes:
    """One file of a Debian package (an ar archive that holds data.tar.*; deb(5)). Raises ValueError
    for what is no package, KeyError when it has no such file."""
    if not package.startswith(b"!<arch>\n"):
        raise ValueError("no ar archive")
    at = 8
    while at + 60 <= len(package):
        header = package[at : at + 60]
        size = int(header[48:58])
        if header[:9] == b"data.tar.":
            data = io.BytesIO(package[at + 60 : at + 60 + size])
            with tarfile.open(fileobj=data, mode="r:*") as archive:
                member = archive.extractfile(name)
                if member is None:
                    raise KeyError(name)
                return member.read()
        at += 60 + size + size % 2  # members begin at even offsets
    raise ValueError("the package has no data.tar")
