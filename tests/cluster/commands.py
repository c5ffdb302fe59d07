"""Ways to use local clusters in tests, each in a home of its own."""

import io
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kbus.cli.app import Lazy, LazyGroup, new_app
from kbus.cli.main import _Root
from kbus.cluster.control import Control, SupervisorGoneError
from kbus.cluster.folder import all_folders
from kbus.cluster.ports import find_free
from kbus.cluster.spec import HOST
from tests.cli.running import Result

T = TypeVar("T")
TIMEOUT_S = 60.0


class _Commands(LazyGroup):
    lazy_commands = {  # noqa: RUF012 - never changed
        **_Root.lazy_commands,
        "cluster": Lazy("kbus.cli.cluster", ""),
        "isr": Lazy("kbus.cli.isr", ""),
        "chaos": Lazy("kbus.cli.chaos", ""),
    }


_app = new_app(cls=_Commands)


@_app.callback()
def _root() -> None:
    """So that it is a group."""


class Kbus:
    """Runs commands in this process; the clusters that they start are real."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture = capfdbinary
        self._monkeypatch = monkeypatch

    def __call__(self, *args: str) -> Result:
        self._capture.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            with pytest.raises(SystemExit) as exit_info:
                _app(args, prog_name="kbus")
        sys.stdout.flush()
        out, err = self._capture.readouterr()
        code = exit_info.value.code
        assert isinstance(code, int | None)
        return Result(code or 0, out.decode(), err.decode())

    def ok(self, *args: str) -> str:
        result = self(*args)
        assert result.exit_code == 0, result
        return result.out

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--output", "json"))

    def topics(self) -> list[str]:
        return [row["topic"] for row in self.json("topic", "list")]

    def broker(self, number: int, *args: str) -> dict[str, Any]:
        """What `kbus broker describe` says."""
        found: dict[str, Any] = self.json("broker", "describe", str(number), *args)
        return found


def free_port(count: int = 1) -> int:
    """The first of so many in a row, not where clusters look for theirs: other tests may run beside this."""
    return find_free(HOST, count, avoid=(), first=random.randrange(33_000, 60_000))[0]


def stop_all() -> None:
    """Every cluster of the home of the test at hand."""
    for folder in all_folders():
        try:
            pid = Control(folder).call("status")["pid"]
            Control(folder).call("stop")
        except SupervisorGoneError:
            continue
        wait_until(lambda pid=pid: not is_alive(pid), "the supervisor ends")  # type: ignore[misc]


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it took too long until {what}"
        time.sleep(0.01)
    return found


def is_alive(pid: int) -> bool:
    """A zombie, which nobody has asked about yet, is dead."""
    return state_of(pid) not in (None, "Z", "X")


def state_of(pid: int) -> str | None:
    """The letter by which the kernel calls it; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def kill(pid: int, number: int) -> None:
    os.kill(pid, number)
