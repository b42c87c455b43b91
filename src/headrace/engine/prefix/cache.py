"""PrefixCache: the prefix cache of an engine as its users see it: pins, saves, a clean slate.

What the scheduler and the step do with it is `reuse` (reuse.py). On the engine's thread only, but
for `check_pin`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from headrace.engine.blocks import BlockManager
from headrace.engine.config import EngineConfig
from headrace.engine.prefix.events import Listener
from headrace.engine.prefix.pins import Pin, Pins
from headrace.engine.prefix.reuse import PrefixReuse
from headrace.engine.prefix.saved import SavedPrefixes
from headrace.engine.prefix.saved_read import RestoreReport
from headrace.engine.prefix.saved_write import SaveReport
from headrace.engine.prefix.stamp import IdentityOf, Stamp, stamp_of
from headrace.engine.prefix.tree import PrefixTree
from headrace.errors import UsageError
from headrace.ops.executor import Executor


class PrefixCache:
    """One per engine. executor: of whose KV memory the manager gives out the blocks. num_ids: size
    of the tokenizer. identity: the model by content, for saved prefixes. on_event: told what can be
    found from now on and what no longer (events.py).

    restored, saved: reports of the last restore and the last save.
    """

    #: What finds and what saves; `verify` plants faults by others.
    tree_type: type[PrefixTree] = PrefixTree
    saved_type: type[SavedPrefixes] = SavedPrefixes

    def __init__(
        self,
        manager: BlockManager,
        executor: Executor,
        config: EngineConfig,
        num_ids: int,
        *,
        identity: IdentityOf | None = None,
        on_event: Listener | None = None,
    ) -> None:
        tree = self.tree_type(manager, on_event) if config.prefix_caching else None
        self.reuse = PrefixReuse(manager, tree)
        self.restored: RestoreReport | None = None
        self.saved: SaveReport | None = None
        self._manager = manager
        self._executor = executor
        self._config = config
        self._num_ids = num_ids
        self._identity = identity
        self._stamp: Stamp | None = None

    @property
    def tree(self) -> PrefixTree | None:
        """None: the cache is off."""
        return self.reuse.tree

    def clear(self, *, pins: bool = False) -> None:
        """Forgets all cached prefixes that are not pinned, or (pins) those too; what runs goes
        on."""
        if pins and self.reuse.pins is not None:
            self.reuse.pins.release_all()
        self.reuse.clear()

    # ---- pins -----------------------------------------------------------------------------------

    def pin(self, token_ids: list[int], *, salt: str = "", ttl_s: float | None = None) -> Pin:
        """Keeps what is cached of a prefix until `release`, at most ttl_s seconds. Raises
        UsageError (nothing cached, caching off) or PinsFullError (pins hold too much)."""
        self.expire()
        expires = None if ttl_s is None else time.monotonic() + ttl_s
        return self._pins.pin(token_ids, salt, expires)

    def check_pin(self, num_positions: int) -> None:
        """What can be said against pinning so many positions before they are computed. Raises
        UsageError (caching off) or CapacityError (never). Any thread."""
        self._pins.check(num_positions)

    def release(self, pin_id: str) -> bool:
        """Ends a pin; whether there was one. What it held stays cached like anything else."""
        self.expire()
        return self.reuse.pins is not None and self.reuse.pins.release(pin_id)

    def expire(self) -> None:
        """Ends the pins whose time is over. Steps do it, too; without work there are none."""
        if self.reuse.pins:
            self.reuse.pins.expire(time.monotonic())

    @property
    def _pins(self) -> Pins:
        if self.reuse.pins is None:
            raise UsageError("The prefix cache is off, so nothing can be pinned.")
        return self.reuse.pins

    # ---- on disk --------------------------------------------------------------------------------

    def saved_in(self, directory: str | os.PathLike[str]) -> SavedPrefixes:
        """The prefixes that this engine saves in a directory. Raises UsageError where there is no
        prefix cache, or no identity of the model. Hashes the model, once."""
        if self.tree is None:
            raise UsageError("The prefix cache is off, so there is nothing to save or restore.")
        if self._stamp is None:
            self._stamp = self._make_stamp()
        return self.saved_type(
            Path(directory),
            self._stamp,
            self.tree,
            self._manager,
            self._executor,
            max_positions=self._config.max_model_len,
        )

    def save(self, directory: str | os.PathLike[str]) -> SaveReport:
        """Saves all cached prefixes, between two steps; also in `saved`, and logged. Never raises
        for the disk's sake: the report says what went wrong."""
        self.saved = self.saved_in(directory).save()
        return self.saved

    def restore(self, directory: str | os.PathLike[str]) -> RestoreReport:
        """Puts the prefixes that were saved for exactly this model and these settings into the
        cache; also in `restored`, and logged. The report says why some or all are not used."""
        self.restored = self.saved_in(directory).restore()
        return self.restored

    def _make_stamp(self) -> Stamp:
        if self._identity is None:
            raise UsageError("Prefixes are saved for a model by content, which was not given.")
        config, executor = self._config, self._executor
        groups = range(self._manager.num_groups)
        return stamp_of(
            self._identity(),
            executor.kv_identity,
            config.kv_format,
            config.block_size,
            executor.kv_groups,
            [executor.read_block(group, 0).size for group in groups],
            self._num_ids,
        )
