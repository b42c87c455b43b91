"""Engine: the step loop. schedule → prepare → run → draw → commit, one step per call.

                add                    schedule               commit: last token drawn
    (caller) ─────────▶ waiting ────────────────▶ running ──────────────────────▶ finished
                         ▲ ▲                         │                               ▲
                  resume │ └──── preempted ──────────┘    abort, error: from any state
                      paused ◀── pause: from waiting and running

One thread at a time, whichever it is (`check` may be called by any beside it); nothing in here
waits on I/O. A failing request never takes the engine down:
what goes wrong for one sequence ends that sequence with an error. What every step does to a
sequence is the same whether it prefills, decodes, resumes or follows a cache hit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from headrace.engine import sampler
from headrace.engine.account import StepAccount
from headrace.engine.admission import Vocabulary, check_request, max_num_tokens, rank_of, seed_of
from headrace.engine.blocks import BlockManager, KVUsage
from headrace.engine.config import Allocator, EngineConfig
from headrace.engine.constraint import Constraint
from headrace.engine.contiguous import ContiguousBlockManager, GrowingBlockManager
from headrace.engine.copies import make_copies
from headrace.engine.drawing import Drawing
from headrace.engine.generation import Generation, Request, generation_of
from headrace.engine.invariants import check_invariants
from headrace.engine.outputs import Delta
from headrace.engine.params import SamplingParams
from headrace.engine.pooled_rows import PooledRows
from headrace.engine.pooling import Pooler, PoolingParams
from headrace.engine.prefix.cache import PrefixCache
from headrace.engine.prefix.events import Listener
from headrace.engine.prefix.stamp import IdentityOf
from headrace.engine.prepare import Preparer
from headrace.engine.report import report
from headrace.engine.request import FinishReason, Sequence, Status
from headrace.engine.scheduler import Plan, Scheduler, StepBudget
from headrace.engine.scoring import Logits, Observer, PromptScorer, RowScorer
from headrace.engine.speculation.choice import Choice, Speculative
from headrace.engine.speculation.drafter import Drafter
from headrace.engine.speculation.ngram import NgramDrafter
from headrace.engine.speculation.speculator import Speculator
from headrace.errors import QueueFullError, UsageError
from headrace.ops.executor import Executor

#: Logit rows of one step where drafts are computed: a row of a large vocabulary takes 0.6 MB.
MAX_LOGIT_ROWS = 256
#: How a prompt that is pooled is generated from: not at all.
_PROMPT_ONLY = SamplingParams(max_tokens=0)
#: Why a request that could use the prefix cache does not (Sequence.anew_because).
_NEEDS_LOGITS = "prompt logprobs need the logits of every prompt position"
_ASKED = "the request asked that its prompt be computed anew"


class Engine:
    """Owns the scheduler, the blocks and the executor's KV memory.

    executor: already bound to weights; gets its KV memory here. observer: see Observer. account:
    notes every step, if there is one; may be replaced between steps. draft: who guesses for
    speculative = "draft". identity, on_cache_event: see PrefixCache.
    """

    #: What builds batches, draws and gives out blocks; `verify` plants faults by others.
    preparer_type: type[Preparer] = Preparer
    drawing_type: type[Drawing] = Drawing
    manager_type: type[BlockManager] = BlockManager
    cache_type: type[PrefixCache] = PrefixCache

    def __init__(
        self,
        executor: Executor,
        vocabulary: Vocabulary,
        config: EngineConfig,
        observer: Observer | None = None,
        account: StepAccount | None = None,
        draft: Drafter | None = None,
        identity: IdentityOf | None = None,
        on_cache_event: Listener | None = None,
    ) -> None:
        self.config = config
        self.account = account
        self.vocabulary = vocabulary
        self._executor = executor
        self._whole_history = config.kv_allocator is Allocator.NONE
        self.manager = self._make_manager(executor, config)
        self.cache = self.cache_type(
            self.manager,
            executor,
            config,
            vocabulary.num_ids,
            identity=identity,
            on_event=on_cache_event,
        )
        self._prefixes = self.cache.reuse
        self.scheduler = Scheduler(
            StepBudget(
                config.max_num_seqs,
                config.max_num_batched_tokens,
                config.max_prefill_tokens,
                config.batching,
                self._whole_history,
                max(config.max_num_seqs, MAX_LOGIT_ROWS),
                config.schedule_policy,
            ),
            self.manager,
            self._prefixes,
        )
        self._preparer = self.preparer_type(
            num_groups=self.manager.num_groups,
            block_size=config.block_size,
            max_tokens=config.max_num_batched_tokens,
            max_seqs=config.max_num_seqs,
            max_columns=self.manager.max_columns,
        )
        self.speculator = self._make_speculator(draft)
        self._drawing = self.drawing_type(
            executor, vocabulary, self.scheduler, self.speculator, observer
        )
        self._scorer: RowScorer = observer or PromptScorer(executor, vocabulary.num_ids)
        self._num_scored = 0 if observer is None else 1  # requests whose prompt rows are wanted
        self._pooled_rows = PooledRows(executor)
        self._num_pooled = 0  # requests for a vector
        self._num_drawless = 0  # requests of which only the prompt is computed
        self._requests: dict[int, Request] = {}
        self._next_id = 0
        self.num_steps = 0
        self.num_finished = 0  # requests, ever
        self.num_copied_blocks = 0
        self.num_preemptions = 0  # of sequences, ever

    def _make_manager(self, executor: Executor, config: EngineConfig) -> BlockManager:
        pools = config.pools.num_blocks
        executor.allocate_kv(pools, config.block_size, config.kv_format)
        args = (executor.kv_groups, pools, config.block_size, config.max_model_len)
        if config.kv_allocator is Allocator.CONTIGUOUS:
            return ContiguousBlockManager(*args)
        if config.kv_allocator is Allocator.GROWING:
            return GrowingBlockManager(*args)
        return self.manager_type(*args, frees_window=config.kv_allocator is Allocator.PAGED)

    def _make_speculator(self, draft: Drafter | None) -> Speculator:
        drafters: dict[Speculative, Drafter] = {}
        if not self._whole_history:
            drafters[Speculative.NGRAM] = NgramDrafter()
            if draft is not None:
                drafters[Speculative.DRAFT] = draft
        speculator = Speculator(drafters, self.vocabulary.num_ids)
        speculator.check(self.config.speculation)
        return speculator

    def _choice(self, params: SamplingParams) -> Choice:
        """What a request chose of speculation, or the engine for it."""
        return self.config.speculation.changed(
            params.speculative, params.num_draft_tokens, params.acceptance
        )

    @property
    def executor(self) -> Executor:
        """What runs the steps. Its KV memory is the engine's: look, do not write."""
        return self._executor

    # ---- the door ---------------------------------------------------------------------------

    def check(self, prompt_token_ids: list[int], params: SamplingParams | PoolingParams) -> None:
        """Everything that can be said against a request before it is queued.

        Raises PromptError (empty, too long, ids out of range), UsageError (parameters) or
        CapacityError (can never fit the KV cache).
        """
        sampling = _PROMPT_ONLY if isinstance(params, PoolingParams) else params
        check_request(
            prompt_token_ids, sampling, self.vocabulary, self.config, self.scheduler.can_ever_fit
        )
        self.speculator.check(self._choice(sampling))

    @property
    def has_queue_room(self) -> bool:
        return len(self.scheduler.waiting) < self.config.max_queue

    def add(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams | PoolingParams,
        *,
        prompt: str | None = None,
        cache_salt: str | None = "",
        reads_cache: bool = True,
        priority: int = 0,
        arrived_s: float | None = None,
        constraint: Constraint | None = None,
    ) -> Request:
        """Queues a request and returns its handle; `check` errors, and QueueFullError when the
        queue is full. params: SamplingParams for text, PoolingParams for a vector. cache_salt:
        cached prefixes are shared only between requests of the same salt; None: it takes nothing
        from the prefix cache and leaves nothing. reads_cache: whether it may take something.
        priority: lower = earlier, −100 … 100; see admission.rank_of. arrived_s: time.monotonic()
        of its arrival, before tokenization; None = now. constraint: what every sample has to
        follow, in its first state; the request owns it from here on."""
        self.check(prompt_token_ids, params)
        if not self.has_queue_room:
            raise QueueFullError(
                f"The queue is full ({self.config.max_queue} requests wait); try again later."
            )
        pooler = None
        if isinstance(params, PoolingParams):
            assert constraint is None, "a constraint, and nothing to draw"
            pooler = Pooler(params, len(prompt_token_ids), self._executor.hidden_size)
            params = _PROMPT_ONLY
        if params.structured_outputs is not None and constraint is None:
            raise UsageError(
                "structured_outputs needs its compiled constraint; LLM passes it, and so must "
                "whoever calls Engine.add."
            )
        constraints: tuple[Constraint, ...] = ()
        if constraint is not None:
            constraints = (constraint, *(constraint.fork() for _ in range(params.n - 1)))
        request_id = self._next_id
        self._next_id += 1
        request = Request(
            request_id,
            prompt,
            prompt_token_ids,
            params,
            seed_of(params, self.config.seed, request_id),
            self.vocabulary.eos_ids,
            self.vocabulary.token_text,
            time.monotonic() if arrived_s is None else arrived_s,
            constraints,
        )
        request.pooler = pooler
        state = sampler.make_state(
            params, prompt_token_ids, eos_ids=sorted(self.vocabulary.eos_ids), seed=request.seed
        )
        sequence = Sequence(
            (request_id, 0),
            list(prompt_token_ids),
            max_num_tokens(len(prompt_token_ids), params, self.config),
            num_slots=params.n,
            rank=rank_of(request_id, priority),
            salt=None if pooler is not None or self.cache.tree is None else cache_salt,
            anew_because=_NEEDS_LOGITS
            if params.prompt_logprobs is not None
            else None
            if reads_cache
            else _ASKED,
        )
        request.generations.append(
            Generation(request, 0, sequence, state, self.vocabulary.stream(params), constraint)
        )
        self._requests[request_id] = request
        self._num_scored += params.prompt_logprobs is not None
        self._num_pooled += pooler is not None
        self._num_drawless += not sequence.draws
        self.speculator.open(request, self._choice(params))
        self.scheduler.add(sequence)
        return request

    def pause(self, request: Request) -> None:
        """Takes a request out of the steps until `resume`: its running places become free; its
        tokens stay and, until somebody needs them, its blocks. One that waits will wait at the same
        place again; one that has finished or is paused stays so. Changes no token of it."""
        for generation in request.generations:
            self.scheduler.pause(generation.sequence)
        request.note_pause(time.monotonic())

    def resume(self, request: Request) -> None:
        """Queues a paused request at its old place."""
        for generation in request.generations:
            self.scheduler.resume(generation.sequence)
        request.note_pause(time.monotonic())

    def abort(self, request: Request, reason: str | None = None) -> list[Delta]:
        """Ends a request in any state; nothing happens when it has finished. Its last deltas.
        reason: a sentence for `error` of its outputs ("The client left.")."""
        deltas = []
        for generation in request.generations:
            if generation.finish_reason is None:
                deltas.append(generation.end(FinishReason.ABORT, reason))
                self._retire(generation)
        self._close_if_done(request)
        return deltas

    def requests(self) -> list[Request]:
        """Handles of all requests that have not finished, oldest first."""
        return list(self._requests.values())

    @property
    def has_work(self) -> bool:
        """Whether a step would do something; not when all that is left is paused."""
        return self.scheduler.has_work

    # ---- one step ---------------------------------------------------------------------------

    def step(self) -> list[Delta]:
        """Runs one step; the deltas of every sample that advanced or ended. [] without work."""
        scheduler = self.scheduler
        if not scheduler.has_work:
            return []
        started_s = time.monotonic() if self.account is not None else 0.0
        self.cache.expire()
        speculator = self.speculator
        if speculator.num_requests:
            plan = scheduler.schedule(speculator.propose(scheduler.running))
        else:
            plan = scheduler.schedule()
        if plan.admitted or plan.preempted or plan.reclaimed:
            self._note_schedule(plan)
        batch, hidden_rows, failed = None, None, False
        try:
            prompt_rows = self._scorer.rows(plan) if self._num_scored else []
            hidden_rows = self._pooled_rows.rows(plan) if self._num_pooled else None
            batch, drawing = self._preparer.build(plan, prompt_rows)
            if self.manager.pending_copies:
                self.num_copied_blocks += make_copies(self.manager, self._executor)
            logits = self._executor.run(batch)
            unscored = self._scorer.score(plan, batch) if prompt_rows else []
            if hidden_rows is not None:
                unscored += self._pooled_rows.collect(plan, batch, hidden_rows)
        except BaseException as error:
            # Whose fault it was cannot be known, and memory may be half written: all of them end,
            # and nobody may build on what they were to write.
            self._prefixes.clear()
            self.manager.take_copies()
            self.scheduler.take_back(plan)
            speculator.close_step(None)
            if not isinstance(error, Exception):  # Ctrl-C
                self._fail(plan.sequences, None, FinishReason.ABORT)
                if self._whole_history:
                    self._settle()
                raise
            report("a step failed; its requests end with an error")
            deltas = self._fail(plan.sequences, f"The step failed: {error!r}")
            failed = True
        else:
            self._prefixes.settle()
            self._commit(plan)
            deltas = []
            if unscored:
                what = "The model gave prompt logits or hidden values that are not finite."
                deltas = self._fail(unscored, what)
            deltas += self._draw(plan, drawing, logits)
            if self._num_drawless:
                deltas += self._end_drawless(plan)
        if self._whole_history:
            self._settle()
        self.num_steps += 1
        if self.account is not None and batch is not None:
            num_hidden = 0 if hidden_rows is None else len(hidden_rows)
            self.account.note(self, started_s, plan, batch, num_hidden, failed=failed)
        if self.config.debug_invariants:
            self.check_invariants()
        return deltas

    def _note_schedule(self, plan: Plan) -> None:
        for sequence in (*plan.preempted, *plan.reclaimed):
            self.num_preemptions += 1
            generation_of(sequence).request.num_preemptions += 1
        for sequence in plan.admitted:
            request = generation_of(sequence).request
            if request.first_token_s is None:
                request.scheduled_s = time.monotonic()
                request.cache_note = sequence.cache_note

    def _commit(self, plan: Plan) -> None:
        """The step's positions are in memory now, window blocks behind them can go; those of drafts
        do not count before the drafts are accepted."""
        trims = self.manager.trims
        for sequence, count in zip(plan.sequences, plan.num_new_tokens, strict=True):
            computed = sequence.num_computed_tokens + count - len(sequence.drafts)
            sequence.num_computed_tokens = computed
            if computed > sequence.num_stored_tokens:
                sequence.num_stored_tokens = computed
            generation = generation_of(sequence)
            generation.request.num_computed_tokens += count
            if trims:
                assert sequence.blocks is not None
                self.manager.trim(sequence.blocks, computed)

    def _commit_accepted(self) -> None:
        """The positions of accepted drafts are computed too; the rest of the drafts never were, and
        what they left behind is overwritten."""
        for sequence, trial in self.speculator.trials.items():
            if trial.num_accepted:
                computed = sequence.num_computed_tokens + trial.num_accepted
                sequence.num_computed_tokens = sequence.num_stored_tokens = computed
                if self.manager.trims:
                    assert sequence.blocks is not None
                    self.manager.trim(sequence.blocks, computed)

    def _draw(self, plan: Plan, drawing: list[Sequence], logits: Logits) -> list[Delta]:
        """A token for every sequence whose last token was just computed; ends those that ended."""
        generations, deltas = self._drawing.draw(drawing, logits)
        if self.speculator.has_asked:
            self._commit_accepted()
            self.speculator.close_step(plan)
        for generation in generations:
            if generation.finish_reason is not None:
                self._retire(generation)
                self._close_if_done(generation.request)
        return deltas

    def _end_drawless(self, plan: Plan) -> list[Delta]:
        """Ends the samples that draw nothing and whose prompt is computed."""
        deltas = []
        for sequence in plan.sequences:
            done = sequence.num_wanted == 0 and sequence.status is Status.RUNNING
            if sequence.draws or not done:
                continue
            first = generation_of(sequence)
            self._drawing.add_siblings(first)
            deltas += [g.end(FinishReason.LENGTH) for g in first.request.generations]
            self._retire(first)
            self._close_if_done(first.request)
        return deltas

    def _settle(self) -> None:
        """no_cache: throws the step's blocks away; the next step starts from position 0 again."""
        for sequence in self.scheduler.running:
            if sequence.blocks is not None:
                self.manager.close(sequence.blocks)
            sequence.num_computed_tokens = sequence.num_stored_tokens = 0

    # ---- ends -------------------------------------------------------------------------------

    def _retire(self, generation: Generation, *, keep: bool = True) -> None:
        """Takes an ended sample out of the scheduler; what it computed stays in the prefix tree, if
        it is sound (keep)."""
        sequence = generation.sequence
        if generation.finish_reason is FinishReason.ERROR:
            if generation.is_corrupted:
                self._prefixes.forget(sequence)
        elif keep:
            self._prefixes.keep(sequence)
        if sequence.status is not Status.FINISHED:
            self.scheduler.remove(sequence)
        self.speculator.forget(generation)

    def _close_if_done(self, request: Request) -> None:
        if not request.finished and all(g.finish_reason is not None for g in request.generations):
            request.finished_s = time.monotonic()
            request.note_pause(request.finished_s)
            self.num_finished += 1
            self._num_scored -= request.params.prompt_logprobs is not None
            self._num_pooled -= request.pooler is not None
            self._num_drawless -= request.params.max_tokens == 0
            self.speculator.close(request)
            self._requests.pop(request.request_id, None)

    def _fail(
        self,
        sequences: Iterable[Sequence],
        message: str | None,
        reason: FinishReason = FinishReason.ERROR,
    ) -> list[Delta]:
        """Ends sequences whose memory may be unsound."""
        deltas = []
        for sequence in list(sequences):
            generation = generation_of(sequence)
            if generation.finish_reason is None:
                deltas.append(generation.end(reason, message))
                self._retire(generation, keep=False)
                self._close_if_done(generation.request)
        return deltas

    # ---- account and checks ------------------------------------------------------------------

    def kv_usage(self) -> KVUsage:
        """How the KV memory is used right now."""
        holders = [
            (s.blocks, s.num_computed_tokens)
            for s in (*self.scheduler.running, *self.scheduler.parked)
            if s.blocks is not None
        ]
        return self.manager.usage(holders, self.config.pools.block_bytes)

    def check_invariants(self) -> None:
        """Raises AssertionError when block counts, queues or sequences disagree."""
        check_invariants(self.scheduler)
        pooled = sum(r.pooler is not None for r in self._requests.values())
        drawless = sum(r.params.max_tokens == 0 for r in self._requests.values())
        assert (self._num_pooled, self._num_drawless) == (pooled, drawless)
