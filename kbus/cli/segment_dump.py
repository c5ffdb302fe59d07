"""Batches, records and index entries as they lie in the files, one dictionary each."""

from collections.abc import Iterator
from pathlib import Path

from kbus.cli.console_record import put_bytes
from kbus.cli.output import CliError
from kbus.cli.segment_files import PartitionFiles, SegmentFiles
from kbus.cli.segment_indexes import (
    DamagedIndexError,
    aborted_transactions,
    offset_entries,
    time_entries,
)
from kbus.cli.segment_reader import Found, SegmentReader
from kbus.protocol.errors import KafkaError
from kbus.records.batch import BatchHeader, Compression
from kbus.records.compression import DEFAULT_MAX_BYTES
from kbus.records.control import control_type
from kbus.records.record import Record, decode_records
from kbus.storage import layout
from kbus.storage.checkpoints import UnreadableFile, read_epochs
from kbus.storage.producer_snapshot import CorruptSnapshot, decode_snapshot

Row = dict[str, object]
INDEX_SUFFIXES = (layout.OFFSET_INDEX, layout.TIME_INDEX, layout.TXN_INDEX, layout.SNAPSHOT)


def batches(segment: SegmentFiles, *, records: bool, from_offset: int | None) -> Iterator[Row]:
    """Every batch from the one that holds `from_offset` on; last, if the log ends otherwise than with a whole
    batch, a row that says how."""
    with SegmentReader(segment.log) as reader:
        for found in reader.walk(_start(segment, reader, from_offset)):
            header = found.header
            if from_offset is not None and _last_offset(found) < from_offset:
                continue
            if header is None:
                yield {
                    "file": str(segment.log),
                    "position": found.position,
                    "size": found.size,
                    "base_offset": found.base_offset,
                    "magic": found.magic,
                    "problem": f"format {found.magic} is older than v2 and is not read",
                }
                continue
            row = _batch_row(str(segment.log), found, header)
            if not reader.crc_matches(found):
                row["crc_ok"] = False
            elif records:
                row["records"] = _records(header, found, reader)
            yield row
        if reader.tail is not None:
            tail = reader.tail
            yield {
                "file": str(segment.log),
                "position": tail.position,
                "size": tail.size,
                "problem": ("torn tail: " if tail.is_torn else "damaged: ") + tail.problem,
            }


def _start(segment: SegmentFiles, reader: SegmentReader, from_offset: int | None) -> int:
    """Where to begin to look for an offset: where the index says, if a batch that fits lies there."""
    if from_offset is None or segment.base_offset is None:
        return 0
    try:
        entries = offset_entries(segment.sibling(layout.OFFSET_INDEX), segment.base_offset)
    except DamagedIndexError:
        return 0
    position = max((entry.position for entry in entries if entry.offset <= from_offset), default=0)
    found = next(reader.walk(position), None)
    return position if found is not None and found.base_offset <= from_offset else 0


def _last_offset(found: Found) -> int:
    return found.base_offset if found.header is None else found.header.last_offset


def _batch_row(file: str, found: Found, header: BatchHeader) -> Row:
    code = header.compression_code
    return {
        "file": file,
        "position": found.position,
        "size": found.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "magic": header.magic,
        "crc": f"{header.crc:08x}",
        "crc_ok": True,
        "compression": Compression(code).name.lower() if code in list(Compression) else f"unknown ({code})",
        "timestamp_type": header.timestamp_type.name.lower(),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence if header.base_sequence >= 0 else -1,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "has_delete_horizon": header.has_delete_horizon,
    }


def _records(header: BatchHeader, found: Found, reader: SegmentReader) -> list[Row]:
    if found.size > DEFAULT_MAX_BYTES:
        return [{"problem": f"the batch has {found.size} bytes, too many to be opened"}]
    rows: list[Row] = []
    try:
        rows.extend(
            _record_row(record, is_control=header.is_control)
            for record in decode_records(reader.read(found), header)
        )
    except KafkaError as error:
        rows.append({"problem": f"the records cannot be read: {error}"})
    return rows


def _record_row(record: Record, *, is_control: bool) -> Row:
    row: Row = {"offset": record.offset, "timestamp": record.timestamp}
    if is_control:
        row["control_type"] = control_type(record.key).name.lower()
    put_bytes(row, "key", record.key)
    put_bytes(row, "value", record.value)
    headers = []
    for name, value in record.headers:
        header: Row = {}
        put_bytes(header, "key", name.encode(errors="surrogateescape"))
        put_bytes(header, "value", value)
        headers.append(header)
    row["headers"] = headers
    return row


def partition_index_files(partition: PartitionFiles) -> Iterator[tuple[Path, int | None]]:
    """(file, base offset of its segment) of all that belongs to the segments but is no log."""
    for segment in partition.segments:
        for suffix in (layout.OFFSET_INDEX, layout.TIME_INDEX, layout.TXN_INDEX):
            path = segment.sibling(suffix)
            if path.exists():
                yield path, segment.base_offset
    for snapshot in partition.snapshots:
        yield snapshot, None
    if partition.epochs.exists():
        yield partition.epochs, None


def is_index_file(path: Path) -> bool:
    return path.name == layout.LEADER_EPOCH_CHECKPOINT or _kind(path) is not None


def _kind(path: Path) -> str | None:
    return next(
        (suffix for suffix in INDEX_SUFFIXES if path.suffix == suffix or suffix + "." in path.name), None
    )


def index_entries(path: Path, base_offset: int | None) -> Iterator[Row]:
    """Offsets are absolute if the base offset is known, from the name of the file; else relative to it."""
    if base_offset is None:
        base_offset = layout.offset_of(path.name.partition(".")[0] + layout.LOG, layout.LOG) or 0
    kind = _kind(path)
    name = str(path)
    try:
        if kind == layout.OFFSET_INDEX:
            for offset_entry in offset_entries(path, base_offset):
                yield {"file": name, **offset_entry._asdict()}
        elif kind == layout.TIME_INDEX:
            for time_entry in time_entries(path, base_offset):
                yield {"file": name, **time_entry._asdict()}
        elif kind == layout.TXN_INDEX:
            for aborted in aborted_transactions(path):
                yield {"file": name, **aborted._asdict()}
        elif kind == layout.SNAPSHOT:
            for producer in decode_snapshot(path.read_bytes()):
                last = producer.batches[-1] if producer.batches else None
                yield {
                    "file": name,
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.producer_epoch,
                    "last_sequence": producer.last_sequence,
                    "last_offset": None if last is None else last.last_offset,
                    "last_timestamp": producer.last_timestamp,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "transaction_first_offset": producer.txn_first_offset,
                }
        else:
            for epoch, start in read_epochs(str(path)) or ():
                yield {"file": name, "epoch": epoch, "start_offset": start}
    except (DamagedIndexError, CorruptSnapshot, UnreadableFile) as error:
        raise CliError(f"{path} is damaged: {error}.") from None
