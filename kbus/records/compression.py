"""The codecs of v2 batches, with a bound on what a decompression may cost.

What Kafka's Java clients, librdkafka and the Python clients write is read, and what is written here is read
by them: snappy goes out in xerial framing (as snappy-java writes it) and comes in framed or raw; lz4 goes out
as a frame of independent blocks, since Kafka refuses linked ones.
"""

import struct
from collections.abc import Callable

import cramjam

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import Buffer, Compression

DEFAULT_MAX_BYTES = 100 * 1024 * 1024
"""The most that one batch may decompress to: what `socket.request.max.bytes` lets in uncompressed."""
DEFAULT_MAX_RATIO = 1024
_RATIO_FREE_BYTES = 16 * 1024 * 1024
"""The ratio is not held against outputs up to this size: under zstd, equal records compress by far more than
any sane ratio, and an output of this size does no harm."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">I")

_FIRST_GUESS_RATIO = 8
_SMALLEST_GUESS_BYTES = 64 * 1024
_GUESS_GROWTH = 8


def codec_of_setting(compression_type: str) -> Compression | None:
    """What `compression.type` asks for: None is `producer`, whatever the producer chose."""
    if compression_type == "producer":
        return None
    if compression_type == "uncompressed":
        return Compression.NONE
    for codec in Compression:
        if codec is not Compression.NONE and codec.name.lower() == compression_type:
            return codec
    raise ValueError(
        f"compression.type is {compression_type!r}; use producer, uncompressed, gzip, snappy, lz4 or zstd"
    )


def max_decompressed_bytes(
    compressed_bytes: int, *, max_bytes: int = DEFAULT_MAX_BYTES, max_ratio: int = DEFAULT_MAX_RATIO
) -> int:
    """What `compressed_bytes` of input may at most become."""
    return min(max_bytes, max(_RATIO_FREE_BYTES, compressed_bytes * max_ratio))


def compress(code: Compression, data: Buffer, *, level: int | None = None) -> bytes:
    """`level` is in Kafka's scale for the codec (`compression.gzip.level` and so on). None means the codec's
    default, as does -1 for gzip; snappy has no levels."""
    match code:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=None if level is None or level < 0 else level))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            # 9 is Kafka's default, which stands for the fast compressor, not for level 9 of the high one.
            lz4_level = 0 if level is None or level == 9 else level
            compressor = cramjam.lz4.Compressor(level=lz4_level, content_checksum=False, block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))


def decompress(
    code: Compression,
    data: Buffer,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_ratio: int = DEFAULT_MAX_RATIO,
) -> bytes:
    """Raises `corrupt_message` for garbage and for an output above `max_decompressed_bytes`.

    The output goes into a buffer of fixed size that never exceeds the limit, so that a bomb costs no more
    memory than the limit; only what fits is copied out."""
    limit = max_decompressed_bytes(len(data), max_bytes=max_bytes, max_ratio=max_ratio)
    try:
        match code:
            case Compression.NONE:
                return bytes(data)
            case Compression.GZIP:
                return _decompress_growing(cramjam.gzip.decompress_into, data, limit)
            case Compression.SNAPPY:
                return _decompress_snappy(data, limit)
            case Compression.LZ4:
                return _decompress_growing(cramjam.lz4.decompress_into, data, limit)
            case Compression.ZSTD:
                return _decompress_growing(cramjam.zstd.decompress_into, data, limit)
    except cramjam.DecompressionError as error:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"The {code.name.lower()} data of the batch is damaged or exceeds {limit} bytes: {error}.",
        ) from error


def _decompress_growing(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int
) -> bytes:
    """Starts with a likely size and grows: the formats do not reliably tell the size of their output, and to
    zero a buffer of the full limit for every small batch would cost more than to decompress it."""
    capacity = min(limit, max(_SMALLEST_GUESS_BYTES, len(data) * _FIRST_GUESS_RATIO))
    while True:
        output = bytearray(capacity)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError:
            # Too small a buffer and damaged data look alike here; the largest buffer decides.
            if capacity >= limit:
                raise
            del output
            capacity = min(limit, capacity * _GUESS_GROWTH)
        else:
            return bytes(memoryview(output)[:size])


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    blocks = _xerial_blocks(view) if view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [view]
    # A block states its size first, so the sum is known, and refused, before anything is allocated.
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    total = sum(sizes)
    if total > limit:
        raise cramjam.DecompressionError(f"snappy: {total} bytes of output")
    output = bytearray(total)
    output_view = memoryview(output)
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        cramjam.snappy.decompress_raw_into(block, output_view[position : position + size])
        position += size
    return bytes(output)


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    """The version fields are ignored: there is only one, and some writers have its byte order wrong."""
    blocks = []
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + _BLOCK_LENGTH.size > len(view):
            raise cramjam.DecompressionError("snappy: a block length is cut off")
        (size,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if position + size > len(view):
            raise cramjam.DecompressionError(f"snappy: a block of {size} bytes is cut off")
        blocks.append(view[position : position + size])
        position += size
    return blocks
