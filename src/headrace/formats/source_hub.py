"""Models on the Hugging Face Hub, or a mirror of it (HF_ENDPOINT): what to take, and fetching it.

Files lie in `models/hf/<owner>/<name>/`, with a manifest of what was asked for and what was chosen,
so that a second start needs no network. huggingface_hub does the transfer: resumed, never half.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.errors import ModelSourceError
from headrace.formats.cache_dirs import atomic_write, models_dir
from headrace.formats.fetching import Reporter, fetch_lock, remember_checked, sha256_of

#: A Hub that has not answered after this long is taken to be absent.
ANSWER_S = 3.0

#: The quantised file to take when the user names none and there are several.
PREFERRED = ("Q4_K_M", "Q8_0", "Q5_K_M", "Q4_0", "Q4_1", "Q6_K", "BF16", "F16", "F32")

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_SAFETENSORS_SET = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map)\.json"
    r"|chat_template\.jinja|[^/]*\.safetensors(\.index\.json)?"
)
_MANIFEST = ".headrace.json"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository. sha256: for large files only."""

    name: str
    size_bytes: int
    sha256: str | None


def split_hub_name(name: str) -> tuple[str, str]:
    """ "owner/name[:quant]" -> (repository, quant or ""). Raises ModelSourceError."""
    repo, _, quant = name.partition(":")
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise ModelSourceError(f"{name!r} is no Hub repository; write hf:owner/name or …:QUANT")
    return repo, quant


def repo_dir(repo: str) -> Path:
    """Where a repository's files lie in the cache."""
    return models_dir() / "hf" / repo


def cached(repo: str, quant: str) -> Path | None:
    """The model path of an earlier fetch, when all its files are still there."""
    directory = repo_dir(repo)
    entry = read_manifest(directory).get(quant)
    if not isinstance(entry, dict):
        return None
    files = entry.get("files")
    if not isinstance(files, list) or not all((directory / str(f)).is_file() for f in files):
        return None
    return directory / str(entry.get("main", ""))


def read_manifest(directory: Path) -> dict[str, Any]:
    """What was fetched into a repository's directory; {} when there is none."""
    try:
        value = json.loads((directory / _MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def list_repository(repo: str) -> list[HubFile] | None:
    """The files of a repository, or None when no Hub answers in time.

    Raises ModelSourceError when the Hub answers that there is no such repository.
    """
    box: dict[str, Any] = {}

    def ask() -> None:
        try:
            from huggingface_hub import HfApi

            api = HfApi(endpoint=_endpoint())
            info = api.model_info(repo, files_metadata=True, timeout=ANSWER_S)
            box["files"] = [_hub_file(s) for s in info.siblings or ()]
        except Exception as error:
            box["error"] = error

    thread = threading.Thread(target=ask, daemon=True, name="hub-probe")
    thread.start()
    thread.join(ANSWER_S + 0.5)
    if "files" in box:
        files: list[HubFile] = box["files"]
        return files
    status = getattr(getattr(box.get("error"), "response", None), "status_code", None)
    if status in (401, 403, 404):
        raise ModelSourceError(
            f"the Hub has no repository {repo!r} for you (HTTP {status}): "
            "check the name, or set HF_TOKEN if it is private or gated"
        )
    return None


def _hub_file(sibling: Any) -> HubFile:
    lfs = getattr(sibling, "lfs", None)
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)
    return HubFile(sibling.rfilename, int(sibling.size or 0), sha256)


def choose_files(repo: str, files: list[HubFile], quant: str) -> tuple[list[HubFile], str]:
    """(files to fetch, path of the model inside the repository; "" for the directory itself).

    With a quant: the GGUF file of that name (with all its shards). Without: the safetensors set,
    else the only GGUF, else the first of PREFERRED. Raises ModelSourceError, listing what there is.
    """
    ggufs = [f for f in files if f.name.endswith(".gguf") and "mmproj" not in f.name.lower()]
    if not quant:
        chosen = [f for f in files if _SAFETENSORS_SET.fullmatch(f.name)]
        names = {f.name for f in chosen}
        if "config.json" in names and any(n.endswith(".safetensors") for n in names):
            return chosen, ""
    models = sorted({_SHARD.sub("", f.name) for f in ggufs})
    if not models:
        raise ModelSourceError(f"{repo} holds neither GGUF files nor safetensors with config.json")
    if quant:
        matches = [m for m in models if _names_quant(m, quant)]
    elif len(models) == 1:
        matches = models
    else:
        matches = next(
            (found for q in PREFERRED if (found := [m for m in models if _names_quant(m, q)])), []
        )
    if len(matches) != 1:
        what = f"no GGUF named {quant!r}" if not matches else f"{len(matches)} GGUF files"
        raise ModelSourceError(
            f"{repo} has {what}; choose with hf:{repo}:QUANT from: {', '.join(models)}"
        )
    chosen = sorted(
        (f for f in ggufs if _SHARD.sub("", f.name) == matches[0]), key=lambda f: f.name
    )
    return chosen, chosen[0].name


def _names_quant(file: str, quant: str) -> bool:
    stem = file.rsplit("/", 1)[-1].removesuffix(".gguf")
    if stem.lower() == quant.lower():
        return True
    return re.search(rf"(?:^|[-._]){re.escape(quant)}$", stem, re.IGNORECASE) is not None


def fetch_hub(repo: str, quant: str, reporter: Reporter) -> Path:
    """Fetch a model from the Hub into the cache; its path. Raises ModelSourceError."""
    files = list_repository(repo)
    if files is None:
        raise ModelSourceError(
            f"the Hub at {_endpoint()} does not answer, and {repo} is not in the cache"
        )
    chosen, main = choose_files(repo, files, quant)
    directory = repo_dir(repo)
    with fetch_lock(directory.parent / f".{directory.name}.lock", reporter):
        for file in chosen:
            download_file(repo, file, directory, reporter)
        manifest = read_manifest(directory)
        manifest[quant] = {"main": main, "files": [f.name for f in chosen]}
        with atomic_write(directory / _MANIFEST) as sink:
            sink.write(json.dumps(manifest, indent=1).encode())
    return directory / main


def download_file(repo: str, file: HubFile, directory: Path, reporter: Reporter) -> Path:
    """One file of a repository, resumed when begun before, checked when the Hub knows its hash."""
    from huggingface_hub import hf_hub_download

    target = directory / file.name
    if ".." in Path(file.name).parts or Path(file.name).is_absolute():
        raise ModelSourceError(f"{repo} holds a file with the name {file.name!r}, which is refused")
    try:
        hf_hub_download(
            repo,
            file.name,
            local_dir=directory,
            endpoint=_endpoint(),
            etag_timeout=ANSWER_S,
            tqdm_class=_bar_class(reporter, file.name),
        )
    except (OSError, ValueError) as error:
        raise ModelSourceError(
            f"{file.name} could not be fetched from {repo}: {_first_line(error)}; "
            "run the same command again to go on"
        ) from error
    except Exception as error:  # the client's own errors derive from its HTTP library's
        raise ModelSourceError(
            f"{file.name} could not be fetched from {repo}: {_first_line(error)}"
        ) from error
    if file.sha256 is not None:
        found = sha256_of(target, reporter, f"checking {file.name}")
        if found != file.sha256:
            target.unlink()
            shutil.rmtree(directory / ".cache", ignore_errors=True)
            raise ModelSourceError(f"{file.name} from {repo} arrived damaged: SHA-256 differs")
        remember_checked(target, found)
    return target


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def _bar_class(reporter: Reporter, label: str) -> type[Any]:
    """A class in tqdm's shape that reports to `reporter` instead of drawing."""

    class Bar:
        def __init__(self, *_: Any, total: float | None = None, initial: float = 0, **__: Any):
            self.total = total
            self.n = initial
            self.disable = False

        def update(self, amount: float | None = 1) -> None:
            self.n += amount or 0
            total = None if self.total is None else int(self.total)
            reporter.progress(label, int(self.n), total)

        def __enter__(self) -> Bar:
            return self

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            self.close()

        def close(self) -> None: ...
        def refresh(self, *_: Any, **__: Any) -> None: ...
        def set_description(self, *_: Any, **__: Any) -> None: ...
        def set_description_str(self, *_: Any, **__: Any) -> None: ...
        def set_postfix_str(self, *_: Any, **__: Any) -> None: ...
        def reset(self, total: float | None = None) -> None:
            self.n, self.total = 0, total

    return Bar
