"""Bytes that are no request, over a real socket: the connection is closed, and nobody else notices.

An honest client on another connection works before, during and after each of them."""

import contextlib
import random
import struct
from datetime import timedelta

import pytest

from kbus.protocol.api import ADVERTISED, ApiKey, schema_for
from kbus.protocol.errors import ErrorCode
from tests.node.conftest import Undisturbed
from tests.node.honest import Memory, unique
from tests.node.wire import (
    TIMEOUT_S,
    ClosedByNodeError,
    Struct,
    Wire,
    batch_of,
    create_topic,
    end_offset,
    every_version,
    fetch_fields,
    latest,
    list_offset,
    produce,
    produce_fields,
    request_frame,
)
from tests.nodes import NodeProcess

MEGABYTE = 1 << 20
MAX_REQUEST_BYTES = 100 * MEGABYTE
MAX_CONTROL_REQUEST_BYTES = 4 * MEGABYTE
MAX_INT32 = 2**31 - 1

HTTP_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"
TLS_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(range(256)) * 2
SSH_HELLO = b"SSH-2.0-OpenSSH_9.6\r\n"


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, -1) + (b"\0" if flexible else b"")


# ---- frames


@pytest.mark.parametrize(
    "size", [0, -1, -(2**31), MAX_REQUEST_BYTES + 1, MAX_INT32, struct.unpack(">i", b"GET ")[0]]
)
def test_a_frame_of_impossible_size_is_closed_before_its_body_is_sent(
    node: NodeProcess, undisturbed: Undisturbed, size: int
) -> None:
    memory = Memory(node.pid)
    with undisturbed(node), Wire(node.port) as wire:
        before = memory.reserved()
        wire.send_bytes(struct.pack(">i", size))
        assert wire.is_closed_by_node()
        assert memory.reserved() - before < 8 * MEGABYTE


def test_memory_grows_with_the_bytes_that_arrive_and_not_with_those_that_are_promised(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    memory = Memory(node.pid)
    with undisturbed(node) as honest, Wire(node.port) as wire:
        before = memory.reserved()
        wire.send_bytes(struct.pack(">i", MAX_REQUEST_BYTES) + header(ApiKey.PRODUCE, 9)[:6])
        honest.wait_for_rounds(2)
        assert memory.reserved() - before < 8 * MEGABYTE


def test_a_large_request_that_carries_no_records_is_closed_before_its_body_is_sent(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    with undisturbed(node), Wire(node.port) as wire:
        wire.send_bytes(struct.pack(">i", MAX_CONTROL_REQUEST_BYTES + 1) + header(ApiKey.METADATA, 1)[:6])
        assert wire.is_closed_by_node()


@pytest.mark.parametrize("stray", [HTTP_REQUEST, TLS_HELLO, SSH_HELLO], ids=["http", "tls", "ssh"])
def test_another_protocol_is_closed(node: NodeProcess, undisturbed: Undisturbed, stray: bytes) -> None:
    with undisturbed(node), Wire(node.port) as wire:
        wire.send_bytes(stray)
        if stray is SSH_HELLO:  # reads as the start of a frame of a size that could be
            wire.send_bytes(bytes(200))
        assert wire.is_closed_by_node()


@pytest.mark.parametrize("length", range(8))
def test_a_frame_too_short_for_a_request_header_is_closed(node: NodeProcess, length: int) -> None:
    with Wire(node.port) as wire:
        wire.send_bytes(framed(header(ApiKey.METADATA, 0)[:length]))
        assert wire.is_closed_by_node()


# ---- lengths within a request

COMPACT_HUGE = b"\xff\xff\xff\xff\x0f"
OVERLONG = {
    "array": (header(ApiKey.METADATA, 1) + struct.pack(">i", MAX_INT32)),
    "compact array": (header(ApiKey.METADATA, 9, flexible=True) + COMPACT_HUGE),
    "array of one more than there is": header(ApiKey.METADATA, 1) + struct.pack(">ih", 2, 1) + b"t",
    "nested array": header(ApiKey.LIST_OFFSETS, 1) + struct.pack(">iih1si", -1, 1, 1, b"t", MAX_INT32),
    "array of numbers": header(ApiKey.DESCRIBE_LOG_DIRS, 1)
    + struct.pack(">ih1si", 1, 1, b"t", MAX_INT32 // 4),
    "negative array": header(ApiKey.METADATA, 1) + struct.pack(">i", -2),
    "null array where none may be": header(ApiKey.LIST_OFFSETS, 1) + struct.pack(">ii", -1, -1),
    "string": header(ApiKey.METADATA, 1) + struct.pack(">ih", 1, 32767) + b"t",
    "negative string": header(ApiKey.METADATA, 1) + struct.pack(">ih", 1, -2),
    "null string where none may be": header(ApiKey.METADATA, 1) + struct.pack(">ih", 1, -1),
    "compact string": header(ApiKey.METADATA, 9, flexible=True) + b"\x02" + COMPACT_HUGE + b"t",
    "string that is no UTF-8": header(ApiKey.METADATA, 1) + struct.pack(">ih2s", 1, 2, b"\xff\xfe") + b"\1",
    "endless number": header(ApiKey.METADATA, 9, flexible=True) + b"\xff" * 10,
    "records": header(ApiKey.PRODUCE, 3)
    + struct.pack(">hhiih1siii", -1, 1, 1000, 1, 1, b"t", 1, 0, MAX_INT32),
    "client id": struct.pack(">hhih", ApiKey.METADATA, 1, 7, 32767),
    "tagged fields": header(ApiKey.METADATA, 9)[:10] + COMPACT_HUGE,
    "tagged field": header(ApiKey.METADATA, 9)[:10] + b"\x01\x05" + COMPACT_HUGE,
}


@pytest.mark.parametrize("name", OVERLONG)
def test_a_length_beyond_the_bytes_closes_the_connection_and_sets_nothing_aside(
    node: NodeProcess, undisturbed: Undisturbed, name: str
) -> None:
    memory = Memory(node.pid)
    with undisturbed(node), Wire(node.port) as wire:
        memory.forget_peak()
        before = memory.resident()
        wire.send_bytes(framed(OVERLONG[name]))
        assert wire.is_closed_by_node()
        assert memory.peak() - before < 16 * MEGABYTE


@pytest.mark.parametrize(("api", "version"), every_version(*ApiKey))
def test_every_request_cut_off_is_closed_in_every_version(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    """Bodies of nothing but zeros, the shortest there are, less their last byte."""
    schema = schema_for(api, version)
    body = schema.write_request(7, "wire", _minimal(api, version))[4:]
    whole = len(header(api, version)) + len("wire")
    if len(body) > whole:  # a request without fields has nothing to be cut off
        with Wire(node.port) as wire:
            wire.send_bytes(framed(body[:-1]))
            assert wire.is_closed_by_node()


def _minimal(api: ApiKey, version: int) -> object:
    nothing = timedelta(0)
    return schema_for(api, version).request(
        topics=(),
        topic_names=(),
        topic_data=(),
        resources=(),
        forgotten_topics_data=(),
        acks=1,
        replica_id=-1,
        isolation_level=0,
        min_bytes=0,
        validate_only=False,
        timeout=nothing,
        max_wait=nothing,
        transaction_timeout=nothing,
        transactional_id=None,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
        include_fenced_brokers=False,
        client_software_name="wire",
        client_software_version="1",
    )


def test_a_request_of_more_items_than_any_honest_one_has_is_closed_before_they_are_decoded(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    """Seventeen million empty partitions fit into a produce request of 100 MB: gigabytes once decoded."""
    memory = Memory(node.pid)
    count = 2_000_000
    partitions = b"\0\0\0\0\0\0" * count  # index 0, no records, no tags
    body = (
        header(ApiKey.PRODUCE, 9, flexible=True)
        + b"\0\0\1\0\0\3\xe8"  # no transactional id, acks=1, timeout 1 s
        + b"\2\2t"  # one topic, "t"
        + varint(count + 1)
        + partitions
        + b"\0\0"
    )
    with undisturbed(node), Wire(node.port) as wire:
        memory.forget_peak()
        before = memory.resident()
        with contextlib.suppress(ConnectionError):
            wire.send_bytes(framed(body))
        assert wire.is_closed_by_node()
        assert memory.peak() - before < len(body) + 32 * MEGABYTE


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded + bytes([value]))


def test_tagged_fields_of_a_newer_client_are_skipped(node: NodeProcess) -> None:
    """In the request header, in the request and in a structure of it: the protocol's way to grow."""
    unknown = b"\x01\x63\x03new"  # one field: tag 99, 3 bytes
    with Wire(node.port) as wire:
        topic = unique("tagged")
        create_topic(wire, topic)
        name = topic.encode()
        wire.send_bytes(
            framed(
                header(ApiKey.METADATA, 9)
                + unknown
                + b"\x02"
                + bytes([len(name) + 1])
                + name
                + unknown
                + b"\0\0\0"
                + unknown
            )
        )
        metadata = wire.receive(ApiKey.METADATA, 9, 7)
        assert [(entry.name, entry.error_code) for entry in metadata.topics] == [(topic, ErrorCode.none)]


# ---- APIs and versions


@pytest.mark.parametrize("api_key", [-1, 4, 5, 6, 7, 17, 24, 36, 1000, 32767])
def test_an_unknown_api_is_closed(node: NodeProcess, undisturbed: Undisturbed, api_key: int) -> None:
    """Among them those by which a controller commands brokers, and those of transactions."""
    assert api_key not in ADVERTISED
    with undisturbed(node), Wire(node.port) as wire:
        wire.send_bytes(framed(header(api_key, 0) + bytes(16)))
        assert wire.is_closed_by_node()


@pytest.mark.parametrize("api", [api for api in ApiKey if api is not ApiKey.API_VERSIONS])
def test_an_unknown_version_is_closed(node: NodeProcess, undisturbed: Undisturbed, api: ApiKey) -> None:
    with undisturbed(node):
        for version in (latest(api) + 1, 32767, -1):
            with Wire(node.port) as wire:
                wire.send_bytes(framed(header(api, version) + bytes(16)))
                assert wire.is_closed_by_node()


@pytest.mark.parametrize("version", [latest(ApiKey.API_VERSIONS) + 1, 32767, -1])
def test_api_versions_in_an_unknown_version_is_told_in_version_0_which_there_are(
    node: NodeProcess, undisturbed: Undisturbed, version: int
) -> None:
    with undisturbed(node), Wire(node.port) as wire:
        # Whatever follows the correlation id is not looked at: its layout is not known.
        wire.send_bytes(framed(struct.pack(">hhi", ApiKey.API_VERSIONS, version, 7) + b"\xff\xff\xff"))
        response = wire.receive(ApiKey.API_VERSIONS, 0, 7)
        assert response.error_code is ErrorCode.unsupported_version
        assert {entry.api_key for entry in response.api_keys} == set(ADVERTISED)
        retried = wire.call(ApiKey.API_VERSIONS, 0)
        assert retried.error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("name", "version"), [("", "1.0"), ("bad name", "1.0"), ("wire", "-1"), ("w\n", "1")]
)
def test_api_versions_refuses_software_names_that_could_not_be_logged(
    node: NodeProcess, name: str, version: str
) -> None:
    with Wire(node.port) as wire:
        response = wire.call(
            ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version=version
        )
        assert response.error_code is ErrorCode.invalid_request


# ---- garbage


@pytest.mark.parametrize("seed", range(4))
def test_garbage_is_answered_or_closed_and_leaves_nothing_behind(
    node: NodeProcess, undisturbed: Undisturbed, seed: int
) -> None:
    rng = random.Random(seed)
    with undisturbed(node), Wire(node.port) as observer:
        topic = unique("garbage")
        create_topic(observer, topic)
        for _ in range(60):
            with Wire(node.port) as wire:
                wire.send_bytes(framed(_garbage(rng, topic)))
                wire.send_bytes(struct.pack(">i", -1))
                assert wire.is_closed_by_node()
        assert end_offset(observer, topic) == 0


def _garbage(rng: random.Random, topic: str) -> bytes:
    """Random bytes, under a good request header or not, or a good request with a few bytes changed."""
    api, version = rng.choice(every_version(*ApiKey))
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 300))
    if kind == 1:
        return struct.pack(">hhih", api, version, 7, -1) + rng.randbytes(rng.randrange(200))
    corrupt = bytearray(batch_of(b"value"))
    corrupt[17] ^= 0xFF  # the CRC: whatever else is changed, nothing may be appended
    requests = [
        request_frame(ApiKey.PRODUCE, rng.randrange(3, 13), **produce_fields(topic, bytes(corrupt))),
        request_frame(ApiKey.FETCH, rng.randrange(4, 13), **fetch_fields((topic, 0, 0))),
    ]
    frame = bytearray(rng.choice(requests)[4:])
    for _ in range(rng.randrange(1, 5)):
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    return bytes(frame)


# ---- requests that are well formed and mean harm


def test_a_client_that_poses_as_a_replica_is_refused(node: NodeProcess, undisturbed: Undisturbed) -> None:
    """A follower's fetch would move the high watermark, and sees what is not committed."""
    topic = unique("posed")
    with undisturbed(node), Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        produce(wire, topic, batch_of(b"value"))
        for _, version in every_version(ApiKey.FETCH):
            name = topic_id if version >= 13 else topic
            response = wire.call(
                ApiKey.FETCH, version, **fetch_fields((name, 0, 0), replica_id=1, session_epoch=0)
            )
            if version >= 7:
                assert response.error_code is ErrorCode.cluster_authorization_failed
                assert response.session_id == 0
            assert not any(p.records for t in response.responses for p in t.partitions)
        for _, version in every_version(ApiKey.LIST_OFFSETS):
            refused = list_offset(wire, topic, -1, version=version, replica_id=1)
            assert refused.error_code is ErrorCode.cluster_authorization_failed
            assert refused.offset == -1
        for _, version in every_version(ApiKey.OFFSET_FOR_LEADER_EPOCH):
            partition = Struct("OffsetForLeaderPartition", partition=0, leader_epoch=0)
            response = wire.call(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                version,
                replica_id=1,
                topics=[Struct("OffsetForLeaderTopic", topic=topic, partitions=[partition])],
            )
            if version >= 3:
                found = response.topics[0].partitions[0]
                assert found.error_code is ErrorCode.cluster_authorization_failed


@pytest.mark.parametrize("acks", [5, 2, -2, 32767])
def test_impossible_acks_are_refused_and_nothing_is_appended(
    node: NodeProcess, undisturbed: Undisturbed, acks: int
) -> None:
    topic = unique("acks")
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic)
        refused = produce(wire, topic, batch_of(b"value"), acks=acks)
        assert refused.error_code is ErrorCode.invalid_required_acks
        assert end_offset(wire, topic) == 0


def test_what_cannot_be_appended_without_an_answer_closes_the_connection(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    """acks=0 has no answer; that the connection ends is all that such a client can notice."""
    with undisturbed(node), Wire(node.port) as wire:
        wire.send(ApiKey.PRODUCE, 9, **produce_fields(unique("missing"), batch_of(b"value"), acks=0))
        assert wire.is_closed_by_node()


def test_a_topic_named_many_times_is_answered_once(node: NodeProcess, undisturbed: Undisturbed) -> None:
    """Else a short request for a large topic, many times over, would be an answer of gigabytes."""
    topic = unique("repeated")
    with undisturbed(node), Wire(node.port) as wire:
        topic_id = create_topic(wire, topic, partitions=10)
        by_name = [Struct("MetadataRequestTopic", name=topic, topic_id=None)] * 1000
        by_id = [Struct("MetadataRequestTopic", name=None, topic_id=topic_id)] * 1000
        metadata = wire.call(
            ApiKey.METADATA, 12, topics=by_name + by_id, include_topic_authorized_operations=False
        )
        assert [entry.name for entry in metadata.topics] == [topic]
        configs = wire.call(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            resources=[Struct("DescribeConfigsResource", resource_type=2, resource_name=topic)] * 1000,
        )
        assert [entry.resource_name for entry in configs.results] == [topic]


def test_a_request_for_very_many_topics_does_not_hold_up_the_others(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    names = [f"no-such-{number}" for number in range(40_000)]
    with undisturbed(node) as honest, Wire(node.port) as wire:
        metadata = wire.call(
            ApiKey.METADATA,
            8,
            topics=[Struct("MetadataRequestTopic", name=name) for name in names],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        assert len(metadata.topics) == len(names)
        created = wire.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[
                Struct(
                    "CreatableTopic",
                    name=name,
                    num_partitions=1,
                    replication_factor=1,
                    assignments=[],
                    configs=[],
                )
                for name in names[:3000]
            ],
            timeout=timedelta(seconds=TIMEOUT_S),
            validate_only=True,
        )
        assert {entry.error_code for entry in created.topics} == {ErrorCode.none}
        honest.wait_for_rounds(1)
        assert honest.slowest_s < 5


def test_a_setting_too_large_for_zookeeper_is_refused_and_disturbs_nobody(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    """ZooKeeper closes the connection of who writes more than a megabyte, and with it goes the controller."""
    topic = unique("large-setting")
    with undisturbed(node) as honest, Wire(node.port) as wire:
        create_topic(wire, topic)
        logged = len(node.log_text())
        response = wire.call(
            ApiKey.ALTER_CONFIGS,
            2,
            resources=[
                Struct(
                    "AlterConfigsResource",
                    resource_type=2,
                    resource_name=topic,
                    configs=[
                        Struct("AlterableConfig", name="cleanup.policy", value=",".join(["delete"] * 200_000))
                    ],
                )
            ],
            validate_only=False,
        )
        assert response.responses[0].error_code in (ErrorCode.invalid_config, ErrorCode.invalid_request)
        honest.wait_for_rounds(1)
        create_topic(wire, unique("still-controller"))
        assert "suspended" not in node.log_text()[logged:].lower()


def test_an_error_that_quotes_the_client_fits_into_its_field(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    """Old versions have texts of up to 32767 bytes, both in what is quoted and in the message around it."""
    topic = unique("quoted")
    long = "x" * 32_767
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic)
        for name, value in (("retention.ms", long), (long, "1"), ("cleanup.policy", long)):
            response = wire.call(
                ApiKey.ALTER_CONFIGS,
                0,
                resources=[
                    Struct(
                        "AlterConfigsResource",
                        resource_type=2,
                        resource_name=topic,
                        configs=[Struct("AlterableConfig", name=name, value=value)],
                    )
                ],
                validate_only=False,
            )
            assert response.responses[0].error_code is ErrorCode.invalid_config
            assert "xxx" in response.responses[0].error_message
        twice = [
            Struct(
                "CreatableTopic",
                name=long,
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
        ] * 2
        created = wire.call(ApiKey.CREATE_TOPICS, 2, topics=twice)
        assert created.topics[0].error_code is ErrorCode.invalid_request


def test_a_closed_connection_is_told_apart_from_an_answer(node: NodeProcess) -> None:
    """Of this file's own tools: reading on after the node has closed does not pass for an answer."""
    with Wire(node.port) as wire:
        wire.send_bytes(struct.pack(">i", 0))
        with pytest.raises(ClosedByNodeError):
            wire.receive_frame()
