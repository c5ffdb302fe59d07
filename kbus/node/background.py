"""Work that is done from time to time: flushes, checkpoints, retention, removal of deleted files."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kbus.config import broker as settings
from kbus.node.broker import Broker
from kbus.protocol.errors import KafkaError

log = logging.getLogger(__name__)

_MAX_FLUSH_CHECK_MS = 1000
"""log.flush.scheduler.interval.ms is "never" by default, but rolled segments are flushed soon after."""
_DELETION_CHECK_MS = 1000
_DIRECTORY_CHECK_MS = 500


class Background:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        config = self._broker.config
        flush_ms = min(config[settings.LOG_FLUSH_SCHEDULER_INTERVAL_MS], _MAX_FLUSH_CHECK_MS)
        for interval_ms, work in (
            (flush_ms, self._flush_due),
            (config[settings.LOG_RETENTION_CHECK_INTERVAL_MS], self._apply_retention),
            (config[settings.LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS], self._checkpoint_flushed),
            (config[settings.LOG_FLUSH_START_OFFSET_CHECKPOINT_INTERVAL_MS], self._checkpoint_starts),
            (config[settings.REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS], self._checkpoint_committed),
            (_DELETION_CHECK_MS, self._remove_deleted),
            (config[settings.REPLICA_LAG_TIME_MAX_MS] // 2, self._check_lag),
            (_DIRECTORY_CHECK_MS, self._check_directories),
        ):
            self._tasks.append(self._broker.loop.create_task(self._every(interval_ms, work)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except (KafkaError, OSError) as error:
                log.error("%s failed and is tried again: %s", work.__name__.lstrip("_"), error)
            except Exception:
                log.exception("%s failed and is tried again", work.__name__.lstrip("_"))

    async def _flush_due(self) -> None:
        now_ms = self._broker.clock_ms()
        for partition in self._broker.partitions():
            # No roll by the clock: records with old timestamps, a backfill, would begin a segment each time.
            up_to = partition.log.flush_due(now_ms)
            if up_to is not None:
                partition.request_flush(up_to)

    async def _apply_retention(self) -> None:
        now_ms = self._broker.clock_ms()
        for partition in self._broker.partitions():
            partition.apply_retention(now_ms)

    async def _checkpoint_flushed(self) -> None:
        self._broker.logs.checkpoint_recovery_points()

    async def _checkpoint_starts(self) -> None:
        self._broker.logs.checkpoint_log_start_offsets()

    async def _checkpoint_committed(self) -> None:
        self._broker.checkpoint_high_watermarks()

    async def _check_directories(self) -> None:
        """A node without a disk is of no use to anybody, and does harm by looking alive."""
        if all(directory.failure is not None for directory in self._broker.logs.directories):
            self._broker.give_up("None of the data directories can be used any more.")

    async def _check_lag(self) -> None:
        self._broker.replication.check_lag()

    async def _remove_deleted(self) -> None:
        task = self._broker.logs.take_deletions(self._broker.clock_ms())
        if task is not None:
            await self._broker.loop.run_in_executor(self._broker.executor, task.run)
