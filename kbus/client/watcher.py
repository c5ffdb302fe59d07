"""Keeps asking every broker of a cluster how things are, so that changes are seen soon after they happen."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from kbus.client.connection import Connection
from kbus.client.metadata import ClusterView, ask_metadata, merged
from kbus.types import BrokerId

T = TypeVar("T")

Address = tuple[str, int]
ANSWER_TIMEOUT_S: Final = 1.0
"""A broker that takes longer counts as silent: one that was paused accepts connections and says nothing."""
_NOBODY: Final = BrokerId(-1)


class NoBrokerAnswersError(Exception):
    """None of the addresses answered. The text names them."""


class Watcher:
    """`async with Watcher(addresses, every_s=0.1) as watcher: await watcher.wait_for(condition)`

    There is a connection and a question under way for each broker, so that a silent one does not delay the
    others. Brokers are found through `addresses`; one that was seen once is asked on, even after it has left
    the cluster. `topics` None is all of them."""

    def __init__(
        self, addresses: Iterable[Address], *, topics: Collection[str] | None = None, every_s: float
    ) -> None:
        self._bootstrap = list(dict.fromkeys(addresses))
        self._topics = topics
        self._every_s = every_s
        self._answers: dict[BrokerId, ClusterView] = {}
        self._ids: dict[Address, BrokerId] = {}
        """Who is where, of all ever seen: one that lost its registration is not in its own answer."""
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._failures: dict[Address, str] = {}
        self._news = asyncio.Condition()
        self._view: ClusterView | None = None

    @property
    def view(self) -> ClusterView:
        """What is known now."""
        if self._view is None:
            self._view = merged(self._answers)
        return self._view

    @property
    def answering(self) -> frozenset[BrokerId]:
        """Those who answered when they were last asked."""
        return frozenset(self._answers)

    async def __aenter__(self) -> "Watcher":
        for address in self._bootstrap:
            self._follow(address)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_for(self, look: Callable[[ClusterView], T], *, timeout_s: float) -> T:
        """What `look` returns for the first view of which it is true. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self._news:
            while not (found := look(self.view)):
                await self._news.wait()
            return found

    async def next_view(self) -> ClusterView:
        """Waits until a broker has answered, or has ceased to."""
        async with self._news:
            await self._news.wait()
        return self.view

    async def all_heard(self, *, timeout_s: float = 3 * ANSWER_TIMEOUT_S) -> ClusterView:
        """The view as soon as every broker has answered or failed once. Raises NoBrokerAnswersError."""

        def heard() -> bool:
            found = {(broker.host, broker.port) for broker in self.view.brokers.values()}
            settled = self._failures.keys() | {
                a for a, broker in self._ids.items() if broker in self._answers
            }
            return bool(settled) and found <= self._tasks.keys() <= settled

        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                while not heard():
                    await self._news.wait()
        if not self._answers:
            reasons = [
                f"{host}:{port} {self._failures.get((host, port), 'does not answer')}"
                for host, port in self._tasks
            ]
            raise NoBrokerAnswersError("; ".join(reasons))
        return self.view

    def _follow(self, address: Address) -> None:
        if address not in self._tasks:
            self._tasks[address] = asyncio.create_task(self._ask_for_ever(address))

    async def _ask_for_ever(self, address: Address) -> None:
        """Every question starts `every_s` after the one before it, however long that one took."""
        loop = asyncio.get_running_loop()
        while True:
            connection: Connection | None = None
            try:
                connection = await Connection.open(*address, timeout_s=ANSWER_TIMEOUT_S)
                while True:
                    asked_at = loop.time()
                    answer = await ask_metadata(connection, self._topics, timeout_s=ANSWER_TIMEOUT_S)
                    await self._heard(address, answer)
                    await asyncio.sleep(max(0.0, asked_at + self._every_s - loop.time()))
            except OSError as error:
                await self._lost(address, error)
            finally:
                if connection is not None:
                    connection.abort()
            await asyncio.sleep(self._every_s)

    async def _heard(self, address: Address, answer: ClusterView) -> None:
        self._failures.pop(address, None)
        for other in answer.brokers.values():
            self._ids[other.host, other.port] = other.id
            self._follow((other.host, other.port))
        broker = self._ids.get(address)
        if broker is None:
            # The same broker is asked under the name by which the cluster knows it, too.
            self._failures[address] = "is known to the cluster by another name"
        else:
            self._answers[broker] = answer
        await self._tell()

    async def _lost(self, address: Address, error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        self._failures[address] = f"does not answer ({reason})" if reason else "does not answer"
        self._answers.pop(self._ids.get(address, _NOBODY), None)
        await self._tell()

    async def _tell(self) -> None:
        self._view = None
        async with self._news:
            self._news.notify_all()
