import re
from collections.abc import Iterator

import pytest

from tests.clients.aio_kafka import AioKafka
from tests.clients.client import Client
from tests.clients.confluent import ConfluentKafka
from tests.clients.kafka_python import KafkaPython
from tests.nodes import NodeProcess

CLIENTS: tuple[Client, ...] = (ConfluentKafka(), KafkaPython(), AioKafka())
_TROUBLE = re.compile(r" (WARNING|ERROR|CRITICAL) |^Traceback")
_EXPECTED = "is to be compacted, which this version does not do yet"


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


@pytest.fixture(params=CLIENTS, ids=lambda client: f"read-by-{client.name}")
def reader(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


@pytest.fixture(scope="module", autouse=True)
def _nothing_to_complain_about(node: NodeProcess) -> Iterator[None]:
    """Nothing that well-behaved clients do is worth a warning in the node's log."""
    yield
    assert not [
        line for line in node.log_text().splitlines() if _TROUBLE.search(line) and _EXPECTED not in line
    ]
