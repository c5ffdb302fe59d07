"""Disks that fail: an append is complete or undone, a log in doubt is given up, and data is never made up."""

import errno
import os
from pathlib import Path

import pytest

from kbus.protocol.errors import ErrorCode
from kbus.storage.disk import RealDisk
from kbus.storage.log_config import LogConfig
from kbus.types import LeaderEpoch, Offset

from .builders import EPOCH, NOW, append, batch, contents, error_of, files, open_log, opened, stored
from .faulty_disk import FaultyDisk, PowerLossDisk

STORAGE_ERROR = ErrorCode.kafka_storage_error


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("after_bytes", [0, 5, 16, 70, 10**6])
def test_a_failed_append_leaves_the_log_as_it_was(tmp_path: Path, code: int, after_bytes: int) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch(2, producer=1))
        before, size = contents(log), os.path.getsize(log.segments[0].path)
        disk.fail("write", code, on=".log", after_bytes=after_bytes)
        retried = batch(3, producer=1, sequence=2)
        assert error_of(lambda: append(log, retried)) is STORAGE_ERROR
        assert contents(log) == before
        assert os.path.getsize(log.segments[0].path) == size
        assert log.log_end_offset == 2
        # Neither did the producer get any further: its retry is no duplicate, and no gap.
        assert append(log, retried) == [2]
        assert contents(log) == before + stored(retried, 2)


def test_a_log_whose_failed_append_cannot_be_undone_is_given_up(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch())
        disk.fail("write", errno.ENOSPC, on=".log", after_bytes=40)
        disk.fail("truncate", errno.EIO, on=".log")
        assert error_of(lambda: append(log, batch())) is STORAGE_ERROR
        assert log.failure is not None
        for use in (
            lambda: append(log, batch()),
            lambda: log.append_as_follower(stored(batch(), 1)),
            lambda: log.read(0, 100, end=Offset(1), min_one_batch=True),
            lambda: log.truncate_to(Offset(0)),
            log.flush,
        ):
            assert error_of(use) is STORAGE_ERROR
    with opened(tmp_path) as log:
        assert contents(log) == stored(batch(), 0)


def test_a_failed_follower_append_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        records = stored(batch(), 0) + stored(batch(), 1)
        disk.fail("write", errno.ENOSPC, on=".log", after_bytes=100)
        assert error_of(lambda: log.append_as_follower(records)) is STORAGE_ERROR
        assert log.log_end_offset == 0
        log.append_as_follower(records)
        assert contents(log) == records


@pytest.mark.parametrize(
    ("operation", "on"),
    [("open", "3.log"), ("open", "3.index"), ("truncate", "3.timeindex"), ("write", "3.snapshot.tmp")],
)
def test_a_failed_roll_leaves_the_log_as_it_was(tmp_path: Path, operation: str, on: str) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, LogConfig(segment_bytes=300), disk=disk) as log:
        append(log, batch(3, size=50))
        disk.fail(operation, errno.ENOSPC, on=on)
        assert error_of(lambda: append(log, batch(size=50))) is STORAGE_ERROR
        assert (log.log_end_offset, len(log.segments)) == (3, 1)
        assert append(log, batch(size=50)) == [3]
        assert [s.base_offset for s in log.segments] == [0, 3]
        data = contents(log)
    with opened(tmp_path, LogConfig(segment_bytes=300)) as log:
        assert contents(log) == data


@pytest.mark.parametrize("index", [".index", ".timeindex"])
def test_an_append_succeeds_although_its_index_entry_could_not_be_written(tmp_path: Path, index: str) -> None:
    disk = FaultyDisk()
    config = LogConfig(index_interval_bytes=1)
    with opened(tmp_path, config, disk=disk) as log:
        append(log, batch())
        disk.fail("write", errno.ENOSPC, on=index, after_bytes=3)
        append(log, *(batch(timestamp=NOW + i) for i in range(20)))
        for offset in range(21):
            assert log.read(offset, 1, end=log.log_end_offset, min_one_batch=True).read()
        data = contents(log)
        log.close()
    with opened(tmp_path, config, clean=True) as log:
        assert contents(log) == data
        assert log.offset_for_timestamp(NOW + 19) == (20, NOW + 19, 0)


def test_a_failed_fsync_is_never_taken_for_a_flush(tmp_path: Path) -> None:
    """The kernel may drop the pages it could not write, and report success the next time."""
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch())
        disk.fail("fsync", errno.EIO, on=".log")
        task = log.prepare_flush()
        assert task is not None
        task.run()
        assert error_of(lambda: log.complete_flush(task)) is STORAGE_ERROR
        assert log.recovery_point == 0
        assert log.failure is not None
        assert error_of(log.flush) is STORAGE_ERROR


def test_an_epoch_that_could_not_be_recorded_is_not_used(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch(), epoch=1)
        disk.fail("fsync", errno.EIO, on="leader-epoch-checkpoint.tmp")
        assert error_of(lambda: append(log, batch(), epoch=2)) is STORAGE_ERROR
        assert (log.latest_epoch, log.log_end_offset) == (1, 1)
        append(log, batch(), epoch=2)
        assert log.epochs == [(1, 0), (2, 1)]


def test_an_epoch_is_on_disk_before_any_record_of_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch(), epoch=1)
        disk.operations.clear()
        append(log, batch(), epoch=2)
        operations = disk.operations
        synced = operations.index("fsync leader-epoch-checkpoint.tmp")
        renamed = operations.index("rename leader-epoch-checkpoint.tmp")
        assert synced < renamed < operations.index("write 00000000000000000000.log")


def test_an_append_is_one_write_and_no_sync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch())
        disk.operations.clear()
        append(log, batch(size=100_000))
        assert disk.operations == ["write 00000000000000000000.log"]


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwritev, real_pwrite = os.pwritev, os.pwrite

    def short_pwritev(fd: int, buffers: list[bytes], position: int) -> int:
        return real_pwrite(fd, b"".join(buffers)[:7], position)

    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, bytes(data)[:50], at))
    path = tmp_path / "file"
    fd = RealDisk().open(str(path), create=True)
    RealDisk().write(fd, [b"a" * 30, b"b" * 200], 0)
    assert path.read_bytes() == b"a" * 30 + b"b" * 200
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="7 of 30 bytes"):
        RealDisk().write(fd, [b"a" * 30], 0)
    monkeypatch.setattr(os, "pwritev", real_pwritev)
    RealDisk().write(fd, [b"%d" % (i % 10) for i in range(3000)], 5)
    assert path.read_bytes()[5:3005] == b"0123456789" * 300
    os.close(fd)


def test_flushed_records_survive_a_power_loss_and_nothing_is_made_up(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    path.mkdir()
    disk = PowerLossDisk(str(path))
    config = LogConfig(segment_bytes=400)
    log = open_log(path, config, disk=disk)
    sent = [batch(size=100, fill=b"%d" % i) for i in range(10)]
    append(log, *sent[:7])
    log.flush()
    append(log, *sent[7:])
    log.close(clean=False)
    disk.lose_power()
    with opened(path, config, disk=disk) as log:
        assert contents(log) == b"".join(stored(b, i) for i, b in enumerate(sent[:7]))
        assert append(log, sent[7]) == [7]


def test_a_truncated_tail_does_not_come_back_after_a_power_loss(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    path.mkdir()
    disk = PowerLossDisk(str(path))
    config = LogConfig(segment_bytes=400)
    log = open_log(path, config, disk=disk)
    append(log, *(batch(size=100, producer=3, sequence=i) for i in range(10)))
    log.flush()
    log.truncate_to(Offset(4))
    log.close(clean=False)
    disk.lose_power()
    with opened(path, config, disk=disk) as log:
        assert log.log_end_offset == 4
        (producer,) = log.active_producers()
        assert producer.last_sequence == 3


def test_producers_survive_a_power_loss_after_retention_took_their_records(tmp_path: Path) -> None:
    """Only a snapshot knows them then: it is synced before the records go."""
    path = tmp_path / "orders-0"
    path.mkdir()
    disk = PowerLossDisk(str(path))
    config = LogConfig(segment_bytes=400, retention_ms=1000)
    log = open_log(path, config, disk=disk)
    sent = [batch(size=100, producer=3, sequence=i) for i in range(5)]
    append(log, *sent)
    log.flush()
    log.apply_retention(NOW + 9999, limit=Offset(5))
    log.close(clean=False)
    disk.lose_power(keep_names=True)
    with opened(path, config, disk=disk, recovery_point=Offset(5)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)
        assert log.append_as_leader(sent[-1], leader_epoch=EPOCH).duplicate


def test_segments_that_a_truncation_removes_are_gone_for_good_before_anything_is_cut(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, LogConfig(segment_bytes=400), disk=disk) as log:
        append(log, *(batch(size=100) for _ in range(6)))
        log.flush()
        disk.operations.clear()
        log.truncate_to(Offset(1))
        operations = disk.operations
        renamed = max(
            i for i, line in enumerate(operations) if line.startswith("rename 0") and ".log" in line
        )
        synced = next(i for i, line in enumerate(operations) if line.startswith("fsync_directory"))
        assert renamed < synced < operations.index("truncate 00000000000000000000.log")


def test_truncation_lowers_the_recovery_point_before_it_cuts(tmp_path: Path) -> None:
    disk = FaultyDisk()
    told: list[tuple[int, int]] = []
    log = open_log(
        tmp_path,
        disk=disk,
        before_truncation=lambda log, offset: told.append((offset, log.size_bytes)),
    )
    append(log, *(batch() for _ in range(5)))
    size = log.size_bytes
    log.truncate_to(Offset(4))
    assert told == []
    append(log, batch())
    log.flush()
    log.truncate_to(Offset(2))
    assert told == [(2, size)]
    assert log.recovery_point == 2
    log.close(clean=False)


def test_a_flush_under_way_does_not_cover_what_was_written_after_a_truncation(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, *(batch() for _ in range(5)))
        task = log.prepare_flush()
        assert task is not None
        log.truncate_to(Offset(2))
        append(log, *(batch(size=50) for _ in range(5)), epoch=1)
        task.run()
        log.complete_flush(task)
        assert log.recovery_point <= 2
        log.flush()
        assert log.recovery_point == 7


def test_a_failed_truncation_gives_the_log_up(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch(), batch())
        disk.fail("truncate", errno.EIO, on=".log")
        assert error_of(lambda: log.truncate_to(Offset(1))) is STORAGE_ERROR
        assert log.failure is not None


def test_a_full_disk_stops_writes_but_not_reads(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, disk=disk) as log:
        append(log, batch())
        disk.fail("write", errno.ENOSPC, times=1000)
        for _ in range(3):
            assert error_of(lambda: append(log, batch())) is STORAGE_ERROR
        assert contents(log) == stored(batch(), 0)
        disk.faults.clear()
        assert append(log, batch()) == [1]


def test_retention_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with opened(tmp_path, LogConfig(segment_bytes=400, retention_ms=1000), disk=disk) as log:
        append(log, *(batch(size=300) for _ in range(5)))
        log.flush()
        disk.fail("write", errno.ENOSPC, times=1000)
        assert log.apply_retention(NOW + 9999, limit=Offset(5)) == 4
        assert (log.log_start_offset, log.epochs) == (4, [(0, 4)])
        disk.faults.clear()
        assert append(log, batch()) == [5]
    with opened(tmp_path) as log:
        assert (log.log_start_offset, log.epochs) == (4, [(0, 4)])


def test_a_leader_of_an_epoch_that_is_over_cannot_append(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.start_epoch(LeaderEpoch(5))
        assert error_of(lambda: append(log, batch(), epoch=4)) is ErrorCode.fenced_leader_epoch
        assert log.log_end_offset == 0
        assert EPOCH == 0
        assert "leader-epoch-checkpoint" in files(tmp_path)
