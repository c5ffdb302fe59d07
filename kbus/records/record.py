"""The records inside a v2 batch, and whole batches made of records."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    Buffer,
    Compression,
    TimestampType,
    make_attributes,
    read_header,
    write_header,
)
from kbus.records.compression import DEFAULT_MAX_BYTES, compress, decompress
from kbus.records.crc import seal
from kbus.types import (
    NO_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)

MIN_RECORD_SIZE = 7
"""Length, attributes, timestamp, offset, no key, no value, no headers: a byte each."""
_CODECS = tuple(Compression)
_MAX_INT32 = 2**31 - 1
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """Offset and timestamp are absolute. A header's key is text; bytes in it that are not UTF-8 come as
    surrogate escapes, and are written back as the bytes they were."""

    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def batch_compression(header: BatchHeader) -> Compression:
    code = header.compression_code
    if code >= len(_CODECS):
        raise KafkaError(
            ErrorCode.unsupported_compression_type,
            f"The batch names codec {code}, which is unknown; use none, gzip, snappy, lz4 or zstd.",
        )
    return _CODECS[code]


def open_payload(batch: Buffer, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The records of `batch`, decompressed but not decoded."""
    if header.magic != MAGIC:
        raise KafkaError(
            ErrorCode.unsupported_for_message_format, f"Magic {header.magic} is not readable; only 2 is."
        )
    if header.size < HEADER_SIZE or header.size > len(batch):
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"The batch claims {header.size} bytes, of which {len(batch)} are there.",
        )
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    return decompress(batch_compression(header), payload, max_bytes=max_bytes)


def decode_records(
    batch: Buffer, header: BatchHeader | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Iterator[Record]:
    """The records of one batch, which starts where `batch` starts. The CRC is the caller's to check.

    The batch is decompressed at once, to at most `max_bytes`, and decoded as the iteration goes on: a damaged
    record raises when its turn comes, and bytes that follow the last record raise after it."""
    if header is None:
        if len(batch) < HEADER_SIZE:
            raise KafkaError(ErrorCode.corrupt_message, f"{len(batch)} bytes are too few for a batch.")
        header = read_header(batch)
    return decode_payload(open_payload(batch, header, max_bytes=max_bytes), header)


def decode_payload(payload: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records in `payload`, which is what `open_payload` returns.

    Numbers of one and two bytes, which is nearly all, are read in place, since a call each would take longer
    than all else. A length is kept zigzag-encoded: odd is negative, and 1 is -1, which stands for null. Reads
    may run past the end of a record but never go back, so one comparison with its end finds every overrun."""
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    is_log_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamp = header.max_timestamp
    count = header.record_count
    if count < 0:
        raise _invalid(f"The batch claims {count} records")
    make = tuple.__new__
    total = len(payload)
    position = 0
    try:
        for index in range(count):
            raw = payload[position]
            position += 1
            if raw > 127:
                raw += (payload[position] << 7) - 128
                position += 1
                if raw > 16383:
                    raw, position = _rest_of_varint(payload, position, raw, 32)
            end = position + (raw >> 1)
            if raw & 1 or end > total:
                raise _invalid(f"Record {index} has a length that does not fit the batch")
            position += 1  # attributes: none is defined

            raw = payload[position]
            position += 1
            if raw > 127:
                raw += (payload[position] << 7) - 128
                position += 1
                if raw > 16383:
                    raw, position = _rest_of_varint(payload, position, raw, 64)
            if not is_log_append_time:
                timestamp = base_timestamp + (raw >> 1 ^ -(raw & 1))
                if not _MIN_INT64 <= timestamp <= _MAX_INT64:
                    raise _invalid(f"Record {index} has a timestamp beyond 64 bits")

            raw = payload[position]
            position += 1
            if raw > 127:
                raw += (payload[position] << 7) - 128
                position += 1
                if raw > 16383:
                    raw, position = _rest_of_varint(payload, position, raw, 32)
            if raw & 1:
                raise _invalid(f"Record {index} has a negative offset delta")
            offset = base_offset + (raw >> 1)

            raw = payload[position]
            position += 1
            if raw > 127:
                raw += (payload[position] << 7) - 128
                position += 1
                if raw > 16383:
                    raw, position = _rest_of_varint(payload, position, raw, 32)
            if raw & 1:
                if raw != 1:
                    raise _invalid(f"Record {index} has a negative key length")
                key = None
            else:
                key = payload[position : position + (raw >> 1)]
                position += raw >> 1

            raw = payload[position]
            position += 1
            if raw > 127:
                raw += (payload[position] << 7) - 128
                position += 1
                if raw > 16383:
                    raw, position = _rest_of_varint(payload, position, raw, 32)
            if raw & 1:
                if raw != 1:
                    raise _invalid(f"Record {index} has a negative value length")
                value = None
            else:
                value = payload[position : position + (raw >> 1)]
                position += raw >> 1

            headers: tuple[Header, ...] = ()
            if payload[position]:
                headers, position = _decode_headers(payload, position)
            else:
                position += 1
            if position != end:
                raise _invalid(f"The fields of record {index} do not fill its length")
            yield make(Record, (offset, timestamp, key, value, headers))
    except IndexError:
        raise _invalid(f"The batch ends inside a record; it claims {count}") from None
    if position != total:
        raise _invalid(f"{total - position} bytes follow the last of {count} records")


def _decode_headers(payload: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    count, position = _read_length(payload, position)
    headers: list[Header] = []
    for _ in range(count):
        size, position = _read_length(payload, position)
        key = payload[position : position + size].decode(errors="surrogateescape")
        position += size
        value: bytes | None = None
        if payload[position] == 1:
            position += 1
        else:
            size, position = _read_length(payload, position)
            value = payload[position : position + size]
            position += size
        headers.append((key, value))
    return tuple(headers), position


def _read_length(payload: bytes, position: int) -> tuple[int, int]:
    raw = payload[position]
    position += 1
    if raw > 127:
        raw += (payload[position] << 7) - 128
        position += 1
        if raw > 16383:
            raw, position = _rest_of_varint(payload, position, raw, 32)
    if raw & 1:
        raise _invalid("A record has a negative length or count in its headers")
    return raw >> 1, position


def _rest_of_varint(payload: bytes, position: int, raw: int, bits: int) -> tuple[int, int]:
    """The varint whose first two bytes are in `raw`, the second with its continuation bit still set."""
    raw -= 128 << 7
    shift = 14
    while shift < bits:
        byte = payload[position]
        position += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            if raw >> bits:
                break
            return raw, position
        shift += 7
    raise _invalid(f"A number in a record exceeds {bits} bits")


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: Offset | None = None,
    last_offset_delta: int | None = None,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    max_timestamp: int | None = None,
    leader_epoch: LeaderEpoch = NO_EPOCH,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """A batch of `records`, whose offsets ascend, with gaps where compaction has been.

    What is not given comes from the records: `base_offset` from the first, `last_offset_delta` from the last,
    `max_timestamp` from the latest. A batch without records needs the first two: it keeps the sequence of a
    producer whose records compaction has removed."""
    records = list(records)
    if base_offset is None:
        if not records:
            raise ValueError("a batch without records needs a base offset")
        base_offset = records[0].offset
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    payload = bytearray()
    previous_delta = -1
    latest = NO_TIMESTAMP
    for record in records:
        delta = record.offset - base_offset
        if not previous_delta < delta <= _MAX_INT32:
            raise ValueError(f"offset {record.offset} does not follow {base_offset + previous_delta}")
        previous_delta = delta
        latest = max(latest, record.timestamp)
        _encode_record(payload, record, record.timestamp - base_timestamp, delta)
    if last_offset_delta is None:
        last_offset_delta = previous_delta
    if last_offset_delta < max(previous_delta, 0):
        raise ValueError(f"last offset delta {last_offset_delta} is below that of the last record")
    stored = compress(compression, payload, level=compression_level)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=make_attributes(
            compression=compression,
            timestamp_type=timestamp_type,
            transactional=transactional,
            control=control,
        ),
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=latest if max_timestamp is None else max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return write_header(seal(header, stored)) + stored


def _encode_record(output: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    body = bytearray(1)  # attributes
    _append_varint(body, timestamp_delta)
    _append_varint(body, offset_delta)
    _append_field(body, record.key)
    _append_field(body, record.value)
    _append_varint(body, len(record.headers))
    for key, value in record.headers:
        _append_field(body, key.encode(errors="surrogateescape"))
        _append_field(body, value)
    _append_varint(output, len(body))
    output += body


def _append_field(output: bytearray, field: bytes | None) -> None:
    if field is None:
        output.append(1)  # -1
    else:
        _append_varint(output, len(field))
        output += field


def _append_varint(output: bytearray, value: int) -> None:
    raw = value << 1 if value >= 0 else ~value << 1 | 1
    while raw > 127:
        output.append(raw & 127 | 128)
        raw >>= 7
    output.append(raw)


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, f"{what}; the sender has to build the batch anew.")
