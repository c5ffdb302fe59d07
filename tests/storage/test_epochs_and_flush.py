"""Leader epochs, flushing and retention."""

import threading
from pathlib import Path

import pytest

from kbus.storage.disk import RealDisk
from kbus.storage.epochs import LeaderEpochCache
from kbus.storage.log_config import LogConfig
from kbus.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

from .builders import NOW, Clock, append, batch, contents, files, opened, stored
from .faulty_disk import FaultyDisk

SMALL = LogConfig(segment_bytes=500, retention_ms=-1)


def cache(path: Path, *entries: tuple[int, int]) -> LeaderEpochCache:
    epochs = LeaderEpochCache(str(path), RealDisk())
    for epoch, start in entries:
        epochs.assign(LeaderEpoch(epoch), Offset(start))
    return epochs


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (9, (9, 100)),
        (10, (NO_EPOCH, NO_OFFSET)),
        (5, (5, 30)),
        (6, (5, 30)),
        (8, (5, 30)),
        (2, (2, 10)),
        (3, (2, 10)),
        (1, (1, 4)),
        (0, (0, 4)),
        (-1, (NO_EPOCH, NO_OFFSET)),
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(tmp_path: Path, asked: int, answer: tuple[int, int]) -> None:
    epochs = cache(tmp_path, (2, 4), (5, 10), (9, 30))
    assert epochs.end_offset_for(LeaderEpoch(asked), Offset(100)) == answer


def test_without_epochs_every_end_is_undefined(tmp_path: Path) -> None:
    assert cache(tmp_path).end_offset_for(LeaderEpoch(0), Offset(5)) == (NO_EPOCH, NO_OFFSET)


def test_an_epoch_keeps_its_first_start(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (2, 4), (2, 9), (3, 9))
    assert epochs.entries == [(2, 4), (3, 9)]


def test_entries_that_contradict_a_new_one_go(tmp_path: Path) -> None:
    assert cache(tmp_path, (1, 0), (2, 10), (3, 20), (4, 15)).entries == [(1, 0), (2, 10), (4, 15)]
    assert cache(tmp_path, (1, 0), (3, 10), (2, 12)).entries == [(1, 0), (2, 12)]
    # An epoch in which nothing was written leaves no trace.
    assert cache(tmp_path, (1, 0), (2, 10), (3, 10)).entries == [(1, 0), (3, 10)]


def test_epochs_follow_truncation_at_both_ends(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (1, 0), (2, 10), (3, 20))
    epochs.truncate_end(Offset(20))
    assert epochs.entries == [(1, 0), (2, 10)]
    epochs.truncate_start(Offset(5))
    assert epochs.entries == [(1, 5), (2, 10)]
    epochs.truncate_start(Offset(10))
    assert epochs.entries == [(2, 10)]
    epochs.truncate_start(Offset(15))
    assert epochs.entries == [(2, 15)]
    assert (epochs.epoch_at(14), epochs.epoch_at(15), epochs.latest) == (NO_EPOCH, 2, 2)
    reloaded = LeaderEpochCache(str(tmp_path), RealDisk())
    assert reloaded.load()
    assert reloaded.entries == epochs.entries


def test_a_new_leader_records_its_epoch_even_if_it_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(3), epoch=1)
        log.start_epoch(LeaderEpoch(2))
        assert log.end_offset_for_epoch(LeaderEpoch(1)) == (1, 3)
        assert log.end_offset_for_epoch(LeaderEpoch(2)) == (2, 3)
        log.truncate_to(Offset(3))
        assert log.latest_epoch == 1


def test_epochs_are_cut_with_the_log(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(3), epoch=1)
        append(log, batch(3), batch(3), epoch=2)
        log.truncate_to(Offset(6))
        assert log.end_offset_for_epoch(LeaderEpoch(2)) == (2, 6)
        log.truncate_to(Offset(3))
        assert log.epochs == [(1, 0)]
        log.delete_before(Offset(2))
        assert log.epochs == [(1, 2)]


# Flush


def test_the_recovery_point_advances_only_with_a_completed_flush(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(), batch())
        task = log.prepare_flush()
        assert task is not None
        append(log, batch())
        assert (log.recovery_point, log.unflushed_messages) == (0, 3)
        thread = threading.Thread(target=task.run)
        thread.start()
        thread.join()
        assert log.recovery_point == 0
        log.complete_flush(task)
        assert (log.recovery_point, log.unflushed_messages) == (2, 1)
        log.flush()
        assert log.recovery_point == 3
        assert log.prepare_flush() is None


def test_a_flush_syncs_data_indexes_and_the_directory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, SMALL, disk=disk) as log:
        append(log, *(batch(size=100) for _ in range(6)))
        disk.operations.clear()
        log.flush()
        synced = [line.removeprefix("fsync ") for line in disk.operations if line.startswith("fsync ")]
        expected = [n for n in files(tmp_path) if n.endswith((".log", ".index", ".timeindex", ".snapshot"))]
        assert sorted(synced) == expected
        assert disk.operations[-1].startswith("fsync_directory")


def test_a_flush_is_due_by_messages_by_time_or_after_a_roll(tmp_path: Path) -> None:
    clock = Clock()
    config = LogConfig(flush_interval_messages=3, flush_interval_ms=1000, segment_bytes=600)
    with opened(tmp_path, config, clock=clock) as log:
        assert log.flush_due(NOW + 5000) is None
        append(log, batch(), batch())
        assert log.flush_due(NOW) is None
        assert log.flush_due(NOW + 1000) == 2
        append(log, batch())
        assert log.flush_due(NOW) == 3
        log.flush()
        assert log.flush_due(NOW + 5000) is None
        append(log, batch(size=400))
        base = log.segments[-1].base_offset
        assert base == 3
        append(log, batch(size=400))
        # The rolled segment, not the one that is still being written.
        assert log.flush_due(NOW) == 4
        task = log.prepare_flush(log.flush_due(NOW))
        assert task is not None
        task.run()
        log.complete_flush(task)
        assert (log.recovery_point, log.flush_due(NOW)) == (4, None)


# Retention


def test_retention_by_size_keeps_at_least_what_is_asked(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        append(log, *(batch(size=400) for _ in range(10)))
        one = log.size_bytes // 10
        log.configure(LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=3 * one + 1))
        assert log.apply_retention(NOW, limit=Offset(10)) == 6
        assert (log.log_start_offset, log.size_bytes) == (6, 4 * one)
        assert log.apply_retention(NOW, limit=Offset(10)) == 0


def test_retention_by_time_deletes_segments_whose_last_record_is_too_old(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(segment_bytes=500, retention_ms=1000)) as log:
        append(log, *(batch(size=400, timestamp=NOW + 100 * i) for i in range(10)))
        assert log.apply_retention(NOW + 1000, limit=Offset(10)) == 0
        assert log.apply_retention(NOW + 1201, limit=Offset(10)) == 3
        assert log.log_start_offset == 3
        assert contents(log).startswith(stored(batch(size=400, timestamp=NOW + 300), 3))


def test_retention_may_empty_a_log_and_it_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(segment_bytes=500, retention_ms=1000)) as log:
        append(log, *(batch(size=400) for _ in range(4)))
        assert log.apply_retention(NOW + 9999, limit=Offset(4)) == 4
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (4, 4, 0)
        assert log.apply_retention(NOW + 99999, limit=Offset(4)) == 0
        assert append(log, batch()) == [4]


def test_retention_never_deletes_beyond_the_high_watermark(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(segment_bytes=500, retention_ms=0, retention_bytes=0)) as log:
        append(log, *(batch(size=400) for _ in range(6)))
        assert log.apply_retention(NOW + 9999, limit=Offset(0)) == 0
        assert log.apply_retention(NOW + 9999, limit=Offset(3)) == 3
        assert log.log_start_offset == 3


def test_a_compacted_log_deletes_only_before_its_start(tmp_path: Path) -> None:
    config = LogConfig(
        segment_bytes=500, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset(("compact",))
    )
    with opened(tmp_path, config) as log:
        append(log, *(batch(size=400) for _ in range(6)))
        assert log.apply_retention(NOW + 9999, limit=Offset(6)) == 0


def test_records_without_a_timestamp_age_by_their_file(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(segment_bytes=500, retention_ms=1000)) as log:
        append(log, *(batch(size=400, timestamp=-1) for _ in range(3)))
        written_ms = log.segments[0].largest_timestamp
        assert log.apply_retention(written_ms + 900, limit=Offset(3)) == 0
        assert log.apply_retention(written_ms + 60_000, limit=Offset(3)) == 3
