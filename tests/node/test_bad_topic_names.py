"""Topic names become names of folders and of znodes: what is not one never gets that far.

Nor do topics that are named legally but ask for what cannot be had."""

from datetime import timedelta
from pathlib import Path

import pytest

from kbus.protocol.api import ApiKey
from kbus.protocol.errors import ErrorCode
from tests.node.conftest import Undisturbed
from tests.node.honest import unique
from tests.node.wire import (
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

ILLEGAL = [
    "",
    ".",
    "..",
    "../escaped",
    "../../../../tmp/escaped",
    "/absolute",
    "a/b",
    "a\\b",
    "nul\0byte",
    "line\nbreak",
    "ends-in-a-line-break\n",
    "space d",
    "ünïcode",
    "topic\u2024with-a-dot-lookalike",
    "*",
    "$(reboot)",
    "%s%n",
    "a" * 250,
    "a" * 30_000,
]
REFUSED = (ErrorCode.invalid_topic_exception, ErrorCode.unknown_topic_or_partition)


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ILLEGAL, ids=lambda name: ascii(name[:20]))
def test_an_illegal_topic_name_is_refused_everywhere_and_leaves_nothing_on_disk(
    node: NodeProcess, undisturbed: Undisturbed, name: str
) -> None:
    with undisturbed(node), Wire(node.port) as wire:
        before = _tree(node.folder)
        topics_before = _topic_names(wire)
        create_topic(wire, name, expect=ErrorCode.invalid_topic_exception)
        for _, version in every_version(ApiKey.METADATA):
            topic = Struct("MetadataRequestTopic", name=name, topic_id=None)
            response = wire.call(
                ApiKey.METADATA,
                version,
                topics=[topic],
                allow_auto_topic_creation=True,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            assert [entry.error_code in REFUSED for entry in response.topics] == [True]
        assert produce(wire, name, batch_of(b"value")).error_code in REFUSED
        assert fetch(wire, name, 0).error_code in REFUSED
        assert list_offset(wire, name, -1).error_code in REFUSED
        response = wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=[name], timeout=timedelta(seconds=10))
        assert response.responses[0].error_code in REFUSED
        assert {path for path in _tree(node.folder) - before if "honest" not in path} == set()
        assert _topic_names(wire) - topics_before == set()


def _topic_names(wire: Wire) -> set[str]:
    return {topic.name for topic in wire.call(ApiKey.METADATA, 1, topics=None).topics}


def test_a_topic_of_the_longest_name_is_made_written_and_deleted(node: NodeProcess) -> None:
    """Its folder for deletion would have a name longer than the disk allows, were it not cut."""
    name = unique("x" * 230).ljust(249, "y")
    with Wire(node.port) as wire:
        create_topic(wire, name, partitions=2)
        assert produce(wire, name, batch_of(b"value"), partition=1).error_code is ErrorCode.none
        assert (node.log_dir / f"{name}-1").is_dir()
        deleted = wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=[name], timeout=timedelta(seconds=10))
        assert deleted.responses[0].error_code is ErrorCode.none
        assert not (node.log_dir / f"{name}-1").exists()
        create_topic(wire, name)
        assert produce(wire, name, batch_of(b"value")).base_offset == 0


def test_topics_whose_names_differ_in_dot_and_underscore_only_collide(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        name = unique("collides")
        create_topic(wire, f"{name}.a_b")
        create_topic(wire, f"{name}_a.b", expect=ErrorCode.invalid_topic_exception)
        create_topic(wire, f"{name}.a_b", expect=ErrorCode.topic_already_exists)


@pytest.mark.parametrize("partitions", [0, -2, 10_001, 2**31 - 1])
def test_an_impossible_number_of_partitions_is_refused(
    node: NodeProcess, undisturbed: Undisturbed, partitions: int
) -> None:
    name = unique("partitions")
    with undisturbed(node), Wire(node.port) as wire:
        create_topic(wire, name, partitions=partitions, expect=ErrorCode.invalid_partitions)
        assert not list(node.log_dir.glob(f"{name}-*"))
