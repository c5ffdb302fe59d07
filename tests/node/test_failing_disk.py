"""What clients and users see when files cannot be used."""

from kbus.protocol.api import ApiKey
from kbus.protocol.errors import ErrorCode
from tests.conftest import NodeFactory
from tests.node.kafka import create_topic, produce, read_all
from tests.node.wire import Struct, Wire, latest


def test_a_partition_whose_files_cannot_be_used_is_told_to_be_offline(start_node: NodeFactory) -> None:
    node = start_node()
    create_topic(node.bootstrap, "sound")
    create_topic(node.bootstrap, "broken")
    produce(node.bootstrap, "sound", [b"kept"])
    node.stop()
    (node.log_dir / "broken-0" / "partition.metadata").write_text("junk")
    node.start()
    with Wire(node.port) as wire:
        metadata = wire.call(
            ApiKey.METADATA,
            latest(ApiKey.METADATA),
            topics=[Struct("MetadataRequestTopic", name=name, topic_id=None) for name in ("broken", "sound")],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
    partitions = {topic.name: topic.partitions[0] for topic in metadata.topics}
    assert partitions["broken"].error_code == ErrorCode.leader_not_available
    assert (partitions["broken"].leader_id, partitions["broken"].offline_replicas) == (-1, (1,))
    assert (partitions["sound"].leader_id, partitions["sound"].offline_replicas) == (1, ())
    assert [record.value for record in read_all(node.bootstrap, "sound")] == [b"kept"]


def test_a_node_that_has_lost_all_its_directories_ends_with_a_sentence(start_node: NodeFactory) -> None:
    node = start_node({"replica.high.watermark.checkpoint.interval.ms": "50"})
    create_topic(node.bootstrap, "gone")
    node.log_dir.rename(node.folder / "moved-away")
    assert node.wait() == 1
    assert "None of the data directories can be used any more" in node.log_text()


def test_files_of_an_earlier_topic_of_the_name_are_kept_and_do_not_stand_in_the_way(
    start_node: NodeFactory,
) -> None:
    node = start_node()
    create_topic(node.bootstrap, "again")
    produce(node.bootstrap, "again", [b"old"])
    node.stop()
    metadata = node.log_dir / "again-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAEQ\n")
    node.start()
    assert read_all(node.bootstrap, "again") == []
    produce(node.bootstrap, "again", [b"new"])
    assert [record.value for record in read_all(node.bootstrap, "again")] == [b"new"]
    (aside,) = node.log_dir.glob("again-0.*-stray")
    assert b"old" in (aside / "00000000000000000000.log").read_bytes()
