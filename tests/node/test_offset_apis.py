"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, in every version."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from tests.node.honest import unique
from tests.node.wire import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Struct,
    Wire,
    batch_of,
    create_topic,
    every_version,
    fetch,
    list_offset,
    produce,
)
from tests.nodes import NodeProcess

EARLIEST_LOCAL, LATEST_TIERED = -4, -5


@pytest.fixture(scope="module")
def timed(node: NodeProcess) -> str:
    """Offsets 0 to 5 at 1000, 1001, 5000, 5001, 3000, 3001 ms: the largest timestamp is not the last."""
    topic = unique("timed")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        for timestamp in (1000, 5000, 3000):
            produce(wire, topic, batch_of(b"one", b"two", timestamp=timestamp))
    return topic


# ---- ListOffsets


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.LIST_OFFSETS))
def test_offsets_are_found_by_place_and_by_time(
    node: NodeProcess, timed: str, api: ApiKey, version: int
) -> None:
    expected = {
        EARLIEST: (0, -1),
        LATEST: (6, -1),
        0: (0, 1000),
        1000: (0, 1000),
        1001: (1, 1001),
        1002: (2, 5000),
        5001: (3, 5001),
        5002: (-1, -1),
        2**62: (-1, -1),
    }
    if version >= 7:
        expected[MAX_TIMESTAMP] = (3, 5001)
    if version >= 8:
        expected[EARLIEST_LOCAL] = (0, -1)
    if version >= 9:
        expected[LATEST_TIERED] = (-1, -1)
    with Wire(node.port) as wire:
        for timestamp, (offset, found_timestamp) in expected.items():
            found = list_offset(wire, timed, timestamp, version=version)
            assert found.error_code is ErrorCode.none
            assert (found.offset, found.timestamp) == (offset, found_timestamp), timestamp
            if version >= 4 and offset >= 0:
                assert found.leader_epoch == 0


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.LIST_OFFSETS))
def test_offsets_of_an_empty_partition(node: NodeProcess, api: ApiKey, version: int) -> None:
    topic = unique("empty")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        assert list_offset(wire, topic, EARLIEST, version=version).offset == 0
        assert list_offset(wire, topic, LATEST, version=version).offset == 0
        assert list_offset(wire, topic, 0, version=version).offset == -1
        if version >= 7:
            assert list_offset(wire, topic, MAX_TIMESTAMP, version=version).offset == -1


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.LIST_OFFSETS))
def test_offsets_of_what_is_not_there_and_of_unknown_questions(
    node: NodeProcess, timed: str, api: ApiKey, version: int
) -> None:
    with Wire(node.port) as wire:
        missing = list_offset(wire, unique("missing"), LATEST, version=version)
        beyond = list_offset(wire, timed, LATEST, partition=1, version=version)
        for answer in (missing, beyond):
            assert (answer.error_code, answer.offset) == (ErrorCode.unknown_topic_or_partition, -1)
        unknown = list_offset(wire, timed, -99, version=version)
        assert unknown.error_code is not ErrorCode.none
        if version >= 2:
            committed = list_offset(wire, timed, LATEST, version=version, isolation_level=1)
            assert committed.offset == 6


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[NodeProcess]:
    """ "epochs" has offsets 0 and 1 in leader epoch 0, nothing in 1, and 2 in epoch 2."""
    folder = tmp_path_factory.mktemp("restarted")
    with NodeProcess(folder, zookeeper=f"{zookeeper_server}/{folder.name}-offsets") as process:
        with Wire(process.port) as wire:
            create_topic(wire, "epochs")
            produce(wire, "epochs", batch_of(b"0", b"1"))
        for _ in range(2):
            process.stop()
            process.start()
        with Wire(process.port) as wire:
            produce(wire, "epochs", batch_of(b"2", timestamp=9000))
        yield process


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api, version in every_version(ApiKey.LIST_OFFSETS) if version >= 4],
)
def test_offsets_are_told_with_their_epoch_and_fenced_by_the_current_one(
    restarted: NodeProcess, api: ApiKey, version: int
) -> None:
    with Wire(restarted.port) as wire:

        def asked(timestamp: int, epoch: int) -> Entity:
            return list_offset(wire, "epochs", timestamp, version=version, current_leader_epoch=epoch)

        assert (asked(EARLIEST, 2).offset, asked(EARLIEST, 2).leader_epoch) == (0, 0)
        assert (asked(LATEST, 2).offset, asked(LATEST, 2).leader_epoch) == (3, 2)
        assert (asked(1001, 2).offset, asked(1001, 2).leader_epoch) == (1, 0)
        assert (asked(9000, -1).offset, asked(9000, -1).leader_epoch) == (2, 2)
        assert asked(LATEST, 1).error_code is ErrorCode.fenced_leader_epoch
        assert asked(LATEST, 3).error_code is ErrorCode.unknown_leader_epoch


# ---- OffsetForLeaderEpoch


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.OFFSET_FOR_LEADER_EPOCH))
def test_the_end_of_an_epoch_is_where_the_next_begins(
    restarted: NodeProcess, api: ApiKey, version: int
) -> None:
    with Wire(restarted.port) as wire:

        def asked(epoch: int, current: int = -1, topic: str = "epochs") -> Entity:
            response = wire.call(
                api,
                version,
                replica_id=-1,
                topics=[
                    Struct(
                        "OffsetForLeaderTopic",
                        topic=topic,
                        partitions=[
                            Struct(
                                "OffsetForLeaderPartition",
                                partition=0,
                                current_leader_epoch=current,
                                leader_epoch=epoch,
                            )
                        ],
                    )
                ],
            )
            assert response.topics[0].topic == topic
            return response.topics[0].partitions[0]

        ends = {epoch: (asked(epoch).leader_epoch, asked(epoch).end_offset) for epoch in range(4)}
        # Epoch 1 began at offset 2, though nothing was written in it, and so did epoch 2.
        assert ends[0] == (0, 2)
        assert ends[1] in ((0, 2), (1, 2))
        assert ends[2] == (2, 3)
        assert ends[3] == (-1, -1)
        assert asked(0, current=1).error_code is ErrorCode.fenced_leader_epoch
        assert asked(0, current=3).error_code is ErrorCode.unknown_leader_epoch
        assert asked(0, topic="missing").error_code is ErrorCode.unknown_topic_or_partition


# ---- DeleteRecords


def delete_records(wire: Wire, version: int, topic: str, offset: int, partition: int = 0) -> Entity:
    response = wire.call(
        ApiKey.DELETE_RECORDS,
        version,
        topics=[
            Struct(
                "DeleteRecordsTopic",
                name=topic,
                partitions=[Struct("DeleteRecordsPartition", partition_index=partition, offset=offset)],
            )
        ],
        timeout=timedelta(seconds=10),
    )
    (result,) = response.topics[0].partitions
    return result


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.DELETE_RECORDS))
def test_deleted_records_are_out_of_range_and_the_rest_stays(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("cut")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        for _ in range(3):
            produce(wire, topic, batch_of(b"one", b"two"))
        deleted = delete_records(wire, version, topic, 3)
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 3)
        assert list_offset(wire, topic, EARLIEST).offset == 3
        assert fetch(wire, topic, 2).error_code is ErrorCode.offset_out_of_range
        found = fetch(wire, topic, 3)
        assert (found.error_code, found.log_start_offset) == (ErrorCode.none, 3)
        # What is deleted stays deleted, also if an earlier offset is asked for.
        assert delete_records(wire, version, topic, 1).low_watermark == 3
        assert delete_records(wire, version, topic, -1).low_watermark == 6
        assert list_offset(wire, topic, EARLIEST).offset == 6
        assert produce(wire, topic, batch_of(b"next")).base_offset == 6


def test_records_that_are_not_there_cannot_be_deleted(node: NodeProcess) -> None:
    topic = unique("uncut")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        produce(wire, topic, batch_of(b"one"))
        for offset in (2, -2, 2**62):
            refused = delete_records(wire, 2, topic, offset)
            assert (refused.error_code, refused.low_watermark) == (ErrorCode.offset_out_of_range, -1)
        missing = delete_records(wire, 2, topic, 0, partition=5)
        assert missing.error_code is ErrorCode.unknown_topic_or_partition
        assert list_offset(wire, topic, EARLIEST).offset == 0


def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(node: NodeProcess) -> None:
    """Its policy says which go: those with newer ones of their key."""
    topic = unique("compacted")
    with Wire(node.port) as wire:
        create_topic(wire, topic, config={"cleanup.policy": "compact"})
        produce(wire, topic, batch_of(b"one"))
        assert delete_records(wire, 2, topic, 1).error_code is ErrorCode.policy_violation
        assert list_offset(wire, topic, EARLIEST).offset == 0


def test_deleted_records_stay_deleted_over_a_restart(restarted: NodeProcess) -> None:
    with Wire(restarted.port) as wire:
        create_topic(wire, "cut")
        produce(wire, "cut", batch_of(b"0", b"1", b"2"))
        delete_records(wire, 2, "cut", 2)
    restarted.stop()
    restarted.start()
    with Wire(restarted.port) as wire:
        assert list_offset(wire, "cut", EARLIEST).offset == 2
        assert fetch(wire, "cut", 1).error_code is ErrorCode.offset_out_of_range
        assert fetch(wire, "cut", 2).error_code is ErrorCode.none
