"""The coordination store in memory, for tests and simulation: ZooKeeper's semantics, and faults on request.

`MemoryZooKeeper` is the server, shared by the `MemorySession`s that it hands out. An operation takes effect
at once; its answer comes a turn of the loop later, after the watch events of what happened before.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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

_Undo = Callable[[], None]


@dataclass(slots=True)
class _Node:
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    data: bytes = b""
    version: int = 0
    owner: int = 0
    children: set[str] = field(default_factory=set)
    created_children: int = 0
    """Ever: the next sequence number, and half of cversion."""

    @property
    def stat(self) -> Stat:
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            version=self.version,
            cversion=2 * self.created_children - len(self.children),
            ephemeral_owner=self.owner,
            num_children=len(self.children),
        )


class MemoryZooKeeper:
    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        """`clock` gives milliseconds."""
        self._clock = clock
        self._zxid = 0
        self._nodes: dict[str, _Node] = {"/": _Node(czxid=0, mzxid=0, ctime_ms=0, mtime_ms=0)}
        self._last_session_id = 0
        self._live_sessions: dict[int, MemorySession] = {}
        # Watches by path: on the node itself, and on its children. Told once, then forgotten.
        self._node_watches: dict[str, list[tuple[MemorySession, Watch]]] = {}
        self._child_watches: dict[str, list[tuple[MemorySession, Watch]]] = {}

    def session(self) -> "MemorySession":
        return MemorySession(self)

    def begin(self, session: "MemorySession") -> int:
        self._last_session_id += 1
        self._live_sessions[self._last_session_id] = session
        return self._last_session_id

    def is_live(self, session_id: int) -> bool:
        return session_id in self._live_sessions

    def end(self, session_id: int) -> None:
        """Closed or expired: the ephemerals go, in one change each."""
        session = self._live_sessions.pop(session_id, None)
        if session is None:
            return
        self.forget_watches(session)
        for path in [path for path, node in self._nodes.items() if node.owner == session_id]:
            self.apply(session_id, [Delete(path)])

    def apply(self, session_id: int, ops: Sequence[Op]) -> list[OpResult]:
        """All or nothing, as one change; raises MultiFailed."""
        undo: list[_Undo] = []
        events: list[WatchEvent] = []
        results: list[OpResult] = []
        for index, op in enumerate(ops):
            try:
                results.append(self._apply_one(session_id, op, undo, events))
            except StoreError as error:
                for step in reversed(undo):
                    step()
                raise MultiFailed(index, op, error) from None
        if events:
            self._zxid += 1
        for event in events:
            self._tell(event)
        return results

    def node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def read(self, path: str) -> tuple[bytes, Stat]:
        node = self.node(path)
        return node.data, node.stat

    def watch_node(self, path: str, session: "MemorySession", watch: Watch | None) -> None:
        if watch is not None:
            self._node_watches.setdefault(path, []).append((session, watch))

    def watch_children(self, path: str, session: "MemorySession", watch: Watch | None) -> None:
        if watch is not None:
            self._child_watches.setdefault(path, []).append((session, watch))

    def forget_watches(self, session: "MemorySession") -> list[tuple[str, Watch]]:
        """Takes the session's watches away and returns them."""
        taken = []
        for table in (self._node_watches, self._child_watches):
            for path, watchers in list(table.items()):
                taken += [(path, watch) for owner, watch in watchers if owner is session]
                table[path] = [(owner, watch) for owner, watch in watchers if owner is not session]
        return taken

    def _apply_one(self, session_id: int, op: Op, undo: list[_Undo], events: list[WatchEvent]) -> OpResult:
        match op:
            case Check():
                _check_version(self.node(op.path), op.path, op.version)
                return None
            case Create():
                return self._create(session_id, op, undo, events)
            case SetData():
                return self._set(op, undo, events)
            case Delete():
                self._delete(op, undo, events)
                return None

    def _create(self, session_id: int, op: Create, undo: list[_Undo], events: list[WatchEvent]) -> str:
        parent_path = parent_of(op.path)
        parent = self.node(parent_path)
        path = f"{op.path}{parent.created_children:010d}" if op.sequence else op.path
        if path in self._nodes:
            raise NodeExists(path)
        if parent.owner:
            raise StoreError(f"{path}: an ephemeral node has no children")
        zxid, now_ms = self._zxid + 1, self._clock()
        self._nodes[path] = _Node(
            czxid=zxid,
            mzxid=zxid,
            ctime_ms=now_ms,
            mtime_ms=now_ms,
            data=op.data,
            owner=session_id if op.ephemeral else 0,
        )
        name = path.rpartition("/")[2]
        parent.children.add(name)
        parent.created_children += 1

        def revert() -> None:
            del self._nodes[path]
            parent.children.discard(name)
            parent.created_children -= 1

        undo.append(revert)
        events += (WatchEvent(WatchType.CREATED, path), WatchEvent(WatchType.CHILDREN, parent_path))
        return path

    def _set(self, op: SetData, undo: list[_Undo], events: list[WatchEvent]) -> Stat:
        node = self.node(op.path)
        _check_version(node, op.path, op.version)
        before = (node.data, node.version, node.mzxid, node.mtime_ms)
        node.data, node.version, node.mzxid = op.data, node.version + 1, self._zxid + 1
        node.mtime_ms = self._clock()

        def revert() -> None:
            node.data, node.version, node.mzxid, node.mtime_ms = before

        undo.append(revert)
        events.append(WatchEvent(WatchType.CHANGED, op.path))
        return node.stat

    def _delete(self, op: Delete, undo: list[_Undo], events: list[WatchEvent]) -> None:
        node = self.node(op.path)
        _check_version(node, op.path, op.version)
        if node.children:
            raise NotEmpty(op.path)
        parent_path, name = parent_of(op.path), op.path.rpartition("/")[2]
        parent = self._nodes[parent_path]
        del self._nodes[op.path]
        parent.children.discard(name)

        def revert() -> None:
            self._nodes[op.path] = node
            parent.children.add(name)

        undo.append(revert)
        events += (WatchEvent(WatchType.DELETED, op.path), WatchEvent(WatchType.CHILDREN, parent_path))

    def _tell(self, event: WatchEvent) -> None:
        watchers: list[tuple[MemorySession, Watch]] = []
        if event.type is not WatchType.CHILDREN:
            watchers += self._node_watches.pop(event.path, ())
        if event.type in (WatchType.CHILDREN, WatchType.DELETED):
            watchers += self._child_watches.pop(event.path, ())
        for session, watch in watchers:
            session.deliver(watch, event)


class MemorySession:
    """`store.CoordinationStore` on a MemoryZooKeeper, with the faults that a real session meets."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        self._server = server
        self._state = SessionState.CLOSED
        self._session_id = 0
        self._past_session_ids: frozenset[int] = frozenset()
        self._listeners: list[Listener] = []
        self._changed = asyncio.Event()
        self._cut_at_next_answer = False
        self._reachable = True

    # Faults

    def disconnect(self) -> None:
        """The connection breaks; the session lives on at the server until `expire`."""
        self._reachable = False
        if self._state is SessionState.CONNECTED:
            for path, watch in self._server.forget_watches(self):
                self.deliver(watch, WatchEvent(WatchType.DISCONNECTED, path))
            self._become(SessionState.SUSPENDED)

    def reconnect(self) -> None:
        """The server is in reach again: CONNECTED, or LOST if the session expired meanwhile."""
        self._reachable = True
        if self._state is SessionState.SUSPENDED:
            alive = self._server.is_live(self._session_id)
            self._become(SessionState.CONNECTED if alive else SessionState.LOST)

    def expire(self) -> None:
        """The server ends the session. A client hears of it now, or if disconnected at `reconnect`."""
        if self._state is SessionState.CONNECTED:
            self.disconnect()
            self._server.end(self._session_id)
            self.reconnect()
        else:
            self._server.end(self._session_id)

    def cut_at_next_answer(self) -> None:
        """The next operation happens, but the connection breaks before its answer arrives."""
        self._cut_at_next_answer = True

    def deliver(self, watch: Watch, event: WatchEvent) -> None:
        asyncio.get_running_loop().call_soon(watch, event)

    # The store

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        if self._state is not SessionState.SUSPENDED:
            self._require_connected()
        return self._session_id

    @property
    def past_session_ids(self) -> frozenset[int]:
        return self._past_session_ids

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def open(self) -> None:
        if self._state in (SessionState.CONNECTED, SessionState.SUSPENDED):
            raise RuntimeError("a session is open already")
        if not self._reachable:
            raise ConnectionLost("no answer from ZooKeeper")
        self._session_id = self._server.begin(self)
        self._become(SessionState.CONNECTED)
        await asyncio.sleep(0)

    async def close(self) -> None:
        if self._state in (SessionState.CONNECTED, SessionState.SUSPENDED):
            self._server.end(self._session_id)
        self._state = SessionState.CLOSED
        self._changed.set()
        await asyncio.sleep(0)

    async def wait_connected(self) -> None:
        while self._state is SessionState.SUSPENDED:
            self._changed.clear()
            await self._changed.wait()
        self._require_connected()

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        self._require_connected()
        try:
            result = self._server.read(path)
            self._server.watch_node(path, self, watch)
        finally:
            await self._answer()
        return result

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        self._require_connected()
        self._server.watch_node(path, self, watch)
        try:
            stat = self._server.node(path).stat
        except NoNode:
            stat = None
        await self._answer()
        return stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self._require_connected()
        try:
            names = sorted(self._server.node(path).children)
            self._server.watch_children(path, self, watch)
        finally:
            await self._answer()
        return names

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> tuple[str, Stat]:
        self._require_connected()
        try:
            created = self._apply(Create(path, data, ephemeral, sequence))
            assert isinstance(created, str)
            stat = self._server.node(created).stat
        except NoNode:
            await self._answer()
            if not makepath:
                raise
        else:
            await self._answer()
            return created, stat
        await ensure_path(self, parent_of(path))
        return await self.create(path, data, ephemeral=ephemeral, sequence=sequence)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        self._require_connected()
        try:
            stat = self._apply(SetData(path, data, version))
            assert isinstance(stat, Stat)
        finally:
            await self._answer()
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._require_connected()
        try:
            self._apply(Delete(path, version))
        finally:
            await self._answer()

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        self._require_connected()
        try:
            results = self._server.apply(self._session_id, ops)
        finally:
            await self._answer()
        return results

    def _apply(self, op: Op) -> OpResult:
        try:
            return self._server.apply(self._session_id, [op])[0]
        except MultiFailed as failed:
            raise failed.error from None

    def _require_connected(self) -> None:
        if self._state is SessionState.LOST:
            raise SessionExpired("the ZooKeeper session has expired")
        if self._state is not SessionState.CONNECTED:
            raise ConnectionLost(f"the ZooKeeper session is {self._state.value}")

    async def _answer(self) -> None:
        """The way back from the server, on which an answer may be lost."""
        if self._cut_at_next_answer:
            self._cut_at_next_answer = False
            self.disconnect()
        await asyncio.sleep(0)
        self._require_connected()

    def _become(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._past_session_ids |= {self._session_id}
        self._state = state
        self._changed.set()
        for listener in list(self._listeners):
            asyncio.get_running_loop().call_soon(listener, state)


def _check_version(node: _Node, path: str, version: int) -> None:
    if version not in (ANY_VERSION, node.version):
        raise BadVersion(path)
