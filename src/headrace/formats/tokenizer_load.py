"""Load a model's tokenizer: from GGUF metadata or Hugging Face files, built once, then cached.

A built tokenizer is two files in the cache, `<key>.table` (mapped) and `<key>.json` (read on the
first encode). The key is a hash of what it is built from and of the adapter's version. A small
index remembers the key of a file by its path, size and time, so that a warm start reads neither the
vocabulary nor hashes it. A cache that is damaged or can not be written is simply not used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import ModelFileError
from headrace.formats.cache_dirs import atomic_write, tokenizers_dir
from headrace.formats.files import shorten
from headrace.formats.token_pieces import token_pieces
from headrace.formats.token_table import SPECIAL, TokenTable, map_table, pack_table, unpack_table
from headrace.formats.tokenizer import Tokenizer, TokenizerInfo, return_free_memory
from headrace.formats.tokenizer_hf import HF_FILES, read_hf_tokenizer
from headrace.formats.tokenizer_json import ADAPTER_VERSION, build_tokenizer_json
from headrace.formats.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder


class ModelFiles(Protocol):
    """What this module needs of an opened checkpoint."""

    @property
    def kind(self) -> str:
        """ "gguf" or "hf"."""
        ...

    @property
    def architecture(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def source(self) -> str: ...


def load_tokenizer(checkpoint: ModelFiles, *, cache: Path | None = None) -> Tokenizer:
    """The tokenizer of an opened model. Raises ModelFileError when there is none we can use.

    cache: directory for built tokenizers (default: the user's).
    """
    root = tokenizers_dir() if cache is None else cache
    stamp = _file_stamp(checkpoint)
    index = root / f"{stamp}.key"
    try:
        return _open_cached(root, index.read_text().strip())
    except (OSError, ValueError, KeyError, TypeError):
        pass
    body, table = _build(checkpoint)
    tokenizer = _in_memory(body, table)
    encoder = tokenizer.encoder()  # a vocabulary that can not be built must not enter the cache
    key = hashlib.sha256(b"%d\0" % ADAPTER_VERSION + table + body).hexdigest()[:40]
    try:
        for name, data in ((f"{key}.json", body), (f"{key}.table", table), (index.name, key)):
            with atomic_write(root / name) as file:
                file.write(data if isinstance(data, bytes) else data.encode())
        tokenizer = _open_cached(root, key, encoder)
    except (OSError, ValueError):
        pass  # no cache: it lives in memory
    del body, table
    return_free_memory()
    return tokenizer


#: What reading free-form values raises when one has not the type that its place asks for.
_DAMAGE = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)


def _build(checkpoint: ModelFiles) -> tuple[bytes, bytes]:
    """(tokenizers JSON, packed table) of a model, from its files. Raises ModelFileError, naming the
    model, whatever is wrong with them."""
    try:
        return _read(checkpoint)
    except ModelFileError as error:
        named = checkpoint.source in str(error)
        raise error if named else ModelFileError(f"{checkpoint.source}: {error}") from error
    except _DAMAGE as error:
        raise ModelFileError(
            f"{checkpoint.source}: the tokenizer is damaged ({type(error).__name__}: "
            f"{shorten(str(error))}); download the model again"
        ) from error


def _read(checkpoint: ModelFiles) -> tuple[bytes, bytes]:
    if checkpoint.kind == "gguf":
        vocab = read_vocabulary(checkpoint.metadata, checkpoint.architecture)
        text = build_tokenizer_json(vocab)
        pieces, kinds, strip = token_pieces(json.loads(text))
        info = _gguf_info(vocab, strip)
    else:
        text, info = read_hf_tokenizer(Path(checkpoint.source))
        pieces, kinds, _ = token_pieces(json.loads(text))
    missing = info.num_ids - len(pieces)
    if missing > 0:  # tokens of the file that the JSON does not name
        pieces += [b""] * missing
        kinds += bytes([SPECIAL]) * missing
    body = text.encode()
    return body, pack_table({"info": asdict(info), "json_bytes": len(body)}, pieces, kinds)


def _in_memory(body: bytes, packed: bytes) -> Tokenizer:
    table = unpack_table(packed)
    return Tokenizer(_info_of(table), table, body.decode)


def _open_cached(root: Path, key: str, encoder: Encoder | None = None) -> Tokenizer:
    if not key.isalnum():
        raise ValueError("damaged index")
    table = map_table(root / f"{key}.table")
    json_path = root / f"{key}.json"
    if json_path.stat().st_size != table.header["json_bytes"]:
        raise ValueError("damaged tokenizer JSON")
    return Tokenizer(_info_of(table), table, lambda: json_path.read_text(encoding="utf-8"), encoder)


def _info_of(table: TokenTable) -> TokenizerInfo:
    fields = dict(table.header["info"])
    for name in ("eos_ids", "prefix_ids", "suffix_ids"):
        fields[name] = tuple(fields[name])
    return TokenizerInfo(**fields)


def _file_stamp(checkpoint: ModelFiles) -> str:
    """A name for the file as it is now: path, size and time of what the tokenizer is read from."""
    source = Path(checkpoint.source)
    files = [source] if checkpoint.kind == "gguf" else [source / name for name in HF_FILES]
    digest = hashlib.sha256(b"%d\0" % ADAPTER_VERSION)
    for file in files:
        try:
            stat = file.stat()
            mark = f"{os.path.realpath(file)}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}\n"
        except OSError:
            mark = f"{file}\0-\n"
        digest.update(mark.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:40]


def _gguf_info(vocab: Vocabulary, strip: bool) -> TokenizerInfo:
    prefix = (vocab.bos_id,) if vocab.add_bos and vocab.bos_id is not None else ()
    suffix = (vocab.eos_id,) if vocab.add_eos and vocab.eos_id is not None else ()
    return TokenizerInfo(
        name=vocab.name,
        num_ids=vocab.num_ids,
        bos_id=vocab.bos_id,
        eos_id=vocab.eos_id,
        unk_id=vocab.unk_id,
        pad_id=vocab.pad_id,
        eos_ids=vocab.eos_ids,
        prefix_ids=prefix,
        suffix_ids=suffix,
        strip_space=strip,
    )
