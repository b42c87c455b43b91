"""The core below the kernels: levels, worker pool, rotary tables, floating-point mode."""

from __future__ import annotations

import os

import numpy as np
import pytest

from headrace.native import _core


def test_every_listed_level_can_be_chosen() -> None:
    isas = _core.available_isas()
    assert isas
    assert isas == [i for i in ("avx2", "avx512", "avx512bf16") if i in isas]
    assert [_core.choose_isa(i) for i in isas] == isas


def test_the_environment_forces_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ISA", "avx2")
    assert _core.choose_isa() == "avx2"
    best = _core.available_isas()[-1]
    assert _core.choose_isa(best) == best  # an explicit choice counts more


@pytest.mark.parametrize("value", ["", "AVX2", "sse9", "avx2 "])
def test_a_wrong_level_names_the_allowed_ones(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ISA", value)
    with pytest.raises(ValueError, match=f"HEADRACE_ISA='{value}' .* allowed: avx2"):
        _core.choose_isa()


@pytest.mark.parametrize("count", [-1, 0, 1025])
def test_a_pool_refuses_a_thread_count_out_of_range(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads={count} is not in 1 … 1024"):
        _core.Pool(count)


def test_a_pool_starts_and_stops_without_work() -> None:
    for _ in range(20):
        assert _core.Pool(3).num_threads == 3


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_threads", [2, 3])
def test_workers_that_fall_asleep_are_woken(num_threads: int) -> None:
    """Arrivals are spread around the moment at which a waiting worker stops spinning and sleeps: a
    wake-up that misses it would hang here (one in some 100,000 meetings once did)."""
    rounds = 150_000 // num_threads
    for max_pauses in (600, 1500):
        pool = _core.Pool(num_threads, patience_us=0)
        assert pool.meet(rounds, max_pauses) == rounds * num_threads


def program(max_context: int) -> _core.Program:
    return _core.Program(
        _core.Pool(1), isa=None, max_tokens=8, max_requests=2, max_context=max_context
    )


@pytest.mark.parametrize("base", [100.0, 10_000.0, 1_000_000.0])
def test_rotary_tables_are_the_rounded_cosines_and_sines(base: float) -> None:
    """Against 80-bit floats: float32 rounding of nearly every entry is the exact one's."""
    assert np.finfo(np.longdouble).nmant >= 63, "needs an 80-bit long double as oracle"
    frequencies = [float(base ** (-2 * i / 64)) for i in range(32)]
    positions = 40_000
    cos, sin = program(positions).rope_table(frequencies, positions).rows(positions)
    angle = np.arange(positions, dtype=np.float64)[:, None] * np.array(frequencies)
    wide = angle.astype(np.longdouble).ravel()
    for table, oracle in ((np.array(cos), np.cos(wide)), (np.array(sin), np.sin(wide))):
        wrong = np.count_nonzero(table != oracle.astype(np.float32))
        assert wrong <= len(wide) * 1e-6, f"{wrong} of {len(wide)}"
        # relative to the size of a float32 step there: half a step and what float64 adds
        step = np.spacing(np.abs(oracle).astype(np.float32)).astype(np.float64)
        error = np.abs(table.astype(np.longdouble) - oracle).astype(np.float64)
        assert np.max(error / step) < 0.5 + 1e-6


def test_rotary_tables_refuse_angles_they_cannot_reduce() -> None:
    with pytest.raises(ValueError, match="frequency 1000000"):
        program(4096).rope_table([1e6], 4096)
    with pytest.raises(ValueError, match="frequency"):
        program(4096).rope_table([float("nan")], 4096)
    with pytest.raises(ValueError, match="position 16 is beyond"):
        program(16).rope_table([1.0], 16).rows(17)


def test_sizes_out_of_range_are_named() -> None:
    for name, value in (("max_tokens", 0), ("max_requests", -5), ("max_context", 0)):
        sizes = {"max_tokens": 8, "max_requests": 2, "max_context": 64, name: value}
        with pytest.raises(ValueError, match=f"{name} = {value}"):
            _core.Program(_core.Pool(1), isa=None, **sizes)


def test_a_matrix_must_lie_in_its_buffer() -> None:
    p = program(64)
    buffer = p.add_buffer(8 * 16 * 4)
    p.matrix(buffer, 0, 16, 16, 0)
    for columns, stride, offset in ((17, 17, 0), (16, 16, 1), (8, 16, 9), (16, 16, -1), (0, 16, 0)):
        with pytest.raises(ValueError, match=r"matrix of|bytes"):
            p.matrix(buffer, 0, columns, stride, offset)
    with pytest.raises(ValueError, match="no buffer 1"):
        p.matrix(1, 0, 16, 16, 0)
    with pytest.raises(ValueError, match="kind of rows 7"):
        p.matrix(buffer, 7, 16, 16, 0)


def test_denormals_of_the_caller_survive_native_work() -> None:
    """FTZ and DAZ are on inside a step and off again outside (docs/numerics.md)."""
    weights = np.zeros((16, 64), np.uint8)
    packed = _core.pack(0, weights, 16, 16)
    tiny = np.full((1, 16), 1e-40, np.float32)
    for threads in (1, 2):
        _core.matmul(packed, tiny, threads=threads)
        assert np.all(tiny * np.float32(1) > 0)


def test_a_forked_child_gets_threads_of_its_own() -> None:
    """A pool's threads do not exist after fork; the first job there must not wait for them."""
    from headrace.ops.kv import KVFormat
    from headrace.ops.native import NativeModel
    from small_program import batch_of, small_program, streams

    model = NativeModel(small_program(), num_threads=2)
    made, blocks = streams([20], 2, 16, 101)
    model.allocate_kv([blocks, blocks], 16, KVFormat.F32)
    batch = batch_of([(made[0], 20)], 16)
    before = model.run(batch).tobytes()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if model.run(batch).tobytes() == before else 2
        finally:
            os.write(writer, bytes([status]))
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"\0"
    os.close(reader)
    assert model.run(batch).tobytes() == before
