"""Idempotent producers through the life of a log: retries, restarts, retention, expiry; and transactions."""

import os
from pathlib import Path

import pytest

from kbus.protocol.errors import ErrorCode
from kbus.records.batch import MAX_SEQUENCE, TimestampType
from kbus.records.control import ControlType
from kbus.records.validation import AppendOrigin
from kbus.storage.log import PartitionLog
from kbus.storage.log_config import LogConfig
from kbus.types import Offset

from .builders import EPOCH, NOW, Clock, append, batch, contents, error_of, marker, open_log, opened, stored

SMALL = LogConfig(segment_bytes=500, index_interval_bytes=100, segment_index_bytes=1000)


def idempotent(count: int, *, first: int = 0, producer: int = 1, epoch: int = 0) -> list[bytes]:
    return [batch(size=50, producer=producer, sequence=i, epoch=epoch) for i in range(first, first + count)]


def end(log: PartitionLog, kind: ControlType, producer: int, *, coordinator_epoch: int = 0) -> int:
    records = marker(kind, producer, coordinator_epoch=coordinator_epoch)
    return log.append_as_leader(records, leader_epoch=EPOCH, origin=AppendOrigin.COORDINATOR).first_offset


def transactional(producer: int, sequence: int = 0) -> bytes:
    return batch(producer=producer, sequence=sequence, transactional=True)


def test_a_retry_is_answered_with_the_first_offsets_and_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        sent = idempotent(7)
        append(log, *sent)
        size = log.size_bytes
        for number, again in list(enumerate(sent))[2:]:
            info = log.append_as_leader(again, leader_epoch=EPOCH)
            assert info.duplicate
            assert (info.first_offset, info.last_offset, info.max_timestamp) == (number, number, NOW)
            assert info.log_append_time_ms == -1
        assert (log.log_end_offset, log.size_bytes) == (7, size)
        assert error_of(lambda: append(log, sent[0])) is ErrorCode.duplicate_sequence_number
        assert (
            error_of(lambda: append(log, *idempotent(1, first=9))) is ErrorCode.out_of_order_sequence_number
        )
        assert log.size_bytes == size


def test_a_retry_is_answered_with_the_first_append_time(tmp_path: Path) -> None:
    clock = Clock()
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    with opened(tmp_path, config, clock=clock) as log:
        (sent,) = idempotent(1)
        append(log, sent)
        clock.now_ms += 1000
        info = log.append_as_leader(sent, leader_epoch=EPOCH)
        assert info.duplicate
        assert info.log_append_time_ms == NOW


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("config", [LogConfig(), SMALL], ids=["one segment", "many segments"])
def test_retries_are_recognised_after_a_restart(tmp_path: Path, clean: bool, config: LogConfig) -> None:
    """The leader stops after the append and before the answer; any of five batches in flight may come
    again."""
    log = open_log(tmp_path, config)
    sent = idempotent(23)
    append(log, *sent, *idempotent(2, producer=2))
    data = contents(log)
    log.close(clean=clean)
    with opened(tmp_path, config, clean=clean) as log:
        for number, again in list(enumerate(sent))[-5:]:
            info = log.append_as_leader(again, leader_epoch=EPOCH)
            assert (info.duplicate, info.first_offset) == (True, number)
        assert contents(log) == data
        assert append(log, *idempotent(1, first=23), *idempotent(1, first=2, producer=2)) == [25, 26]


def test_producer_state_outlives_the_records(tmp_path: Path) -> None:
    """Retention took everything; a retry must still not be written twice, also after restarts."""
    config = LogConfig(segment_bytes=500, retention_ms=1000)
    log = open_log(tmp_path, config)
    sent = idempotent(9)
    append(log, *sent)
    log.apply_retention(NOW + 5000, limit=log.log_end_offset)
    assert log.log_start_offset == log.log_end_offset == 9
    for path in log.take_retired_files(NOW + 10**9):
        os.unlink(path)
    for clean in (False, True, True, False):
        info = log.append_as_leader(sent[-1], leader_epoch=EPOCH)
        assert (info.duplicate, info.first_offset) == (True, 8)
        log.close(clean=clean)
        log = open_log(tmp_path, config, clean=clean, log_start_offset=Offset(9))
    assert append(log, *idempotent(1, first=9)) == [9]
    log.close()


def test_a_silent_producer_expires_and_may_then_begin_anywhere(tmp_path: Path) -> None:
    clock = Clock()
    config = LogConfig(producer_id_expiration_ms=1000, retention_ms=-1)
    with opened(tmp_path, config, clock=clock) as log:
        append(log, *idempotent(2))
        log.apply_retention(NOW + 999, limit=Offset(0))
        assert len(log.active_producers()) == 1
        log.apply_retention(NOW + 1000, limit=Offset(0))
        assert log.active_producers() == []
        assert append(log, *idempotent(1, first=77)) == [2]
        log.close()
    clock.now_ms += 1001
    with opened(tmp_path, config, clean=True, clock=clock) as log:
        assert log.active_producers() == []


def test_epochs_fence_older_instances_of_a_producer_also_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *idempotent(2), *idempotent(1, epoch=3))
    log.close()
    with opened(tmp_path, clean=True) as log:
        assert error_of(lambda: append(log, *idempotent(1, first=2))) is ErrorCode.invalid_producer_epoch
        gap = idempotent(1, first=5, epoch=4)
        assert error_of(lambda: append(log, *gap)) is ErrorCode.out_of_order_sequence_number
        assert append(log, *idempotent(1, first=1, epoch=3)) == [3]


def test_sequences_wrap(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        first = batch(3, producer=1, sequence=MAX_SEQUENCE - 1)
        append(log, first, batch(2, producer=1, sequence=1))
        assert log.append_as_leader(first, leader_epoch=EPOCH).first_offset == 0
        assert log.log_end_offset == 5


def test_truncation_takes_producers_back_to_where_they_were(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        sent = idempotent(20)
        append(log, *sent[:10])
        before = log.active_producers()
        append(log, *sent[10:], *idempotent(3, producer=2))
        log.truncate_to(Offset(10))
        assert log.active_producers() == before
        assert append(log, sent[10]) == [10]
        assert log.append_as_leader(sent[9], leader_epoch=EPOCH).duplicate
        log.truncate_fully_and_start_at(Offset(50))
        assert log.active_producers() == []


def test_producers_are_known_to_followers(tmp_path: Path) -> None:
    """A follower that becomes the leader recognises retries of what the old one wrote."""
    with opened(tmp_path / "leader") as leader, opened(tmp_path / "follower") as follower:
        sent = idempotent(4)
        append(leader, *sent)
        follower.append_as_follower(contents(leader))
        info = follower.append_as_leader(sent[1], leader_epoch=EPOCH)
        assert (info.duplicate, info.first_offset) == (True, 1)


@pytest.mark.parametrize("restart", [None, True, False], ids=["no restart", "clean", "crash"])
def test_the_first_unstable_offset_waits_for_ends_below_the_high_watermark(
    tmp_path: Path, restart: bool | None
) -> None:
    log = open_log(tmp_path)
    append(log, batch(), transactional(8), transactional(9), transactional(8, 1))
    if restart is not None:
        log.close(clean=restart)
        log = open_log(tmp_path, clean=restart)
    assert log.first_unstable_offset(Offset(4)) == 1
    assert end(log, ControlType.COMMIT, 8) == 4
    assert log.first_unstable_offset(Offset(4)) == 1
    assert log.first_unstable_offset(Offset(5)) == 2
    assert end(log, ControlType.ABORT, 9) == 5
    assert log.first_unstable_offset(Offset(6)) is None
    assert [t[:3] for t in log.aborted_transactions(Offset(0), Offset(6))] == [(9, 2, 5)]
    log.close(clean=False)


@pytest.mark.parametrize("clean", [True, False])
def test_aborted_transactions_are_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, SMALL)
    for producer in range(6):
        append(log, transactional(producer), batch(size=60), batch(size=60))
        end(log, ControlType.ABORT if producer % 2 else ControlType.COMMIT, producer)
    aborted = log.aborted_transactions(Offset(0), log.log_end_offset)
    assert [t.producer_id for t in aborted] == [1, 3, 5]
    assert len(log.segments) > 3
    log.close(clean=clean)
    with opened(tmp_path, SMALL, clean=clean) as log:
        assert log.aborted_transactions(Offset(0), log.log_end_offset) == aborted
        assert log.aborted_transactions(Offset(aborted[1].last_offset), log.log_end_offset) == aborted[1:]
        log.truncate_to(Offset(aborted[1].last_offset))
        assert log.aborted_transactions(Offset(0), log.log_end_offset) == aborted[:1]
        assert log.first_unstable_offset(log.log_end_offset) == aborted[1].first_offset


def test_a_marker_of_an_older_coordinator_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, transactional(8))
        end(log, ControlType.COMMIT, 8, coordinator_epoch=4)
        append(log, transactional(8, 1))
        code = error_of(lambda: end(log, ControlType.ABORT, 8, coordinator_epoch=3))
        assert code is ErrorCode.transaction_coordinator_fenced
        assert log.log_end_offset == 3


def test_followers_index_aborted_transactions(tmp_path: Path) -> None:
    with opened(tmp_path / "leader") as leader, opened(tmp_path / "follower") as follower:
        append(leader, transactional(8), batch())
        end(leader, ControlType.ABORT, 8)
        follower.append_as_follower(contents(leader))
        transactions = leader.aborted_transactions(Offset(0), Offset(3))
        assert follower.aborted_transactions(Offset(0), Offset(3)) == transactions
        assert contents(follower)[: len(stored(transactional(8), 0))] == stored(transactional(8), 0)
