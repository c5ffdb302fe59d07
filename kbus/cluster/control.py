"""How commands talk to a supervisor: JSON lines over a Unix socket in the cluster's folder.

A request is one line, `{"command": …, …}`. The answer is any number of `{"event": …}` lines while the work
goes on, and then `{"result": …}` or `{"error": …}`, the latter a sentence for people.
"""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from kbus.cluster.folder import ClusterFolder

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
_CONNECT_TIMEOUT_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 180.0

Event = dict[str, Any]


class SupervisorGoneError(Exception):
    """Nobody supervises the cluster: it does not run."""


class CommandRefusedError(Exception):
    """The supervisor did not do what it was asked. The text is a sentence for people."""


class Control:
    """Each call is a connection of its own."""

    def __init__(self, folder: ClusterFolder) -> None:
        self.folder = folder

    @property
    def is_supervised(self) -> bool:
        try:
            self._connect().close()
        except SupervisorGoneError:
            return False
        return True

    def call(
        self,
        command: str,
        /,
        *,
        on_event: Callable[[Event], None] = lambda _: None,
        timeout_s: float = _ANSWER_TIMEOUT_S,
        **arguments: Any,
    ) -> Any:
        """The result. `timeout_s` is that between one line and the next. Raises SupervisorGoneError and
        CommandRefusedError."""
        request = json.dumps({"command": command, **arguments}).encode() + b"\n"
        heard = False
        try:
            with self._connect() as connection:
                connection.settimeout(timeout_s)
                connection.sendall(request)
                with connection.makefile("rb") as lines:
                    for line in lines:
                        message = json.loads(line)
                        heard = True
                        if "result" in message:
                            return message["result"]
                        if "error" in message:
                            raise CommandRefusedError(message["error"])
                        on_event(message)
        except TimeoutError:
            raise CommandRefusedError(
                f"The supervisor of cluster {self.folder.name} has said nothing for {timeout_s:.0f} s; its "
                f"log is {self.folder.log_file}."
            ) from None
        except (ConnectionError, ValueError) as error:
            raise self._broken_off(heard) from error
        raise self._broken_off(heard)

    def _broken_off(self, heard: bool) -> Exception:
        if not heard:  # it was about to go, and took the command no more
            return SupervisorGoneError(f"Cluster {self.folder.name} does not run.")
        return CommandRefusedError(
            f"The supervisor of cluster {self.folder.name} ended before it had answered; its log is "
            f"{self.folder.log_file}."
        )

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_CONNECT_TIMEOUT_S)
        try:
            with self.folder.socket_path() as path:
                connection.connect(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            connection.close()
            raise SupervisorGoneError(f"Cluster {self.folder.name} does not run.") from None
        except BaseException:
            connection.close()
            raise
        return connection


def listening_socket(folder: ClusterFolder) -> socket.socket:
    """For the supervisor, which holds the folder's lock: a socket file that is there was left behind."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with folder.socket_path() as path:
            with suppress(FileNotFoundError):
                (folder.path / "control.sock").unlink()
            listener.bind(path)
        (folder.path / "control.sock").chmod(0o600)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener
