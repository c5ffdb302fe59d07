"""A key goes to the same partition whichever client sends it: Kafka's murmur2 everywhere."""

from tests.node.kafka import create_topic
from tests.nodes import NodeProcess

from .client import Sent
from .conftest import CLIENTS

PARTITIONS = 7


def test_clients_agree_on_the_partition_of_a_key(node: NodeProcess) -> None:
    create_topic(node.bootstrap, "agreed", partitions=PARTITIONS)
    keys = [b"", b"\x00", bytes(range(256)), "größe".encode(), *[b"key-%d" % n for n in range(200)]]
    records = [Sent(1, key, b"", partition=None) for key in keys]
    chosen, *others = (
        [place.partition for place in client.send(node.bootstrap, "agreed", records)] for client in CLIENTS
    )
    assert others == [chosen] * len(others)
    assert set(chosen) == set(range(PARTITIONS))
