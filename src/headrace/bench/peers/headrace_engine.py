"""Headrace through its own Engine, as a program would use it: scheduling, sampling, detokenizing
and stop checks are all inside the seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from headrace import __version__
from headrace.bench.peers.ggml import compiler_of
from headrace.bench.peers.peer import Ids, Load, Measured


class HeadraceEngine:
    """See peer.Peer."""

    def load(self, load: Load) -> dict[str, str]:
        from headrace.engine.llm import LLM
        from headrace.engine.params import SamplingParams
        from headrace.native import core
        from headrace.ops.native import NativeModel

        llm = LLM(
            load.model,
            max_model_len=max(load.max_context, load.batch_context),
            max_num_seqs=load.num_sequences,
            num_threads=load.num_threads,
            enable_prefix_caching=False,  # repetitions are to compute again
            offline=True,
        )
        self._engine = llm.engine
        self._params = SamplingParams(temperature=0.0, ignore_eos=True)
        executor = llm.engine.executor
        assert isinstance(executor, NativeModel)
        return {
            "version": f"headrace {__version__}",
            "compiler": compiler_of(Path(str(core().__file__))),
            "system": executor.isa,
            "settings": llm.config.describe(),
        }

    def prefill(self, ids: Ids) -> Measured:
        return self._run([ids], 1)

    def decode(self, ids: Ids, n: int) -> Measured:
        request = self._engine.add(list(ids), self._params.replace(max_tokens=n + 1))
        tokens = request.generations[0].token_ids
        while not tokens:
            self._engine.step()
        begin = time.perf_counter()
        while self._engine.has_work:
            self._engine.step()
        return Measured(time.perf_counter() - begin, list(tokens))

    def batch(self, prompts: Sequence[Ids], n: int) -> Measured:
        return self._run(prompts, n)

    def _run(self, prompts: Sequence[Ids], n: int) -> Measured:
        params = self._params.replace(max_tokens=n)
        begin = time.perf_counter()
        requests = [self._engine.add(list(ids), params) for ids in prompts]
        while self._engine.has_work:
            self._engine.step()
        return Measured(time.perf_counter() - begin, list(requests[0].generations[0].token_ids))
