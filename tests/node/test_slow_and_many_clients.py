"""Clients that are slow, idle, deaf or too many: each meets its limit, and nobody else feels it."""

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from kbus.protocol.api import ApiKey
from kbus.protocol.errors import ErrorCode
from tests.conftest import NodeFactory
from tests.node.conftest import Undisturbed
from tests.node.honest import HonestClient, Memory, unique
from tests.node.wire import (
    LATEST,
    TIMEOUT_S,
    ClosedByNodeError,
    Struct,
    Wire,
    batch_of,
    connected,
    create_topic,
    end_offset,
    fetch_fields,
    list_offset,
    produce,
    produce_fields,
    request_frame,
)
from tests.nodes import NodeProcess

FRAME_TIMEOUT_S = 0.4
IDLE_TIMEOUT_S = 0.8
PER_ADDRESS = 20
IN_ALL = 30
PIPELINED = 2
A_MONTH_S = 2_000_000.0
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[NodeProcess]:
    """Impatient, and small."""
    settings = {
        "kbus.request.frame.timeout.ms": str(int(FRAME_TIMEOUT_S * 1000)),
        "connections.max.idle.ms": str(int(IDLE_TIMEOUT_S * 1000)),
        "max.connections.per.ip": str(PER_ADDRESS),
        "max.connections": str(IN_ALL),
        "kbus.connection.queued.max.requests": str(PIPELINED),
    }
    folder = tmp_path_factory.mktemp("impatient")
    with NodeProcess(folder, zookeeper=f"{zookeeper_server}/{folder.name}", settings=settings) as process:
        yield process


# ---- slow


def test_a_frame_that_is_not_finished_in_time_is_closed(node: NodeProcess, undisturbed: Undisturbed) -> None:
    """One byte of its size, its size, and all but its last byte."""
    size = struct.pack(">i", 100)
    with undisturbed(node), connected(node.port, 3) as wires:
        began = time.monotonic()
        for wire, begun in zip(wires, (size[:1], size, size + bytes(99)), strict=True):
            wire.send_bytes(begun)
        assert all(wire.is_closed_by_node() for wire in wires)
        assert time.monotonic() - began >= FRAME_TIMEOUT_S


def test_a_frame_that_trickles_in_is_closed_all_the_same(node: NodeProcess, undisturbed: Undisturbed) -> None:
    with undisturbed(node), Wire(node.port) as wire:
        wire.call(ApiKey.METADATA, 1, topics=())
        wire.send_bytes(struct.pack(">i", 1000))
        with contextlib.suppress(ConnectionError):
            for _ in range(999):
                if wire.is_closed_by_node(within_s=FRAME_TIMEOUT_S / 10):
                    break
                wire.send_bytes(b"\0")
            else:
                pytest.fail("the request arrived whole")


def test_an_idle_connection_is_closed(node: NodeProcess, undisturbed: Undisturbed) -> None:
    with undisturbed(node), Wire(node.port) as silent, Wire(node.port) as asked_once:
        asked_once.call(ApiKey.METADATA, 1, topics=())
        assert silent.is_closed_by_node()
        assert asked_once.is_closed_by_node()


def test_a_connection_that_waits_for_its_answer_is_not_idle(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        topic = unique("waited-for")
        create_topic(wire, topic)
        began = time.monotonic()
        response = wire.call(
            ApiKey.FETCH, 12, **fetch_fields((topic, 0, 0), max_wait_s=2 * IDLE_TIMEOUT_S + 1)
        )
        assert response.error_code is ErrorCode.none
        assert time.monotonic() - began > 2 * IDLE_TIMEOUT_S


# ---- deaf


def test_a_client_that_reads_no_records_is_closed(node: NodeProcess, undisturbed: Undisturbed) -> None:
    memory = Memory(node.pid)
    topic = unique("unread")
    with undisturbed(node), Wire(node.port) as wire, Wire(node.port, receive_buffer=4096) as deaf:
        create_topic(wire, topic)
        for _ in range(16):
            assert produce(wire, topic, batch_of(bytes(MEGABYTE - 1000))).error_code is ErrorCode.none
        before = memory.resident()
        request = request_frame(ApiKey.FETCH, 12, **fetch_fields((topic, 0, 0), partition_max_bytes=16 << 20))
        deaf.send_bytes(request * 50)
        _wait_for_log(node, "does not read its responses")
        assert memory.resident() - before < 16 * MEGABYTE


def test_a_client_that_reads_no_answers_is_closed_and_its_answers_do_not_pile_up(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    memory = Memory(node.pid)
    topic = unique("many-partitions")
    with undisturbed(node), Wire(node.port) as wire, Wire(node.port, receive_buffer=4096) as deaf:
        create_topic(wire, topic, partitions=100)
        memory.forget_peak()
        before = memory.resident()
        asked = len(node.log_text())
        request = request_frame(ApiKey.METADATA, 1, topics=[Struct("MetadataRequestTopic", name=topic)])
        deaf.send_bytes(request * 10_000)  # 40 MB of answers
        _wait_for_log(node, "does not read its responses", since=asked)
        assert memory.peak() - before < 16 * MEGABYTE


def _wait_for_log(node: NodeProcess, text: str, *, since: int = 0) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while text not in node.log_text()[since:]:
        assert time.monotonic() < deadline, f"no {text!r} in the log"
        time.sleep(0.01)


# ---- many


def test_connections_over_the_limits_are_closed_at_once_and_those_within_go_on(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    with undisturbed(node), contextlib.ExitStack() as stack:
        first = [stack.enter_context(Wire(node.port)) for _ in range(PER_ADDRESS - 1)]  # and the honest one
        with Wire(node.port) as one_too_many:
            assert one_too_many.is_closed_by_node()
        others = [
            stack.enter_context(contextlib.closing(_connect_from("127.0.0.2", node.port)))
            for _ in range(IN_ALL - PER_ADDRESS)
        ]
        with contextlib.closing(_connect_from("127.0.0.3", node.port)) as one_too_many_in_all:
            assert one_too_many_in_all.recv(1) == b""
        first[-1].call(ApiKey.METADATA, 1, topics=())
        others[-1].sendall(request_frame(ApiKey.METADATA, 1, topics=()))
        assert len(others[-1].recv(4)) == 4
    with connected(node.port, PER_ADDRESS - 1) as again:  # those that left made room
        _eventually_served(again[-1], node)


def test_connections_leave_the_logs_the_descriptors_that_they_need(start_node: NodeFactory) -> None:
    """A flood within max.connections, but beyond the files that the process may open."""
    node = start_node()
    with Wire(node.port) as wire, HonestClient(node.port), contextlib.ExitStack() as stack:
        in_use = len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
        limit = in_use + 100
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (limit, limit))
        flood = [stack.enter_context(Wire(node.port)) for _ in range(200)]
        assert flood[-1].is_closed_by_node()
        topic = unique("needs-files")
        create_topic(wire, topic, partitions=5, config={"segment.bytes": "100"})
        for partition in range(5):
            for _ in range(2):
                appended = produce(wire, topic, batch_of(b"value"), partition=partition)
                assert appended.error_code is ErrorCode.none
    assert "Too many open files" not in node.log_text()


def _connect_from(address: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S, source_address=(address, 0))


def _eventually_served(wire: Wire, node: NodeProcess) -> None:
    """The node may learn a moment later than we that the earlier connections are gone."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            wire.call(ApiKey.METADATA, 1, topics=())
        except (ClosedByNodeError, ConnectionError):
            assert time.monotonic() < deadline, "there is no room for a connection"
            wire.close()
            wire = Wire(node.port)
        else:
            wire.close()
            return


def test_long_polls_end_with_the_connections_that_asked_for_them(
    node: NodeProcess, undisturbed: Undisturbed
) -> None:
    """Also where the node reads no further, since as many requests wait as may, and a month goes by."""
    topic = unique("long-polled")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
    poll = request_frame(ApiKey.FETCH, 12, **fetch_fields((topic, 0, 0), max_wait_s=A_MONTH_S))
    with undisturbed(node):
        for leave in (Wire.close, Wire.reset):
            with contextlib.ExitStack() as stack:
                room = [stack.enter_context(contextlib.closing(_connect_from("127.0.0.2", node.port)))]
                pollers = [Wire(node.port) for _ in range(PER_ADDRESS - 1)]
                for poller in pollers:
                    poller.send_bytes(poll * (PIPELINED + 3))
                room[0].sendall(request_frame(ApiKey.METADATA, 1, topics=()))
                assert len(room[0].recv(4)) == 4
                for poller in pollers:
                    leave(poller)
            _eventually_served(Wire(node.port), node)
            with connected(node.port, PER_ADDRESS // 2) as again:
                _eventually_served(again[-1], node)


def test_very_many_abandoned_long_polls_cost_no_memory(node: NodeProcess, undisturbed: Undisturbed) -> None:
    memory = Memory(node.pid)
    topic = unique("abandoned")
    partitions = 50
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, topic, partitions=partitions)
        poll = request_frame(
            ApiKey.FETCH,
            12,
            **fetch_fields(*((topic, p, 0) for p in range(partitions)), max_wait_s=A_MONTH_S),
        )
        ask = request_frame(ApiKey.METADATA, 1, topics=())

        def abandon(count: int) -> None:
            for _ in range(count):
                with Wire(node.port) as poller:
                    poller.send_bytes(ask + poll)
                    poller.receive_frame()

        abandon(50)
        before = memory.resident()
        abandon(400)
        assert memory.resident() - before < 4 * MEGABYTE
        # Nor do they hold up the partition's appends.
        assert produce(wire, topic, batch_of(b"value")).error_code is ErrorCode.none


# ---- many requests at once


def test_requests_pipelined_beyond_the_limit_are_answered_in_order(node: NodeProcess) -> None:
    """In one write, hundreds of them, many times as many as the node takes at once."""
    topic = unique("pipelined")
    rounds = 100
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        frames = bytearray()
        for number in range(rounds):
            values = produce_fields(topic, batch_of(b"value %d" % number))
            frames += request_frame(ApiKey.PRODUCE, 9, 4 * number, **values)
            frames += request_frame(ApiKey.FETCH, 11, 4 * number + 1, **fetch_fields((topic, 0, number)))
            frames += request_frame(ApiKey.METADATA, 1, 4 * number + 2, topics=())
            frames += request_frame(  # waits for ZooKeeper or at least for a turn of its own
                ApiKey.CREATE_TOPICS, 5, 4 * number + 3, topics=[], timeout=timedelta(seconds=1)
            )
        wire.send_bytes(frames)
        for number in range(rounds):
            appended = wire.receive(ApiKey.PRODUCE, 9, 4 * number)
            assert appended.responses[0].partition_responses[0].base_offset == number
            fetched = wire.receive(ApiKey.FETCH, 11, 4 * number + 1)
            assert b"value %d" % number in fetched.responses[0].partitions[0].records
            wire.receive(ApiKey.METADATA, 1, 4 * number + 2)
            wire.receive(ApiKey.CREATE_TOPICS, 5, 4 * number + 3)


def test_requests_behind_a_long_poll_are_taken_but_answered_after_it(node: NodeProcess) -> None:
    topic = unique("behind")
    with Wire(node.port) as wire, Wire(node.port) as other:
        create_topic(wire, topic)
        poll = wire.send(ApiKey.FETCH, 12, **fetch_fields((topic, 0, 0), max_wait_s=TIMEOUT_S))
        append = wire.send(ApiKey.PRODUCE, 9, **produce_fields(topic, batch_of(b"wakes the poll before it")))
        polled = wire.receive(ApiKey.FETCH, 12, poll)
        assert b"wakes" in polled.responses[0].partitions[0].records
        assert wire.receive(ApiKey.PRODUCE, 9, append).responses[0].partition_responses[0].base_offset == 0
        assert end_offset(other, topic) == 1


def test_requests_beyond_the_limit_wait_until_there_is_room(node: NodeProcess) -> None:
    """The third request is not even looked at while two wait; then it is, without anybody sending more."""
    topic = unique("held-back")
    with Wire(node.port) as wire, Wire(node.port) as other:
        create_topic(other, topic)
        polls = [
            wire.send(ApiKey.FETCH, 12, **fetch_fields((topic, 0, 0), max_wait_s=TIMEOUT_S))
            for _ in range(PIPELINED)
        ]
        held_back = wire.send(ApiKey.PRODUCE, 9, **produce_fields(topic, batch_of(b"second")))
        assert list_offset(other, topic, LATEST).offset == 0
        assert produce(other, topic, batch_of(b"first")).base_offset == 0
        for poll in polls:
            assert b"first" in wire.receive(ApiKey.FETCH, 12, poll).responses[0].partitions[0].records
        appended = wire.receive(ApiKey.PRODUCE, 9, held_back)
        assert appended.responses[0].partition_responses[0].base_offset == 1
