"""A target with every drafter at hand, in one engine: what a request takes with each of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from headrace.engine.config import EngineConfig, EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, native_executor, resolve_config, vocabulary_of
from headrace.engine.params import SamplingParams
from headrace.engine.speculation.draft_model import DraftModel
from headrace.engine.speculation.drafter import Drafter
from headrace.engine.speculation.vocabularies import check_vocabularies
from headrace.lab.lab import Lab
from headrace.lab.speculation.drafters import Noised, Replay, Switch, Wrong, early_exit

#: Target → a smaller model of the same vocabulary; others are drafted for by their own copies.
DRAFTS: Mapping[str, str] = {"qwen2.5-coder-1.5b": "qwen2.5-coder-0.5b"}
QUANTIZED = "q4_0"
#: Share of its tokens that the noised drafter spoils.
NOISE = 0.3
#: The ways to decode.
PLAIN, WRONG, NGRAM, REPLAY = "plain", "never right", "n-gram", "always right"
EARLY_EXIT, NOISED, DRAFT = "early exit", "draft model, noised", "draft model"
_MAX_MODEL_LEN = 1024
#: What the target is asked, one after the other: some answers repeat their prompt, some do not.
PROMPTS = (
    '''Here is a Python function:

def area(width, height):
    """The area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("sides must not be negative")
    return width * height

Write the same function again with the names width and height changed to a and b, and then write \
five tests of it with pytest.
''',
    """# A queue of limited size, for several threads.
class BoundedQueue:
    def __init__(self, size):
""",
    """Explain in plain words what a hash table is, when it is slow, and what it is used for.

A hash table
""",
    """SELECT customers.name, SUM(orders.total) AS spent
FROM customers JOIN orders ON orders.customer_id = customers.id
GROUP BY customers.name;

The same query, for orders of the year 2024 alone, the ten highest first:
""",
    """Translate this C function to Python.

int count_words(const char *text) {
    int words = 0, inside = 0;
    for (; *text; text++) {
        if (*text == ' ' || *text == '\\n') inside = 0;
        else if (!inside) { inside = 1; words++; }
    }
    return words;
}
""",
    """import argparse

def main():
    parser = argparse.ArgumentParser(description="Resize all pictures of a directory.")
""",
    '''def fibonacci(n):
    """The first n Fibonacci numbers as a list."""
''',
    """{"name": "Ada", "born": 1815, "field": "mathematics"}
{"name": "Alan", "born": 1912, "field": "logic"}
{"name": "Grace", "born": 1906, "field": "compilers"}
""",
)


def draft_model_of(lab: Lab) -> OpenModel:
    """Who guesses for the run's model."""
    name = lab.open().name
    return lab.open(DRAFTS[name]) if name in DRAFTS else lab.open(name, quantize=QUANTIZED)


@dataclass(frozen=True, slots=True)
class Run:
    """One request. seconds: of its decode steps. rounds: steps that had drafts, and plain ones."""

    tokens: list[int]
    seconds: float
    num_rounds: int
    num_tested: int
    num_accepted: int

    @property
    def tok_per_s(self) -> float:
        return (len(self.tokens) - 1) / self.seconds


class Bench:
    """A target with every drafter at hand. drafters: name → how it guesses. prompt: one of prompts;
    remember anew after another was set."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        target, draft = lab.open(), draft_model_of(lab)
        num_ids = check_vocabularies(target.tokenizer, draft.tokenizer, target.name, draft.name)
        options = EngineOptions(
            max_model_len=_MAX_MODEL_LEN, max_num_seqs=1, num_threads=lab.threads,
            enable_prefix_caching=False, speculative="draft",
        )  # fmt: skip
        self._config = resolve_config(target, options, draft)
        lab.tell("packing the models")
        self._executor = native_executor(replace(target.program, identity=()), self._config)
        shallow = early_exit(target, target.program.num_layers // 2)
        small = self._drafter(draft, num_ids)
        self._wrong, self._replay = Wrong(num_ids), Replay(num_ids)
        self._ways: dict[str, Drafter] = {
            WRONG: self._wrong,
            EARLY_EXIT: self._drafter(shallow, num_ids),
            NOISED: Noised(self._drafter(draft, num_ids), NOISE, num_ids, lab.seed),
            DRAFT: small,
            REPLAY: self._replay,
        }
        self._switch = Switch(self._wrong)
        self.engine = lab.fault.engine(
            self._executor, vocabulary_of(target), self._config, draft=self._switch
        )
        self.prompts = [target.tokenizer.encode(p, add_special=True) for p in PROMPTS]
        self.prompt = self.prompts[0]
        self._draft = draft

    @property
    def drafters(self) -> list[str]:
        """All of them; the first never is right, the last always."""
        names = list(self._ways)
        return [*names[:1], NGRAM, *names[1:]]

    def _drafter(self, model: OpenModel, num_ids: int) -> DraftModel:
        config = replace(self._config, pools=self._plain_config(model).pools)
        executor = native_executor(
            replace(model.program, identity=()), config, pool=self._executor.pool
        )
        return DraftModel(executor, config, min(num_ids, model.program.vocab_size))

    def _plain_config(self, model: OpenModel) -> EngineConfig:
        options = EngineOptions(
            max_model_len=_MAX_MODEL_LEN, max_num_seqs=1, num_threads=self._lab.threads,
            enable_prefix_caching=False,
        )  # fmt: skip
        return resolve_config(model, options)

    def remember(self, text: list[int]) -> None:
        """What the target says behind the prompt: the two extreme drafters know it."""
        for drafter in (self._wrong, self._replay):
            drafter.num_prompt, drafter.text = len(self.prompt), text

    def run(self, name: str, gamma: int, params: SamplingParams) -> Run:
        """One request. name: PLAIN, NGRAM or one of the drafters."""
        if name == PLAIN:
            chosen = params.replace(speculative="off")
        elif name == NGRAM:
            chosen = params.replace(speculative="ngram", num_draft_tokens=gamma)
        else:
            self._switch.current = self._ways[name]
            chosen = params.replace(speculative="draft", num_draft_tokens=gamma)
        return run_request(self.engine, self.prompt, chosen)

    @cached_property
    def alone(self) -> Engine:
        """The draft model as a model of its own."""
        config = self._plain_config(self._draft)
        executor = native_executor(
            replace(self._draft.program, identity=()), config, pool=self._executor.pool
        )
        return Engine(executor, vocabulary_of(self._draft), config)

    def draft_alone(self, params: SamplingParams) -> Run:
        """The draft model as a model of its own: what a guess costs."""
        return run_request(self.alone, self.prompt, params.replace(speculative="off"))


def run_request(engine: Engine, prompt: list[int], params: SamplingParams) -> Run:
    """One request from an empty cache to its end; its time begins behind the first token."""
    engine.cache.clear()
    request = engine.add(prompt, params)
    generation = None
    while engine.has_work and generation is None:
        engine.step()
        if request.generations[0].token_ids:
            generation = request.generations[0]
    began = time.perf_counter()
    rounds = 0
    while engine.has_work:
        engine.step()
        rounds += 1
    seconds = time.perf_counter() - began
    assert generation is not None
    account = request.speculation_account
    tested, accepted = (account.num_tested, account.num_accepted) if account else (0, 0)
    return Run(list(generation.token_ids), seconds, rounds, tested, accepted)
