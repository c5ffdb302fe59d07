"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions: what a client learns of a cluster."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from kbus.node.dispatch import HANDLERS
from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from tests.conftest import NodeFactory
from tests.node.honest import unique
from tests.node.wire import Struct, Wire, create_topic, every_version, latest, versions
from tests.nodes import NodeProcess

NO_OPERATIONS = -(2**31)


def metadata(
    wire: Wire, version: int, topics: Any, *, create: bool = False, operations: bool = False
) -> Entity:
    return wire.call(
        ApiKey.METADATA,
        version,
        topics=topics,
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=operations,
        include_topic_authorized_operations=operations,
    )


def by_name(*names: str) -> list[Struct]:
    return [Struct("MetadataRequestTopic", name=name, topic_id=None) for name in names]


def by_id(*ids: uuid.UUID) -> list[Struct]:
    return [Struct("MetadataRequestTopic", name=None, topic_id=topic_id) for topic_id in ids]


# ---- ApiVersions


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.API_VERSIONS))
def test_api_versions_are_exactly_those_that_are_served(node: NodeProcess, api: ApiKey, version: int) -> None:
    with Wire(node.port) as wire:
        response = wire.call(api, version, client_software_name="wire", client_software_version="1.0")
    assert response.error_code is ErrorCode.none
    advertised = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    served = {key: (versions(key).min, versions(key).max) for key in HANDLERS}
    # librdkafka takes a broker without Produce v0 for one from before the codecs.
    assert advertised == {**served, ApiKey.PRODUCE: (0, versions(ApiKey.PRODUCE).max)}
    assert len(response.api_keys) == len(advertised)


# ---- Metadata


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.METADATA))
def test_metadata_of_a_topic_names_brokers_leaders_and_replicas(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("described")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic, partitions=3)
        response = metadata(wire, version, by_name(topic))
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", node.port)
    if version >= 1:
        assert response.controller_id == 1
    if version >= 2:
        assert len(response.cluster_id) == 22
    (found,) = response.topics
    assert (found.error_code, found.name) == (ErrorCode.none, topic)
    if version >= 1:
        assert found.is_internal is False
    if version >= 10:
        assert found.topic_id == topic_id
    assert [partition.partition_index for partition in found.partitions] == [0, 1, 2]
    for partition in found.partitions:
        assert partition.error_code is ErrorCode.none
        assert partition.leader_id == 1
        assert (partition.replica_nodes, partition.isr_nodes) == ((1,), (1,))
        assert getattr(partition, "offline_replicas", ()) == ()
        assert getattr(partition, "leader_epoch", 0) == 0


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.METADATA))
def test_metadata_of_all_topics_and_of_none(node: NodeProcess, api: ApiKey, version: int) -> None:
    """An empty list means all in version 0, and none from version 1 on, where null means all."""
    names = {unique("all"), unique("all")}
    with Wire(node.port) as wire:
        for name in names:
            create_topic(wire, name)
        everything = metadata(wire, version, None if version >= 1 else ())
        assert names <= {entry.name for entry in everything.topics}
        if version >= 1:
            nothing = metadata(wire, version, ())
            assert nothing.topics == ()
            assert nothing.brokers == everything.brokers


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.METADATA))
def test_metadata_creates_a_missing_topic_only_if_asked_to(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("auto")
    with Wire(node.port) as wire:
        if version >= 4:
            refused = metadata(wire, version, by_name(topic)).topics
            assert [entry.error_code for entry in refused] == [ErrorCode.unknown_topic_or_partition]
            assert topic not in {entry.name for entry in metadata(wire, 1, None).topics}
        (made,) = metadata(wire, version, by_name(topic), create=True).topics
        assert (made.error_code, made.name) == (ErrorCode.none, topic)
        assert [partition.leader_id for partition in made.partitions] == [1]


def test_metadata_creates_no_topic_where_the_broker_forbids_it(start_node: NodeFactory) -> None:
    node = start_node({"auto.create.topics.enable": "false"})
    with Wire(node.port) as wire:
        for version in (0, latest(ApiKey.METADATA)):
            (missing,) = metadata(wire, version, by_name("nowhere"), create=True).topics
            assert missing.error_code is ErrorCode.unknown_topic_or_partition
            assert metadata(wire, 1, None).topics == ()


@pytest.mark.parametrize("version", range(10, latest(ApiKey.METADATA) + 1))
def test_metadata_by_id_names_the_topic(node: NodeProcess, version: int) -> None:
    topic, unknown = unique("by-id"), uuid.uuid4()
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        response = metadata(wire, version, by_id(topic_id, unknown), create=True)
    found = {entry.topic_id: entry for entry in response.topics}
    assert (found[topic_id].error_code, found[topic_id].name) == (ErrorCode.none, topic)
    assert found[unknown].error_code is ErrorCode.unknown_topic_id
    assert found[unknown].name == (None if version >= 12 else "")


@pytest.mark.parametrize("version", range(8, latest(ApiKey.METADATA) + 1))
def test_authorized_operations_are_told_only_if_asked_for(node: NodeProcess, version: int) -> None:
    topic = unique("operations")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        without = metadata(wire, version, by_name(topic))
        asked = metadata(wire, version, by_name(topic), operations=True)
    assert without.topics[0].topic_authorized_operations == NO_OPERATIONS
    assert asked.topics[0].topic_authorized_operations > 0
    if version <= 10:
        assert without.cluster_authorized_operations == NO_OPERATIONS
        assert asked.cluster_authorized_operations > 0


# ---- DescribeCluster


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.DESCRIBE_CLUSTER))
def test_describe_cluster_agrees_with_metadata(node: NodeProcess, api: ApiKey, version: int) -> None:
    with Wire(node.port) as wire:
        response = wire.call(
            api, version, include_cluster_authorized_operations=True, include_fenced_brokers=True
        )
        known = metadata(wire, 9, ())
    assert response.error_code is ErrorCode.none
    assert (response.cluster_id, response.controller_id) == (known.cluster_id, known.controller_id)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (b.node_id, b.host, b.port, b.rack) for b in known.brokers
    ]
    assert response.cluster_authorized_operations > 0


@pytest.mark.parametrize("version", range(1, latest(ApiKey.DESCRIBE_CLUSTER) + 1))
def test_describe_cluster_has_no_controllers_to_show(node: NodeProcess, version: int) -> None:
    with Wire(node.port) as wire:
        response = wire.call(
            ApiKey.DESCRIBE_CLUSTER,
            version,
            include_cluster_authorized_operations=False,
            endpoint_type=2,
            include_fenced_brokers=False,
        )
    assert response.error_code is ErrorCode.unsupported_endpoint_type
    assert response.brokers == ()


# ---- DescribeTopicPartitions


def describe(
    wire: Wire, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Entity:
    position = None
    if cursor is not None:
        position = Struct("Cursor", topic_name=cursor[0], partition_index=cursor[1])
    return wire.call(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[Struct("TopicRequest", name=name) for name in names],
        response_partition_limit=limit,
        cursor=position,
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 100])
def test_topic_partitions_come_page_by_page_each_once_and_in_order(node: NodeProcess, limit: int) -> None:
    first, second, missing = (f"{unique('paged')}-{letter}" for letter in "abc")
    with Wire(node.port) as wire:
        create_topic(wire, first, partitions=3)
        create_topic(wire, second, partitions=3)
        seen: list[tuple[str, int]] = []
        unknown: list[str] = []
        cursor = None
        pages = 0
        while True:
            page = describe(wire, [missing, second, first], limit, cursor)
            pages += 1
            found = [(topic.name, p.partition_index) for topic in page.topics for p in topic.partitions]
            assert len(found) <= limit
            seen += found
            unknown += [t.name for t in page.topics if t.error_code is ErrorCode.unknown_topic_or_partition]
            if page.next_cursor is None:
                break
            assert found, "a page that is not the last has something on it"
            cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
    assert seen == [(name, index) for name in (first, second) for index in range(3)]
    assert unknown == [missing]
    assert pages == max(1, -(-6 // limit))


def test_topic_partitions_of_all_topics_and_from_a_cursor_to_a_deleted_topic(node: NodeProcess) -> None:
    names = [f"{unique('cursor')}-{letter}" for letter in "abc"]
    with Wire(node.port) as wire:
        ids = {name: create_topic(wire, name) for name in names}
        everything = {topic.name: topic for topic in describe(wire, []).topics}
        for name, topic_id in ids.items():
            assert everything[name].topic_id == topic_id
            (partition,) = everything[name].partitions
            assert (partition.leader_id, partition.leader_epoch, partition.isr_nodes) == (1, 0, (1,))
            assert everything[name].topic_authorized_operations > 0
        wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=[names[1]], timeout=timedelta(seconds=10))
        rest = describe(wire, [names[0], names[2]], cursor=(names[1], 0))
        assert [topic.name for topic in rest.topics] == [names[2]]
