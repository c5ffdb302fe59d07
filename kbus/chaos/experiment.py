"""One fault, and what the cluster did about it: who leads now, since when, and when writes went on."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from kbus.chaos.coordination import ControllerInfo, Coordination, Registration
from kbus.chaos.faults import Comeback, Fault
from kbus.chaos.probe import WriteProbe
from kbus.client.metadata import ClusterView, PartitionView
from kbus.client.watcher import Watcher
from kbus.cluster.control import Control
from kbus.types import LeaderEpoch, TopicPartition

T = TypeVar("T")

POLL_S: Final = 0.01
_FIRST_WRITE_TIMEOUT_S: Final = 15.0
_NO_EPOCH: Final = -1
_MAX_NAMED: Final = 5


class NotReadyError(Exception):
    """The cluster was not well before the fault, so nothing was done. The text is a sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    partition: TopicPartition
    before: PartitionView
    after: PartitionView
    leader_ms: float | None
    """From the fault to the new leader, as any broker tells it; None if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    fault: Fault
    broker: int
    pid: int | None
    changes: tuple[PartitionChange, ...]
    """Of the partitions that the broker led, and of the one that was written to."""
    controller_before: ControllerInfo
    controller_after: ControllerInfo
    controller_ms: float | None
    probed: TopicPartition | None
    acknowledged_ms: float | None
    """From the fault to the first acknowledgement of a write that was sent after it."""
    pause_ms: float | None
    """The longest time without an acknowledgement."""
    back_ms: float | None
    """Until the broker was in sync again, where it was to come back."""
    missing: tuple[str, ...]
    """What did not happen in time."""

    @property
    def recovered(self) -> bool:
        return not self.missing

    @property
    def leaders_ms(self) -> float | None:
        """Until the last of the partitions that were led by the broker had its new leader."""
        moved = [change.leader_ms for change in self.changes if change.before.leader == self.broker]
        return None if not moved or None in moved else max(ms for ms in moved if ms is not None)


class Experiment:
    """Does one thing to one broker and watches until the cluster has recovered, or the time is up."""

    def __init__(
        self,
        *,
        watcher: Watcher,
        coordination: Coordination,
        control: Control,
        servers: str,
        timeout_s: float,
    ) -> None:
        self._watcher = watcher
        self._coordination = coordination
        self._control = control
        self._servers = servers
        self._timeout_s = timeout_s

    async def run(self, fault: Fault, broker: int, probed: TopicPartition | None) -> Outcome:
        """Raises NotReadyError, and CommandRefusedError if the supervisor cannot do it."""
        with ExitStack() as stack:
            probe = None
            if probed is not None:
                probe = stack.enter_context(WriteProbe(self._servers, probed))
                await self._first_write(probe, fault)
            before = self._watcher.view
            controller = await self._coordination.controller()
            registration = await self._coordination.registration(broker)
            return await self._observe(fault, broker, probe, before, controller, registration)

    async def _first_write(self, probe: WriteProbe, fault: Fault) -> None:
        if fault is Fault.RESUME:
            return  # it is there to end a state in which writes may not be possible
        try:
            async with asyncio.timeout(_FIRST_WRITE_TIMEOUT_S):
                await probe.acknowledged_after(0)
        except TimeoutError:
            topic, number = probe.partition
            reason = f" ({probe.last_error})" if probe.last_error else ""
            raise NotReadyError(
                f"No write to {topic}-{number} was acknowledged before the fault{reason}, so nothing was "
                "done; `kbus isr show` tells how it is."
            ) from None

    async def _observe(
        self,
        fault: Fault,
        broker: int,
        probe: WriteProbe | None,
        before: ClusterView,
        controller: ControllerInfo,
        registration: Registration | None,
    ) -> Outcome:
        led = before.led_by(broker) if fault.moves_leaders else []
        waits: dict[Any, asyncio.Task[tuple[Any, int]]] = {}

        def wait_for(key: Any, happening: Awaitable[Any]) -> None:
            waits[key] = asyncio.create_task(_timed(happening, self._timeout_s))

        for tp in led:
            new_leader = partial(_has_new_leader, fault, broker, tp, before.partitions[tp])
            wait_for(tp, self._watcher.wait_for(new_leader, timeout_s=self._timeout_s))
        if controller.broker == broker and fault.moves_leaders:
            wait_for("controller", self._coordination.controller_after(controller))
        injected = asyncio.create_task(self._inject(fault, broker, registration))
        try:
            done = await injected
            at_ns = done["at_ns"]
            if fault.comeback is not Comeback.NONE:
                moved = {tp: before.partitions[tp].leader_epoch for tp in led}
                wait_for("back", self._comeback(fault, broker, registration, moved))
            if probe is not None:
                wait_for("write", probe.acknowledged_after(at_ns))
            if waits:
                await asyncio.wait(waits.values())
            times = {key: _unless_timed_out(task) for key, task in waits.items()}
        finally:
            for task in (injected, *waits.values()):
                task.cancel()
            await asyncio.gather(injected, *waits.values(), return_exceptions=True)

        def ms(key: Any) -> float | None:
            happened = times.get(key)
            return None if happened is None else max(0.0, (happened[1] - at_ns) / 1e6)

        after = self._watcher.view
        written = times.get("write")
        return Outcome(
            fault=fault,
            broker=broker,
            pid=done.get("pid"),
            changes=tuple(
                PartitionChange(
                    partition=tp,
                    before=before.partitions[tp],
                    after=after.partitions.get(tp, before.partitions[tp]),
                    leader_ms=ms(tp),
                )
                for tp in sorted({*led, *([probe.partition] if probe else [])} & before.partitions.keys())
            ),
            controller_before=controller,
            controller_after=await self._coordination.controller(),
            controller_ms=ms("controller"),
            probed=None if probe is None else probe.partition,
            acknowledged_ms=None if written is None else (written[0].acknowledged_ns - at_ns) / 1e6,
            pause_ms=None if probe is None else probe.longest_pause_ms(at_ns),
            back_ms=ms("back"),
            missing=_missing([key for key, found in times.items() if found is None], broker, before),
        )

    async def _inject(self, fault: Fault, broker: int, registration: Registration | None) -> dict[str, Any]:
        """What was done, with `at_ns`."""
        if fault is Fault.EXPIRE:
            if registration is None:
                raise NotReadyError(f"Broker {broker} has no ZooKeeper session that could expire.")
            at_ns = time.monotonic_ns()
            await self._coordination.expire(registration.session_id)
            return {"at_ns": at_ns}
        arguments: dict[str, Any] = {"broker": broker}
        if fault is Fault.RESTART:
            arguments["settings"] = {}
        result: dict[str, Any] = await asyncio.to_thread(
            partial(self._control.call, f"{fault.value}-broker", **arguments)
        )
        return result

    async def _comeback(
        self,
        fault: Fault,
        broker: int,
        registration: Registration | None,
        moved: Mapping[TopicPartition, LeaderEpoch],
    ) -> None:
        # A zombie that wakes up believes what it did before: it is back when ZooKeeper knows it (again).
        old = registration if fault.comeback is Comeback.REGISTERED else None
        await self._coordination.registration_after(broker, old)

        def in_sync(view: ClusterView) -> bool:
            """As of now: what is known of a partition from before its new leader does not count."""
            return broker in view.brokers and all(
                broker in partition.isr
                and partition.leader is not None
                and partition.leader_epoch > moved.get(tp, _NO_EPOCH)
                for tp, partition in view.partitions.items()
                if broker in partition.replicas
            )

        await self._watcher.wait_for(in_sync, timeout_s=self._timeout_s)


async def _timed(happening: Awaitable[T], timeout_s: float) -> tuple[T, int]:
    """What happened, and when."""
    async with asyncio.timeout(timeout_s):
        found = await happening
    return found, time.monotonic_ns()


def _unless_timed_out(task: asyncio.Task[T]) -> T | None:
    return None if isinstance(task.exception(), TimeoutError) else task.result()


def _has_new_leader(
    fault: Fault, broker: int, tp: TopicPartition, before: PartitionView, view: ClusterView
) -> bool:
    now = view.partitions.get(tp)
    if now is None or now.leader is None or now.leader_epoch <= before.leader_epoch:
        return False
    return now.leader != broker or not fault.leader_must_be_another


def _missing(keys: list[Any], broker: int, before: ClusterView) -> tuple[str, ...]:
    sentences = []
    leaderless = [key for key in keys if isinstance(key, TopicPartition)]
    if leaderless:
        named = ", ".join(f"{topic}-{number}" for topic, number in leaderless[:_MAX_NAMED])
        more = f" and {len(leaderless) - _MAX_NAMED} more" if len(leaderless) > _MAX_NAMED else ""
        alone = all(not set(before.partitions[tp].isr) - {broker} for tp in leaderless)
        why = ", as no other replica was in sync" if alone else ""
        sentences.append(f"{named}{more} got no new leader{why}")
    if "controller" in keys:
        sentences.append("no new controller was elected")
    if "back" in keys:
        sentences.append(f"broker {broker} is not in sync again")
    if "write" in keys:
        sentences.append("no write was acknowledged")
    return tuple(sentences)
