import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbus.cluster.control import Control, SupervisorGoneError, listening_socket
from kbus.cluster.folder import ClusterFolder
from kbus.cluster.memory import descendants, memory_bytes
from kbus.cluster.ports import PortTakenError, check_free, find_free, holder_of


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    yield listener
    listener.close()


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


class TestPorts:
    def test_a_taken_port_is_reported_with_who_holds_it(self, taken: socket.socket) -> None:
        with pytest.raises(
            PortTakenError, match=rf"Broker 1 cannot listen on .* by pid {os.getpid()} \(.*py"
        ):
            check_free("127.0.0.1", port_of(taken), "Broker 1")

    def test_nobody_holds_a_free_port(self, taken: socket.socket) -> None:
        port = port_of(taken)
        taken.close()
        check_free("127.0.0.1", port, "Broker 1")
        assert holder_of(port) is None

    def test_free_ports_are_in_a_row_and_none_is_taken_or_to_be_avoided(self, taken: socket.socket) -> None:
        port = port_of(taken)
        found = find_free("127.0.0.1", 3, avoid={port + 2}, first=port)
        assert found == list(range(found[0], found[0] + 3))
        assert found[0] >= port + 3


class TestControl:
    def test_without_a_supervisor_the_cluster_does_not_run(self, tmp_path: Path) -> None:
        control = Control(ClusterFolder(tmp_path / "none"))
        assert not control.is_supervised
        with pytest.raises(SupervisorGoneError):
            control.call("status")

    def test_a_socket_that_was_left_behind_is_nobody(self, tmp_path: Path) -> None:
        folder = ClusterFolder(tmp_path)
        listening_socket(folder).close()
        assert not Control(folder).is_supervised

    def test_the_folder_may_have_a_path_longer_than_a_socket_may(self, tmp_path: Path) -> None:
        path = tmp_path / ("long" * 40)
        path.mkdir()
        folder = ClusterFolder(path)
        with listening_socket(folder):
            assert Control(folder).is_supervised
            assert (path / "control.sock").stat().st_mode & 0o777 == 0o600


def test_memory_of_a_process_and_its_children_is_known() -> None:
    size = memory_bytes(os.getpid())
    assert size is not None
    assert size > 1024 * 1024
    assert os.getpid() in descendants(os.getppid())
    assert memory_bytes(2**22 + 1) is None
