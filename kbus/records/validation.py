"""What is checked before a batch enters a log, and what it is rewritten to where it must be.

Kafka decodes every record it is sent. Here a batch stays closed unless something needs its records: the
header is checked, the CRC proves that the bytes are what the producer meant, and they are stored as they
came, without a copy. The reason is cost: opening takes a microsecond or two a record, the rest a few
microseconds a batch. What is given up is small: the log is built on headers alone, so a producer that puts
malformed records under a valid header harms only those who read them, and readers check what they decode.

A batch is opened, and then each of its records checked as Kafka does, when
- the topic is compacted: every record needs a key;
- `compression.type` asks for another codec than the producer's;
- the header's timestamps are out of bounds or contradict each other: the records decide, and the largest
  timestamp in the header is corrected.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import (
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    PREFIX_SIZE,
    BatchHeader,
    Buffer,
    Compression,
    TimestampType,
    read_header,
    replace_attributes,
    write_header,
)
from kbus.records.compression import compress, max_decompressed_bytes
from kbus.records.crc import crc32c, seal
from kbus.records.record import MIN_RECORD_SIZE, batch_compression, decode_payload, open_payload
from kbus.types import NO_TIMESTAMP

_MAGIC_POSITION = 16
# Bound once: looking a member up in its enum costs as much as several of the checks below.
_CREATE_TIME = TimestampType.CREATE_TIME
_NO_COMPRESSION = Compression.NONE
_MAX_OPENED_RECORDS = 1_000_000
"""Decoding holds up the node, a second or so for this many; no batch of a sane size has as many."""
_MAX_REPORTED_ERRORS = 100


class AppendOrigin(Enum):
    CLIENT = "client"
    """A produce request: one batch at base offset 0, no control batch, sequences that make sense."""
    COORDINATOR = "coordinator"
    """This node's own group or transaction coordinator: any number of batches, markers too."""


_CLIENT = AppendOrigin.CLIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRules:
    """The settings of a topic that an append has to obey. The defaults are Kafka's."""

    max_message_bytes: int = 1024 * 1024 + 12
    compression: Compression | None = None
    """None is `compression.type=producer`: whatever the producer chose."""
    compression_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = 2**63 - 1
    compacted: bool = False
    max_decompressed_bytes: int = 64 * 1024 * 1024
    """Of one batch that has to be opened."""


class ValidatedBatch(NamedTuple):
    """`header` is what will be stored, but for base offset and leader epoch, which are the log's to assign.
    `parts`, in order, are the bytes behind the 16 of `offset_and_epoch_prefix`; views of the caller's buffer
    wherever nothing was rewritten."""

    header: BatchHeader
    parts: tuple[Buffer, ...]


class ValidatedBatches(NamedTuple):
    batches: list[ValidatedBatch]
    size_bytes: int
    """Of all batches as they will be stored, headers included."""
    max_timestamp: int
    log_append_time_ms: int
    """NO_TIMESTAMP unless the topic's timestamp type is LOG_APPEND_TIME."""


class RejectedRecordsError(KafkaError):
    """Single records are at fault, and the whole batch is refused. `record_errors` has the index of each in
    the batch and the reason, for the produce response."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def validate_for_append(
    records: Buffer, rules: AppendRules, now_ms: int, origin: AppendOrigin = _CLIENT
) -> ValidatedBatches:
    """Checks what a leader is about to append. Raises, or returns all of it, ready to be written."""
    view = memoryview(records)
    end = len(view)
    batches: list[ValidatedBatch] = []
    size_bytes = 0
    max_timestamp = NO_TIMESTAMP
    position = 0
    while position < end or not batches:
        if batches and origin is _CLIENT:
            raise KafkaError(
                ErrorCode.invalid_record,
                f"{end - position} bytes follow the batch; send exactly one batch for each partition.",
            )
        header = _read_whole_header(view, position)
        batch_end = position + header.size
        if batch_end > end:
            raise KafkaError(
                ErrorCode.invalid_record,
                f"The batch claims {header.size} bytes but {end - position} were sent; send whole batches.",
            )
        validated = _validate(header, view[position:batch_end], rules, now_ms, origin)
        batches.append(validated)
        size_bytes += validated.header.size
        max_timestamp = max(max_timestamp, validated.header.max_timestamp)
        position = batch_end
    log_append_time_ms = NO_TIMESTAMP if rules.timestamp_type is _CREATE_TIME else now_ms
    return ValidatedBatches(batches, size_bytes, max_timestamp, log_append_time_ms)


def validate_replicated(records: Buffer) -> ValidatedBatches:
    """Checks what a follower fetched: whole batches with good CRCs, exactly as the leader stored them.

    A batch that is cut off at the end, as a fetch may return it, is left out. The topic's settings do not
    matter: the leader took the batch under those of its time. Compaction leaves fewer records than offsets.
    `size_bytes` is what was taken of `records`."""
    view = memoryview(records)
    end = len(view)
    batches: list[ValidatedBatch] = []
    max_timestamp = NO_TIMESTAMP
    position = 0
    while end - position >= HEADER_SIZE:
        header = _read_whole_header(view, position)
        batch_end = position + header.size
        if batch_end > end:
            break
        _check_crc(header, view[position:batch_end])
        if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"The batch at offset {header.base_offset} has {header.record_count} records for "
                f"{header.last_offset_delta + 1} offsets; fetch it again.",
            )
        batches.append(ValidatedBatch(header, (view[position + PREFIX_SIZE : batch_end],)))
        max_timestamp = max(max_timestamp, header.max_timestamp)
        position = batch_end
    return ValidatedBatches(batches, position, max_timestamp, NO_TIMESTAMP)


def _read_whole_header(view: memoryview, position: int) -> BatchHeader:
    """The magic comes first: what follows it differs in the older formats, which may be shorter, too."""
    available = len(view) - position
    if available > _MAGIC_POSITION:
        magic = view[position + _MAGIC_POSITION]
        if magic != MAGIC:
            if magic < MAGIC:
                raise KafkaError(
                    ErrorCode.unsupported_for_message_format,
                    f"Message format {magic} is not supported; use a client that writes version 2.",
                )
            raise KafkaError(
                ErrorCode.corrupt_message, f"Unknown magic {magic} in the batch; send batches of version 2."
            )
    if available < HEADER_SIZE:
        raise KafkaError(
            ErrorCode.invalid_record,
            f"{available} bytes hold no batch; send at least one for each partition.",
        )
    header = read_header(view, position)
    if header.size < HEADER_SIZE:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"The batch claims {header.size} bytes, less than its header has; the sender must build it anew.",
        )
    return header


def _check_crc(header: BatchHeader, batch: memoryview) -> None:
    if crc32c(batch[CRC_START:]) != header.crc:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"The batch does not match its CRC ({header.crc:#010x}): it was damaged; send it again.",
        )


def _validate(
    header: BatchHeader, batch: memoryview, rules: AppendRules, now_ms: int, origin: AppendOrigin
) -> ValidatedBatch:
    if len(batch) > rules.max_message_bytes:
        raise _too_large(len(batch), rules)
    _check_crc(header, batch)
    source = _check_header(header, origin)

    target = source
    # Markers stay readable without a codec.
    if rules.compression is not None and not header.is_control:
        target = rules.compression
    is_create_time = rules.timestamp_type is _CREATE_TIME
    timestamps_decide = is_create_time and not _timestamps_in_bounds(header, rules, now_ms)
    must_open = rules.compacted or target is not source or timestamps_decide
    if is_create_time and not must_open:
        return ValidatedBatch(header, (batch[PREFIX_SIZE:],))

    max_timestamp = header.max_timestamp if is_create_time else now_ms
    stored: Buffer = batch[HEADER_SIZE:]
    if must_open:
        if header.record_count > _MAX_OPENED_RECORDS:
            raise _invalid(f"The batch has {header.record_count} records; {_MAX_OPENED_RECORDS} are allowed")
        payload = open_payload(batch, header, max_bytes=rules.max_decompressed_bytes)
        latest = _check_records(payload, header, rules, now_ms)
        if is_create_time:
            max_timestamp = latest
        if target is not source:
            stored = compress(target, payload, level=rules.compression_level)
    return _rewritten(header, batch, stored, target, max_timestamp, rules)


def _rewritten(
    header: BatchHeader,
    batch: memoryview,
    stored: Buffer,
    compression: Compression,
    max_timestamp: int,
    rules: AppendRules,
) -> ValidatedBatch:
    attributes = replace_attributes(header.attributes, compression, rules.timestamp_type)
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return ValidatedBatch(header, (batch[PREFIX_SIZE:],))
    header = seal(header._replace(attributes=attributes, max_timestamp=max_timestamp), stored)
    if header.size > rules.max_message_bytes:
        raise _too_large(header.size, rules)
    return ValidatedBatch(header, (write_header(header)[PREFIX_SIZE:], stored))


def _check_header(header: BatchHeader, origin: AppendOrigin) -> Compression:
    """Everything that the header alone can tell; returns the codec."""
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise _invalid(f"The batch has {count} records for {header.last_offset_delta + 1} offsets")
    codec = batch_compression(header)
    payload_bytes = header.batch_length + LOG_OVERHEAD - HEADER_SIZE
    if codec is not _NO_COMPRESSION:
        payload_bytes = max_decompressed_bytes(payload_bytes)
    if count * MIN_RECORD_SIZE > payload_bytes:
        raise _invalid(f"The batch is too small for the {count} records that it claims")
    if header.timestamp_type is not _CREATE_TIME:
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            "The batch has timestamp type LogAppendTime; only a broker may set it.",
        )
    if header.has_delete_horizon:
        raise _invalid("The batch has a delete horizon, which only compaction may set")
    if origin is _CLIENT:
        _check_client_header(header)
    return codec


def _check_client_header(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise _invalid(f"The batch has base offset {header.base_offset} instead of 0")
    if header.is_control:
        raise _invalid("The batch is a control batch, which clients may not write")
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"The batch of producer {header.producer_id} has epoch {header.producer_epoch} and "
                f"sequence {header.base_sequence}, of which neither may be negative"
            )
    elif header.is_transactional:
        raise _invalid("The batch is transactional but has no producer id")


def _timestamps_in_bounds(header: BatchHeader, rules: AppendRules, now_ms: int) -> bool:
    """The base is the first record's timestamp with every known producer."""
    latest = header.max_timestamp
    first = header.base_timestamp
    oldest = now_ms - rules.timestamp_before_max_ms
    return (
        first <= latest
        and (first == NO_TIMESTAMP or first >= oldest)
        and (latest == NO_TIMESTAMP or oldest <= latest <= now_ms + rules.timestamp_after_max_ms)
    )


def _check_records(payload: bytes, header: BatchHeader, rules: AppendRules, now_ms: int) -> int:
    """Decodes every record; returns the largest timestamp."""
    oldest = now_ms - rules.timestamp_before_max_ms
    newest = now_ms + rules.timestamp_after_max_ms
    is_create_time = rules.timestamp_type is _CREATE_TIME
    latest = NO_TIMESTAMP
    code = ErrorCode.invalid_record
    errors: list[tuple[int, str]] = []
    expected_offset = int(header.base_offset)
    for index, (offset, timestamp, key, _, _) in enumerate(decode_payload(payload, header)):
        if offset != expected_offset:
            raise _invalid(f"Record {index} has offset delta {offset - header.base_offset}")
        expected_offset += 1
        if timestamp > latest:
            latest = timestamp
        if rules.compacted and key is None:
            error = "A compacted topic takes no record without a key."
        elif is_create_time and timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest:
            error = f"Timestamp {timestamp} is not within [{oldest}, {newest}]."
            code = ErrorCode.invalid_timestamp
        else:
            continue
        if len(errors) < _MAX_REPORTED_ERRORS:
            errors.append((index, error))
    if errors:
        index, error = errors[0]
        raise RejectedRecordsError(
            code,
            f"The batch was refused for its records, the first of them number {index}: {error}",
            tuple(errors),
        )
    return latest


def _too_large(size: int, rules: AppendRules) -> KafkaError:
    return KafkaError(
        ErrorCode.message_too_large,
        f"The batch has {size} bytes; max.message.bytes allows {rules.max_message_bytes}.",
    )


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, f"{what}; the sender has to build the batch anew.")
