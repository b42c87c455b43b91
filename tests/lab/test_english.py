"""Where the lab's text comes from, and what happens to it."""

import io
import tarfile
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.lab.english import LEAST_CHARACTERS, english, package_member, prose


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done_bytes: int, total_bytes: int | None) -> None: ...


def ar(members: list[tuple[str, bytes]]) -> bytes:
    """The format of deb(5): 60-byte headers, members at even offsets."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data
        out += b"\n" * (len(data) % 2)
    return out


def tar(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_a_file_comes_out_of_a_debian_package():
    package = ar(
        [("debian-binary", b"2.0"), ("control.tar.xz", b"odd"), ("data.tar.xz", tar("./a", b"hi"))]
    )
    assert package_member(package, "./a") == b"hi"
    with pytest.raises(KeyError):
        package_member(package, "./b")


@pytest.mark.parametrize(
    "package", [b"", b"PK\x03\x04", ar([("debian-binary", b"2.0\n")]), b"!<arch>\n" + b"x" * 60]
)
def test_what_is_no_package_is_refused(package):
    with pytest.raises(ValueError, match=r"archive|data\.tar|invalid literal"):
        package_member(package, "./a")


def test_prose_joins_wrapped_lines_and_drops_rules():
    assert (
        prose("  One line\n  goes on.\n\n   ═══════\n \n\tTwo.\n") == "One line goes on.\n\nTwo.\n"
    )


def test_the_users_file_comes_first(tmp_path: Path):
    path = tmp_path / "own.txt"
    path.write_text("Ein Satz. " * (LEAST_CHARACTERS // 10))
    found = english(path)
    assert (found.name, found.text) == ("own.txt", path.read_text())


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read"), (b"too short", "9 characters"), (b"\xff\xfe" * 20_000, "UTF-8")],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content, reason):
    path = tmp_path / "own.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=reason) as caught:
        english(path)
    assert "own.txt" in str(caught.value)


def test_a_device_is_no_text():
    with pytest.raises(UsageError, match=r"/dev/zero is not a file"):
        english(Path("/dev/zero"))


def test_offline_and_without_a_cache_python_itself_has_a_text(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    told = Notes()
    found = english(offline=True, reporter=told)
    assert "reference manual" in found.name
    assert len(found.text) > 200_000
    assert len(told.notes) == 1
    assert not list(tmp_path.iterdir())
