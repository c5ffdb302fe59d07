"""A log against a model of it, through random use, stops, kills, power losses and damage.

What was flushed is read back identically, and nothing that was not written is ever returned."""

import os
import random
import tempfile
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbus.core.producer_window import WINDOW, WrittenBatch
from kbus.records.batch import read_header
from kbus.storage import layout
from kbus.storage.log import PartitionLog
from kbus.storage.log_config import LogConfig
from kbus.types import LeaderEpoch, Offset

from .builders import NOW, batch, contents, open_log, stored
from .faulty_disk import PowerLossDisk

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, segment_index_bytes=120, retention_ms=-1)
seeds = st.integers(min_value=0, max_value=2**32)
fractions = st.floats(min_value=0, max_value=1, exclude_max=True)


class Written(NamedTuple):
    base_offset: int
    data: bytes

    @property
    def next_offset(self) -> int:
        return read_header(self.data).next_offset


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="kbus-log-model-")
        self.path = os.path.join(self.directory.name, "orders-0")
        os.mkdir(self.path)
        self.disk = PowerLossDisk(self.path)
        self.written: list[Written] = []
        self.start = 0
        self.end = 0
        self.first_kept = 0
        """Below it segments may be gone."""
        self.flushed = 0
        self.checkpoint = 0
        self.epoch = 0
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> PartitionLog:
        def lower_checkpoint(_: PartitionLog, offset: Offset) -> None:
            self.checkpoint = min(self.checkpoint, offset)

        return open_log(
            self.path,
            CONFIG,
            disk=self.disk,
            recovery_point=Offset(self.checkpoint),
            log_start_offset=Offset(self.start),
            clean=clean,
            before_truncation=lower_checkpoint,
        )

    def teardown(self) -> None:
        self.log.close(clean=False)
        self.directory.cleanup()

    # Use

    @rule(count=st.integers(1, 4), size=st.integers(0, 120), fill=st.binary(min_size=1, max_size=3))
    def append(self, count: int, size: int, fill: bytes) -> None:
        self._append(batch(count, size=size, fill=fill, timestamp=NOW + self.end))

    @rule(count=st.integers(1, 3), size=st.integers(0, 120), producer=st.integers(1, 2))
    def append_idempotently(self, count: int, size: int, producer: int) -> None:
        known = {int(entry.producer_id): entry for entry in self.log.active_producers()}
        sequence = known[producer].last_sequence + 1 if producer in known else 0
        sent = batch(count, size=size, producer=producer, sequence=sequence, timestamp=NOW)
        self._append(sent)
        again = self.log.append_as_leader(sent, leader_epoch=LeaderEpoch(self.epoch))
        assert again.duplicate
        assert again.first_offset == self.written[-1].base_offset

    def _append(self, sent: bytes) -> None:
        info = self.log.append_as_leader(sent, leader_epoch=LeaderEpoch(self.epoch))
        assert info.first_offset == self.end
        self.written.append(Written(self.end, stored(sent, self.end, self.epoch)))
        self.end = info.last_offset + 1

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.start_epoch(LeaderEpoch(self.epoch))

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end
        assert self.log.recovery_point == self.end

    @rule(count=st.integers(1, 3))
    def append_while_flushing(self, count: int) -> None:
        task = self.log.prepare_flush()
        flushed = self.end
        self.append(count, 50, b"f")
        if task is not None:
            task.run()
            self.log.complete_flush(task)
            self.flushed = flushed

    @rule()
    def flush_rolled_segments(self) -> None:
        base = self.log.segments[-1].base_offset
        task = self.log.prepare_flush(base)
        if task is not None:
            task.run()
            self.log.complete_flush(task)
            self.flushed = max(self.flushed, base)

    @rule()
    def write_checkpoint(self) -> None:
        self.checkpoint = self.log.recovery_point

    @precondition(lambda self: self.written)
    @rule(at=fractions)
    def truncate(self, at: float) -> None:
        target = self.written[int(at * len(self.written))].base_offset
        if target >= self.first_kept:
            self.log.truncate_to(Offset(target))
            self.start = min(self.start, target)
            self._cut(target)

    @rule(ahead=st.integers(0, 50))
    def start_anew(self, ahead: int) -> None:
        self.start = self.end = self.first_kept = self.end + ahead
        self.log.truncate_fully_and_start_at(Offset(self.start))
        self.written = []
        self.flushed = self.checkpoint = 0
        self.flushed = self.end

    @rule(at=fractions)
    def delete_before(self, at: float) -> None:
        target = self._flushed_offset(at)
        self.log.delete_before(Offset(target))
        self.start = target
        self._note_deleted()

    @rule(keep_bytes=st.integers(0, 2000), at=fractions)
    def apply_retention(self, keep_bytes: int, at: float) -> None:
        limit = self._flushed_offset(at)
        self.log.configure(LogConfig(segment_bytes=700, retention_bytes=keep_bytes, retention_ms=-1))
        self.log.apply_retention(NOW, limit=Offset(limit))
        self.log.configure(CONFIG)
        assert self.start <= self.log.log_start_offset <= max(limit, self.start)
        self.start = self.log.log_start_offset
        self._note_deleted()

    def _flushed_offset(self, at: float) -> int:
        """Only what has been replicated is deleted; here that is what has been flushed."""
        return self.start + int(at * (max(self.flushed, self.start) - self.start + 1))

    def _note_deleted(self) -> None:
        self.first_kept = self.log.segments[0].base_offset

    def _cut(self, end: int) -> None:
        self.written = [w for w in self.written if w.base_offset < end]
        self.end = max(end, self.start)
        self.flushed = min(self.flushed, self.end)

    # Stops and worse

    @rule()
    def stop_cleanly(self) -> None:
        self.log.close()
        self.flushed = self.checkpoint = self.end
        self.log = self.open(clean=True)

    @rule()
    def kill(self) -> None:
        """The page cache survives the process."""
        self.log.close(clean=False)
        self.log = self.open(clean=False)
        assert self.log.recovery_report.truncated_bytes == 0

    @rule(seed=seeds)
    def lose_power(self, seed: int) -> None:
        self.log.close(clean=False)
        self.disk.lose_power(random.Random(seed))
        self.log = self.open(clean=False)
        assert self.log.log_end_offset >= self.flushed
        self._accept_loss()

    @rule()
    def lose_all_that_was_not_synced(self) -> None:
        self.log.close(clean=False)
        self.disk.lose_power()
        self.log = self.open(clean=False)
        assert self.log.log_end_offset >= self.flushed
        self._accept_loss()

    @precondition(lambda self: self.log.log_end_offset > self.log.segments[-1].base_offset)
    @rule(at=fractions, bit=st.integers(0, 7))
    def flip_a_bit(self, at: float, bit: int) -> None:
        """In what recovery looks at: it finds every one, and keeps what precedes it."""
        segment = self.log.segments[-1]
        readable = [(w, p) for w, p in self._positions(segment.base_offset) if w.base_offset >= self.start]
        if not readable:
            return
        position = readable[0][1] + int(at * (segment.size - readable[0][1]))
        hit = next(w for w, p in readable if p <= position < p + len(w.data))
        self.log.close(clean=False)
        with open(segment.path, "r+b") as file:
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ 1 << bit]))
        self.disk.damaged(segment.path)
        self.log = self.open(clean=False)
        assert self.log.log_end_offset == hit.base_offset
        if hit.base_offset < self.checkpoint:
            assert self.log.recovery_report.lost_from == hit.base_offset
            (aside,) = self.log.recovery_report.set_aside
            with open(aside, "rb") as file:
                assert len(file.read()) == sum(len(w.data) for w in self.written if w >= hit)
        self._accept_loss()

    @precondition(lambda self: self.log.log_end_offset > self.log.segments[-1].base_offset)
    @rule(at=fractions)
    def tear_the_tail(self, at: float) -> None:
        segment = self.log.segments[-1]
        readable = [(w, p) for w, p in self._positions(segment.base_offset) if w.base_offset >= self.start]
        if not readable:
            return
        size = readable[0][1] + int(at * (segment.size - readable[0][1]))
        torn = next(w for w, p in readable if p + len(w.data) > size)
        self.log.close(clean=False)
        os.truncate(segment.path, size)
        self.disk.damaged(segment.path)
        self.log = self.open(clean=False)
        assert self.log.log_end_offset == torn.base_offset
        self._accept_loss()

    @rule(garbage=st.binary(min_size=1, max_size=200))
    def add_garbage(self, garbage: bytes) -> None:
        self.log.close(clean=False)
        with open(self.log.segments[-1].path, "ab") as file:
            file.write(garbage)
        self.log = self.open(clean=False)

    @rule(seed=seeds, clean=st.booleans())
    def damage_an_index(self, seed: int, clean: bool) -> None:
        self._damage((layout.OFFSET_INDEX, layout.TIME_INDEX), random.Random(seed), clean=clean)

    @rule(seed=seeds, clean=st.booleans())
    def damage_a_snapshot(self, seed: int, clean: bool) -> None:
        if self.first_kept == 0:
            self._damage((layout.SNAPSHOT,), random.Random(seed), clean=clean)

    @rule(seed=seeds, clean=st.booleans())
    def damage_the_epochs(self, seed: int, clean: bool) -> None:
        """Those that wrote records are found in the log."""
        self._damage((layout.LEADER_EPOCH_CHECKPOINT,), random.Random(seed), clean=clean, destroy=True)

    def _damage(
        self, endings: tuple[str, ...], rng: random.Random, *, clean: bool, destroy: bool = False
    ) -> None:
        self.log.close(clean=clean)
        if clean:
            self.flushed = self.checkpoint = self.end
        names = [name for name in sorted(os.listdir(self.path)) if name.endswith(endings)]
        if names:
            path = os.path.join(self.path, rng.choice(names))
            with open(path, "rb") as file:
                data = bytearray(file.read())
            choice = 0 if destroy else rng.randrange(4)
            if choice == 0:
                data[:] = b"\xff" * len(data)
            elif choice == 1:
                del data[rng.randint(0, len(data)) :]
            elif choice == 2 and data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            else:
                data += bytes(rng.randrange(40))
            with open(path, "wb") as file:
                file.write(data)
            self.disk.damaged(path)
        self.log = self.open(clean=clean)

    def _positions(self, base_offset: int) -> list[tuple[Written, int]]:
        """The batches of the last segment and where they lie in it."""
        position = 0
        found = []
        for written in self.written:
            if written.base_offset >= base_offset:
                found.append((written, position))
                position += len(written.data)
        return found

    def _accept_loss(self) -> None:
        assert self.log.log_end_offset <= self.end
        self._cut(self.log.log_end_offset)
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)

    # What holds

    @invariant()
    def holds_exactly_what_was_written(self) -> None:
        assert self.log.log_start_offset == self.start
        assert self.log.log_end_offset == self.end
        assert self.log.recovery_point <= self.end
        readable = [w for w in self.written if w.next_offset > self.start]
        assert contents(self.log) == b"".join(w.data for w in readable)

    @invariant()
    def finds_any_offset(self) -> None:
        readable = [w for w in self.written if w.next_offset > self.start]
        for written in readable[:: max(len(readable) // 4, 1)]:
            offset = max(written.next_offset - 1, self.start)
            found = self.log.read(offset, 1, end=self.log.log_end_offset, min_one_batch=True)
            assert found.read() == written.data

    @invariant()
    def knows_its_producers(self) -> None:
        """Also those whose records were deleted. Of what came before a restart it may know less."""
        expected: dict[int, list[WrittenBatch]] = {}
        for written in self.written:
            header = read_header(written.data)
            if header.has_producer_id:
                one = WrittenBatch(header.last_sequence, header.last_offset, header.last_offset_delta, 0)
                expected.setdefault(header.producer_id, []).append(
                    one._replace(timestamp=header.max_timestamp)
                )
        known = {e.producer_id: e.batches for e in self.log.active_producers()}
        assert {k: b[-1] for k, b in known.items()} == {k: b[-1] for k, b in expected.items()}
        for producer_id, batches in known.items():
            assert list(batches) == expected[producer_id][-len(batches) :]
            assert len(batches) <= WINDOW

    @invariant()
    def knows_the_epoch_of_every_batch(self) -> None:
        for written in self.written:
            if written.base_offset >= self.start:
                assert self.log.epoch_at(written.base_offset) == read_header(written.data).leader_epoch


LogMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("KBUS_LOG_MODEL_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogAgainstModel = LogMachine.TestCase
