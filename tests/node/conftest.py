"""What every test of bad input asks for: an honest client beside it, and a node that takes it calmly."""

from collections.abc import Callable, Iterator

import pytest

from tests.node.honest import HonestClient
from tests.nodes import NodeProcess

Undisturbed = Callable[[NodeProcess], HonestClient]


@pytest.fixture
def undisturbed() -> Iterator[Undisturbed]:
    """`with undisturbed(node): …` sees to it that an honest client goes on, and that nothing was unexpected
    to the node: it still runs as the same process, and its log has no traceback."""
    watched: list[tuple[NodeProcess, int, int]] = []

    def watch(node: NodeProcess) -> HonestClient:
        watched.append((node, node.pid, len(node.log_text())))
        return HonestClient(node.port)

    yield watch
    for node, pid, log_length in watched:
        assert node.is_running
        assert node.pid == pid
        logged = node.log_text()[log_length:]
        assert "Traceback" not in logged, logged
