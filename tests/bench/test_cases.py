"""Cases: which combinations a command line asks for."""

from __future__ import annotations

import pytest

from headrace.bench.cases import Case, Kind, Plan, numbers, prompt_ids
from headrace.errors import UsageError


def labels(**options: object) -> list[str]:
    return [case.label for case in Plan(**options).cases()]  # type: ignore[arg-type]


def test_a_batch_of_one_measures_prompts_and_generation_apart() -> None:
    assert labels(prompts=(512, 64), outputs=(128,)) == ["pp512", "pp64", "tg128"]


def test_larger_batches_measure_them_together_after_the_single_ones() -> None:
    assert labels(prompts=(128,), outputs=(64, 8), batches=(32, 1)) == [
        "pp128", "tg64", "tg8", "pp128+tg64 ×32", "pp128+tg8 ×32",
    ]  # fmt: skip


def test_batches_can_have_prompts_of_their_own() -> None:
    assert labels(prompts=(512,), outputs=(64,), batches=(1, 8), batch_prompts=(128,)) == [
        "pp512", "tg64", "pp128+tg64 ×8",
    ]  # fmt: skip


def test_every_depth_repeats_everything_and_zero_leaves_out() -> None:
    assert labels(prompts=(512,), outputs=(0,), depths=(0, 100)) == ["pp512", "pp512 @100"]
    assert labels(prompts=(0,), outputs=(5,), depths=(7,)) == ["tg5 @7"]


def test_contexts_and_starts() -> None:
    assert Case(Kind.PREFILL, 512, 0).context == 513
    assert Case(Kind.PREFILL, 512, 0, depth=100).context == 613
    assert Case(Kind.DECODE, 0, 64).context == 66  # a prompt of one token, its first token, 64 more
    assert Case(Kind.DECODE, 0, 64, depth=100).context == 165
    assert Case(Kind.DECODE, 0, 64).start == 1
    assert Case(Kind.BATCH, 128, 64, depth=10, batch=4).start == 138


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": (-1,)}, "-p -1 is out of range"),
        ({"outputs": (1 << 21,)}, "-n 2097152 is out of range"),
        ({"batches": (0,)}, "-npl 0 is out of range: 1 … 4096"),
        ({"batches": (4097,)}, "-npl 4097"),
        ({"batch_prompts": (0,)}, "-npp 0"),
        ({"depths": (-3,)}, "-d -3"),
        ({"repetitions": 0}, "-r 0"),
        ({"prompts": (0,), "outputs": (0,)}, "nothing to measure"),
        ({"prompts": (8,), "outputs": (0,), "batches": (2,)}, "nothing to measure"),
    ],
)
def test_numbers_out_of_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Plan(**options)  # type: ignore[arg-type]


def test_lists_of_numbers() -> None:
    assert numbers("-p", "512,128,512") == (512, 128)
    for text in ("", "1,", "a", "1.5", "1;2"):
        with pytest.raises(UsageError, match="-p takes whole numbers with commas"):
            numbers("-p", text)


def test_prompts_are_the_same_every_time_and_differ_between_sequences() -> None:
    ids = prompt_ids(1000, 50)
    assert ids == prompt_ids(1000, 50)
    assert ids[:20] == prompt_ids(1000, 20)
    assert ids[0] != prompt_ids(1000, 50, 1)[0]
    assert all(0 <= i < 1000 for i in ids)
    assert set(prompt_ids(2, 100)) == {0, 1}
