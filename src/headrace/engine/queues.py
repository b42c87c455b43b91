"""Queues: where every sequence stands, and the blocks of those that do not run.

    add ──▶ waiting ──(scheduler)──▶ running ──▶ remove, from any
            ▲     ╲ pause             │ pause
            │      ╲                  ▼
            └ resume ────────────── paused

A paused sequence takes part in nothing and occupies no running place; resumed, it waits like any
other. Until somebody needs them it keeps its blocks: it is `parked`. Knows no steps.
"""

from __future__ import annotations

from bisect import insort

from headrace.engine.blocks import BlockManager
from headrace.engine.prefix.reuse import PrefixReuse
from headrace.engine.request import Sequence, Status


def _place(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.place


class Queues:
    """waiting, running and paused: sequences by age, oldest first; each is in at most one of them.
    parked: those that hold blocks while they do not run, paused or resumed.

    prefixes: where blocks that are given up stay for later, until somebody needs the room.
    keeps_blocks: whether blocks stay with a sequence between steps at all (no_cache: no).
    """

    def __init__(self, manager: BlockManager, prefixes: PrefixReuse, *, keeps_blocks: bool) -> None:
        self.manager = manager
        self.prefixes = prefixes
        self._keeps_blocks = keeps_blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.parked: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence by its age."""
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_place)

    def add_running(self, sequence: Sequence) -> None:
        """Takes a fork that already has blocks straight into the running set."""
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=_place)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, in any state; its blocks, if it still has some, are freed."""
        self._take_out(sequence)
        if sequence in self.parked:
            self.parked.remove(sequence)
        sequence.status = Status.FINISHED
        self._free(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Takes a running or waiting sequence out of the steps; nothing happens in other states."""
        if sequence.status not in (Status.RUNNING, Status.WAITING):
            return
        self._take_out(sequence)
        if sequence.status is Status.RUNNING:
            if self._keeps_blocks:
                insort(self.parked, sequence, key=_place)
            else:
                self._free(sequence)
        sequence.status = Status.PAUSED
        insort(self.paused, sequence, key=_place)

    def resume(self, sequence: Sequence) -> None:
        """Queues a paused sequence at its old place; nothing happens in other states."""
        if sequence.status is Status.PAUSED:
            self._take_out(sequence)
            self.add(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        queues = {
            Status.WAITING: self.waiting,
            Status.RUNNING: self.running,
            Status.PAUSED: self.paused,
        }
        if sequence.status in queues:
            queues[sequence.status].remove(sequence)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something: not when all that is left is paused."""
        return bool(self.running or self.waiting)

    def _reclaim_parked(self, wanting: Sequence) -> Sequence | None:
        """Frees the blocks of a sequence that does not run, never of `wanting`: paused ones before
        resumed ones, the newest first. None: nobody has any."""
        others = (s for s in self.parked if s is not wanting)
        victim = max(others, key=lambda s: (s.status is Status.PAUSED, s.place), default=None)
        if victim is not None:
            self.parked.remove(victim)
            self._lose_blocks(victim)
        return victim

    def _lose_blocks(self, sequence: Sequence) -> None:
        """For others: what it computed may have to be computed again."""
        self.prefixes.keep(sequence)
        self._free(sequence)
        sequence.num_preemptions += 1

    def _free(self, sequence: Sequence) -> None:
        """Gives up the blocks, and with them what is computed."""
        if sequence.blocks is not None:
            self.manager.close(sequence.blocks)
            sequence.blocks = None
        sequence.num_computed_tokens = 0
        sequence.num_stored_tokens = 0
