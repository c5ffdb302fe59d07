"""The log of one partition.

All of it runs on the loop's thread and does not wait for the disk to sync, except where it says so. An
append is one write, checked before and complete or undone after: there is never a hole, nor half a batch
before a good one.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kbus.core.producer_window import ProducerEntry, WrittenBatch, cut
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import Buffer, Compression, TimestampType, offset_and_epoch_prefix
from kbus.records.validation import (
    AppendOrigin,
    AppendRules,
    ValidatedBatch,
    validate_for_append,
    validate_replicated,
)
from kbus.storage import timestamps
from kbus.storage.appending import AppendInfo, PlacedBatch, groups_of, marker_in
from kbus.storage.disk import Disk
from kbus.storage.flush import Flusher, FlushTask
from kbus.storage.index import MAX_RELATIVE_OFFSET
from kbus.storage.loading import LogLoader
from kbus.storage.log_config import CLEANUP_COMPACT, LogConfig
from kbus.storage.producer_state import ProducerUpdate
from kbus.storage.replay import complete_windows, replay
from kbus.storage.retention import count_expired
from kbus.storage.segment import LostSegment, Segment
from kbus.storage.segment_file import LogSlice
from kbus.storage.segment_list import SegmentList
from kbus.storage.timestamps import TimestampedOffset
from kbus.storage.txn_index import AbortedTransaction
from kbus.types import NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition

logger = logging.getLogger(__name__)

_CLIENT = AppendOrigin.CLIENT
_LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME
_NOTHING = Offset(0)


class PartitionLog:
    """Covers the offsets [log_start_offset, log_end_offset).

    Everything below recovery_point has been flushed: a crash costs at most what is above.
    recovery_point ≤ log_end_offset and log_start_offset ≤ log_end_offset."""

    def __init__(
        self,
        directory: str,
        partition: TopicPartition,
        config: LogConfig,
        *,
        disk: Disk,
        clock: Callable[[], int],
        recovery_point: Offset = _NOTHING,
        log_start_offset: Offset = _NOTHING,
        clean: bool = False,
        before_truncation: Callable[["PartitionLog", Offset], None] | None = None,
    ) -> None:
        """Load the log in `directory`, which must exist, with the recovery point and start offset that were
        checkpointed; `clean` says that the last stop was. `before_truncation` is told before bytes below the
        recovery point are cut off, and to where: no checkpoint may promise more when it returns."""
        self.directory = directory
        self.partition = partition
        self.failure: str | None = None
        """Why the log can no longer be used: an error left its files in doubt."""
        self._disk = disk
        self._clock = clock
        self._before_truncation = before_truncation
        loaded = LogLoader(
            directory,
            config,
            disk,
            clock,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
        )
        loaded.load()
        self.recovery_report = loaded.report
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self._segments = SegmentList(
            directory, disk, loaded.segments, loaded.retired, directory_changed=loaded.directory_changed
        )
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self._flusher = Flusher(disk, self._segments, loaded.recovery_point, clock())
        self._flusher.add_paths(loaded.unsynced_paths)
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        """Settings may change while the log is in use."""
        self.config = config
        codec = config.compression_type
        self._rules = AppendRules(
            max_message_bytes=config.max_message_bytes,
            compression=None if codec == "producer" else _CODECS[codec],
            compression_level=config.compression_level,
            timestamp_type=config.message_timestamp_type,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            compacted=CLEANUP_COMPACT in config.cleanup_policy,
        )
        self._producers.expiration_ms = config.producer_id_expiration_ms
        self._roll_after_ms = config.segment_ms - self._segments.jitter_ms(config)

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def recovery_point(self) -> Offset:
        """Everything below it has been flushed."""
        return self._flusher.recovery_point

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self._flusher.recovery_point

    @property
    def segments(self) -> tuple[Segment, ...]:
        """To look at; they belong to the log."""
        return tuple(self._segments)

    # Append

    def append_as_leader(
        self, records: Buffer, *, leader_epoch: LeaderEpoch, origin: AppendOrigin = _CLIENT
    ) -> AppendInfo:
        """Validate what a client or a coordinator sent and write it at the end of the log."""
        if self.failure is not None:
            raise self._unusable()
        now_ms = self._clock()
        validated = validate_for_append(records, self._rules, now_ms, origin)
        first_offset = offset = self.log_end_offset
        update: ProducerUpdate | None = None
        buffers: list[Buffer] = []
        placed: list[PlacedBatch] = []
        for batch in validated.batches:
            header, parts = batch
            if header.producer_id >= 0:
                if origin is _CLIENT:
                    written = self._producers.find_duplicate(header)
                    if written is not None:
                        return self._duplicate(written)
                if update is None:
                    update = ProducerUpdate()
                self._producers.stage(update, header, offset, marker_in(batch), origin)
            length = header.batch_length
            buffers.append(offset_and_epoch_prefix(offset, length, leader_epoch))
            buffers += parts
            next_offset = Offset(offset + header.last_offset_delta + 1)
            placed.append(PlacedBatch(offset, Offset(next_offset - 1), header.max_timestamp, header.size))
            offset = next_offset
        if leader_epoch != self._epochs.latest:
            self.start_epoch(leader_epoch)
        self._write(buffers, placed, validated.size_bytes, now_ms)
        if update is not None:
            self._commit(update)
        self._producers.end_offset = offset
        return AppendInfo(
            first_offset,
            Offset(offset - 1),
            validated.max_timestamp,
            validated.log_append_time_ms,
            self.log_start_offset,
        )

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Write batches as the leader has them; a cut-off last one is left out. Their offsets go on from the
        end of the log; they may skip what the leader has compacted. What fits a segment is written whole or
        not at all."""
        if self.failure is not None:
            raise self._unusable()
        now_ms = self._clock()
        validated = validate_replicated(records)
        first_offset = expected = self.log_end_offset
        for number, (header, _) in enumerate(validated.batches):
            if header.base_offset < expected:
                raise KafkaError(
                    ErrorCode.offset_out_of_range,
                    f"{self.partition}: the leader sent offset {header.base_offset} where {expected} is next",
                )
            expected = header.next_offset
            if number == 0:
                first_offset = header.base_offset
        for group in groups_of(validated.batches, self.config.segment_bytes):
            self._append_replicated(group, now_ms)
        return AppendInfo(
            first_offset,
            Offset(self.log_end_offset - 1),
            validated.max_timestamp,
            NO_TIMESTAMP,
            self.log_start_offset,
        )

    def _append_replicated(self, batches: list[ValidatedBatch], now_ms: int) -> None:
        update = ProducerUpdate()
        buffers: list[Buffer] = []
        placed: list[PlacedBatch] = []
        for batch in batches:
            header, parts = batch
            if header.producer_id >= 0:
                self._producers.stage(update, header, header.base_offset, marker_in(batch), None)
            prefix = offset_and_epoch_prefix(header.base_offset, header.batch_length, header.leader_epoch)
            buffers += (prefix, *parts)
            placed.append(
                PlacedBatch(header.base_offset, header.last_offset, header.max_timestamp, header.size)
            )
            if header.leader_epoch != self._epochs.latest:
                with self._storage("recording a leader epoch"):
                    self._epochs.assign(header.leader_epoch, header.base_offset)
        self._write(buffers, placed, sum(batch.size for batch in placed), now_ms)
        self._commit(update)
        self._producers.end_offset = self.log_end_offset

    def _write(self, buffers: list[Buffer], placed: list[PlacedBatch], size_bytes: int, now_ms: int) -> None:
        """The one place that adds to the log. Waits for nothing; only a roll makes files."""
        segment = self._segments.active
        last = placed[-1]
        if size_bytes > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.record_list_too_large,
                f"{size_bytes} bytes do not fit a segment of {self.config.segment_bytes}",
            )
        try:
            if not segment.is_active:
                segment.activate(self.config.segment_index_bytes)
            if self._must_roll(segment, size_bytes, last, now_ms):
                self._roll(self._next_base(placed), now_ms)
                segment = self._segments.active
            segment.write(buffers)
        except LostSegment as error:
            raise self._fail("appending", error) from error
        except OSError as error:
            raise self._storage_error("appending", error) from error
        for batch in placed:
            segment.note_batch(*batch)
        self.log_end_offset = Offset(last.last_offset + 1)

    def _commit(self, update: ProducerUpdate) -> None:
        aborted = self._producers.commit(update)
        if aborted:
            # Records and markers are in the log; without its index a reader would see aborted records.
            with self._storage("indexing an aborted transaction", is_fatal=True):
                for transaction in aborted:
                    self._segments.active.txn_index.append(transaction)

    def _duplicate(self, written: WrittenBatch) -> AppendInfo:
        is_append_time = self.config.message_timestamp_type is _LOG_APPEND_TIME
        return AppendInfo(
            written.first_offset,
            written.last_offset,
            written.timestamp,
            written.timestamp if is_append_time else NO_TIMESTAMP,
            self.log_start_offset,
            duplicate=True,
        )

    # Roll

    def _must_roll(self, segment: Segment, size_bytes: int, last: PlacedBatch, now_ms: int) -> bool:
        return (
            segment.size + size_bytes > self.config.segment_bytes
            or not segment.has_room_for(last.last_offset)
            or self._is_over_age(segment, last.max_timestamp, now_ms)
        )

    def _is_over_age(self, segment: Segment, timestamp: int, now_ms: int) -> bool:
        """By the records' own time, from the first batch to `timestamp`; by the clock if they have none."""
        if not segment.size:
            return False
        first = segment.first_timestamp
        waited_ms = timestamp - first if first is not None and first >= 0 else now_ms - segment.created_ms
        return waited_ms > self._roll_after_ms

    def _next_base(self, placed: list[PlacedBatch]) -> Offset:
        """The end of the log, unless compaction on the leader left a gap too wide for an index."""
        reach = placed[-1].last_offset - self.log_end_offset
        return self.log_end_offset if reach <= MAX_RELATIVE_OFFSET else placed[0].base_offset

    def _roll(self, base_offset: Offset, now_ms: int) -> None:
        """Nothing has changed if it raises. The old segment is then to be flushed: see `flush_due`."""
        if base_offset == self._segments.active.base_offset:
            return
        # At a segment's base offset, so that recovery of the segment can begin with it.
        self._producers.end_offset = base_offset
        self._flusher.add_paths(self._producers.take_snapshot())
        self._segments.add(base_offset, self.config, now_ms)
        self._roll_after_ms = self.config.segment_ms - self._segments.jitter_ms(self.config)
        logger.info("%s: rolled a new segment at offset %d", self.partition, base_offset)

    # Read

    def read(self, offset: int, max_bytes: int, *, end: Offset, min_one_batch: bool) -> LogSlice:
        """Bytes of one segment from the batch that holds `offset` on, of batches wholly below `end`. The last
        batch may be cut off by `max_bytes`; the first never is: it comes whole with `min_one_batch`, else
        not at all."""
        if self.failure is not None:
            raise self._unusable()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.partition} has offsets from {self.log_start_offset} to {self.log_end_offset}, "
                f"not {offset}",
            )
        active = self._segments.active
        if offset >= end or offset == self.log_end_offset:
            return LogSlice(active.file, active.size, 0)
        try:
            for segment in self._segments.from_offset(offset):
                first = segment.find(offset)
                if first is None:
                    # Compaction took what was at the end of this segment.
                    continue
                if first.last_offset >= end or (first.size > max_bytes and not min_one_batch):
                    return LogSlice(segment.file, first.position, 0)
                limit = segment.size
                if end < self.log_end_offset and end < first.base_offset + MAX_RELATIVE_OFFSET:
                    beyond = segment.find(end)
                    limit = limit if beyond is None else beyond.position
                length = min(limit - first.position, max(max_bytes, first.size))
                return LogSlice(segment.file, first.position, length)
        except OSError as error:
            raise self._storage_error("reading", error) from error
        return LogSlice(active.file, active.size, 0)

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record that is not older than `timestamp`."""
        self._check_usable()
        with self._storage("searching"):
            return timestamps.first_at_or_after(self._segments, timestamp, self.log_start_offset)

    def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """The first record with the largest timestamp; None if none has any."""
        self._check_usable()
        with self._storage("searching"):
            return timestamps.first_of_latest(self._segments, self.log_start_offset)

    # Leader epochs

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """NO_EPOCH if there is none."""
        return self._epochs.latest

    @property
    def epochs(self) -> list[tuple[LeaderEpoch, Offset]]:
        return self._epochs.entries

    def epoch_at(self, offset: int) -> LeaderEpoch:
        return self._epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def start_epoch(self, epoch: LeaderEpoch) -> None:
        """This node leads from here on. Waits until that is on disk: an epoch is flushed before use."""
        self._check_usable()
        if epoch < self._epochs.latest:
            raise KafkaError(
                ErrorCode.fenced_leader_epoch,
                f"{self.partition} has had leader epoch {self._epochs.latest}; {epoch} is over",
            )
        with self._storage("recording a leader epoch"):
            self._epochs.assign(epoch, self.log_end_offset)

    # Flush

    def flush_due(self, now_ms: int) -> Offset | None:
        """How far to flush now, by the settings or because a segment was rolled; None if nothing is due."""
        return self._flusher.due(self.log_end_offset, self.config, now_ms)

    def prepare_flush(self, up_to: Offset | None = None) -> FlushTask | None:
        """A task that makes everything below `up_to`, by default all, survive a power loss; None if it
        does. Run it in any thread, then call `complete_flush`."""
        self._check_usable()
        end = self.log_end_offset if up_to is None else Offset(min(up_to, self.log_end_offset))
        with self._storage("preparing a flush"):
            return self._flusher.prepare(end, everything=up_to is None)

    def complete_flush(self, task: FlushTask) -> None:
        """Advance the recovery point, or give the log up if the flush failed."""
        assert task.is_done
        if task.error is not None:
            # The kernel may have dropped what it could not write, and would not say so a second time.
            raise self._fail("flushing", task.error)
        self._flusher.complete(task, self._clock())

    def flush(self) -> None:
        """Flush everything, and wait for it."""
        task = self.prepare_flush()
        if task is not None:
            task.run()
            self.complete_flush(task)

    # Truncate and delete

    def truncate_to(self, offset: Offset) -> bool:
        """Drop what is at or above `offset`; whether there was anything. Waits for the disk."""
        self._check_usable()
        with self._storage("truncating", is_fatal=True):
            if offset >= self.log_end_offset:
                # As a leader this node may have begun an epoch here and written nothing.
                self._epochs.truncate_end(self.log_end_offset)
                return False
            if offset < self._segments.all[0].base_offset:
                self.truncate_fully_and_start_at(offset)
                return True
            logger.info("%s: truncating from %d to %d", self.partition, self.log_end_offset, offset)
            self._lower_recovery_point(offset)
            if self._producers.remove_snapshots(above=offset):
                self._segments.directory_changed = True
            index_bytes = self.config.segment_index_bytes
            self.log_end_offset = end = self._segments.truncate_to(offset, index_bytes, self._clock())
            self._flusher.truncated(end)
            self._epochs.truncate_end(end)
            self.log_start_offset = Offset(min(self.log_start_offset, end))
            self._reload_producers()
        return True

    def truncate_fully_and_start_at(self, offset: Offset) -> None:
        """Drop everything; the next record gets `offset`. Waits for the disk."""
        self._check_usable()
        logger.info("%s: dropping everything and starting at %d", self.partition, offset)
        with self._storage("truncating", is_fatal=True):
            self._lower_recovery_point(_NOTHING)
            self._producers.clear(offset)
            self._segments.start_anew(offset, self.config, self._clock())
            self._epochs.clear()
            self.log_start_offset = self.log_end_offset = self._flusher.recovery_point = offset

    def _lower_recovery_point(self, offset: Offset) -> None:
        if self.recovery_point > offset and self._before_truncation is not None:
            self._before_truncation(self, offset)
        self._flusher.truncated(offset)

    def _reload_producers(self) -> None:
        end = self.log_end_offset
        known = self._producers.entries
        first = self._segments.all[0].base_offset
        self._producers.reload(at_most=end, otherwise=first, now_ms=self._clock())
        replay(self._producers, self._segments.all, end, index_from=Offset(end + 1))
        self._producers.add_unknown(e for entry in known.values() if (e := cut(entry, end)) is not None)
        complete_windows(self._producers, self._segments.all)
        self._flusher.add_paths(self._producers.take_snapshot())
        self._flusher.sync_paths()

    def delete_before(self, offset: Offset) -> None:
        """The log now starts at `offset`, if it did below. Segments wholly below it go."""
        self._check_usable()
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.partition} ends at {self.log_end_offset}; it cannot start at {offset}",
            )
        if offset > self.log_start_offset:
            with self._storage("deleting records", is_fatal=True):
                self._epochs.truncate_start(offset)
                self.log_start_offset = offset
                count = sum(segment.base_offset <= offset for segment in self._segments.all[1:])
                self._remove_first(count, self._clock())

    def apply_retention(self, now_ms: int, *, limit: Offset) -> int:
        """Delete segments that are too old or too much, below `limit`, the high watermark; how many.
        Producers that have been silent too long are forgotten."""
        self._check_usable()
        self._producers.remove_expired(now_ms)
        with self._storage("applying retention", is_fatal=True):
            count = count_expired(
                self._segments.all,
                self.config,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
                limit=limit,
                now_ms=now_ms,
            )
            if count == len(self._segments) and not self._try_to_roll(now_ms):
                count -= 1
            if count:
                start = self._segments.all[count].base_offset
                if start > self.log_start_offset:
                    self._epochs.truncate_start(start)
                    self.log_start_offset = start
                self._remove_first(count, now_ms)
        return count

    def _try_to_roll(self, now_ms: int) -> bool:
        """On a full disk the active segment stays, but what is before it can be deleted."""
        try:
            self._roll(self.log_end_offset, now_ms)
        except OSError as error:
            logger.warning("%s: no new segment: %s", self.partition, error)
            return False
        return True

    def _remove_first(self, count: int, now_ms: int) -> None:
        if not count:
            return
        # From now on the snapshot of a later segment alone may know the producers of these records.
        self._flusher.sync_paths()
        for base_offset in self._segments.remove_first(count, now_ms):
            path = self._producers.forget_snapshot(base_offset)
            if path is not None:
                self._segments.retire_file(path, now_ms)

    def take_retired_files(self, now_ms: int) -> list[str]:
        """Files that were renamed to `.deleted` at least `file.delete.delay.ms` ago. The caller unlinks them,
        in any thread."""
        return self._segments.take_retired(now_ms, self.config.file_delete_delay_ms)

    # Producers and transactions

    def active_producers(self) -> list[ProducerEntry]:
        return list(self._producers.entries.values())

    def first_unstable_offset(self, high_watermark: Offset) -> Offset | None:
        """Where the first transaction begins that is open, or whose end is not below the high watermark."""
        return self._producers.first_unstable_offset(high_watermark)

    def aborted_transactions(self, start: Offset, end: Offset) -> list[AbortedTransaction]:
        """Those with records in [start, end)."""
        return [
            transaction
            for segment in self._segments.from_offset(start)
            for transaction in segment.txn_index.aborted_between(start, end)
        ]

    # End

    def close(self, *, clean: bool = True) -> None:
        """Flush and complete everything if `clean`, and let go of the files. Waits for the disk."""
        if clean and self.failure is None:
            with self._storage("closing", is_fatal=True):
                active = self._segments.active
                self._flusher.add_paths(self._producers.take_snapshot())
                if active.is_active:
                    active.deactivate()
                    self._flusher.add_paths(active.index_paths())
                self.flush()
        self._segments.release()
        self.failure = self.failure or "it is closed"

    # Errors

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise self._unusable()

    def _unusable(self) -> KafkaError:
        return KafkaError(ErrorCode.kafka_storage_error, f"{self.partition} cannot be used: {self.failure}")

    def _storage_error(self, doing: str, error: OSError) -> KafkaError:
        logger.error("%s: %s failed: %s", self.partition, doing, error)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self.partition}: {doing} failed: {error}")

    def _fail(self, doing: str, error: OSError) -> KafkaError:
        self.failure = f"{doing} failed: {error}"
        return self._storage_error(doing, error)

    @contextmanager
    def _storage(self, doing: str, *, is_fatal: bool = False) -> Iterator[None]:
        """Turns errors of the disk into KAFKA_STORAGE_ERROR; after a fatal one the log is of no more use."""
        try:
            yield
        except OSError as error:
            raise (self._fail if is_fatal else self._storage_error)(doing, error) from error


_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
