"""The coordination store on ZooKeeper, through kazoo.

kazoo runs one thread that talks to the server. Left to itself it has two habits that are not safe here:

- After an expiry it connects again at once, with a new session, and sends what was queued meanwhile as part
  of it. Here one kazoo client serves one session: its handler refuses to connect again after LOST, so that
  only `open()`, called by the owner once the expiry has been dealt with, begins a new one.
- It tells results, watches and states on three threads, in no order between them. Here its handler hands
  everything to the event loop from the one thread that reads the socket, in the order of reading.

No kazoo thread is ever made to wait for the loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry

from kbus.config import ZooKeeperAddress
from kbus.zk.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    Listener,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    StoreError,
    Watch,
    WatchEvent,
    WatchType,
    ensure_path,
    parent_of,
)

log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)  # it warns at every attempt to reconnect; the states are logged here

_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_WATCH_TYPES = {
    EventType.CREATED: WatchType.CREATED,
    EventType.DELETED: WatchType.DELETED,
    EventType.CHANGED: WatchType.CHANGED,
    EventType.CHILD: WatchType.CHILDREN,
    EventType.NONE: WatchType.DISCONNECTED,
}
_ERRORS: dict[type[Exception], type[StoreError]] = {
    kz.NoNodeError: NoNode,
    kz.NodeExistsError: NodeExists,
    kz.BadVersionError: BadVersion,
    kz.NotEmptyError: NotEmpty,
    kz.ConnectionLoss: ConnectionLost,
    kz.ConnectionClosedError: ConnectionLost,
    kz.OperationTimeoutError: ConnectionLost,
    kz.SessionExpiredError: SessionExpired,
    kz.SessionMovedError: ConnectionLost,
}


class ZooKeeperSession:
    """`store.CoordinationStore` on a ZooKeeper ensemble. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int | None = None,
        create_chroot: bool = True,
    ) -> None:
        """`open` creates the address's chroot where it is missing, unless `create_chroot` is off."""
        self._address = address
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms or session_timeout_ms
        self._creates_chroot = create_chroot
        self._listeners: list[Listener] = []
        self._state = SessionState.CLOSED
        self._client: Any = None
        self._session_id = 0
        self._past_session_ids: frozenset[int] = frozenset()
        self._changed = asyncio.Event()
        self._disposals: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        if self._state in (SessionState.CLOSED, SessionState.LOST):
            self._refuse()
        return self._session_id

    @property
    def past_session_ids(self) -> frozenset[int]:
        return self._past_session_ids

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def open(self) -> None:
        if self._client is not None:
            raise RuntimeError("a session is open already")
        handler = _OneSessionHandler(asyncio.get_running_loop())
        client = KazooClient(
            hosts=self._address.hosts,
            timeout=self._session_timeout_ms / 1000,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
            logger=_kazoo_log,
        )
        client.add_listener(lambda state: self._post_state(handler, client, state))
        self._client = client
        client.start_async()
        try:
            async with asyncio.timeout(self._connection_timeout_ms / 1000):
                while self._state is not SessionState.CONNECTED:
                    self._changed.clear()
                    await self._changed.wait()
                if self._creates_chroot:
                    await self._create_chroot()
        except TimeoutError:
            await self.close()
            raise ConnectionLost(
                f"No answer from ZooKeeper at {self._address.hosts} within {self._connection_timeout_ms} ms; "
                "check that it runs and that zookeeper.connect names it."
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        client, self._client = self._client, None
        self._become(SessionState.CLOSED)
        if client is not None:
            self._dispose(client)
        if self._disposals:
            await asyncio.wait(self._disposals)

    async def wait_connected(self) -> None:
        while self._state is SessionState.SUSPENDED:
            self._changed.clear()
            await self._changed.wait()
        self._connected()

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        client = self._connected()
        data, stat = await self._answer(path, client.get_async(self._full(path), _bridge(path, watch)))
        return data, _stat(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        client = self._connected()
        stat = await self._answer(path, client.exists_async(self._full(path), _bridge(path, watch)))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        client = self._connected()
        names = await self._answer(path, client.get_children_async(self._full(path), _bridge(path, watch)))
        return sorted(names)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> tuple[str, Stat]:
        try:
            created, stat = await self._answer(
                path,
                self._connected().create_async(
                    self._full(path), data, ephemeral=ephemeral, sequence=sequence, include_data=True
                ),
            )
        except NoNode:
            if not makepath:
                raise
            await ensure_path(self, parent_of(path))
            return await self.create(path, data, ephemeral=ephemeral, sequence=sequence)
        return self._relative(created), _stat(stat)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        result = self._connected().set_async(self._full(path), data, version)
        return _stat(await self._answer(path, result))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._answer(path, self._connected().delete_async(self._full(path), version))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        transaction = self._connected().transaction()
        for op in ops:
            path = self._full(op.path)
            match op:
                case Check():
                    transaction.check(path, op.version)
                case Create():
                    transaction.create(path, op.data, ephemeral=op.ephemeral, sequence=op.sequence)
                case SetData():
                    transaction.set_data(path, op.data, op.version)
                case Delete():
                    transaction.delete(path, op.version)
        answers = await self._answer(ops[0].path if ops else "/", transaction.commit_async())
        for index, (op, answer) in enumerate(zip(ops, answers, strict=True)):
            # The others of a failed multi are reported as rolled back, or as not tried.
            if isinstance(answer, Exception) and not isinstance(
                answer, kz.RolledBackError | kz.RuntimeInconsistency
            ):
                raise MultiFailed(index, op, _translated(answer, op.path))
        results: list[OpResult] = []
        for answer in answers:
            if isinstance(answer, str):
                results.append(self._relative(answer))
            else:
                results.append(_stat(answer) if isinstance(answer, ZnodeStat) else None)
        return results

    def _full(self, path: str) -> str:
        return self._address.chroot + path if path != "/" else self._address.chroot or "/"

    def _relative(self, path: str) -> str:
        return path[len(self._address.chroot) :]

    def _connected(self) -> Any:
        if self._state is not SessionState.CONNECTED:
            self._refuse()
        return self._client

    def _refuse(self) -> NoReturn:
        if self._state is SessionState.LOST:
            raise SessionExpired("the ZooKeeper session has expired")
        raise ConnectionLost(f"the ZooKeeper session is {self._state.value}")

    async def _answer(self, path: str, result: Any) -> Any:
        client = self._client
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def complete(result: Any) -> None:
            if isinstance(result.exception, kz.ConnectionLoss):
                # kazoo fails the calls first and tells the state then. Whoever is told of a lost connection
                # and waits for the next one must not find the last one still up.
                self._on_state(client, SessionState.SUSPENDED, 0)
            if future.done():  # cancelled by the caller
                return
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(_translated(result.exception, path))

        result.rawlink(complete)
        return await future

    async def _create_chroot(self) -> None:
        path = ""
        for part in self._address.chroot.split("/")[1:]:
            path += f"/{part}"
            with suppress(NodeExists):
                await self._answer(path, self._connected().create_async(path))

    def _post_state(self, handler: "_OneSessionHandler", client: Any, kazoo_state: str) -> None:
        """On kazoo's thread."""
        state = _STATES[kazoo_state]
        if state is SessionState.LOST:
            handler.end_session()
        session_id = client.client_id[0] if state is SessionState.CONNECTED else 0
        handler.post(lambda: self._on_state(client, state, session_id))

    def _on_state(self, client: Any, state: SessionState, session_id: int) -> None:
        if client is not self._client or self._state is state:
            return  # known, or of a client that was closed or lost before
        if state is SessionState.CONNECTED:
            self._session_id = session_id
        elif state is SessionState.LOST:
            self._past_session_ids |= {self._session_id}
            self._client = None
            self._dispose(client)
        log.info("ZooKeeper session %#x is %s", self._session_id & (1 << 64) - 1, state.value)
        self._become(state)
        for listener in list(self._listeners):
            listener(state)

    def _become(self, state: SessionState) -> None:
        self._state = state
        self._changed.set()

    def _dispose(self, client: Any) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(_stop, client))
        self._disposals.add(task)
        task.add_done_callback(self._disposals.discard)


class _Inbox:
    """What kazoo takes for a queue that a worker thread empties: the event loop empties this one."""

    def __init__(self, post: Callable[[Callable[[], Any]], None]) -> None:
        self.put = post


class _OneSessionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Gives kazoo one thread, the event loop for its callbacks, and connections for one session only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._session_ended = False
        self.completion_queue = self.callback_queue = _Inbox(self.post)

    @property
    def running(self) -> bool:
        return True

    def start(self) -> None:
        """There are no workers."""

    def stop(self) -> None:
        """There are no workers."""

    def end_session(self) -> None:
        self._session_ended = True

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self._session_ended:
            raise self.timeout_exception("the session is over")
        return super().create_connection(*args, **kwargs)

    def dispatch_callback(self, callback: Any) -> None:
        self.post(lambda: callback.func(*callback.args))

    def post(self, call: Callable[[], Any]) -> None:
        try:
            on_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            # A callback of kazoo's own that passes its result on: at once, so that it keeps its place.
            call()
            return
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The program ends and has left the session open: nobody is there to be told.


def _stop(client: Any) -> None:
    """Waits, in a thread of its own, for kazoo to say goodbye to the server, if there is one."""
    client.stop()
    client.close()


def _bridge(path: str, watch: Watch | None) -> Callable[[WatchedEvent], None] | None:
    if watch is None:
        return None
    return lambda event: watch(WatchEvent(_WATCH_TYPES[event.type], path))


def _translated(error: Exception, path: str) -> StoreError:
    ours = _ERRORS.get(type(error))
    if ours is not None:
        return ours(path)
    return StoreError(f"{path}: {type(error).__name__}{f': {error}' if str(error) else ''}")


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        version=stat.version,
        cversion=stat.cversion,
        ephemeral_owner=stat.ephemeralOwner,
        num_children=stat.numChildren,
    )
