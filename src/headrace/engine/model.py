"""From a model's name to an engine: the one place where files, programs and executors meet.

name → formats.sources → checkpoint → models.load ─┬→ NativeModel ─→ Engine
                                    └→ tokenizer ──┴→ Vocabulary ─┘
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.engine.account import StepAccount
from headrace.engine.admission import Vocabulary
from headrace.engine.config import EngineConfig, EngineOptions, Machine, resolve
from headrace.engine.core import Engine
from headrace.engine.prefix.stamp import ModelIdentity
from headrace.engine.speculation.draft_model import DraftModel
from headrace.engine.speculation.vocabularies import check_vocabularies
from headrace.errors import UsageError
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.detokenizer import Detokenizer
from headrace.formats.fetching import Reporter
from headrace.formats.sources import resolve as resolve_source
from headrace.formats.tensors import FileCheckpoint
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_load import load_tokenizer
from headrace.models.load import LoadedModel, load
from headrace.models.quantize import parse_format
from headrace.models.quantize import quantize as quantize_weights
from headrace.ops.executor import Executor
from headrace.ops.native import NativeModel
from headrace.ops.packed import PackedWeights
from headrace.ops.weight_cache import WeightCache
from headrace.ops.weight_key import content_key

if TYPE_CHECKING:
    from headrace.formats.chat_template import ChatTemplate
    from headrace.native import _core

log = logging.getLogger(__name__)

ExecutorFactory = Callable[[LoadedModel, EngineConfig], Executor]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model opened and translated, not yet bound to an executor. Its weights are views of the
    mapped files, or pending where they are quantised at load. name: as the user gave it.
    quantize: the format that was asked for."""

    name: str
    path: Path
    checkpoint: FileCheckpoint
    program: LoadedModel
    tokenizer: Tokenizer
    quantize: str | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as stored."""
        return sum(tensor.num_bytes for tensor in self.program.weights.values())

    def chat_template(self, override: str | None = None) -> ChatTemplate:
        """See formats.chat_template.load_chat_template."""
        from headrace.formats.chat_template import load_chat_template  # loads jinja2

        return load_chat_template(self.checkpoint, self.tokenizer, override=override)


def open_model(
    name: str,
    *,
    quantize: str | None = None,
    num_threads: int | None = None,
    offline: bool | None = None,
    progress: Reporter | None = None,
    role: str = "",
) -> OpenModel:
    """Resolves (fetching if need be), opens and translates a model.

    quantize: a number format ("q8_0", "q4_k", …) for the matrices of linear layers, which are then
    quantised while they are packed (models/quantize.py), by num_threads threads; a note says what
    became of them, led by role where there are several models. Raises UsageError for an unknown
    format, ModelSourceError or ModelFileError, each one sentence naming the thing and the remedy.
    """
    wanted = None if quantize is None else parse_format(quantize)
    path = resolve_source(name, offline=offline, progress=progress)
    checkpoint = open_checkpoint(path)
    program = replace(load(checkpoint), identity=_identity(checkpoint))
    if wanted is not None:
        done = quantize_weights(program, wanted, threads=num_threads)
        program = done.model
        if progress is not None:
            progress.note(f"{role}: {done.describe()}" if role else done.describe())
    return OpenModel(name, path, checkpoint, program, load_tokenizer(checkpoint), quantize)


def open_draft(
    name: str | os.PathLike[str] | OpenModel | None,
    *,
    quantize: str | None = None,
    num_threads: int | None = None,
    offline: bool | None = None,
    progress: Reporter | None = None,
) -> OpenModel | None:
    """`open_model` for a draft model; None: there is none. The target's own file, quantised to
    fewer bits, is a draft model too. Raises UsageError for a quantize without a name or of an
    unknown format."""
    if quantize is not None and (name is None or isinstance(name, OpenModel)):
        raise UsageError("draft_quantize is for a draft_model given by name.")
    if name is None or isinstance(name, OpenModel):
        return name
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"A draft model is a name or a path, not {type(name).__name__}.")
    if quantize is not None:
        parse_format(quantize, "draft_quantize")
    return open_model(
        os.fspath(name),
        quantize=quantize,
        num_threads=num_threads,
        offline=offline,
        progress=progress,
        role="draft model",
    )


def _identity(checkpoint: FileCheckpoint) -> tuple[str, ...]:
    """Size and time of change of every file."""
    states = (file.stat() for file in checkpoint.files)
    return tuple(f"{state.st_size} {state.st_mtime_ns}" for state in states)


def native_executor(
    program: LoadedModel,
    config: EngineConfig,
    *,
    weights: PackedWeights | None = None,
    pool: _core.Pool | None = None,
    isa: str | None = None,
) -> NativeModel:
    """The native interpreter, with buffers for the configuration's largest step. weights: packed
    by another NativeModel of the same model. pool, isa: see NativeModel. Troubles of the weight
    cache are logged."""
    pack = None
    if config.weight_cache is not None and program.identity:
        cache = WeightCache(config.weight_cache, note=log.warning)
        pack = cache.packer(program.identity, program.source)
    return NativeModel(
        program,
        max_tokens=config.max_num_batched_tokens,
        max_requests=config.max_num_seqs,
        max_context=config.max_model_len,
        num_threads=config.num_threads,
        isa=isa,
        pool=pool,
        weights=weights,
        pack=pack,
    )


def vocabulary_of(model: OpenModel) -> Vocabulary:
    """What the engine needs of the model's tokenizer."""
    tokenizer = model.tokenizer
    return Vocabulary(
        num_ids=min(tokenizer.num_ids, model.program.vocab_size),
        eos_ids=frozenset(tokenizer.eos_ids),
        new_stream=lambda skip: Detokenizer(tokenizer, skip_special=skip, continuation=True),
        token_text=tokenizer.token_text,
    )


def resolve_config(
    model: OpenModel, options: EngineOptions, draft: OpenModel | None = None
) -> EngineConfig:
    """Options for this model on this machine, with room for a draft model beside it."""
    return resolve(
        options,
        model.program.kv_groups,
        model.program.max_context,
        Machine.probe(os.environ),
        weight_bytes=model.weight_bytes + (0 if draft is None else draft.weight_bytes),
        draft_groups=None if draft is None else draft.program.kv_groups,
    )


def identity_of(model: OpenModel, num_threads: int) -> ModelIdentity:
    """The model by content; reads all of its weights once (ops.weight_key.content_key)."""
    return ModelIdentity(
        model.name, content_key(model.program, num_threads), model.tokenizer.fingerprint()
    )


def build_engine(
    model: OpenModel,
    options: EngineOptions,
    make_executor: ExecutorFactory = native_executor,
    account: StepAccount | None = None,
    draft: OpenModel | None = None,
) -> Engine:
    """An engine over an opened model. draft: guesses for it (speculative = "draft"). Raises
    UsageError, also where the vocabularies differ, CapacityError or NativeError."""
    config = resolve_config(model, options, draft)
    if draft is not None:
        num_ids = check_vocabularies(model.tokenizer, draft.tokenizer, model.name, draft.name)
    executor = make_executor(model.program, config)
    drafter = None
    if draft is not None:
        drafter = build_draft(draft, config, executor, num_ids, make_executor)
    return Engine(
        executor,
        vocabulary_of(model),
        config,
        account=account,
        draft=drafter,
        identity=lambda: identity_of(model, config.num_threads),
    )


def build_draft(
    draft: OpenModel,
    config: EngineConfig,
    target: Executor,
    num_ids: int,
    make_executor: ExecutorFactory = native_executor,
) -> DraftModel:
    """A draft model for an engine of this configuration. num_ids: that it shares with the target,
    with whose executor it shares the workers: they take turns anyway, and two pools of threads
    would spin against each other."""
    assert config.draft_pools is not None, "a draft model that the configuration does not know"
    config = replace(
        config,
        pools=config.draft_pools,
        max_model_len=min(config.max_model_len, draft.program.max_context),
    )
    if target.pool is None:
        executor = make_executor(draft.program, config)
    else:
        executor = native_executor(draft.program, config, pool=target.pool)
    return DraftModel(executor, config, min(num_ids, draft.program.vocab_size))
