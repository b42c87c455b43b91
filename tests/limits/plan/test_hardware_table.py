"""hardware.toml: every number has its source, and the numbers agree with one another.

The figures that the specification states (H100) are checked against it; for the rest, relations
that any machine keeps: a sheet's figure with sparsity taken for a dense one breaks them.
"""

from __future__ import annotations

import re
from datetime import date
from importlib.resources import files

import pytest

from headrace.errors import UsageError
from headrace.limits.plan.hardware import NUMBERS, Hardware, known_hardware, parse_hardware

TABLE = known_hardware()
ASKED_FOR = {
    *("a100", "a100-40gb", "h100", "h200", "b200", "l40s", "rtx-4090", "rtx-5090", "mi300x"),
    *("m4-pro", "m4-max", "epyc-9654", "xeon-6980p", "graviton4", "raspberry-pi-5"),
}
ENGLISH = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e\d+)?"
SOURCED = """
[box]
kind = "cpu"
[box.memory_bytes]
value = 8e9
url = "https://example.org/box"
date = 2026-11-30
quote = "8 GB"
"""


def _numbers(hardware: Hardware) -> dict[str, float]:
    values = {name: getattr(hardware, name) for name in NUMBERS}
    return {name: value for name, value in values.items() if value is not None}


def test_what_was_asked_for_is_there() -> None:
    assert set(TABLE) == ASKED_FOR


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_number_has_a_page_a_day_and_its_words(name: str) -> None:
    hardware = TABLE[name]
    numbers = _numbers(hardware)
    assert "read_bytes_per_s" in numbers
    assert set(hardware.sources) == set(numbers)
    for key, source in hardware.sources.items():
        assert source.url.startswith("https://"), key
        assert source.date is not None, key
        assert source.date >= date(2026, 11, 1), key
        assert source.quote.strip(), key


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_quote_without_a_derivation_holds_the_figure(name: str) -> None:
    # 3.35e12 may stand as "3,350 GB" or "3.35 TB": some scaling of it must be among the digits.
    hardware = TABLE[name]
    for key, value in _numbers(hardware).items():
        source = hardware.sources[key]
        if source.how:
            continue
        english = {float(d.replace(",", "")) for d in re.findall(ENGLISH, source.quote)}
        german = {float(d.replace(",", ".")) for d in re.findall(r"\d+,\d+", source.quote)}
        scaled = [value / 10**power for power in range(0, 16, 3)]
        assert any(f == pytest.approx(s) for s in scaled for f in english | german), (key, source)


def test_h100_is_that_of_the_specification() -> None:
    h100 = TABLE["h100"]
    assert h100.bf16_ops_per_s == 989e12
    assert h100.read_bytes_per_s == 3.35e12
    assert h100.memory_bytes == 80e9


@pytest.mark.parametrize("name", sorted(TABLE))
def test_rates_are_dense_and_in_order(name: str) -> None:
    hardware = TABLE[name]
    f32, bf16 = hardware.f32_ops_per_s, hardware.bf16_ops_per_s
    fp8, int8 = hardware.fp8_ops_per_s, hardware.int8_ops_per_s
    assert f32 or bf16
    if f32 and bf16:
        assert f32 <= bf16
    if bf16 and fp8 and name != "rtx-5090":  # whose bf16 figure is a measured one
        assert fp8 == pytest.approx(2 * bf16, rel=0.02)
    if bf16 and int8:
        assert 1.9 * bf16 <= int8 <= 4.1 * bf16
    assert hardware.read_bytes_per_s is not None
    if bf16 and hardware.kind == "gpu":  # operations per byte where both are used up
        assert 100 < bf16 / hardware.read_bytes_per_s < 450


def test_kin_have_the_same_chip() -> None:
    for number in ("bf16_ops_per_s", "fp8_ops_per_s", "int8_ops_per_s", "f32_ops_per_s"):
        assert getattr(TABLE["h100"], number) == getattr(TABLE["h200"], number)
        assert getattr(TABLE["a100"], number) == getattr(TABLE["a100-40gb"], number)


def test_accelerators_have_a_vendor() -> None:
    vendors = {h.name: h.vendor for h in TABLE.values()}
    assert vendors["mi300x"] == "amd"
    assert {vendors[h.name] for h in TABLE.values() if h.kind == "apple"} == {"apple"}
    assert all(vendors[h.name] in ("nvidia", "amd") for h in TABLE.values() if h.kind == "gpu")


@pytest.mark.parametrize(
    "lost", ['url = "https://example.org/box"', "date = 2026-11-30", 'quote = "8 GB"']
)
def test_a_number_without_its_source_is_refused_in_the_table(lost: str) -> None:
    assert parse_hardware(SOURCED, "table", sourced=True)["box"].memory_bytes == 8e9
    text = SOURCED.replace(lost, "")
    assert parse_hardware(text, "table")["box"].memory_bytes == 8e9  # a user's own file may
    with pytest.raises(UsageError, match=r"\[box\] memory_bytes has no source"):
        parse_hardware(text, "table", sourced=True)


def test_a_bare_number_is_refused_in_the_table() -> None:
    bare = '[box]\nkind = "cpu"\nmemory_bytes = 8e9\n'
    assert parse_hardware(bare, "mine.toml")["box"].memory_bytes == 8e9
    with pytest.raises(UsageError, match="has no source"):
        parse_hardware(bare, "mine.toml", sourced=True)


def test_the_table_is_short_lines_of_facts() -> None:
    text = files("headrace.limits.plan").joinpath("hardware.toml").read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert "\t" not in text
