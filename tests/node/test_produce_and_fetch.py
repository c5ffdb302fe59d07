"""Produce and Fetch, in every version: what goes in comes out, waiting included."""

import time
import uuid
from collections.abc import Iterator

import pytest

from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from kbus.records.batch import iter_headers, read_header
from kbus.records.record import Record, decode_records
from tests.conftest import NodeFactory
from tests.node.honest import unique
from tests.node.wire import (
    Struct,
    Wire,
    batch_of,
    create_topic,
    end_offset,
    every_version,
    fetch,
    fetch_fields,
    latest,
    produce,
    produce_fields,
    versions,
)
from tests.nodes import NodeProcess

PATIENCE_S = 20.0
FETCH_VERSIONS = range(versions(ApiKey.FETCH).min, versions(ApiKey.FETCH).max + 1)


def records_of(data: bytes) -> list[Record]:
    found: list[Record] = []
    for position, header in iter_headers(data):
        found += decode_records(data[position : position + header.size], header)
    return found


def named(version: int, topic: str, topic_id: uuid.UUID) -> str | uuid.UUID:
    """Both APIs name topics by id from version 13 on."""
    return topic_id if version >= 13 else topic


# ---- Produce


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.PRODUCE))
def test_a_batch_is_appended_and_its_offset_told(
    node: NodeProcess, api: ApiKey, version: int, acks: int
) -> None:
    topic = unique("produced")
    with Wire(node.port) as wire:
        name = named(version, topic, create_topic(wire, topic))
        for expected in (0, 2):
            appended = produce(wire, name, batch_of(b"one", b"two"), version=version, acks=acks)
            assert (appended.error_code, appended.base_offset) == (ErrorCode.none, expected)
            assert appended.log_append_time is None
            assert getattr(appended, "log_start_offset", 0) == 0
            assert getattr(appended, "error_message", None) is None
        found = records_of(fetch(wire, topic, 0).records)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [
        (0, 1000, b"k", b"one"),
        (1, 1001, b"k", b"two"),
        (2, 1000, b"k", b"one"),
        (3, 1001, b"k", b"two"),
    ]


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.PRODUCE))
def test_acks_0_appends_and_answers_nothing(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("unanswered")
    with Wire(node.port) as wire:
        name = named(version, topic, create_topic(wire, topic))
        wire.send(api, version, **produce_fields(name, batch_of(b"value"), acks=0))
        # The next answer is to the next request: there was none to the first.
        assert end_offset(wire, topic) == 1


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.PRODUCE))
def test_log_append_time_is_told_and_stored(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("append-time")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic, config={"message.timestamp.type": "LogAppendTime"})
        before = time.time()
        appended = produce(wire, named(version, topic, topic_id), batch_of(b"value"), version=version)
        told = appended.log_append_time.timestamp()
        assert before - 1 <= told <= time.time()
        (record,) = records_of(fetch(wire, topic, 0).records)
        assert record.timestamp // 1000 == int(told)


@pytest.mark.parametrize("version", [12, 13])
def test_a_missing_topic_or_partition_is_told(node: NodeProcess, version: int) -> None:
    topic = unique("partial")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        if version < 13:
            missing = produce(wire, unique("missing"), batch_of(b"value"))
            assert missing.error_code is ErrorCode.unknown_topic_or_partition
        else:
            missing = produce(wire, uuid.uuid4(), batch_of(b"value"))
            assert missing.error_code is ErrorCode.unknown_topic_id
        beyond = produce(wire, named(version, topic, topic_id), batch_of(b"value"), partition=1)
        assert beyond.error_code is ErrorCode.unknown_topic_or_partition
        assert end_offset(wire, topic) == 0


def test_one_request_appends_to_many_partitions_and_fails_for_each_on_its_own(node: NodeProcess) -> None:
    topic, other = unique("many"), unique("many")
    with Wire(node.port) as wire:
        create_topic(wire, topic, partitions=2)
        create_topic(wire, other)

        def data(name: str, *partitions: int) -> Struct:
            return Struct(
                "TopicProduceData",
                name=name,
                partition_data=[
                    Struct("PartitionProduceData", index=index, records=batch_of(b"%d" % index))
                    for index in partitions
                ],
            )

        fields = produce_fields(topic, None, acks=-1)
        fields["topic_data"] = [data(topic, 1, 5, 0), data(other, 0), data("missing.topic", 0)]
        response = wire.call(ApiKey.PRODUCE, 12, **fields)
        codes = {
            (entry.name, p.index): p.error_code
            for entry in response.responses
            for p in entry.partition_responses
        }
        unknown = ErrorCode.unknown_topic_or_partition
        assert codes == {
            (topic, 1): ErrorCode.none,
            (topic, 5): unknown,
            (topic, 0): ErrorCode.none,
            (other, 0): ErrorCode.none,
            ("missing.topic", 0): unknown,
        }
        assert [end_offset(wire, topic, 0), end_offset(wire, topic, 1), end_offset(wire, other)] == [1, 1, 1]


def test_a_flush_before_the_acknowledgement_is_waited_for(node: NodeProcess) -> None:
    topic = unique("flushed")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"flush.messages": "1"})
        for number in range(20):
            acks = (1, -1)[number % 2]
            assert produce(wire, topic, batch_of(b"value"), acks=acks).base_offset == number
            assert end_offset(wire, topic) == number + 1
        wire.send(ApiKey.PRODUCE, 9, **produce_fields(topic, batch_of(b"value"), acks=0))
        assert produce(wire, topic, batch_of(b"value")).base_offset == 21


# ---- Fetch


@pytest.fixture(scope="module")
def filled(node: NodeProcess) -> tuple[str, uuid.UUID]:
    """A topic of 10 batches of 2 records, offsets 0 to 19."""
    topic = unique("filled")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        for number in range(10):
            produce(wire, topic, batch_of(b"%d" % (2 * number), b"%d" % (2 * number + 1)))
    return topic, topic_id


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_begins_with_the_batch_that_holds_its_offset(
    node: NodeProcess, filled: tuple[str, uuid.UUID], version: int
) -> None:
    with Wire(node.port) as wire:
        for offset in (0, 1, 7, 18, 19):
            found = fetch(wire, named(version, *filled), offset, version=version)
            assert found.error_code is ErrorCode.none
            assert (found.high_watermark, found.last_stable_offset) == (20, 20)
            assert getattr(found, "log_start_offset", 0) == 0
            first = offset - offset % 2
            assert [(r.offset, r.value) for r in records_of(found.records)] == [
                (number, b"%d" % number) for number in range(first, 20)
            ]
            assert read_header(found.records).leader_epoch == 0


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_the_end_of_the_log_is_empty_and_beyond_it_is_out_of_range(
    node: NodeProcess, filled: tuple[str, uuid.UUID], version: int
) -> None:
    with Wire(node.port) as wire:
        end = fetch(wire, named(version, *filled), 20, version=version)
        assert (end.error_code, end.records) == (ErrorCode.none, b"")
        for offset in (21, -1, 2**62):
            beyond = fetch(wire, named(version, *filled), offset, version=version)
            assert beyond.error_code is ErrorCode.offset_out_of_range
            assert not beyond.records


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_both_isolation_levels_read_what_no_transaction_holds_back(
    node: NodeProcess, filled: tuple[str, uuid.UUID], version: int, isolation_level: int
) -> None:
    with Wire(node.port) as wire:
        found = fetch(wire, named(version, *filled), 0, version=version, isolation_level=isolation_level)
    assert len(records_of(found.records)) == 20
    assert not found.aborted_transactions


def test_missing_topics_and_partitions_are_told_beside_those_that_are_there(
    node: NodeProcess, filled: tuple[str, uuid.UUID]
) -> None:
    topic, topic_id = filled
    unknown = uuid.uuid4()
    with Wire(node.port) as wire:
        by_name = wire.call(ApiKey.FETCH, 12, **fetch_fields((topic, 0, 0), (topic, 3, 0), ("no.such", 0, 0)))
        by_id = wire.call(ApiKey.FETCH, 17, **fetch_fields((topic_id, 0, 0), (unknown, 0, 0)))
    missing = ErrorCode.unknown_topic_or_partition
    found = {(t.topic, p.partition_index): p for t in by_name.responses for p in t.partitions}
    assert found[topic, 3].error_code is missing
    assert found["no.such", 0].error_code is missing
    assert len(records_of(found[topic, 0].records)) == 20
    codes = {t.topic_id: p.error_code for t in by_id.responses for p in t.partitions}
    assert codes == {topic_id: ErrorCode.none, unknown: ErrorCode.unknown_topic_id}


# ---- limits


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_limits_end_a_fetch_after_whole_batches_but_the_first_always_comes(
    node: NodeProcess, filled: tuple[str, uuid.UUID], version: int
) -> None:
    size = len(batch_of(b"0", b"1"))
    name = named(version, *filled)
    with Wire(node.port) as wire:
        for limit in (0, 1, size - 1, size):
            by_partition = fetch(wire, name, 0, version=version, partition_max_bytes=limit)
            by_request = fetch(wire, name, 0, version=version, max_bytes=limit)
            for found in (by_partition, by_request):
                assert [record.offset for record in records_of(found.records)] == [0, 1]
        found = fetch(wire, name, 0, version=version, partition_max_bytes=3 * size)
        assert [record.offset for record in records_of(found.records)] == list(range(6))


def test_the_first_partition_with_records_may_exceed_the_limit_and_no_other(node: NodeProcess) -> None:
    topic = unique("limited")
    with Wire(node.port) as wire:
        create_topic(wire, topic, partitions=4)
        for partition in (1, 2, 3):
            produce(wire, topic, batch_of(bytes(1000)), partition=partition)
        response = wire.call(
            ApiKey.FETCH, 12, **fetch_fields(*((topic, index, 0) for index in range(4)), max_bytes=1)
        )
        found = {p.partition_index: p for t in response.responses for p in t.partitions}
        assert len(records_of(found[1].records)) == 1
        for empty in (0, 2, 3):
            assert records_of(found[empty].records) == []
            assert found[empty].error_code is ErrorCode.none
        enough = wire.call(
            ApiKey.FETCH,
            12,
            **fetch_fields(
                *((topic, index, 0) for index in range(4)), max_bytes=2 * len(batch_of(bytes(1000)))
            ),
        )
        sizes = [len(p.records) for t in enough.responses for p in t.partitions]
        assert sizes == [0, len(batch_of(bytes(1000))), len(batch_of(bytes(1000))), 0]


def test_fetch_max_bytes_of_the_broker_limits_every_fetch(start_node: NodeFactory) -> None:
    node = start_node({"fetch.max.bytes": "4096"})
    with Wire(node.port) as wire:
        create_topic(wire, "limited")
        for _ in range(20):
            produce(wire, "limited", batch_of(bytes(1000)))
        assert len(fetch(wire, "limited", 0).records) <= 4096


# ---- waiting


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_that_finds_nothing_waits_and_is_woken_by_an_append(node: NodeProcess, version: int) -> None:
    topic = unique("woken")
    with Wire(node.port) as wire, Wire(node.port) as waiting:
        topic_id = create_topic(wire, topic)
        name = named(version, topic, topic_id)
        began = time.monotonic()
        poll = waiting.begin_long_poll(version, **fetch_fields((name, 0, 0), max_wait_s=PATIENCE_S))
        produce(wire, topic, batch_of(b"wake"))
        answer = waiting.receive(ApiKey.FETCH, version, poll)
        assert time.monotonic() - began < PATIENCE_S / 2
        (found,) = answer.responses[0].partitions
        assert [record.value for record in records_of(found.records)] == [b"wake"]
        assert found.high_watermark == 1


@pytest.mark.parametrize("version", [4, 12, latest(ApiKey.FETCH)])
def test_a_fetch_that_finds_nothing_is_answered_when_its_time_is_up(node: NodeProcess, version: int) -> None:
    topic = unique("timed-out")
    with Wire(node.port) as wire:
        name = named(version, topic, create_topic(wire, topic))
        began = time.monotonic()
        found = fetch(wire, name, 0, version=version, max_wait_s=0.2)
        assert time.monotonic() - began >= 0.2
        assert (found.error_code, found.records) == (ErrorCode.none, b"")


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(node: NodeProcess) -> None:
    topic = unique("min-bytes")
    size = len(batch_of(b"value"))
    with Wire(node.port) as wire, Wire(node.port) as waiting:
        create_topic(wire, topic, partitions=2)
        produce(wire, topic, batch_of(b"value"))
        poll = waiting.begin_long_poll(
            12, **fetch_fields((topic, 0, 0), (topic, 1, 0), min_bytes=3 * size, max_wait_s=PATIENCE_S)
        )
        produce(wire, topic, batch_of(b"value"))
        asked = waiting.send(ApiKey.API_VERSIONS, 0)
        produce(wire, topic, batch_of(b"value"), partition=1)  # bytes of all partitions count
        answer = waiting.receive(ApiKey.FETCH, 12, poll)
        waiting.receive(ApiKey.API_VERSIONS, 0, asked)
        assert sum(len(p.records) for t in answer.responses for p in t.partitions) == 3 * size


def test_a_fetch_that_has_all_it_may_be_sent_does_not_wait_for_more(node: NodeProcess) -> None:
    """min_bytes over max_bytes could never be met."""
    topic = unique("max-below-min")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        for _ in range(4):
            produce(wire, topic, batch_of(bytes(1000)))
        began = time.monotonic()
        limit = 5 * len(batch_of(bytes(1000))) // 2
        found = fetch(wire, topic, 0, min_bytes=100_000, max_bytes=limit, max_wait_s=PATIENCE_S)
        assert len(records_of(found.records)) == 2
        assert time.monotonic() - began < PATIENCE_S / 2


def test_a_fetch_with_an_error_does_not_wait(node: NodeProcess) -> None:
    topic = unique("erring")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        began = time.monotonic()
        response = wire.call(
            ApiKey.FETCH, 12, **fetch_fields((topic, 0, 0), (topic, 1, 0), max_wait_s=PATIENCE_S)
        )
        codes = [p.error_code for t in response.responses for p in t.partitions]
        assert codes == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert time.monotonic() - began < PATIENCE_S / 2


def test_a_long_poll_is_answered_when_the_node_stops(start_node: NodeFactory) -> None:
    node = start_node()
    with Wire(node.port) as wire:
        create_topic(wire, "polled")
        poll = wire.begin_long_poll(12, **fetch_fields(("polled", 0, 0), max_wait_s=600))
        began = time.monotonic()
        assert node.stop() == 0
        answer = wire.receive(ApiKey.FETCH, 12, poll)
        assert answer.responses[0].partitions[0].error_code is ErrorCode.none
        assert time.monotonic() - began < PATIENCE_S
        assert wire.is_closed_by_node()


# ---- fencing by leader epoch


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[NodeProcess]:
    """A node whose topic "epochs" has offsets 0 and 1 in leader epoch 0, and 2 in epoch 1."""
    folder = tmp_path_factory.mktemp("restarted")
    with NodeProcess(folder, zookeeper=f"{zookeeper_server}/{folder.name}") as process:
        with Wire(process.port) as wire:
            create_topic(wire, "epochs")
            produce(wire, "epochs", batch_of(b"0", b"1"))
        process.stop()
        process.start()
        with Wire(process.port) as wire:
            produce(wire, "epochs", batch_of(b"2"))
        yield process


def id_of_the_only_topic(wire: Wire) -> uuid.UUID:
    topic_id: uuid.UUID = (
        wire.call(ApiKey.METADATA, 12, topics=None, include_topic_authorized_operations=False)
        .topics[0]
        .topic_id
    )
    return topic_id


def test_a_restart_begins_a_leader_epoch_and_batches_carry_theirs(restarted: NodeProcess) -> None:
    with Wire(restarted.port) as wire:
        found = fetch(wire, "epochs", 0)
        headers = [header for _, header in iter_headers(found.records)]
    assert [(header.base_offset, header.leader_epoch) for header in headers] == [(0, 0), (2, 1)]


@pytest.mark.parametrize("version", range(9, latest(ApiKey.FETCH) + 1))
def test_a_fetch_in_another_leader_epoch_is_fenced(restarted: NodeProcess, version: int) -> None:
    with Wire(restarted.port) as wire:
        topic_id = id_of_the_only_topic(wire)

        def fetched(epoch: int) -> Entity:
            name = named(version, "epochs", topic_id)
            return fetch(wire, name, 0, version=version, current_leader_epoch=epoch)

        older, newer, current = fetched(0), fetched(2), fetched(1)
    assert older.error_code is ErrorCode.fenced_leader_epoch
    assert newer.error_code is ErrorCode.unknown_leader_epoch
    assert current.error_code is ErrorCode.none
    if version >= 12:
        assert (older.current_leader.leader_id, older.current_leader.leader_epoch) == (1, 1)


@pytest.mark.parametrize("version", range(12, latest(ApiKey.FETCH) + 1))
def test_a_reader_whose_log_parted_from_this_one_is_told_where(restarted: NodeProcess, version: int) -> None:
    """It read up to offset 5 in epoch 0, which ended at 2 here (KIP-595)."""
    with Wire(restarted.port) as wire:
        topic_id = id_of_the_only_topic(wire)
        name = named(version, "epochs", topic_id)
        parted = fetch(wire, name, 3, version=version, last_fetched_epoch=0)
        assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (0, 2)
        assert not parted.records
        together = fetch(wire, name, 2, version=version, last_fetched_epoch=0)
        assert (together.error_code, together.diverging_epoch.end_offset) == (ErrorCode.none, -1)
        assert [record.value for record in records_of(together.records)] == [b"2"]
