"""Random lives of a prefix tree: sequences that match, compute, fork, insert, end; pins; evictions.

Three witnesses follow every step. `PlainTree` says what the tree must hold and find. `written`
knows, for every place of every block, the prefix whose position was written there, so that whoever
reads through a table is checked like attention would be. Counts and structure are checked by the
tree's and the block manager's own `check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from engine.prefix.plain_tree import Key, PlainTree, flatten
from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    chain,
    first_hash,
)
from headrace.engine.prefix.node import to_bytes
from headrace.engine.prefix.tree import PrefixTree
from headrace.ops.kv import KVGroupSpec

#: Windows of the groups; None = full. One full group; mixed; only windows; several of each.
SHAPES: tuple[tuple[int | None, ...], ...] = (
    (None,),
    (None, 6),
    (5,),
    (None, None),
    (3, None, 9),
    (None, 8),
    (4, 11),
)
BLOCK = 4
SALTS = ("", "tenant")


@dataclass(eq=False)
class Running:
    """A sequence: its tokens, how many it computed, how many are stored in its blocks."""

    tokens: bytes
    salt: str
    blocks: SequenceBlocks
    num_computed: int
    num_stored: int


class Machine:
    """One tree with its witnesses. check_every: steps between full checks."""

    def __init__(self, random: Random, *, check_every: int = 1) -> None:
        self.random = random
        self.check_every = check_every
        windows = random.choice(SHAPES)
        specs = [KVGroupSpec(str(g), (g,), 1, 2, 2, window=w) for g, w in enumerate(windows)]
        num_blocks = random.choice([30, 60, 150])
        self.windows = windows
        self.length = random.choice([24, 48, 96])  # of the longest sequence
        self.manager = BlockManager(specs, [num_blocks] * len(specs), BLOCK, self.length)
        self.announced: set[bytes] = set()
        self.tree = PrefixTree(self.manager, self.hear if random.random() < 0.5 else None)
        self.plain = PlainTree(BLOCK, windows)
        self.written: dict[tuple[int, int, int], Key] = {}
        self.promised: set[tuple[int, int]] = set()  # blocks that the step will write
        self.running: list[Running] = []
        self.pins: list[Running] = []
        self.num_steps = 0
        self.happened = dict.fromkeys(("hits", "partial hits", "short hits", "evictions"), 0)
        self.alphabet = random.choice([2, 3, 5])

    # ---- one step -----------------------------------------------------------------------------

    def step(self) -> None:
        """One random operation and the checks that are due."""
        operations = (
            (10, self.compute),
            (4, self.finish),
            (2, self.fork),
            (1, self.pin),
            (1, self.unpin),
            (2, self.evict),
            (2, self.look),
        )
        self.num_steps += 1
        if self.random.random() < 0.002:
            self.clear()
        weights = [weight for weight, _ in operations]
        self.random.choices([operation for _, operation in operations], weights)[0]()
        if self.num_steps % self.check_every == 0:
            self.check()

    def check(self) -> None:
        """Everything that must hold between two operations."""
        self.tree.check()
        self.manager.check([holder.blocks for holder in (*self.running, *self.pins)])
        pages, oldest = flatten(self.tree, BLOCK, self.windows)
        assert pages == self.plain.pages
        assert oldest == self.plain.oldest
        for (_, key), blocks in pages.items():
            start = (len(key) - 1) // BLOCK * BLOCK
            full = [g for g, window in enumerate(self.windows) if window is None]
            for group, block in zip(full, blocks, strict=True):
                for position in range(start, len(key)):
                    place = (group, block, position - start)
                    assert self.written[place][1] == key[: position + 1]

        if self.tree.store.on_event:
            self.check_announced()

    def hear(self, event: CacheEvent) -> None:
        """What a listener knows from events alone."""
        if isinstance(event, BlockStored):
            assert not self.announced & set(event.block_hashes), "announced twice"
            assert event.parent_hash is None or event.parent_hash in self.announced
            self.announced.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            assert self.announced.issuperset(event.block_hashes)
            self.announced.difference_update(event.block_hashes)
        else:
            assert isinstance(event, AllBlocksCleared)
            self.announced.clear()

    def check_announced(self) -> None:
        """A listener knows exactly the full pages."""
        full = [(salt, key) for salt, key in self.plain.pages if len(key) % BLOCK == 0]
        names = {chain(first_hash(salt), to_bytes(list(key)), 4 * BLOCK)[-1] for salt, key in full}
        assert self.announced == names

    # ---- sequences ----------------------------------------------------------------------------

    def text(self) -> bytes:
        """Tokens that often begin like others."""
        length = self.random.randrange(1, self.length + 1)
        known = [s.tokens for s in (*self.running, *self.pins)]
        known += [self.random.choice(list(self.plain.pages))[1]] if self.plain.pages else []
        base = self.random.choice(known) if known and self.random.random() < 0.8 else b""
        kept = base[: self.random.randrange(len(base) + 1)]
        fresh = bytes(self.random.randrange(self.alphabet) for _ in range(self.length - len(kept)))
        return (kept + fresh)[:length]

    def attach(self) -> Running:
        """A newcomer with what the tree has of its tokens."""
        tokens, salt = self.text(), self.random.choice(SALTS)
        matched, usable = self.plain.match(tokens, salt)
        start = self.tree.peek(list(tokens), salt)
        match = self.tree.match(list(tokens), salt)
        assert match.start == start == max(min(match.num_stored, len(tokens) - 1), 0)
        assert match.num_matched == matched
        assert match.num_stored in usable
        if len(usable) <= 8:
            assert match.num_stored == max(usable), "not the best of equal neighbours"
        assert (match.short_reason is None) == (match.num_stored == matched)
        self.happened["hits"] += match.start > 0
        self.happened["partial hits"] += match.start > 0 and match.num_stored % BLOCK > 0
        self.happened["short hits"] += match.num_stored < match.num_matched
        blocks = self.tree.share(match)
        newcomer = Running(tokens, salt, blocks, match.start, match.num_stored)
        self.running.append(newcomer)
        return newcomer

    def compute(self) -> None:
        """One step of the engine: some sequences compute some tokens, newcomers of the very step
        among them; copies are made before anything is written, promises in between."""
        computing: list[tuple[Running, int]] = []
        for _ in range(self.random.randrange(1, 4)):
            idle = [s for s in self.running if all(s is not other for other, _ in computing)]
            if len(self.running) < 5 and (not idle or self.random.random() < 0.5):
                sequence = self.attach()
            elif idle:
                sequence = self.random.choice(idle)
            else:
                continue
            end = self.schedule(sequence)
            if end:
                computing.append((sequence, end))
                if self.random.random() < 0.6:
                    self.promise(sequence, end)
        for group, source, destination in self.manager.take_copies():
            for place in range(BLOCK):
                content = self.written.get((group, source, place))
                self.written.pop((group, destination, place), None)
                if content is not None:
                    self.written[group, destination, place] = content
        for sequence, end in computing:
            for position in range(sequence.num_stored, end):
                self.write(sequence, position)
        for sequence, end in computing:
            self.read(sequence, sequence.num_computed, end)
            sequence.num_computed = end
            sequence.num_stored = max(sequence.num_stored, end)
        self.tree.settle()
        self.plain.unwritten.clear()
        self.promised.clear()
        for sequence, _ in computing:
            if self.random.random() < 0.3:
                self.insert(sequence)
            if self.random.random() < 0.9:
                self.manager.trim(sequence.blocks, sequence.num_computed)

    def schedule(self, sequence: Running) -> int:
        """Blocks for some of the sequence's next tokens; the end of them, 0 = none."""
        end = min(
            sequence.num_computed + self.random.choice([1, 1, 1, 4, 9, 13]), len(sequence.tokens)
        )
        start = max(sequence.num_computed, sequence.num_stored)
        if end <= sequence.num_computed:
            return 0
        if end == start + 1 and start < sequence.blocks.num_writable:
            return end  # the scheduler's short way: nobody else holds that block
        if end > start:
            missing = self.manager.missing(sequence.blocks, start, end - start)
            if any(missing):
                self.evict(missing)
            if self.manager.fit(sequence.blocks, start, end - start) < end - start:
                return 0
            self.manager.extend(sequence.blocks, start, end - start)
        return end

    def write(self, sequence: Running, position: int) -> None:
        column, place = divmod(position, BLOCK)
        for group, table in enumerate(sequence.blocks.views):
            block = table[column]
            if self.manager.pools[group].tree_counts[block]:
                assert (group, block) in self.promised, "a block of the tree is written unannounced"
            self.written[group, block, place] = (sequence.salt, sequence.tokens[: position + 1])

    def read(self, sequence: Running, start: int, end: int) -> None:
        """What the rows [start, end) see."""
        for group, (window, table) in enumerate(
            zip(self.windows, sequence.blocks.views, strict=True)
        ):
            for position in range(0 if window is None else max(0, start - window + 1), end):
                block, place = table[position // BLOCK], position % BLOCK
                expected = (sequence.salt, sequence.tokens[: position + 1])
                assert self.written[group, block, place] == expected

    def entry(self, length: int) -> int | None:
        """An oldest position to enter at."""
        return self.random.choice([None, length, max(length - 1, 0), length // 2, 0])

    def promise(self, sequence: Running, end: int) -> None:
        whole = end // BLOCK * BLOCK
        entry = self.entry(whole)
        first = max(sequence.num_computed, sequence.num_stored)
        for group, table in enumerate(sequence.blocks.views):
            columns = range(first // BLOCK, whole // BLOCK)
            self.promised.update((group, table[column]) for column in columns)
        expected = self.plain.insert(
            sequence.tokens, sequence.blocks, whole, sequence.salt, entry, first
        )
        assert expected == self.tree.promise(
            list(sequence.tokens),
            sequence.blocks,
            end,
            first,
            salt=sequence.salt,
            entry_from=entry,
        )

    def insert(self, sequence: Running) -> None:
        length = sequence.num_computed
        entry = self.entry(length)
        arguments = (sequence.blocks, length)
        expected = self.plain.insert(sequence.tokens, *arguments, sequence.salt, entry)
        assert expected == self.tree.insert(
            list(sequence.tokens), *arguments, salt=sequence.salt, entry_from=entry
        )

    def finish(self) -> None:
        """A sequence ends, most leave what they computed."""
        if self.running:
            sequence = self.running.pop(self.random.randrange(len(self.running)))
            if self.random.random() < 0.8:
                self.insert(sequence)
            self.manager.close(sequence.blocks)

    def fork(self) -> None:
        """A second sample: goes on from the same blocks with other tokens."""
        if not self.running or len(self.running) >= 5:
            return
        parent = self.random.choice(self.running)
        computed = parent.num_computed
        if parent.num_stored > computed or computed == 0:
            return
        blocks = self.manager.fork(parent.blocks, computed, self.length)
        assert blocks is not None
        fresh = bytes(self.random.randrange(self.alphabet) for _ in range(self.length))
        tokens = (parent.tokens[:computed] + fresh)[: max(len(parent.tokens), computed + 1)]
        if len(tokens) > self.length:
            self.manager.close(blocks)
            return
        self.running.append(Running(tokens, parent.salt, blocks, computed, computed))

    # ---- pins, evictions ----------------------------------------------------------------------

    def pin(self) -> None:
        if len(self.pins) < 2 and self.plain.pages:
            salt, tokens = self.random.choice(list(self.plain.pages))
            match = self.tree.match(list(tokens), salt)
            blocks = self.tree.share(match)
            pinned = tokens[: match.num_stored]
            self.pins.append(Running(pinned, salt, blocks, match.start, match.num_stored))

    def unpin(self) -> None:
        if self.pins:
            self.manager.close(self.pins.pop(0).blocks)

    def look(self) -> None:
        """Asking changes nothing."""
        before = self.tree.num_bytes, self.tree.num_nodes, self.tree.num_tokens
        tokens, salt = self.text(), self.random.choice(SALTS)
        self.tree.peek(list(tokens), salt)
        lines = self.tree.summary([1] * len(self.windows))
        assert sum(line.num_nodes for line in lines) == self.tree.num_nodes
        assert sum(line.num_positions for line in lines) == self.tree.num_tokens
        assert before == (self.tree.num_bytes, self.tree.num_nodes, self.tree.num_tokens)

    def clear(self) -> None:
        self.tree.clear()
        self.plain.read_back(self.tree)
        assert not self.plain.pages
        assert all(not any(pool.tree_counts) for pool in self.manager.pools)

    def evict(self, shortages: list[int] | None = None) -> None:
        """Frees blocks, and judges what went for them."""
        pools = self.manager.pools
        if shortages is None:
            shortages = [self.random.randrange(4) for _ in pools]
        free = [pool.num_free for pool in pools]
        reclaimable = [pool.num_reclaimable for pool in pools]
        before_pages, _ = flatten(self.tree, BLOCK, self.windows)
        evictable = self.evictable_leaves()
        ages, held = self.page_ages(), self.held_pages(before_pages)
        had_effect = self.tree.evict(shortages)
        freed = [pool.num_free - count for pool, count in zip(pools, free, strict=True)]
        assert had_effect == any(freed)
        self.happened["evictions"] += had_effect
        for got, wanted, most in zip(freed, shortages, reclaimable, strict=True):
            assert got >= min(wanted, most), "less than could be had"
        pages, _ = flatten(self.tree, BLOCK, self.windows)
        assert pages.items() <= before_pages.items(), "an eviction changed or added a page"
        gone = before_pages.keys() - pages.keys()
        if self.windows == (None,):
            assert freed[0] == min(shortages[0], reclaimable[0]), "more than was asked for"
            left = [ages[key] for key in evictable & pages.keys()]
            if left:
                assert all(ages[key] <= min(left) for key in gone), "not the oldest first"
                assert not gone & held, "others hold it, and there was something else"
        self.plain.read_back(self.tree)

    def evictable_leaves(self) -> set[Key]:
        """Last pages of leaves that only the tree holds (one full group)."""
        found: set[Key] = set()
        if self.windows == (None,):
            counts = self.manager.pools[0].ref_counts
            for salt, node in self.tree.nodes():
                if not node.children and counts[node.blocks[-1]] == 1:
                    found.add((salt, b"".join(above.tokens for above in node.path())[::4]))
        return found

    def held_pages(self, pages: dict[Key, tuple[int, ...]]) -> set[Key]:
        """Pages whose block somebody else holds (one full group)."""
        if self.windows != (None,):
            return set()
        counts = self.manager.pools[0].ref_counts
        return {key for key, (block,) in pages.items() if counts[block] > 1}

    def page_ages(self) -> dict[Key, int]:
        ages: dict[Key, int] = {}
        for salt, node in self.tree.nodes():
            tokens = b"".join(above.tokens for above in node.path())[::4]
            for start in range(node.start, node.end, BLOCK):
                ages[salt, tokens[: min(start + BLOCK, node.end)]] = node.last_used
        return ages
