"""Requests that wait: produce for its acknowledgements, fetch for data. Each is a future, not a task."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kbus.node.partition import Partition
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import Offset


class Pending(NamedTuple):
    """An append that is acknowledged when `reached` says so."""

    partition: Partition
    required_offset: Offset
    reached: Callable[[Partition, Offset], bool]


def is_committed(partition: Partition, offset: Offset) -> bool:
    return partition.high_watermark >= offset


def is_flushed(partition: Partition, offset: Offset) -> bool:
    return partition.log.recovery_point >= offset


class AckWaiter:
    """Completes when each append is acknowledged, lost its leader, or ran out of time.

    The result has an error for each append, in order; `ErrorCode.none` means acknowledged."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pending: Sequence[Pending], timeout_s: float) -> None:
        self.future: asyncio.Future[list[ErrorCode]] = loop.create_future()
        self._pending = pending
        self._epochs = [item.partition.leader_epoch for item in pending]
        self._errors: list[ErrorCode | None] = [None] * len(pending)
        for item in pending:
            item.partition.watch(self._on_change)
        self._timer = loop.call_later(timeout_s, self._on_timeout)
        self._check()

    def _on_change(self, _partition: Partition) -> None:
        self._check()

    def _check(self) -> None:
        for index, item in enumerate(self._pending):
            if self._errors[index] is None:
                self._errors[index] = self._state_of(index, item)
        if None not in self._errors:
            self._finish()

    def _state_of(self, index: int, item: Pending) -> ErrorCode | None:
        try:
            item.partition.require_leader()
        except KafkaError as error:
            return error.code
        if item.partition.leader_epoch != self._epochs[index]:
            return ErrorCode.not_leader_or_follower
        if not item.reached(item.partition, item.required_offset):
            return None
        if item.reached is is_committed and not item.partition.has_enough_in_sync:
            return ErrorCode.not_enough_replicas_after_append
        return ErrorCode.none

    def _on_timeout(self) -> None:
        self._errors = [ErrorCode.request_timed_out if e is None else e for e in self._errors]
        self._finish()

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self._on_timeout()

    def _finish(self) -> None:
        self._timer.cancel()
        for item in self._pending:
            item.partition.unwatch(self._on_change)
        if not self.future.done():
            self.future.set_result([error for error in self._errors if error is not None])


class FetchWaiter:
    """Completes when a change of one of the partitions makes the fetch `ready`, or when time is up.

    It only says when to read again; what is then read is the fetch handler's business."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        partitions: Sequence[Partition],
        ready: Callable[[Partition], bool],
        timeout_s: float,
    ) -> None:
        self.future: asyncio.Future[None] = loop.create_future()
        self._partitions = partitions
        self._ready = ready
        for partition in partitions:
            partition.watch(self._on_change)
        self._timer = loop.call_later(timeout_s, self.finish)

    def _on_change(self, partition: Partition) -> None:
        if self._ready(partition):
            self.finish()

    def finish(self) -> None:
        if self.future.done():
            return
        self._timer.cancel()
        for partition in self._partitions:
            partition.unwatch(self._on_change)
        self.future.set_result(None)
