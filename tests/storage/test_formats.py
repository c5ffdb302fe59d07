"""The files are Kafka's, byte for byte."""

import os
import struct
import uuid
from pathlib import Path

import pytest

from kbus.core.producer_window import ProducerEntry, WrittenBatch
from kbus.records.batch import HEADER_SIZE
from kbus.records.control import ControlType
from kbus.records.crc import crc32c
from kbus.records.validation import AppendOrigin
from kbus.storage import checkpoints, layout
from kbus.storage.checkpoints import MetaProperties, UnreadableFile
from kbus.storage.disk import RealDisk
from kbus.storage.log_config import LogConfig
from kbus.storage.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from kbus.types import BrokerId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition

from .builders import EPOCH, NOW, append, batch, files, marker, open_log, opened


def test_index_entries_are_relative_offset_and_position(tmp_path: Path) -> None:
    """An entry for the first batch after more than index.interval.bytes: its last offset, where it begins."""
    sent = batch(2, size=40)
    size = len(sent)
    config = LogConfig(index_interval_bytes=2 * size - 1)
    log = open_log(tmp_path, config)
    log.truncate_fully_and_start_at(Offset(1000))
    append(log, *(batch(2, size=40, timestamp=NOW + 10 * i) for i in range(7)))
    name = tmp_path / "00000000000000001000"
    # While the segment is active its indexes are preallocated, as a hole.
    assert name.with_suffix(".index").stat().st_size == 10 * 1024 * 1024
    assert name.with_suffix(".timeindex").stat().st_size == 10 * 1024 * 1024 // 12 * 12
    assert name.with_suffix(".index").stat().st_blocks * 512 <= 8192
    log.close()
    assert name.with_suffix(".index").read_bytes() == struct.pack(
        ">ii ii ii", 5, 2 * size, 9, 4 * size, 13, 6 * size
    )
    assert name.with_suffix(".timeindex").read_bytes() == struct.pack(
        ">qi qi qi", NOW + 21, 5, NOW + 41, 9, NOW + 61, 13
    )


def test_a_closed_segment_ends_its_time_index_with_its_largest_timestamp(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(timestamp=NOW + 5), batch(timestamp=NOW))
    log.close()
    assert (tmp_path / "00000000000000000000.timeindex").read_bytes() == struct.pack(">qi", NOW + 5, 0)
    assert (tmp_path / "00000000000000000000.index").read_bytes() == b""


def test_a_snapshot_is_version_crc_count_and_entries() -> None:
    entries = [
        ProducerEntry(
            ProducerId(4000),
            ProducerEpoch(3),
            (WrittenBatch(7, Offset(90), 1, NOW), WrittenBatch(9, Offset(102), 1, NOW + 1)),
            NOW + 1,
            12,
            Offset(101),
        ),
        ProducerEntry(ProducerId(4001), ProducerEpoch(0), (), NOW, -1, None),
    ]
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 4000, 3, 9, 102, 1, NOW + 1, 12, 101)
    body += struct.pack(">qhiqiqiq", 4001, 0, -1, -1, 0, NOW, -1, -1)
    data = struct.pack(">hI", 1, crc32c(body)) + body
    assert encode_snapshot(entries) == data
    assert decode_snapshot(data) == [entries[0]._replace(batches=entries[0].batches[-1:]), entries[1]]


@pytest.mark.parametrize("position", [0, 3, 7, 20, 55])
def test_a_damaged_snapshot_is_recognised(position: int) -> None:
    data = bytearray(encode_snapshot([ProducerEntry(ProducerId(1)), ProducerEntry(ProducerId(2))]))
    data[position] ^= 1
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(data))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(data[:position]))


def test_snapshots_are_named_after_the_offset_up_to_which_they_know(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=300))
    append(log, *(batch(size=100, producer=5, sequence=i) for i in range(3)))
    assert "00000000000000000002.snapshot" in files(tmp_path)
    log.close()
    data = (tmp_path / "00000000000000000003.snapshot").read_bytes()
    (entry,) = decode_snapshot(data)
    assert (entry.producer_id, entry.last_sequence, entry.batches[0].last_offset) == (5, 2, 2)


def test_a_transaction_index_entry_is_version_producer_and_offsets(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(), batch(2, producer=8, transactional=True), batch(producer=9, transactional=True))
        log.append_as_leader(
            marker(ControlType.ABORT, 8), leader_epoch=EPOCH, origin=AppendOrigin.COORDINATOR
        )
        log.append_as_leader(
            marker(ControlType.COMMIT, 9), leader_epoch=EPOCH, origin=AppendOrigin.COORDINATOR
        )
    data = (tmp_path / "00000000000000000000.txnindex").read_bytes()
    # Producer, its first offset, the marker's offset, the first offset undecided after it.
    assert data == struct.pack(">hqqqq", 0, 8, 1, 4, 3)


def test_the_leader_epoch_checkpoint_is_text(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(3), epoch=4)
        log.start_epoch(LeaderEpoch(6))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n4 0\n6 3\n"


def test_offset_checkpoints_are_text(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    offsets = {TopicPartition("a.b_c-d", 3): Offset(17), TopicPartition("orders", 0): Offset(2**40)}
    checkpoints.write_offsets(RealDisk(), path, offsets)
    assert Path(path).read_text() == f"0\n2\na.b_c-d 3 17\norders 0 {2**40}\n"
    assert checkpoints.read_offsets(path) == offsets
    assert checkpoints.read_offsets(path + "-absent") == {}


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n",
        "0\n2\na 0 1\n",
        "0\n1\na 0\n",
        "0\n1\na 0 x\n",
        "x",
        "0\n",
        "0\n1\n../x 0 1\n",
        "0\n1\na 0 -1\n",
    ],
)
def test_an_unreadable_checkpoint_is_recognised(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(UnreadableFile):
        checkpoints.read_offsets(str(path))


@pytest.mark.parametrize(
    "text", ["0\n2\n1 0\n1 5\n", "0\n2\n1 7\n2 5\n", "0\n1\n-1 0\n", "0\n1\n1\n", "\xff"]
)
def test_unreadable_epochs_are_recognised(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UnreadableFile):
        checkpoints.read_epochs(str(path))


def test_partition_metadata_holds_the_topic_id_as_kafka_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    topic_id = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    checkpoints.write_topic_id(RealDisk(), str(path), topic_id)
    assert path.read_text() == "version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w"
    assert checkpoints.read_topic_id(str(path)) == topic_id
    zero = "version: 0\ntopic_id: " + 22 * "A"
    for bad in ("", "version: 0\n", "version: x\ntopic_id: a", "version: 0\ntopic_id: short", zero):
        path.write_text(bad)
        with pytest.raises(UnreadableFile):
            checkpoints.read_topic_id(str(path))
    assert checkpoints.read_topic_id(str(tmp_path / "absent")) is None


def test_meta_properties_say_whose_directory_it_is(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    properties = MetaProperties(broker_id=BrokerId(3), cluster_id="abc=")
    checkpoints.write_meta_properties(RealDisk(), str(path), properties)
    assert path.read_text() == "version=0\nbroker.id=3\ncluster.id=abc=\n"
    path.write_text("#\n#Tue Nov 12\ncluster.id=abc=\nbroker.id=3\nversion=0\n")
    assert checkpoints.read_meta_properties(str(path)) == properties
    path.write_text("version=0\nbroker.id=x\ncluster.id=abc\n")
    with pytest.raises(UnreadableFile):
        checkpoints.read_meta_properties(str(path))


def test_the_marker_of_a_clean_stop_is_taken_once(tmp_path: Path) -> None:
    path = tmp_path / ".kafka_cleanshutdown"
    checkpoints.write_clean_shutdown(RealDisk(), str(path), 42)
    assert path.read_text() == '{"version": 0, "brokerEpoch": 42}'
    assert checkpoints.take_clean_shutdown(RealDisk(), str(path))
    assert not checkpoints.take_clean_shutdown(RealDisk(), str(path))


def test_files_of_a_log_have_kafkas_names(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=HEADER_SIZE + 60))
    append(log, batch(size=40), batch(size=40))
    log.close()
    assert files(tmp_path) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.index",
        "00000000000000000001.log",
        "00000000000000000001.snapshot",
        "00000000000000000001.timeindex",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
    ]


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("orders-0", TopicPartition("orders", 0)),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("orders", None),
        ("orders-", None),
        ("-0", None),
        ("orders-x", None),
        ("orders-00", None),
        ("orders--1", TopicPartition("orders-", 1)),
        ("or ders-0", None),
        ("..-0", None),
        ("orders-²", None),
        ("x" * 250 + "-0", None),
    ],
)
def test_folder_names_are_checked(name: str, partition: TopicPartition | None) -> None:
    assert layout.partition_of_folder(name) == partition


def test_a_deleted_partitions_folder_fits_a_file_name() -> None:
    name = layout.delete_folder_name(TopicPartition("x" * 249, 123))
    assert len(name) <= 255
    assert layout.is_delete_folder(name)
    assert layout.partition_of_folder(name) is None
    assert not layout.is_delete_folder("orders-delete")
    assert os.path.basename(name) == name
