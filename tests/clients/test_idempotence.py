"""An idempotent producer's records are in the log once, in order, whichever acknowledgements get lost."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbus.records.batch import iter_headers
from tests.node.kafka import create_topic
from tests.nodes import NodeProcess

from .client import Client, Sent, expected
from .forgetful_proxy import ForgetfulProxy

NOW = 1_700_000_000_000
LOST_ANSWERS = frozenset({2, 3, 6, 11, 17})


def test_records_are_stored_once_though_acknowledgements_get_lost(
    tmp_path: Path, zookeeper: str, client: Client
) -> None:
    records = [Sent(NOW + n, b"%d" % n, bytes(100)) for n in range(600)]
    with (
        reserved_port() as node_port,
        ForgetfulProxy(node_port, LOST_ANSWERS) as proxy,
        NodeProcess(
            tmp_path / "node",
            zookeeper=zookeeper,
            settings={
                "listeners": f"PLAINTEXT://127.0.0.1:{node_port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
            },
        ) as node,
    ):
        create_topic(node.bootstrap, "once")
        places = client.send(node.bootstrap, "once", records, idempotent=True, batch_bytes=2_000)
        assert proxy.lost == len(LOST_ANSWERS)
        assert client.read(node.bootstrap, "once") == expected(records, places)
        check_sequences(node, "once")


def test_idempotent_batches_carry_unbroken_sequences(node: NodeProcess, client: Client) -> None:
    topic = f"sequences-{client.name}"
    create_topic(node.bootstrap, topic)
    for _ in range(2):  # two producers, two ids
        records = [Sent(NOW, None, bytes(100))] * 100
        client.send(node.bootstrap, topic, records, idempotent=True, batch_bytes=2_000)
    assert check_sequences(node, topic) == 2


def check_sequences(node: NodeProcess, topic: str) -> int:
    """The number of producers whose batches the log holds, each of which counts from 0 without a gap."""
    log = (node.log_dir / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    next_sequence: dict[tuple[int, int], int] = {}
    for _, header in iter_headers(log):
        producer = (header.producer_id, header.producer_epoch)
        assert header.producer_id >= 0
        assert header.base_sequence == next_sequence.get(producer, 0)
        next_sequence[producer] = header.base_sequence + header.record_count
    return len(next_sequence)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nobody else is given; a server that asks for it by its number gets it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]
