"""The cache of packed weights: same bits, and nothing that happens to its files can do harm."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UsageError
from headrace.native import _core
from headrace.ops import weight_file
from headrace.ops.contract import Ops, V
from headrace.ops.packed import NATIVE_FORMATS, pack_all
from headrace.ops.quantize import quantized
from headrace.ops.weight_cache import WeightCache, directory_of
from headrace.ops.weight_file import SUFFIX
from headrace.ops.weight_key import content_key, weights_key
from headrace.quant.formats import F32, FORMATS, Q4_0, Q4_K, Q8_0
from headrace.quant.tensor import HostTensor
from small_program import SmallProgram, small_program

ROOT = Path(__file__).parents[2]


def tensor(name: str = "Q4_K", rows: int = 40, columns: int = 512, seed: int = 0) -> HostTensor:
    fmt = FORMATS[name]
    shape = (rows, fmt.row_bytes(columns))
    # Bytes below 64: no float16 or float32 of such bytes is infinite or NaN.
    data = np.random.default_rng(seed).integers(0, 64, shape, dtype=np.uint8)
    return HostTensor(fmt, (rows, columns), data)


def model(seed: int = 0) -> dict[str, HostTensor]:
    return {name: tensor(name, seed=seed + i) for i, name in enumerate(FORMATS)}


class Notes(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def cache(tmp_path: Path, notes: Notes) -> WeightCache:
    return WeightCache(tmp_path / "packed", note=notes)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "packed").iterdir())


def outputs(matrices: dict[str, _core.PackedMatrix]) -> dict[str, bytes]:
    x = np.random.default_rng(9).standard_normal((3, 512), dtype=np.float32)
    return {name: _core.matmul(matrix, x).tobytes() for name, matrix in matrices.items()}


def same(a: dict[str, _core.PackedMatrix], b: dict[str, _core.PackedMatrix]) -> bool:
    return {n: m.data.tobytes() for n, m in a.items()} == {
        n: m.data.tobytes() for n, m in b.items()
    }


def test_the_second_start_maps_what_the_first_packed(
    cache: WeightCache, tmp_path: Path, notes: Notes
) -> None:
    pack = cache.packer(["1 2"], "some model")
    first, second = pack(model(), 2), pack(model(), 1)
    assert not any(m.mapped for m in first.values())
    assert all(m.mapped for m in second.values())
    assert same(first, second)
    assert outputs(first) == outputs(second) == outputs(pack_all(model(), 1))
    (entry,) = cache.entries()
    assert entry.source == "some model"
    assert set(entry.formats) == set(FORMATS)
    assert entry.num_bytes == entry.path.stat().st_size
    assert notes == []


def test_mapped_weights_outlive_their_file(cache: WeightCache) -> None:
    pack = cache.packer(["1"], "m")
    before = outputs(pack(model(), 1))
    mapped = pack(model(), 1)
    assert cache.clear() > 0
    assert cache.entries() == []
    assert outputs(mapped) == before


def test_a_key_covers_what_the_bytes_follow_from() -> None:
    base = {"a": tensor(), "b": tensor("Q8_0")}
    order = np.random.default_rng(1).permutation(40).astype(np.int32)
    changed = base["a"].data.copy()
    changed[20, 144] ^= 1  # one bit in the middle
    floats = HostTensor(F32, (40, 512), np.zeros((40, 2048), np.uint8))
    variants: list[tuple[list[str], dict[str, HostTensor]]] = [
        (["1 2"], base),
        (["1 3"], base),
        (["1 2", "1 2"], base),
        (["1 2"], {"a": base["a"]}),
        (["1 2"], {"c": base["a"], "b": base["b"]}),
        (["1 2"], base | {"a": HostTensor(Q4_K, (40, 512), changed)}),
        (["1 2"], base | {"a": HostTensor(Q4_K, (40, 512), base["a"].data, order)}),
        (["1 2"], base | {"a": HostTensor(Q4_K, (20, 1024), base["a"].data.reshape(20, -1))}),
        (["1 2"], base | {"a": quantized(floats, Q4_K, "a", 1)}),
        (["1 2"], base | {"a": quantized(floats, Q4_0, "a", 1)}),
        (["1 2"], base | {"a": quantized(base["b"], Q4_K, "a", 1)}),
    ]
    keys = [weights_key(identity, weights) for identity, weights in variants]
    assert len(set(keys)) == len(keys)
    assert keys[0] == weights_key(["1 2"], dict(reversed(base.items())))


def test_another_packing_or_quantiser_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.ops import weight_key

    before = weights_key(["1"], model())
    monkeypatch.setattr(weight_key, "_fingerprint", lambda: "what another layout makes")
    assert weights_key(["1"], model()) != before


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 0x10
        path.write_bytes(data)

    return damage


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def reheader(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    """A hostile header whose checksum is right."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        length = int.from_bytes(data[8:16], "little")
        header = json.loads(data[24 : 24 + length])
        change(header)
        new = json.dumps(header).encode()
        body = data[-(-(24 + length) // 64) * 64 :]
        head = b"HRPACK01" + weight_file._words(len(new), weight_file._sum(new)) + new
        path.write_bytes(head + b"\0" * (-len(head) % 64) + body)

    return damage


def entry_field(name: str, value: object) -> Callable[[dict[str, object]], None]:
    return lambda header: header["matrices"][1].__setitem__(name, value)  # type: ignore[index]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (cut(0), "it is empty"),
    "shorter than a prefix": (cut(10), "does not start as such a file does"),
    "no header": (cut(24), "header does not fit"),
    "half": (lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]), "shorter than"),
    "one byte short": (lambda p: p.write_bytes(p.read_bytes()[:-1]), "shorter than"),
    "magic": (flip(0), "does not start"),
    "header length": (flip(15), "does not fit"),
    "header": (flip(60), "checksum of its header"),
    "first matrix": (lambda p: flip(p.stat().st_size // 4)(p), "checksum of"),
    "last byte": (flip(-1), "checksum of"),
    "another key": (reheader(lambda h: h.update(key="0" * 32)), "another key"),
    "other matrices": (reheader(lambda h: h.update(matrices=[])), "other matrices"),
    "no list": (reheader(lambda h: h.update(matrices=5)), "its header is not one"),
    "no key": (reheader(lambda h: h.clear()), "its header is not one"),
    "beyond the end": (reheader(entry_field("at", 1 << 60)), "shorter than"),
    "before the start": (reheader(entry_field("at", -64)), "shorter than"),
    "a place of text": (reheader(entry_field("at", "x")), "its header is not one"),
    "unaligned": (reheader(entry_field("at", 8)), "aligned"),
    "another size": (reheader(entry_field("bytes", 64)), "number of bytes"),
    "another shape": (reheader(entry_field("n", 41)), "another shape"),
    "a list for a name": (reheader(entry_field("name", [])), "its header is not one"),
    "a pipe": (lambda p: (p.unlink(), os.mkfifo(p)), "it is not a file"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_file_is_told_of_removed_and_made_anew(
    what: str, cache: WeightCache, tmp_path: Path, notes: Notes
) -> None:
    pack = cache.packer(["1"], "m")
    whole = pack(model(), 1)
    (path,) = files(tmp_path)
    original = path.read_bytes()
    damage, why = DAMAGES[what]
    damage(path)
    again = pack(model(), 1)
    assert same(whole, again)
    assert not any(m.mapped for m in again.values())
    assert len(notes) == 1
    assert "is damaged" in notes[0]
    assert why in notes[0]
    assert path.read_bytes() == original
    assert all(m.mapped for m in pack(model(), 1).values())
    assert len(notes) == 1


def test_directories_and_pipes_in_the_cache_stop_no_one(
    cache: WeightCache, tmp_path: Path, notes: Notes
) -> None:
    pack = cache.packer(["1"], "m")
    whole = pack(model(), 1)
    (path,) = files(tmp_path)
    path.unlink()
    path.mkdir()
    os.mkfifo(path.with_name(f"pipe{SUFFIX}"))
    leftover = path.with_name(f".x{SUFFIX}.tmp")
    os.mkfifo(leftover)
    os.utime(leftover, (1, 1))
    before = files(tmp_path)
    assert same(whole, pack(model(), 1))
    assert ["cannot be read" in notes[0], "cannot be written" in notes[1]] == [True, True]
    assert cache.entries() == []
    assert cache.clear() == 0
    assert files(tmp_path) == before


def test_every_flipped_byte_of_a_small_file_is_noticed(
    cache: WeightCache, tmp_path: Path, notes: Notes
) -> None:
    small = {"a": tensor("Q4_0", rows=3, columns=32)}
    key = weights_key(["1"], small)
    assert cache.store(key, pack_all(small, 1), "m", 1)
    (path,) = files(tmp_path)
    original = path.read_bytes()
    header_end = 24 + int.from_bytes(original[8:16], "little")
    padding = range(header_end, -(-header_end // 64) * 64)  # means nothing
    for at in range(len(original)):
        changed = bytearray(original)
        changed[at] ^= 1 << (at % 8)
        path.write_bytes(changed)
        loaded = cache.load(key, small, 1)
        assert (loaded is not None) == (at in padding), at
    path.write_bytes(original)
    assert cache.load(key, small, 1) is not None


def test_a_disk_without_room_costs_one_note(
    cache: WeightCache, tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file size limit of this process stands for a full disk: the same path through the
    system, another errno."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        matrices = cache.packer(["1"], "m")(model(), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert same(matrices, pack_all(model(), 1))
    assert len(notes) == 1
    assert os.strerror(errno.EFBIG) in notes[0]
    assert "going on without" in notes[0]
    assert files(tmp_path) == []


def test_a_directory_that_is_a_file_costs_one_note(tmp_path: Path, notes: Notes) -> None:
    (tmp_path / "packed").write_text("not a directory")
    cache = WeightCache(tmp_path / "packed", note=notes)
    matrices = cache.packer(["1"], "m")(model(), 1)
    assert same(matrices, pack_all(model(), 1))
    assert len(notes) >= 1
    assert cache.entries() == []


def test_the_least_recently_used_go_first(tmp_path: Path, notes: Notes) -> None:
    one = sum(m.nbytes for m in pack_all(model(), 1).values())
    cache = WeightCache(tmp_path / "packed", limit_bytes=int(2.5 * one), note=notes)
    packers = [cache.packer([str(i)], f"model {i}") for i in range(3)]
    for i in (0, 1):
        packers[i](model(), 1)
    for entry in cache.entries():  # as if both were old, model 0 the older one
        age = 2000 if entry.source == "model 0" else 1000
        os.utime(entry.path, (time.time() - age,) * 2)
    assert all(m.mapped for m in packers[0](model(), 1).values())  # and used again now
    packers[2](model(), 1)
    assert {entry.source for entry in cache.entries()} == {"model 0", "model 2"}
    small = WeightCache(tmp_path / "packed", limit_bytes=one // 2, note=notes)
    assert same(small.packer(["9"], "large")(model(), 1), pack_all(model(), 1))
    assert "more than its limit" in notes[-1]
    assert {entry.source for entry in cache.entries()} == {"model 0", "model 2"}


_WRITER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, "tests/ops")
from test_weight_cache import WeightCache, model, outputs, pack_all
import headrace.ops.weight_file as weight_file

directory, what = Path(sys.argv[1]), sys.argv[2]
if what == "die":  # after the first byte of the first matrix, as by kill -9
    class Dying:
        def __init__(self, file): self.file = file
        def __getattr__(self, name): return getattr(self.file, name)
        def seek(self, place):
            self.file.seek(place)
            self.file.write(b"x")
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    real = os.fdopen
    class Wrapped:
        def __init__(self, file): self.file = file
        def __enter__(self): return Dying(self.file.__enter__())
        def __exit__(self, *error): return self.file.__exit__(*error)
    weight_file.os.fdopen = lambda *a: Wrapped(real(*a))
notes = []
pack = WeightCache(directory, note=notes.append).packer(["1"], "m")
sys.stdin.readline()
for _ in range(1 if what == "die" else 8):
    assert outputs(pack(model(), 1)) == outputs(pack_all(model(), 1))
print(notes)
"""


def start(directory: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(directory), what],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_race_for_one_key(cache: WeightCache, tmp_path: Path) -> None:
    """Four processes begin at once; a fifth keeps removing the file under them."""
    running = [start(tmp_path / "packed", "race") for _ in range(4)]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    while any(process.poll() is None for process in running):
        cache.clear()
        time.sleep(0.005)
    for process in running:
        assert process.stdout is not None
        assert process.stdout.read() == "[]\n"
        assert process.returncode == 0
    cache.packer(["1"], "m")(model(), 1)
    assert [path.suffix for path in files(tmp_path)] == [SUFFIX]


def test_a_writer_killed_in_the_middle_leaves_nothing_that_counts(
    cache: WeightCache, tmp_path: Path, notes: Notes
) -> None:
    process = start(tmp_path / "packed", "die")
    process.communicate("go\n")
    assert process.returncode == -signal.SIGKILL
    (leftover,) = files(tmp_path)
    assert leftover.suffix == ".tmp"
    assert cache.entries() == []
    pack = cache.packer(["1"], "m")
    assert not any(m.mapped for m in pack(model(), 1).values())
    assert leftover.exists()  # young: its writer might have locked it a moment later
    assert all(m.mapped for m in pack(model(), 1).values())
    os.utime(leftover, (time.time() - 3600,) * 2)
    cache.packer(["2"], "m")(model(), 1)
    assert not leftover.exists()
    assert len(cache.entries()) == 2
    assert notes == []


def test_an_old_temporary_file_in_use_stays(cache: WeightCache, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "packed").mkdir()
    path = tmp_path / "packed" / f".key.x{SUFFIX}.tmp"
    path.write_bytes(b"half")
    os.utime(path, (time.time() - 3600,) * 2)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cache.packer(["1"], "m")(model(), 1)
        assert path.exists()
    cache.packer(["2"], "m")(model(), 1)
    assert not path.exists()


def test_what_a_setting_means() -> None:
    default = Path("/somewhere/packed")
    assert directory_of(None, default) is None
    assert directory_of("off", default) is None
    assert directory_of("on", default) == default
    assert directory_of("/a/b", default) == Path("/a/b")
    assert directory_of("./b", default) == Path.cwd() / "b"
    for bad in ("yes", "ON", "a/b", ""):
        with pytest.raises(UsageError, match="neither on, off nor a directory"):
            directory_of(bad, default)


def test_mapping_names_what_does_not_fit() -> None:
    packed = pack_all({"a": tensor("Q8_0")}, 1)["a"]
    data, number = packed.data, NATIVE_FORMATS[Q8_0.name]
    assert not data.flags.writeable
    with pytest.raises(ValueError, match="number of bytes is"):
        _core.map_packed(number, data[:-64], 40, 512)
    with pytest.raises(ValueError, match="format is 99"):
        _core.map_packed(99, data, 40, 512)
    with pytest.raises(ValueError, match="not a multiple of 32 as Q8_0 needs"):
        _core.map_packed(number, data, 40, 511)
    with pytest.raises(ValueError, match="N is 0"):
        _core.map_packed(number, data, 0, 512)


def test_the_checksum_does_not_depend_on_threads_and_sees_every_byte() -> None:
    data = np.random.default_rng(3).integers(0, 256, (3 << 20) + 77, dtype=np.uint8)
    whole = _core.checksum(data)
    assert {_core.checksum(data, t) for t in (2, 3, 5)} == {whole}
    for at in (0, 1, 63, 64, 1 << 20, len(data) - 78, len(data) - 1):
        changed = data.copy()
        changed[at] ^= 1
        assert _core.checksum(changed) != whole
    swapped = data.copy()
    swapped[:64], swapped[64:128] = data[64:128], data[:64]
    assert _core.checksum(swapped) != whole
    sizes = {_core.checksum(np.zeros(n, np.uint8)) for n in range(200)}
    assert len(sizes) == 200


def test_a_model_has_the_key_of_its_content() -> None:
    program = small_program()
    key = content_key(program, 1)
    assert key == content_key(small_program(), 2)
    others = []
    name, tensor = "0.up", program.weights["0.up"]
    for byte in (0, tensor.num_bytes // 3, tensor.num_bytes - 1):
        data = tensor.data.copy()
        data.reshape(-1)[byte] ^= 1
        changed = {**program.weights, name: replace(tensor, data=data)}
        others.append(replace(program, weights=changed))
    swapped = {**program.weights, "0.up": program.weights["0.gate"], "0.gate": tensor}
    ordered = replace(tensor, row_order=np.arange(tensor.rows, dtype=np.int32)[::-1])
    others += [
        replace(program, weights=swapped),
        replace(program, weights={**program.weights, name: ordered}),
        OtherConstant(program.weights),
    ]
    assert len({key, *(content_key(other, 1) for other in others)}) == 1 + len(others)


class OtherConstant(SmallProgram):
    """The same weights in a program that differs by one number."""

    def _head(self, ops: Ops[V], x: V) -> None:
        ops.output("logits", ops.soft_cap(ops.linear(ops.rms_norm(x, "norm", 1e-5), "embed"), 9.0))
