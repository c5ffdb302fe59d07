"""The producers of a partition: their windows, their open transactions, their snapshots on disk.

What is accepted is decided in `core.producer_window`; this owns the entries and keeps them with the log.
"""

import contextlib
import logging
import os
from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kbus.core.producer_window import (
    ProducerEntry,
    WrittenBatch,
    accept,
    end_transaction,
    find_duplicate,
    is_expired,
)
from kbus.records.batch import BatchHeader
from kbus.records.control import ControlType, EndTransactionMarker
from kbus.records.validation import AppendOrigin
from kbus.storage import layout
from kbus.storage.disk import Disk
from kbus.storage.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from kbus.storage.txn_index import AbortedTransaction
from kbus.types import Offset, ProducerId

logger = logging.getLogger(__name__)

_CLIENT = AppendOrigin.CLIENT


class EndedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    """Of the marker."""
    is_aborted: bool


@dataclass(slots=True)
class ProducerUpdate:
    """What an append will change, checked but not yet true."""

    entries: dict[ProducerId, ProducerEntry] = field(default_factory=dict)
    ended: list[EndedTransaction] = field(default_factory=list)


class ProducerState:
    """Invariant: `entries` are what the log says up to `end_offset`, less what expired."""

    def __init__(self, directory: str, disk: Disk, expiration_ms: int) -> None:
        self.entries: dict[ProducerId, ProducerEntry] = {}
        self.end_offset = Offset(0)
        self.expiration_ms = expiration_ms
        self._directory = directory
        self._disk = disk
        self._snapshots: list[Offset] = []
        self._last_snapshot = Offset(-1)
        self._open_transactions: dict[ProducerId, Offset] = {}
        # Ended transactions whose marker is not yet below the high watermark: first offset → marker.
        self._unreplicated: dict[Offset, Offset] = {}

    # Appends

    def find_duplicate(self, header: BatchHeader) -> WrittenBatch | None:
        entry = self.entries.get(header.producer_id)
        return None if entry is None else find_duplicate(entry, header)

    def stage(
        self,
        update: ProducerUpdate,
        header: BatchHeader,
        base_offset: Offset,
        marker: EndTransactionMarker | None,
        origin: AppendOrigin | None,
    ) -> None:
        """Add a batch to `update`. Raises if the producer may not write it."""
        producer_id = header.producer_id
        entry = update.entries.get(producer_id) or self.entries.get(producer_id) or ProducerEntry(producer_id)
        if not header.is_control:
            update.entries[producer_id] = accept(entry, header, base_offset, header.max_timestamp, origin)
        elif marker is not None:
            update.entries[producer_id] = end_transaction(
                entry, header.producer_epoch, marker.coordinator_epoch, header.max_timestamp, origin
            )
            if entry.txn_first_offset is not None:
                is_aborted = marker.type is ControlType.ABORT
                ended = EndedTransaction(producer_id, entry.txn_first_offset, base_offset, is_aborted)
                update.ended.append(ended)

    def commit(self, update: ProducerUpdate) -> list[AbortedTransaction]:
        """The append happened. Returns what the transaction index has to learn."""
        self.entries.update(update.entries)
        for producer_id, entry in update.entries.items():
            if entry.txn_first_offset is not None:
                self._open_transactions[producer_id] = entry.txn_first_offset
            elif self._open_transactions:
                self._open_transactions.pop(producer_id, None)
        aborted = []
        for ended in update.ended:
            self._unreplicated[ended.first_offset] = ended.last_offset
            if ended.is_aborted:
                undecided = self._first_undecided()
                stable = Offset(ended.last_offset + 1) if undecided is None else undecided
                aborted.append(AbortedTransaction(*ended[:3], stable))
        return aborted

    def remove_expired(self, now_ms: int) -> None:
        expiration_ms = self.expiration_ms
        expired = [k for k, entry in self.entries.items() if is_expired(entry, now_ms, expiration_ms)]
        for producer_id in expired:
            del self.entries[producer_id]

    # Transactions

    def first_unstable_offset(self, high_watermark: Offset) -> Offset | None:
        """The first offset of a transaction that is open, or whose end is not replicated yet."""
        for first in [first for first, marker in self._unreplicated.items() if marker < high_watermark]:
            del self._unreplicated[first]
        undecided = self._first_undecided()
        candidates = [*self._unreplicated, *(() if undecided is None else (undecided,))]
        return min(candidates, default=None)

    def _first_undecided(self) -> Offset | None:
        return min(self._open_transactions.values(), default=None)

    # Snapshots

    def find_snapshots(self) -> None:
        """Learn which snapshots the directory holds."""
        offsets = (layout.offset_of(name, layout.SNAPSHOT) for name in os.listdir(self._directory))
        self._snapshots = sorted(offset for offset in offsets if offset is not None)

    def snapshot_path(self, offset: Offset) -> str:
        return os.path.join(self._directory, layout.file_name(offset, layout.SNAPSHOT))

    def take_snapshot(self) -> list[str]:
        """Write one at `end_offset`, unless that is the last one's, or 0. Paths that remain to be synced."""
        if self.end_offset in (self._last_snapshot, 0):
            return []
        path = self.snapshot_path(self.end_offset)
        self._disk.replace(path, encode_snapshot(self.entries.values()), sync=False)
        if self.end_offset not in self._snapshots:
            insort(self._snapshots, self.end_offset)
        self._last_snapshot = self.end_offset
        return [path]

    def reload(self, *, at_most: Offset, otherwise: Offset, now_ms: int) -> None:
        """Start again from the latest good snapshot at or below `at_most`, or from nothing at
        `otherwise`. Damaged snapshots are removed. The caller then replays the log from `end_offset`."""
        self._forget_all()
        self.end_offset = otherwise
        self._last_snapshot = Offset(-1)
        offset, entries = self._read_latest(at_most)
        if offset is not None:
            self._add(entries)
            self.remove_expired(now_ms)
            self.end_offset = self._last_snapshot = offset

    def add_unknown(self, entries: Iterable[ProducerEntry]) -> None:
        """After a replay: producers whose records are no longer in the log."""
        self._add([entry for entry in entries if entry.producer_id not in self.entries])

    def read_latest(self, *, at_most: Offset) -> list[ProducerEntry]:
        return self._read_latest(at_most)[1]

    def _read_latest(self, at_most: Offset) -> tuple[Offset | None, list[ProducerEntry]]:
        for offset in reversed(self._snapshots[: bisect_right(self._snapshots, at_most)]):
            try:
                with open(self.snapshot_path(offset), "rb") as file:
                    return offset, decode_snapshot(file.read())
            except (FileNotFoundError, CorruptSnapshot) as error:
                logger.warning("%s is ignored and removed: %s", self.snapshot_path(offset), error)
                self._remove_snapshot(offset)
        return None, []

    def _add(self, entries: Iterable[ProducerEntry]) -> None:
        for entry in entries:
            self.entries[entry.producer_id] = entry
            if entry.txn_first_offset is not None:
                self._open_transactions[entry.producer_id] = entry.txn_first_offset

    def remove_snapshots(self, *, above: Offset) -> bool:
        """Whether there were any."""
        removed = [offset for offset in self._snapshots if offset > above]
        for offset in removed:
            self._remove_snapshot(offset)
        return bool(removed)

    def remove_stray_snapshots(self, keep: Iterable[Offset]) -> None:
        """Of snapshots that begin no segment only the latest matters: the one of a clean stop."""
        kept = {*keep, *self._snapshots[-1:]}
        for offset in [offset for offset in self._snapshots if offset not in kept]:
            self._remove_snapshot(offset)

    def clear(self, offset: Offset) -> None:
        """The log begins anew at `offset`."""
        self.remove_snapshots(above=Offset(-1))
        self._forget_all()
        self.end_offset = offset

    def forget_snapshot(self, offset: Offset) -> str | None:
        """Its file is about to be retired with its segment; the path if there is one. The latest stays."""
        if offset not in self._snapshots or offset == self._snapshots[-1]:
            return None
        self._snapshots.remove(offset)
        return self.snapshot_path(offset)

    def _forget_all(self) -> None:
        self.entries = {}
        self._open_transactions = {}
        self._unreplicated = {}

    def _remove_snapshot(self, offset: Offset) -> None:
        self._snapshots.remove(offset)
        if self._last_snapshot == offset:
            self._last_snapshot = Offset(-1)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.snapshot_path(offset))
