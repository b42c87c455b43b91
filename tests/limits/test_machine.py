"""The machine probe: sizes and sums by hand; no assertion depends on how fast this machine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.limits.machine import (
    Bursts,
    MachineProbe,
    best_rate,
    buffer_size,
    last_level_cache_bytes,
)
from headrace.limits.survey import MAX_THREAD_COUNTS, fitted_bursts, survey, thread_counts
from headrace.native import core

MIB = 1 << 20
SHORT = Bursts(compute_s=0.0005, num_compute=1, read_s=0.0005, num_reads=1)


def cache(root: Path, cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
    directory = root / f"cpu{cpu}" / "cache" / f"index{index}"
    directory.mkdir(parents=True)
    for name, text in (
        ("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared),
    ):  # fmt: skip
        (directory / name).write_text(f"{text}\n")


def test_each_last_level_cache_counts_once(tmp_path: Path) -> None:
    for cpu in range(4):
        cache(tmp_path, cpu, 0, 1, "Data", "48K", str(cpu))
        cache(tmp_path, cpu, 1, 1, "Instruction", "64M", str(cpu))
        cache(tmp_path, cpu, 2, 2, "Unified", "1024K", str(cpu))
        cache(tmp_path, cpu, 3, 3, "Unified", "32768K", "0-1" if cpu < 2 else "2-3")
    assert last_level_cache_bytes([0], str(tmp_path)) == 32 * MIB
    assert last_level_cache_bytes([0, 1], str(tmp_path)) == 32 * MIB
    assert last_level_cache_bytes([0, 1, 2], str(tmp_path)) == 64 * MIB


def test_without_sysfs_there_is_still_a_size(tmp_path: Path) -> None:
    assert last_level_cache_bytes([0], str(tmp_path)) > 0


def test_the_buffer_is_eight_caches_unless_memory_is_short() -> None:
    assert buffer_size(32 * MIB, None) == (256 * MIB, None)
    assert buffer_size(32 * MIB, 1024 * MIB) == (256 * MIB, None)
    assert buffer_size(MIB // 2 + 1, 1024 * MIB) == (5 * MIB, None)  # whole MiB
    size, note = buffer_size(32 * MIB, 1023 * MIB)
    assert size == 255 * MIB
    assert note is not None
    assert "255 MiB instead of 256 MiB" in note
    assert buffer_size(32 * MIB, 0)[0] == MIB


def test_the_best_burst_counts_after_a_warm_up() -> None:
    bursts = iter([(100.0, 1.0), (10.0, 2.0), (12.0, 2.0), (11.0, 2.0)])
    assert best_rate(lambda: next(bursts), 3) == 6.0


def test_rates_carry_their_conditions() -> None:
    isa = core().available_isas()[0]
    rates = MachineProbe(2, isa, buffer_bytes=MIB).rates(SHORT)
    assert (rates.num_threads, rates.isa) == (2, isa)
    assert rates.llc_bytes == last_level_cache_bytes()
    assert list(rates.to_dict()) == [
        "read_gb_per_s", "int8_gop_per_s", "bf16_gop_per_s", "f32_gop_per_s",
    ]  # fmt: skip
    assert rates.to_dict()["int8_gop_per_s"] == rates.int8_ops_per_s / 1e9


def test_wrong_parameters_are_usage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="num_threads=0"):
        MachineProbe(0, buffer_bytes=MIB)
    with pytest.raises(UsageError, match="isa='mmx'"):
        MachineProbe(1, "mmx", buffer_bytes=MIB)
    monkeypatch.setenv("HEADRACE_ISA", "best")
    with pytest.raises(UsageError, match="HEADRACE_ISA='best'"):
        MachineProbe(1, buffer_bytes=MIB)


def test_a_survey_has_a_row_per_level_and_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.limits.survey.PEAK_BUDGET_S", 0.01)
    monkeypatch.setattr("headrace.limits.survey.READ_BUDGET_S", 0.01)
    seen = []
    result = survey(3, on_step=lambda done, of: seen.append((done, of)))
    isas = core().available_isas()
    expected = [(isa, n) for isa in isas for n in (1, 2, 3)]
    assert [(r.isa, r.num_threads) for r in result.rows] == expected
    assert seen == [(i + 1, 3 * (len(isas) + 1)) for i in range(3 * (len(isas) + 1))]
    for n in (1, 2, 3):  # bandwidth is the same whatever the level
        assert len({result.row(isa, n).read_bytes_per_s for isa in isas}) == 1
    rows = result.to_dict()["rows"]
    assert rows[0]["isa"] == isas[0]
    assert rows[0]["threads"] == 1


def test_large_machines_are_thinned_out_and_stay_in_their_budget() -> None:
    assert thread_counts(1) == (1,)
    assert thread_counts(4) == (1, 2, 3, 4)
    for most in (64, 65, 96, 128, 255, 384):
        counts = thread_counts(most)
        assert counts[0] == 1
        assert counts[-1] == most
        assert len(counts) <= MAX_THREAD_COUNTS + 2
        bursts = fitted_bursts(3, len(counts))
        peaks = bursts.compute_s * (bursts.num_compute + 1) * 3 * 3 * len(counts)
        reads = bursts.read_s * (bursts.num_reads + 1) * len(counts)
        assert peaks + reads < 8.0
