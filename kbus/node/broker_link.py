"""The controller's line to one broker: keeps it told of the cluster, and notices at once when it dies."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kbus.config import Endpoint
from kbus.node.peer import Peer, PeerError, PeerRefusedError
from kbus.protocol.errors import ErrorCode
from kbus.protocol.private import ClusterUpdate, Hello
from kbus.types import BrokerId

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 2.0
_ANSWER_TIMEOUT_S: Final = 30.0
_FIRST_RETRY_S: Final = 0.01
_MAX_RETRY_S: Final = 0.5


class BrokerLink:
    """One registration of one broker.

    What has to be told is kept as the names of topics, not as messages: a broker that was away for a while
    is told the present once, not the past in full."""

    def __init__(
        self,
        broker_id: BrokerId,
        epoch: int,
        endpoint: Endpoint,
        *,
        hello: Callable[[], Hello],
        compose: Callable[[set[str] | None, set[str]], ClusterUpdate],
        on_refused: Callable[[], None],
        on_reached: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`compose(topics, removed)` makes a message; topics None means all. `on_refused` is told whenever
        nobody listens at the broker's port: the proof that its process is gone."""
        self._broker_id = broker_id
        self.epoch = epoch
        self._endpoint = endpoint
        self._hello = hello
        self._compose = compose
        self._on_refused = on_refused
        self._on_reached = on_reached
        self._changed: set[str] = set()
        self._removed: set[str] = set()
        self._tell_all = True
        self._news = asyncio.Event()
        self._task = loop.create_task(self._run())

    def tell(self, changed: set[str], removed: set[str]) -> None:
        self._changed |= changed
        self._removed = (self._removed - changed) | removed
        self._changed -= removed
        self._news.set()

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            peer = None
            try:
                peer = await Peer.connect(self._endpoint, self._hello(), timeout_s=_CONNECT_TIMEOUT_S)
                retry_s = _FIRST_RETRY_S
                self._tell_all = True
                self._on_reached()
                await self._talk(peer)
            except PeerRefusedError:
                self._on_refused()
            except PeerError as error:
                log.info("cannot tell broker %d: %s", self._broker_id, error)
            finally:
                if peer is not None:
                    peer.close()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)

    async def _talk(self, peer: Peer) -> None:
        self._news.set()
        closed = asyncio.ensure_future(peer.closed())
        try:
            while not closed.done():
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait({news, closed}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if closed.done():
                    return
                self._news.clear()
                topics = None if self._tell_all else set(self._changed)
                removed = set(self._removed)
                self._changed, self._removed = set(), set()
                reply = await peer.ask(self._compose(topics, removed), timeout_s=_ANSWER_TIMEOUT_S)
                if reply.error != ErrorCode.none:
                    raise PeerError(f"it answers {ErrorCode(reply.error).name}")
                self._tell_all = False
        finally:
            closed.cancel()
