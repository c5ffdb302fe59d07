"""One broker of a local cluster, seen from the supervisor: a process, and what became of it."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kbus.cluster.member_process import REFUSED, Report, run_member
from kbus.cluster.ports import PortTakenError, check_free
from kbus.cluster.processes import Processes
from kbus.cluster.spec import HOST, BrokerSpec

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
_MAX_LOG_BYTES: Final = 10 * 1024 * 1024


class MemberState(StrEnum):
    STOPPED = "stopped"
    """Never started, or stopped on request."""
    STARTING = "starting"
    """The process runs and has not said that it serves. Ends in RUNNING or FAILED."""
    RUNNING = "running"
    """It said that it serves."""
    PAUSED = "paused"
    """Stopped in the middle of whatever it did, by SIGSTOP."""
    STOPPING = "stopping"
    """Asked to stop. Ends in STOPPED."""
    KILLED = "killed"
    """By SIGKILL, on request."""
    DIED = "died"
    """Ended without having been asked to."""
    FAILED = "failed"
    """Did not start; `error` says why."""


UP: Final = frozenset({MemberState.STARTING, MemberState.RUNNING, MemberState.PAUSED, MemberState.STOPPING})
"""There is a process."""


class MemberError(Exception):
    """A member cannot do what was asked of it. The text is a sentence for people."""


class Member:
    """All on the supervisor's loop. `start` and `stop` exclude each other; signals go out at once."""

    def __init__(
        self,
        spec: BrokerSpec,
        *,
        processes: Processes,
        data: Path,
        log_path: Path,
        on_death: Callable[["Member"], None],
    ) -> None:
        self.spec = spec
        self.state = MemberState.STOPPED
        self.error: str | None = None
        self.deaths = 0
        self.data = data
        self.log_path = log_path
        self.started_with: Mapping[str, str] = {}
        self._changed_at = time.time()
        self._processes = processes
        self._process: Any = None
        self._ended: asyncio.Event = asyncio.Event()
        self._report: asyncio.Future[Report | None] | None = None
        self._busy = asyncio.Lock()
        self._on_death = on_death

    @property
    def pid(self) -> int | None:
        return None if self._process is None else int(self._process.pid)

    @property
    def is_up(self) -> bool:
        return self.state in UP

    def describe(self) -> dict[str, Any]:
        return {
            "broker": self.spec.id,
            "state": self.state.value,
            "pid": self.pid,
            "host": HOST,
            "port": self.spec.port,
            "rack": self.spec.rack,
            "since_ms": int(self._changed_at * 1000),
            "deaths": self.deaths,
            "error": self.error,
            "data": str(self.data),
            "log": str(self.log_path),
            "settings": dict(self.spec.settings),
        }

    # ---- start and stop

    async def start(self, properties: Mapping[str, str]) -> bool:
        """Returns when the broker serves: whether it had to be started for that. Raises MemberError with the
        broker's own words."""
        async with self._busy:
            if self.state is MemberState.PAUSED:
                raise MemberError(
                    f"Broker {self.spec.id} is paused; let it go on with `kbus chaos resume-broker "
                    f"{self.spec.id}`."
                )
            if self.is_up:
                return False
            try:
                check_free(HOST, self.spec.port, f"Broker {self.spec.id}")
            except PortTakenError as error:
                raise self._failed(str(error)) from None
            self._spawn(properties)
            await self._until_ready()
            return True

    def _spawn(self, properties: Mapping[str, str]) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        if self.log_path.exists() and self.log_path.stat().st_size > _MAX_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        loop = asyncio.get_running_loop()
        receiver, sender = self._processes.pipe()
        try:
            process = self._processes.start(
                run_member,
                self.spec.id,
                dict(properties),
                str(self.log_path),
                sender,
                name=f"broker-{self.spec.id}",
            )
        except BaseException:
            receiver.close()
            raise
        finally:
            sender.close()
        report: asyncio.Future[Report | None] = loop.create_future()

        def on_report() -> None:
            loop.remove_reader(receiver.fileno())
            try:
                message = receiver.recv()
            except EOFError:
                message = None
            receiver.close()
            if not report.done():
                report.set_result(message)

        self._process, self._report, self._ended = process, report, asyncio.Event()
        self.started_with = dict(properties)
        self.error = None
        self._become(MemberState.STARTING)
        loop.add_reader(receiver.fileno(), on_report)
        loop.add_reader(process.sentinel, self._on_exit, process)

    async def _until_ready(self) -> None:
        assert self._report is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                message = await asyncio.shield(self._report)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._ended.wait()
            raise self._failed(
                f"Broker {self.spec.id} did not start within {START_TIMEOUT_S:.0f} s; its log is "
                f"{self.log_path}."
            ) from None
        if message is None or message[0] == REFUSED:
            await self._ended.wait()
            if self.state is MemberState.KILLED:
                raise MemberError(f"Broker {self.spec.id} was killed while it started.")
            if message is not None:
                raise self._failed(f"Broker {self.spec.id} does not start: {message[1]}")
            raise self._failed(
                f"Broker {self.spec.id} does not start ({self.error}): {_last_words(self.log_path)} "
                f"Its log is {self.log_path}."
            )
        if self.state is MemberState.STARTING:
            self._become(MemberState.RUNNING)

    async def stop(self) -> bool:
        """Returns when the process is gone: whether there was one."""
        async with self._busy:
            if not self.is_up:
                self._become(MemberState.STOPPED)
                self.error = None
                return False
            self._become(MemberState.STOPPING)
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # one that is paused would not hear of it
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._ended.wait()
            except TimeoutError:
                log.warning("broker %d did not stop within %s s and is killed", self.spec.id, STOP_TIMEOUT_S)
                self._signal(signal.SIGKILL)
                await self._ended.wait()
            return True

    # ---- faults

    async def kill(self) -> int:
        """Returns when the process is gone; when it was killed, on the clock of `time.monotonic_ns`."""
        self._require_up()
        self._become(MemberState.KILLED)
        at_ns = time.monotonic_ns()
        self._signal(signal.SIGKILL)
        await self._ended.wait()
        return at_ns

    def pause(self) -> int:
        self._require(MemberState.RUNNING)
        self._become(MemberState.PAUSED)
        at_ns = time.monotonic_ns()
        self._signal(signal.SIGSTOP)
        return at_ns

    def resume(self) -> int:
        self._require(MemberState.PAUSED)
        self._become(MemberState.RUNNING)
        at_ns = time.monotonic_ns()
        self._signal(signal.SIGCONT)
        return at_ns

    def _require_up(self) -> None:
        if not self.is_up:
            raise MemberError(
                f"Broker {self.spec.id} does not run ({self.state}); start it with `kbus broker start "
                f"{self.spec.id}`."
            )

    def _require(self, state: MemberState) -> None:
        self._require_up()
        if self.state is not state:
            raise MemberError(f"Broker {self.spec.id} is {self.state}, not {state}.")

    # ---- the process

    def _signal(self, number: signal.Signals) -> None:
        """Only to the process that was started here: the pid of one that has ended may be somebody else's."""
        if self._process is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def _on_exit(self, process: Any) -> None:
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        code = process.exitcode
        process.close()
        self._process = None
        how = _how_it_ended(code)
        log.info("broker %d ended: %s", self.spec.id, how)
        asked = self.state in (MemberState.STOPPING, MemberState.KILLED)
        if self.state is MemberState.STOPPING:
            self.error = None if code == 0 else f"did not stop cleanly: {how}"
            self._become(MemberState.STOPPED)
        elif not asked:
            self.error = how
            self._become(MemberState.FAILED if self.state is MemberState.STARTING else MemberState.DIED)
        self._ended.set()
        if self.state in (MemberState.DIED, MemberState.KILLED):
            self.deaths += 1
            self._on_death(self)

    def _become(self, state: MemberState) -> None:
        if state is not self.state:
            self.state = state
            self._changed_at = time.time()

    def _failed(self, sentence: str) -> MemberError:
        log.error(sentence)
        self._become(MemberState.FAILED)
        self.error = sentence
        return MemberError(sentence)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "without a word"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def _last_words(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "it left no log."
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1].rstrip('.')}." if said else "it said nothing."
