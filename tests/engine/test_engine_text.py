"""Real tokenizers under a scripted model: the stream of text, character by character.

The scripted model wants exactly the ids of a given text, whatever they are, so that every case can
force the token borders it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from toy import FULL, make_engine, run_all

from headrace.engine.admission import Vocabulary
from headrace.engine.generation import Request
from headrace.engine.model import open_model, vocabulary_of
from headrace.engine.outputs import Delta
from headrace.engine.params import SamplingParams
from headrace.formats.detokenizer import Detokenizer
from headrace.formats.tokenizer import Tokenizer
from headrace.ops.batch import Batch
from headrace.ops.kv import KVFormat, KVGroupSpec

pytestmark = pytest.mark.models


class Script:
    """An Executor that wants script[p − first] as the token at position p."""

    def __init__(self, vocab: int, script: list[int], first: int) -> None:
        self._vocab = vocab
        self._script = script
        self._first = first

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        return (FULL,)

    @property
    def vocab_size(self) -> int:
        return self._vocab

    @property
    def hidden_size(self) -> int:
        return 1

    @property
    def pool(self) -> None:
        return None

    def allocate_kv(self, num_blocks: Sequence[int], block_size: int, fmt: KVFormat) -> None: ...

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None: ...

    @property
    def kv_identity(self) -> str:
        raise NotImplementedError

    def read_block(self, group: int, block: int) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def write_block(self, group: int, block: int, data: npt.NDArray[np.uint8]) -> None:
        raise NotImplementedError

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        out = np.zeros((len(batch.logit_rows), self._vocab), np.float32)
        for i, row in enumerate(batch.logit_rows.tolist()):
            index = int(batch.positions[0, row]) + 1 - self._first
            out[i, self._script[index]] = 50.0
        return out

    def prompt_logits(
        self, batch: Batch, rows_per_call: int = 8
    ) -> Iterator[npt.NDArray[np.float32]]:
        raise NotImplementedError

    def final_hidden(
        self, batch: Batch, rows: npt.NDArray[np.int32], rows_per_call: int = 64
    ) -> Iterator[npt.NDArray[np.float32]]:
        raise NotImplementedError


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    model = open_model(request.param)
    assert vocabulary_of(model).num_ids <= model.program.vocab_size
    return model.tokenizer


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """`text` as one token per byte: the worst case for a stream."""
    by_byte: dict[bytes, int] = {}
    for token_id in reversed(range(tokenizer.num_ids)):
        data = tokenizer.token_bytes(token_id)
        if len(data) == 1 and not tokenizer.is_special(token_id):
            by_byte[data] = token_id
    return [by_byte[bytes([b])] for b in text.encode()]


def play(
    tokenizer: Tokenizer, ids: list[int], params: SamplingParams | None = None
) -> tuple[Request, list[Delta]]:
    prompt = tokenizer.encode("The")
    end = tokenizer.eos_ids[0]
    script = Script(tokenizer.num_ids, [*ids, end, end, end], len(prompt))
    vocabulary = Vocabulary(
        tokenizer.num_ids,
        frozenset(tokenizer.eos_ids),
        lambda skip: Detokenizer(tokenizer, skip_special=skip, continuation=True),
        tokenizer.token_text,
    )
    engine = make_engine(script, max_model_len=200, block_size=16, vocabulary=vocabulary)
    request = engine.add(prompt, params or SamplingParams(temperature=0, max_tokens=None))
    return request, run_all(engine)


@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧‍👦 family", "Привет, мир", "漢字かな交じり文", "naïve café", "नमस्ते", " leading"]
)
def test_row_43_bytes_of_a_character_are_never_split(tokenizer: Tokenizer, text: str) -> None:
    request, deltas = play(tokenizer, byte_ids(tokenizer, text))
    assert [d.text for d in deltas if d.text] == list(text)
    assert request.generations[0].text == text
    assert deltas[-1].finish_reason == "stop"
    assert all("\ufffd" not in d.text for d in deltas)


def test_row_43_an_unfinished_character_at_the_end_becomes_one_mark(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, "ok 漢")[:-1]
    request, deltas = play(tokenizer, ids)
    assert request.generations[0].text == "".join(d.text for d in deltas) == "ok \ufffd"


def test_row_44_a_leading_space_is_kept_in_the_stream(tokenizer: Tokenizer) -> None:
    ids = [
        *tokenizer.encode(" ", add_special=False),
        *tokenizer.encode(" leading", add_special=False),
        *tokenizer.encode(" x", add_special=False),
    ]
    request, deltas = play(tokenizer, ids)
    whole = tokenizer.decode(ids, continuation=True)
    assert request.generations[0].text == "".join(d.text for d in deltas) == whole
    assert whole.startswith("  leading")


def test_row_45_stop_strings_with_real_tokens(tokenizer: Tokenizer) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=None)
    for ids in (
        byte_ids(tokenizer, "ABCDEFGHIJ K"),
        tokenizer.encode("ABCDEFGHIJ K", add_special=False),
    ):
        request, deltas = play(tokenizer, ids, greedy.replace(stop="DEFGHIJ"))
        assert "".join(d.text for d in deltas) == "ABC" == request.generations[0].text
        assert deltas[-1].finish_reason == "stop"
        assert deltas[-1].stop_reason == "DEFGHIJ"
    ids = tokenizer.encode("alpha beta gamma delta", add_special=False)
    request, deltas = play(tokenizer, ids, greedy.replace(stop=["beta gamma"]))
    assert "".join(d.text for d in deltas).strip() == "alpha"


def test_row_46_nothing_leaks_behind_a_stop_string(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one, two, three, four, five, six", add_special=False)
    greedy = SamplingParams(temperature=0, max_tokens=None)
    request, deltas = play(tokenizer, ids, greedy.replace(stop="five"))
    assert "".join(d.text for d in deltas) == "one, two, three, four, "
    assert request.generations[0].text == "one, two, three, four, "


def test_a_stop_string_in_the_middle_of_a_character_s_bytes_waits(tokenizer: Tokenizer) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=None)
    request, deltas = play(tokenizer, byte_ids(tokenizer, "a漢字b"), greedy.replace(stop="字"))
    assert "".join(d.text for d in deltas) == "a漢"
    assert request.generations[0].stop_reason == "字"


def test_special_tokens_are_left_out_unless_asked_for(tokenizer: Tokenizer) -> None:
    word = tokenizer.encode("word", add_special=False)
    special = next(i for i in tokenizer.special_ids if i not in tokenizer.eos_ids)
    ids = [*word, special, *word]
    shown = SamplingParams(temperature=0, max_tokens=None, skip_special_tokens=False)
    request, _ = play(tokenizer, ids)
    assert request.generations[0].text == "wordword"
    request, _ = play(tokenizer, ids, shown)
    assert request.generations[0].text == f"word{tokenizer.token_text(special)}word"
