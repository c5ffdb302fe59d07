"""CRC-32C (Castagnoli), the checksum of v2 batches."""

from crc32c import crc32c as _crc32c

from kbus.records.batch import CRC_START, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, Buffer, write_header


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """The checksum of `buffer`; with `value`, that of what `value` covers followed by `buffer`."""
    return _crc32c(buffer, value)


def batch_crc(batch: Buffer) -> int:
    """What the CRC field of `batch`, one whole batch and nothing behind it, has to hold."""
    return _crc32c(memoryview(batch)[CRC_START:])


def seal(header: BatchHeader, payload: Buffer) -> BatchHeader:
    """`header` with the length and the CRC of a batch made of it and `payload`, which is not copied."""
    header = header._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD + len(payload))
    return header._replace(crc=_crc32c(payload, _crc32c(write_header(header)[CRC_START:])))
