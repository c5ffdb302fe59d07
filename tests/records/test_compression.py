import os
import struct
import subprocess
import sys

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import Compression
from kbus.records.compression import codec_of_setting, compress, decompress, max_decompressed_bytes

from .builders import COMPRESSED, error_of

MIB = 1024 * 1024
codecs = st.sampled_from(COMPRESSED)


@given(st.sampled_from(Compression), st.binary(max_size=2000), st.integers(min_value=1, max_value=100))
def test_what_was_compressed_is_decompressed(codec: Compression, data: bytes, repeat: int) -> None:
    data *= repeat
    compressed = compress(codec, memoryview(data))
    assert decompress(codec, memoryview(compressed)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 64 * 1024 + 1, 5 * MIB])
def test_sizes_around_blocks_and_guesses_are_decompressed(codec: Compression, size: int) -> None:
    for data in (os.urandom(size), bytes(size)):
        assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Compression.GZIP, [-1, 1, 6, 9]),
        (Compression.LZ4, [1, 9, 12, 17]),
        (Compression.ZSTD, [-131072, -1, 1, 3, 22]),
        (Compression.SNAPPY, [None]),
    ],
)
def test_every_level_of_kafkas_scale_is_taken(codec: Compression, levels: list[int | None]) -> None:
    data = b"some text, some more text, " * 5000
    for level in levels:
        assert decompress(codec, compress(codec, data, level=level)) == data


def test_snappy_is_read_raw_and_framed() -> None:
    data = os.urandom(40_000) + bytes(40_000)
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
    framed = compress(Compression.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    little_endian = framed[:8] + struct.pack("<ii", 1, 1) + framed[16:]
    assert decompress(Compression.SNAPPY, little_endian) == data


def test_snappy_block_that_claims_more_than_is_there_is_refused() -> None:
    framed = bytearray(compress(Compression.SNAPPY, b"data"))
    framed[19] += 1
    assert error_of(lambda: decompress(Compression.SNAPPY, framed)) is ErrorCode.corrupt_message


def test_lz4_blocks_are_independent_as_kafka_demands() -> None:
    flags = compress(Compression.LZ4, bytes(200_000))[4]
    assert flags >> 6 == 1
    assert flags & 0x20


def test_zstd_frames_state_their_size() -> None:
    """kafka-python reads frames that do not only up to 1 MiB."""
    frame = compress(Compression.ZSTD, bytes(3 * MIB))
    assert zstandard.get_frame_parameters(frame).content_size == 3 * MIB


@given(codecs, st.binary(max_size=300))
def test_garbage_is_refused_or_read_but_nothing_else(codec: Compression, data: bytes) -> None:
    assert error_of(lambda: decompress(codec, data, max_bytes=MIB)) in (None, ErrorCode.corrupt_message)


@given(codecs, st.data())
def test_damage_is_refused_or_read_but_nothing_else(codec: Compression, data: st.DataObject) -> None:
    damaged = bytearray(compress(codec, b"a few words, a few bytes, " * 50))
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        damaged[data.draw(st.integers(min_value=0, max_value=len(damaged) - 1))] ^= data.draw(
            st.integers(min_value=1, max_value=255)
        )
    assert error_of(lambda: decompress(codec, damaged, max_bytes=MIB)) in (None, ErrorCode.corrupt_message)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_cut_is_refused(codec: Compression) -> None:
    whole = compress(codec, os.urandom(100))
    # A cut right behind snappy's own framing leaves a valid stream of nothing.
    for end in range(17, len(whole)):
        with pytest.raises(KafkaError) as caught:
            decompress(codec, whole[:end])
        assert caught.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", COMPRESSED)
def test_output_above_the_absolute_limit_is_refused(codec: Compression) -> None:
    compressed = compress(codec, bytes(2 * MIB))
    assert len(decompress(codec, compressed, max_bytes=2 * MIB)) == 2 * MIB
    with pytest.raises(KafkaError, match="exceeds") as caught:
        decompress(codec, compressed, max_bytes=2 * MIB - 1)
    assert caught.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", COMPRESSED)
def test_large_output_above_the_ratio_is_refused(codec: Compression) -> None:
    size = 17 * MIB
    compressed = compress(codec, bytes(size))
    ratio = size // len(compressed)
    assert len(decompress(codec, compressed, max_ratio=ratio + 1)) == size
    with pytest.raises(KafkaError) as caught:
        decompress(codec, compressed, max_ratio=ratio // 2)
    assert caught.value.code is ErrorCode.corrupt_message


def test_small_output_of_any_ratio_is_taken() -> None:
    compressed = compress(Compression.ZSTD, bytes(8 * MIB))
    assert 8 * MIB // len(compressed) > 5000
    assert len(decompress(Compression.ZSTD, compressed)) == 8 * MIB


def test_limit_is_the_lower_of_ratio_and_absolute() -> None:
    assert max_decompressed_bytes(100, max_bytes=MIB, max_ratio=10) == MIB
    assert max_decompressed_bytes(100, max_bytes=100 * MIB, max_ratio=10) == 16 * MIB
    assert max_decompressed_bytes(MIB, max_bytes=100 * MIB, max_ratio=20) == 20 * MIB


_BOMB = """
import resource, struct, sys
import cramjam
from kbus.protocol.errors import KafkaError
from kbus.records.batch import Compression
from kbus.records.compression import decompress

MIB = 1024 * 1024
codec = Compression[sys.argv[1]]
if codec is Compression.SNAPPY:
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    bomb = b"\\x82SNAPPY\\x00" + bytes(8) + (struct.pack(">I", len(block)) + block) * 512
else:
    compressor = getattr(cramjam, codec.name.lower()).Compressor()
    for _ in range(512):
        compressor.compress(bytes(MIB))
    bomb = bytes(compressor.finish())


def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


before = peak_kib()
try:
    decompress(codec, bomb, max_bytes=32 * MIB, max_ratio=10**6)
except KafkaError as error:
    print(error.code.name, peak_kib() - before)
"""


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bomb_costs_no_more_memory_than_the_limit(codec: Compression) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BOMB, codec.name], capture_output=True, text=True, check=True, timeout=60
    )
    code, grown_kib = done.stdout.split()
    assert code == "corrupt_message"
    # Twice, as zstd keeps a window of its own beside the output, which grows no larger than that.
    assert int(grown_kib) <= 2 * 32 * 1024


def test_setting_names_a_codec() -> None:
    assert codec_of_setting("producer") is None
    names = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
    assert [codec_of_setting(name) for name in names] == list(Compression)
    for unknown in ("none", "ZSTD", ""):
        with pytest.raises(ValueError, match="uncompressed"):
            codec_of_setting(unknown)
