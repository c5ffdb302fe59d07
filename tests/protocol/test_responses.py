"""Writing responses: parts that a socket can send, files among them unread."""

import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

from kbus.protocol.api import ApiKey, schema_for
from kbus.protocol.errors import ErrorCode
from kbus.protocol.scatter import FilePart, Part, ScatterBuffer


def sent(parts: list[Part]) -> bytes:
    """What a socket would send."""
    data = b""
    for part in parts:
        if isinstance(part, bytes):
            data += part
        else:
            with open(part.file.fileno(), "rb", closefd=False) as file:
                file.seek(part.position)
                data += file.read(part.length)
    return data


def test_a_frame_begins_with_the_size_of_all_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        buffer = ScatterBuffer()
        buffer.write(b"head")
        buffer.write(FilePart(file, 2, 5))
        buffer.write(b"middle")
        buffer.write(FilePart(file, 0, 0))
        buffer.write(FilePart(file, 9, 1))
        parts = buffer.frame()
        assert sent(parts) == struct.pack(">i", 16) + b"head" + b"23456" + b"middle" + b"9"
        assert [type(part) for part in parts] == [bytes, FilePart, bytes, FilePart]


def test_a_frame_of_nothing_has_its_size() -> None:
    assert ScatterBuffer().frame() == [bytes(4)]


def fetch_response(version: int, records: Any) -> Any:
    schema = schema_for(ApiKey.FETCH, version)
    partition = schema.build(
        "PartitionData",
        partition_index=3,
        error_code=ErrorCode.none,
        high_watermark=7,
        aborted_transactions=None,
        records=records,
    )
    topic = schema.build("FetchableTopicResponse", topic="t", topic_id=None, partitions=(partition,))
    return schema.response(throttle_time=timedelta(0), error_code=ErrorCode.none, responses=(topic,))


def test_records_go_from_their_file_into_a_fetch_response_of_every_version(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"xxrecordsxx")
    with path.open("rb") as file:
        for version in range(4, 19):
            schema = schema_for(ApiKey.FETCH, version)
            parts = schema.write_response(42, fetch_response(version, FilePart(file, 2, 7)))
            assert any(isinstance(part, FilePart) for part in parts)
            frame = sent(parts)
            assert frame == b"".join(schema.write_response(42, fetch_response(version, b"records")))  # type: ignore[arg-type]
            header, response = schema.read_response(memoryview(frame)[4:].toreadonly())
            assert header.correlation_id == 42
            assert response.responses[0].partitions[0].records == b"records"


def test_fields_that_a_version_lacks_are_left_out() -> None:
    first, last = (
        schema_for(ApiKey.METADATA, version).build(
            "MetadataResponseBroker", node_id=1, host="h", port=2, rack="r"
        )
        for version in (0, 13)
    )
    assert not hasattr(first, "rack")
    assert last.rack == "r"
