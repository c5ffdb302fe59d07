"""What bad input must not disturb: a client that goes on with its work, and the node's memory."""

import itertools
import threading
import time
from pathlib import Path
from types import TracebackType

from kbus.protocol.errors import ErrorCode
from tests.node.wire import TIMEOUT_S, Wire, batch_of, create_topic, fetch, produce

_PAUSE_S = 0.002
_numbers = itertools.count()


def unique(name: str) -> str:
    """A topic name that no other test uses."""
    return f"{name}-{next(_numbers)}"


class HonestClient:
    """From `with` to its end, on a connection of its own: produces a record, fetches it back, compares.

    Work that began before the block goes on in it and after it; any failure is raised at the end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._topic = unique("honest")
        self._wanted_rounds = 0
        self._rounds = 0
        self._slowest_s = 0.0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="honest client")

    def _run(self) -> None:
        try:
            with Wire(self._port) as wire:
                create_topic(wire, self._topic)
                while not self._stopping.wait(_PAUSE_S):
                    began = time.monotonic()
                    self._round(wire)
                    with self._changed:
                        self._rounds += 1
                        self._slowest_s = max(self._slowest_s, time.monotonic() - began)
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _round(self, wire: Wire) -> None:
        value = b"value %d" % self._rounds
        appended = produce(wire, self._topic, batch_of(value))
        assert appended.error_code is ErrorCode.none, appended
        assert appended.base_offset == self._rounds
        found = fetch(wire, self._topic, self._rounds)
        assert found.error_code is ErrorCode.none, found
        assert value in found.records
        assert found.high_watermark == self._rounds + 1

    def wait_for_rounds(self, count: int) -> None:
        """Until `count` more were done from begin to end."""
        with self._changed:
            target = self._rounds + count + 1  # one may be under way
            done = self._changed.wait_for(
                lambda: self._failure is not None or self._rounds >= target, TIMEOUT_S
            )
        if self._failure is not None:
            raise AssertionError("the honest client was disturbed") from self._failure
        assert done, "the honest client is stuck"

    @property
    def slowest_s(self) -> float:
        return self._slowest_s

    def __enter__(self) -> "HonestClient":
        self._thread.start()
        try:
            self.wait_for_rounds(1)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait_for_rounds(2)
        finally:
            self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Memory:
    """The memory of a process, in bytes."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def reserved(self) -> int:
        """What it has set aside, whether or not it has touched it yet."""
        return self._read("VmData")

    def forget_peak(self) -> None:
        (self._folder / "clear_refs").write_text("5")

    def peak(self) -> int:
        """The most it has had in use since `forget_peak`."""
        return self._read("VmHWM")

    def resident(self) -> int:
        return self._read("VmRSS")

    def _read(self, name: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} for {self._folder}")
