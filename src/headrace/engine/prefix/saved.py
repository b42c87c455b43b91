"""SavedPrefixes: a directory in which prefix trees outlive their process.

One file per stamp (stamp.py), so models and settings do not overwrite each other's; each holds the
tree as it was when it was last saved. What is not exactly of this engine's stamp is not used, and
the report says why in one sentence. Whoever may write the directory may put anything in: it is kept
private (0700), and nothing in it is executed or unpickled.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from headrace.engine.blocks import BlockManager
from headrace.engine.prefix.saved_file import (
    SUFFIX,
    SaveInProgressError,
    SaveWriter,
    open_saved,
    saved_files,
)
from headrace.engine.prefix.saved_index import DamagedSaveError
from headrace.engine.prefix.saved_read import Restorer, RestoreReport
from headrace.engine.prefix.saved_write import PrefixSave, SaveReport
from headrace.engine.prefix.stamp import Stamp
from headrace.engine.prefix.tree import PrefixTree
from headrace.ops.executor import Executor

log = logging.getLogger(__name__)

#: All files of a directory together; the least recently written go first.
LIMIT_BYTES = 8 << 30
#: Files whose stamps are read to say why none of them fits.
_MAX_LOOKED_AT = 32
_EMPTY = "There are no prefixes to save."


class SavedPrefixes:
    """stamp: of the engine whose tree, blocks and KV memory these are."""

    save_type: type[PrefixSave] = PrefixSave

    def __init__(
        self,
        directory: Path,
        stamp: Stamp,
        tree: PrefixTree,
        manager: BlockManager,
        executor: Executor,
        *,
        max_positions: int,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._directory = directory
        self._path = directory / f"{stamp.key}{SUFFIX}"
        self._stamp = stamp
        self._tree = tree
        self._manager = manager
        self._executor = executor
        self._max_positions = max_positions
        self._limit = limit_bytes

    # ---- restoring --------------------------------------------------------------------------

    def restore(self) -> RestoreReport:
        """Puts what was saved into the tree; never raises for what is on disk."""
        began = time.monotonic()
        report = self._restore()
        if report.num_nodes:
            log.info("restored from %s: %s", self._directory,
                     _told(report.num_positions, report.num_bytes, began))  # fmt: skip
        if report.reason is not None:
            unused = not report.num_nodes and report.reason != self._nothing_yet
            level = logging.WARNING if unused or report.num_dropped else logging.INFO
            log.log(level, "%s", report.reason)
        return report

    def _restore(self) -> RestoreReport:
        try:
            with open_saved(self._path) as file:
                difference = self._stamp.difference(file.stamp)
                if difference is not None:  # a renamed file
                    return RestoreReport(reason=self._foreign(difference))
                restorer = Restorer(
                    file, self._tree, self._manager, self._executor, self._max_positions
                )
                return restorer.run()
        except (FileNotFoundError, NotADirectoryError):
            return RestoreReport(reason=self._why_none())
        except DamagedSaveError as error:
            reason = f"{self._path} is damaged ({error}), so nothing of it is used."
        except OSError as error:
            reason = f"{self._path} cannot be read ({error.strerror}), so nothing of it is used."
        return RestoreReport(reason=reason)

    @property
    def _nothing_yet(self) -> str:
        return f"{self._directory} holds no saved prefixes."

    def _why_none(self) -> str:
        """Why there is no file of this stamp: what the last written others are."""
        for path in saved_files(self._directory)[:_MAX_LOOKED_AT]:
            try:
                with open_saved(path) as file:
                    difference = self._stamp.difference(file.stamp)
            except (OSError, DamagedSaveError):
                continue
            if difference is not None:
                return self._foreign(difference)
        return self._nothing_yet

    def _foreign(self, difference: str) -> str:
        return (
            f"The prefixes saved in {self._directory} were computed with {difference}, so none of "
            "them is used."
        )

    # ---- saving -----------------------------------------------------------------------------

    def begin_save(self) -> PrefixSave | SaveReport:
        """A save to be driven piece by piece, then ended by `finish` or `give_up`; a report where
        none can begin."""
        if not self._tree.num_nodes:
            log.info(_EMPTY)
            return SaveReport(reason=_EMPTY)
        try:
            writer = SaveWriter(self._path, self._stamp)
        except SaveInProgressError:
            return _refused(
                f"Another save into {self._directory} is running, so nothing was saved."
            )
        except OSError as error:
            return _refused(self._unwritable(error))
        sizes = [group.block_bytes for group in self._stamp.groups]
        return self.save_type(self._tree.store, self._executor, writer, sizes, self._limit)

    def save(self) -> SaveReport:
        """The whole tree at once; never raises for the disk's sake."""
        save = self.begin_save()
        if isinstance(save, SaveReport):
            return save
        try:
            while save.collect():
                save.write()
        except OSError as error:
            return self.give_up(save, error)
        except BaseException:
            save.abandon()
            raise
        return self.finish(save)

    def finish(self, save: PrefixSave) -> SaveReport:
        """Completes a save of which all is collected. Any thread."""
        try:
            report = save.finish()
        except OSError as error:
            return _refused(self._unwritable(error))
        self._evict()
        told = _told(report.num_positions, report.num_bytes, save.began_s)
        log.info("saved to %s: %s", self._directory, told)
        return report

    def give_up(self, save: PrefixSave, error: OSError) -> SaveReport:
        """Ends a save that could not write; the old file stays."""
        save.abandon()
        return _refused(self._unwritable(error))

    def _unwritable(self, error: OSError) -> str:
        return f"Prefixes cannot be saved into {self._directory} ({error.strerror})."

    def _evict(self) -> None:
        """Removes the files that were written longest ago until the rest are within the limit."""
        used = 0
        for path in saved_files(self._directory):
            try:
                used += path.stat().st_size
                if used > self._limit and path != self._path:
                    path.unlink()
            except OSError:
                continue


def _refused(reason: str) -> SaveReport:
    log.warning("%s", reason)
    return SaveReport(reason=reason)


def _told(num_positions: int, num_bytes: int, began_s: float) -> str:
    seconds = max(time.monotonic() - began_s, 1e-9)
    size = num_bytes / 1e6
    rate = f"{size:,.0f} MB in {seconds:.2f} s ({size / seconds:,.0f} MB/s)"
    return f"{num_positions:,} positions, {rate}"
