"""Opening a model path, whatever it is: decides by content, never by the file's extension."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import ModelFileError
from headrace.formats.files import check_regular, reason
from headrace.formats.gguf import open_gguf
from headrace.formats.gguf_header import MAGIC
from headrace.formats.huggingface import open_huggingface
from headrace.formats.tensors import FileCheckpoint

_REMEDY = "give a GGUF file, or a directory with config.json and *.safetensors"
#: First bytes of files that people try, and what to say of them.
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip or PyTorch pickle archive, which Headrace never unpickles"),
    (b"\x80", "a Python pickle, which Headrace never unpickles"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; run `git lfs pull`"),
    (b"lmgg", "a GGML file from before GGUF; convert it to GGUF"),
    (b"tjgg", "a GGML file from before GGUF; convert it to GGUF"),
    (b"fmgg", "a GGML file from before GGUF; convert it to GGUF"),
    (b"<", "a web page or XML file; the download went wrong"),
    (b"{", "a JSON file"),
)


def open_checkpoint(path: str | Path) -> FileCheckpoint:
    """Opens a GGUF file (or any file of a split set) or a Hugging Face directory.

    Returns a `models.weights.Checkpoint` whose tensors are views of the mapped files. Reads headers
    and configuration only. Raises ModelFileError with one sentence naming path and problem.
    """
    path = Path(path)
    try:
        is_directory = path.is_dir()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {reason(error)}.") from None
    if is_directory:
        return open_huggingface(path)
    head = _first_bytes(path)
    if head.startswith((MAGIC, MAGIC[::-1])):
        return open_gguf(path)
    raise ModelFileError(f"{path} is {_foreign(head)}; {_REMEDY}.")


def _first_bytes(path: Path) -> bytes:
    check_regular(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {reason(error)}.") from None
    if not head:
        raise ModelFileError(f"{path} is empty; download it again.")
    return head


def _foreign(head: bytes) -> str:
    # A safetensors file: the header's length in 8 bytes, then JSON.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return "a safetensors file without its configuration; give its directory instead"
    for start, what in _FOREIGN:
        if head.startswith(start):
            return what
    return f"not a model file (it starts with {head[:8]!r})"
