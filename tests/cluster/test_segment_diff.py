"""`kbus segment diff` on replicas made by hand."""

import json
from pathlib import Path

import pytest

from kbus.client.local_cluster import LocalCluster, write_cluster
from kbus.storage.checkpoints import MetaProperties, write_meta_properties, write_offsets
from kbus.storage.disk import RealDisk
from kbus.types import BrokerId, Offset, TopicPartition
from tests.cli.logs import batch, patch, write_segment

from .commands import Kbus

NODES = (1, 2, 3)
BATCHES = [batch(offset) for offset in range(0, 30, 3)]
SIZE = len(BATCHES[5])


@pytest.fixture
def data(home: Path) -> dict[int, Path]:
    """A stopped cluster whose three replicas of events-0 are the same up to offset 30."""
    folders = {number: home / "made" / f"broker-{number}" / "data" for number in NODES}
    for number, folder in folders.items():
        write_segment(folder / "events-0", BATCHES[:5])
        write_segment(folder / "events-0", BATCHES[5:], base_offset=15)
        own(folder, number, high_watermark=30)
    write_cluster(
        LocalCluster(
            folder=home / "made",
            bootstrap_servers="127.0.0.1:1",
            zookeeper="127.0.0.1:1",
            log_dirs=tuple(folders.values()),
        )
    )
    return folders


def own(folder: Path, number: int, *, high_watermark: int) -> None:
    meta = MetaProperties(broker_id=BrokerId(number), cluster_id="c")
    write_meta_properties(RealDisk(), str(folder / "meta.properties"), meta)
    offsets = {TopicPartition("events", 0): Offset(high_watermark)}
    write_offsets(RealDisk(), str(folder / "replication-offset-checkpoint"), offsets)


def log(folder: Path, base_offset: int = 0) -> Path:
    return folder / "events-0" / f"{base_offset:020d}.log"


def test_equal_replicas_are_the_same(data: dict[int, Path], kbus: Kbus) -> None:
    found = kbus.json("segment", "diff", "events:0")
    assert found["same"]
    assert found["high_watermark"] == 30
    assert [replica["batches"] for replica in found["replicas"]] == [10, 10, 10]
    assert sorted(replica["state"] for replica in found["replicas"]) == ["reference", "same", "same"]


def test_a_changed_byte_is_found_with_its_place(data: dict[int, Path], kbus: Kbus) -> None:
    position = 2 * SIZE + 90  # in the records of the third batch of the second segment
    original = log(data[3], 15).read_bytes()[position]
    patch(log(data[3], 15), position, bytes([original ^ 1]))
    result = kbus("segment", "diff", "events", "--output", "json")
    assert result.exit_code == 1
    assert "The replicas of events-0 differ below offset 30: see broker 3." in result.err
    (difference,) = [r["difference"] for r in json.loads(result.out)["replicas"] if r["broker"] == 3]
    assert difference["offset"] == 21
    assert difference["position"] == difference["reference_position"] == position
    assert difference["file"] == str(log(data[3], 15))
    text = kbus("segment", "diff", "events")
    assert f"First difference at byte {position} of {log(data[3], 15)}" in text.err


def test_another_leader_epoch_is_a_difference_although_the_checksum_is_the_same(
    data: dict[int, Path], kbus: Kbus
) -> None:
    write_segment(data[2] / "events-0", [*BATCHES[:4], batch(12, epoch=3)])
    result = kbus("segment", "diff", "events")
    assert result.exit_code == 1
    assert "Broker 2, offset 12: leader_epoch 3, not 0." in result.err


def test_segments_may_begin_elsewhere(data: dict[int, Path], kbus: Kbus) -> None:
    log(data[2], 15).unlink()
    write_segment(data[2] / "events-0", BATCHES[:7])
    write_segment(data[2] / "events-0", BATCHES[7:], base_offset=21)
    assert kbus.json("segment", "diff", "events")["same"]


def test_what_one_replica_has_deleted_is_not_compared(data: dict[int, Path], kbus: Kbus) -> None:
    log(data[2]).unlink()
    found = kbus.json("segment", "diff", "events")
    assert found["same"]
    assert {replica["batches"] for replica in found["replicas"]} == {5}


def test_what_lies_beyond_the_high_watermark_may_differ(data: dict[int, Path], kbus: Kbus) -> None:
    log(data[1], 15).write_bytes(b"".join([*BATCHES[5:], batch(30, epoch=1), batch(33, epoch=1)]))
    log(data[2], 15).write_bytes(b"".join([*BATCHES[5:], batch(30, epoch=2)]))
    assert kbus.json("segment", "diff", "events")["same"]


def test_a_replica_that_ends_too_early_is_found(data: dict[int, Path], kbus: Kbus) -> None:
    log(data[3], 15).write_bytes(b"".join(BATCHES[5:8]))
    result = kbus("segment", "diff", "events", "--output", "json")
    assert result.exit_code == 1
    (replica,) = [r for r in json.loads(result.out)["replicas"] if r["broker"] == 3]
    assert (replica["state"], replica["same_up_to"]) == ("short", 24)


def test_the_highest_watermark_that_any_replica_knows_counts(data: dict[int, Path], kbus: Kbus) -> None:
    for number in (1, 2):
        own(data[number], number, high_watermark=12)
    patch(log(data[1], 15), SIZE - 1, b"!")
    assert kbus("segment", "diff", "events").exit_code == 1
    own(data[3], 3, high_watermark=12)
    assert kbus("segment", "diff", "events").exit_code == 0


def test_a_damaged_replica_is_told_from_a_short_one(data: dict[int, Path], kbus: Kbus) -> None:
    patch(log(data[3], 15), SIZE + 16, b"\x09")  # the magic of its second batch
    result = kbus("segment", "diff", "events")
    assert result.exit_code == 1
    assert "magic 9 is not that of a batch" in result.err


def test_a_partition_that_is_not_there_is_said(data: dict[int, Path], kbus: Kbus) -> None:
    assert "has no partition 7 of topic 'events'" in kbus("segment", "diff", "events:7").err
    assert kbus("segment", "diff", "events:x").exit_code == 2


def test_without_a_cluster_the_next_step_is_said(kbus: Kbus) -> None:
    assert "kbus cluster start" in kbus("segment", "diff", "events").err


def test_a_live_cluster_is_compared_up_to_what_its_leader_says(started: Kbus) -> None:
    started.ok("topic", "create", "demo", "--partitions", "1")
    found = started.json("segment", "diff", "demo")
    assert found["same"]
    assert found["high_watermark_source"] == "broker 1, the leader"
