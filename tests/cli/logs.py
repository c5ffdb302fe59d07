"""Logs on disk for tests of the segment commands: written by the storage engine, or byte by byte."""

import struct
from pathlib import Path

from kbus.records.batch import Compression, read_header
from kbus.records.record import Record, encode_batch
from kbus.storage.disk import RealDisk
from kbus.storage.log import PartitionLog
from kbus.storage.log_config import LogConfig
from kbus.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition

NOW_MS = 1_700_000_000_000
SEGMENT = "00000000000000000000"


def records(base_offset: int, count: int = 3, *, size: int = 40) -> list[Record]:
    return [
        Record(
            Offset(offset), NOW_MS + offset, b"k%d" % offset, bytes([65 + offset % 26]) * size, (("h", b"x"),)
        )
        for offset in range(base_offset, base_offset + count)
    ]


def batch(base_offset: int, count: int = 3, *, size: int = 40, epoch: int = 0) -> bytes:
    return encode_batch(records(base_offset, count, size=size), leader_epoch=LeaderEpoch(epoch))


def write_log(folder: Path, *, batches: int = 40, segment_bytes: int = 2000) -> Path:
    """A stopped log of several segments, with indexes, two leader epochs and an idempotent producer."""
    folder.mkdir(parents=True)
    log = open_log(folder, segment_bytes=segment_bytes)
    for number in range(batches):
        epoch = LeaderEpoch(1 if number >= batches // 2 else 0)
        if number in (0, batches // 2):
            log.start_epoch(epoch)
        codec = list(Compression)[number % 5]
        data = encode_batch(
            [record._replace(offset=Offset(i)) for i, record in enumerate(records(number * 3))],
            compression=codec,
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            base_sequence=number * 3,
        )
        log.append_as_leader(data, leader_epoch=epoch)
    log.close(clean=True)
    return folder


def open_log(folder: Path, *, segment_bytes: int = 2000) -> PartitionLog:
    return PartitionLog(
        str(folder),
        TopicPartition("events", 0),
        LogConfig(segment_bytes=segment_bytes, index_interval_bytes=300, segment_index_bytes=4096),
        disk=RealDisk(),
        clock=lambda: NOW_MS,
        clean=True,
    )


def write_segment(folder: Path, batches: list[bytes], *, base_offset: int = 0) -> Path:
    """A segment with an index entry for every batch but the first; returns the `.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{base_offset:020d}"
    position = 0
    offsets, times = b"", b""
    for number, data in enumerate(batches):
        header = read_header(data)
        if number:
            offsets += struct.pack(">ii", header.last_offset - base_offset, position)
            times += struct.pack(">qi", header.max_timestamp, header.last_offset - base_offset)
        position += len(data)
    stem.with_suffix(".index").write_bytes(offsets)
    stem.with_suffix(".timeindex").write_bytes(times)
    log = stem.with_suffix(".log")
    log.write_bytes(b"".join(batches))
    return log


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
