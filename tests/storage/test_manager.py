"""All logs of a node: locking, loading, checkpoints, creation, deletion, failing directories."""

import errno
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kbus.protocol.errors import ErrorCode
from kbus.storage import layout
from kbus.storage.checkpoints import MetaProperties, read_offsets
from kbus.storage.disk import Disk, RealDisk
from kbus.storage.log_config import LogConfig
from kbus.storage.log_directory import DirectoryInUse
from kbus.storage.manager import InconsistentMetaProperties, LogManager
from kbus.types import BrokerId, Offset, TopicPartition

from .builders import NOW, Clock, append, batch, contents, error_of, files
from .faulty_disk import FaultyDisk

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("other-topic", 3)
TOPIC_ID = uuid.UUID(int=12345)


def started(*paths: Path, disk: Disk | None = None, config: LogConfig | None = None) -> LogManager:
    manager = LogManager(
        [str(p) for p in paths], config or LogConfig(), disk=disk or RealDisk(), clock=Clock()
    )
    manager.lock()
    manager.load()
    return manager


def test_logs_and_their_topic_ids_are_there_after_a_restart(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(manager.create(ORDERS, TOPIC_ID), batch(3))
    append(manager.create(OTHER, None), batch())
    manager.close(broker_epoch=7)
    assert (tmp_path / layout.CLEAN_SHUTDOWN_MARKER).exists()
    manager = started(tmp_path)
    assert set(manager.logs) == {ORDERS, OTHER}
    assert manager.logs[ORDERS].log_end_offset == manager.logs[ORDERS].recovery_point == 3
    assert manager.topic_id(ORDERS) == TOPIC_ID
    assert manager.topic_id(OTHER) is None
    assert not (tmp_path / layout.CLEAN_SHUTDOWN_MARKER).exists()
    manager.close()


def test_only_a_stop_that_went_well_is_marked_clean(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = manager.create(ORDERS, TOPIC_ID)
    append(log, batch())
    manager.close(clean=False)
    assert not (tmp_path / layout.CLEAN_SHUTDOWN_MARKER).exists()
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    assert not manager.directories[0].was_clean
    append(manager.logs[ORDERS], batch())
    disk.fail("fsync", errno.EIO, on=".log")
    manager.close()
    assert not (tmp_path / layout.CLEAN_SHUTDOWN_MARKER).exists()
    manager = started(tmp_path)
    assert manager.logs[ORDERS].log_end_offset == 2
    manager.close()


def test_a_crash_while_loading_does_not_look_clean(tmp_path: Path) -> None:
    manager = started(tmp_path)
    manager.create(ORDERS, TOPIC_ID)
    manager.close()
    crashed = LogManager([str(tmp_path)], LogConfig(), disk=RealDisk(), clock=Clock())
    crashed.lock()

    def crash(topic: str) -> LogConfig:
        raise KeyboardInterrupt(topic)

    with pytest.raises(KeyboardInterrupt):
        crashed.load(crash)
    crashed.unlock()
    manager = started(tmp_path)
    assert not manager.directories[0].was_clean
    manager.close()


def test_a_directory_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    manager = started(tmp_path)
    script = f"""
import sys
from kbus.storage.disk import RealDisk
from kbus.storage.log_directory import DirectoryInUse, LogDirectory
try:
    LogDirectory({str(tmp_path)!r}, RealDisk()).lock()
except DirectoryInUse as error:
    sys.exit(str(error))
"""
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "is in use by another broker" in other.stderr
    with pytest.raises(DirectoryInUse):
        started(tmp_path)
    manager.close()
    started(tmp_path).close()


def test_directories_say_whose_they_are(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    manager = started(first, second)
    assert manager.read_meta_properties() is None
    ours = MetaProperties(broker_id=BrokerId(1), cluster_id="c")
    manager.write_meta_properties(ours)
    assert manager.read_meta_properties() == ours
    (second / layout.META_PROPERTIES).write_text("version=0\nbroker.id=2\ncluster.id=c\n")
    with pytest.raises(InconsistentMetaProperties, match="belongs to broker 2"):
        manager.read_meta_properties()
    manager.close()


def test_checkpoints_are_kafkas_and_are_used_at_the_next_start(tmp_path: Path) -> None:
    manager = started(tmp_path, config=LogConfig(segment_bytes=500))
    log = manager.create(ORDERS, TOPIC_ID)
    append(log, *(batch(size=100) for _ in range(7)))
    log.flush()
    append(log, batch())
    log.delete_before(Offset(3))
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()
    manager.checkpoint_high_watermarks({ORDERS: Offset(5), OTHER: Offset(1)})
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 7\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\norders 0 5\n"
    manager.close(clean=False)
    manager = started(tmp_path)
    log = manager.logs[ORDERS]
    assert (log.recovery_point, log.log_start_offset, log.log_end_offset) == (7, 3, 8)
    assert manager.high_watermarks == {ORDERS: 5}
    manager.close()


def test_a_truncation_is_checkpointed_before_it_happens(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = manager.create(ORDERS, TOPIC_ID)
    append(log, *(batch() for _ in range(5)))
    log.flush()
    manager.checkpoint_recovery_points()
    log.truncate_to(Offset(2))
    path = str(tmp_path / layout.RECOVERY_POINT_CHECKPOINT)
    assert read_offsets(path) == {ORDERS: 2}
    manager.close(clean=False)


def test_unreadable_checkpoints_cost_no_data(tmp_path: Path) -> None:
    manager = started(tmp_path)
    log = manager.create(ORDERS, TOPIC_ID)
    append(log, *(batch() for _ in range(5)))
    data = contents(log)
    manager.close()
    names = (layout.RECOVERY_POINT_CHECKPOINT, layout.LOG_START_CHECKPOINT, layout.HIGH_WATERMARK_CHECKPOINT)
    for name in names:
        (tmp_path / name).write_bytes(b"\xff garbage")
    manager = started(tmp_path)
    assert contents(manager.logs[ORDERS]) == data
    assert all(f"{name}.unreadable" in files(tmp_path) for name in names)
    manager.close()


def test_unreadable_metadata_quarantines_a_partition_and_leaves_its_files(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(manager.create(ORDERS, TOPIC_ID), batch())
    append(manager.create(OTHER, TOPIC_ID), batch())
    manager.close()
    folder = tmp_path / "orders-0"
    (folder / layout.PARTITION_METADATA).write_text("junk")
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    manager = started(tmp_path)
    assert set(manager.logs) == {OTHER}
    assert str(folder) in manager.quarantined
    assert manager.offline_partitions == {ORDERS}
    assert error_of(lambda: manager.create(ORDERS, TOPIC_ID)) is ErrorCode.kafka_storage_error
    task = manager.take_deletions(NOW + 10**9)
    if task is not None:
        task.run()
    manager.close()
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


@pytest.mark.parametrize("name", ["stray", "or ders-0", "orders-00", "-1", "orders-0.abc-future"])
def test_folders_that_are_no_partitions_are_reported_and_left(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "file").write_text("keep")
    (tmp_path / "a file").write_text("keep")
    manager = started(tmp_path)
    assert list(manager.quarantined) == [str(tmp_path / name)]
    assert not manager.logs
    manager.close()
    assert (tmp_path / name / "file").read_text() == "keep"


def test_a_partition_in_two_directories_is_left_for_people_to_sort_out(tmp_path: Path) -> None:
    for name in "ab":
        manager = started(tmp_path / name)
        append(manager.create(ORDERS, TOPIC_ID), batch())
        manager.close()
    manager = started(tmp_path / "a", tmp_path / "b")
    assert not manager.logs
    assert len(manager.quarantined) == 2
    assert error_of(lambda: manager.create(ORDERS, TOPIC_ID)) is ErrorCode.kafka_storage_error
    manager.close()


def test_new_logs_go_where_there_are_fewest(tmp_path: Path) -> None:
    manager = started(tmp_path / "a", tmp_path / "b")
    for number in range(6):
        manager.create(TopicPartition("orders", number), TOPIC_ID)
    counts = [len([n for n in files(tmp_path / d) if n.startswith("orders")]) for d in "ab"]
    assert counts == [3, 3]
    assert manager.create(ORDERS, TOPIC_ID) is manager.logs[ORDERS]
    manager.close()


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "x" * 250, "ä"])
def test_no_log_is_created_for_a_bad_name(tmp_path: Path, topic: str) -> None:
    manager = started(tmp_path)
    partition = TopicPartition(topic, 0)
    assert error_of(lambda: manager.create(partition, None)) is ErrorCode.invalid_topic_exception
    manager.close()


def test_a_deleted_log_is_gone_at_once_and_its_files_later(tmp_path: Path) -> None:
    clock = Clock()
    manager = LogManager([str(tmp_path)], LogConfig(), disk=RealDisk(), clock=clock)
    manager.lock()
    manager.load()
    log = manager.create(ORDERS, TOPIC_ID)
    append(log, batch())
    slice_ = log.read(0, 1000, end=Offset(1), min_one_batch=True)
    manager.delete(ORDERS)
    assert manager.get(ORDERS) is None
    (folder,) = [name for name in files(tmp_path) if name.endswith("-delete")]
    assert folder.startswith("orders-0.")
    # Of a topic with the same name that is made meanwhile nothing is lost.
    again = manager.create(ORDERS, uuid.UUID(int=6))
    append(again, batch(2))
    assert manager.take_deletions(NOW + 59_999) is None
    task = manager.take_deletions(NOW + 60_000)
    assert task is not None
    task.run()
    assert folder not in files(tmp_path)
    assert again.log_end_offset == 2
    assert len(slice_.read()) == slice_.length > 0
    assert manager.take_deletions(NOW + 60_000) is None
    manager.close()


def test_files_of_deleted_logs_are_removed_after_a_restart(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(manager.create(ORDERS, TOPIC_ID), batch())
    manager.delete(ORDERS)
    manager.close()
    manager = started(tmp_path)
    assert not manager.logs
    assert not manager.quarantined
    task = manager.take_deletions(NOW)
    assert task is not None
    task.run()
    assert not [name for name in files(tmp_path) if name.endswith("-delete")]
    manager.close()


def test_retired_segments_are_removed_by_a_task(tmp_path: Path) -> None:
    manager = started(tmp_path, config=LogConfig(segment_bytes=300))
    log = manager.create(ORDERS, TOPIC_ID)
    append(log, *(batch(size=100) for _ in range(7)))
    log.delete_before(Offset(6))
    task = manager.take_deletions(NOW + 60_000)
    assert task is not None
    task.run()
    assert not [name for name in files(tmp_path / "orders-0") if name.endswith(".deleted")]
    assert log.log_start_offset == 6
    manager.close()


def test_a_failed_directory_takes_its_partitions_offline_and_no_others(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path / "a", tmp_path / "b", disk=disk)
    for number in range(4):
        append(manager.create(TopicPartition("orders", number), TOPIC_ID), batch())
    disk.fail("fsync", errno.EIO, on=f"a/{layout.RECOVERY_POINT_CHECKPOINT}.tmp")
    assert error_of(manager.checkpoint_recovery_points) is ErrorCode.kafka_storage_error
    assert manager.directories[0].failure is not None
    assert {p.partition for p in manager.offline_partitions} == {0, 2}
    assert {p.partition for p in manager.logs} == {1, 3}
    manager.checkpoint_recovery_points()
    append(manager.create(TopicPartition("orders", 9), TOPIC_ID), batch())
    assert "orders-9" in files(tmp_path / "b")
    manager.close()
    assert not (tmp_path / "a" / layout.CLEAN_SHUTDOWN_MARKER).exists()
    assert (tmp_path / "b" / layout.CLEAN_SHUTDOWN_MARKER).exists()
    manager = started(tmp_path / "a", tmp_path / "b")
    assert len(manager.logs) == 5
    manager.close()


def test_a_directory_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not a directory")
    manager = started(tmp_path / "a", tmp_path / "b")
    assert manager.directories[0].failure is not None
    append(manager.create(ORDERS, TOPIC_ID), batch())
    manager.close()


def test_a_log_that_could_not_be_created_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    disk.fail("open", errno.ENOSPC, on=".log")
    assert error_of(lambda: manager.create(ORDERS, TOPIC_ID)) is ErrorCode.kafka_storage_error
    assert "orders-0" not in files(tmp_path)
    append(manager.create(ORDERS, TOPIC_ID), batch())
    manager.close()


def test_the_topic_id_is_on_disk_before_any_record(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    disk.operations.clear()
    append(manager.create(ORDERS, TOPIC_ID), batch())
    operations = disk.operations
    assert operations.index("fsync partition.metadata.tmp") < operations.index(
        "write 00000000000000000000.log"
    )
    manager.close()
    assert os.listdir(tmp_path / "orders-0")


def test_a_full_disk_costs_a_checkpoint_and_not_the_directory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    manager = started(tmp_path, disk=disk)
    log = manager.create(ORDERS, TOPIC_ID)
    append(log, batch(2))
    manager.checkpoint_high_watermarks({ORDERS: Offset(1)})
    disk.fail("write", errno.ENOSPC, on=layout.HIGH_WATERMARK_CHECKPOINT + ".tmp")
    error = error_of(lambda: manager.checkpoint_high_watermarks({ORDERS: Offset(2)}))
    assert error is ErrorCode.kafka_storage_error
    checkpoint = str(tmp_path / layout.HIGH_WATERMARK_CHECKPOINT)
    assert read_offsets(checkpoint) == {ORDERS: 1}, "the old one is as good as ever"
    append(log, batch(3))
    manager.checkpoint_high_watermarks({ORDERS: Offset(5)})
    assert read_offsets(checkpoint) == {ORDERS: 5}
    manager.close()


def test_a_quarantined_partition_can_be_deleted(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(manager.create(ORDERS, TOPIC_ID), batch(2))
    manager.close()
    (tmp_path / "orders-0" / layout.PARTITION_METADATA).write_text("junk")
    manager = started(tmp_path)
    assert ORDERS in manager.offline_partitions
    manager.delete(ORDERS)
    assert not (tmp_path / "orders-0").exists()
    assert ORDERS not in manager.offline_partitions
    assert manager.create(ORDERS, uuid.UUID(int=7)).log_end_offset == 0
    manager.close()


def test_a_log_set_aside_makes_room_and_is_never_removed(tmp_path: Path) -> None:
    manager = started(tmp_path, config=LogConfig(file_delete_delay_ms=0))
    append(manager.create(ORDERS, TOPIC_ID), batch(2))
    aside = Path(manager.set_aside(ORDERS))
    assert manager.create(ORDERS, uuid.UUID(int=7)).log_end_offset == 0
    task = manager.take_deletions(NOW + 10_000_000)
    if task is not None:
        task.run()
    assert (aside / "00000000000000000000.log").stat().st_size > 0
    manager.close()
    manager = started(tmp_path)
    assert (aside / "00000000000000000000.log").stat().st_size > 0
    assert manager.topic_id(ORDERS) == uuid.UUID(int=7)
    manager.close()
