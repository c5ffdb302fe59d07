"""Incremental fetch sessions (KIP-227): the broker remembers what a client fetches.

A client that opened a session sends only the partitions whose fetch position changed, and is sent only
the partitions that have news. Both sides count the session's epoch, so that a lost or repeated request
is noticed and the client starts over with a full fetch.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import LeaderEpoch, Offset

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
"""Ends the session, if there is one, with a full fetch outside of any."""
INITIAL_EPOCH: Final = 0
"""Asks for a new session with a full fetch."""
_MAX_EPOCH: Final = 2**31 - 1


class FetchKey(NamedTuple):
    """A partition as the client names it: by topic id from version 13 on, by name before."""

    topic: str | UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPosition:
    """What a client asks of one partition."""

    fetch_offset: Offset
    max_bytes: int
    current_leader_epoch: LeaderEpoch
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset


class PartitionNews(NamedTuple):
    """What decides whether a partition has to be in an incremental response."""

    has_records: bool
    error: ErrorCode
    high_watermark: Offset
    log_start_offset: Offset
    must_tell: bool
    """A diverging epoch or a preferred replica has to reach the client whatever else there is."""


_NEVER_TOLD: Final = (-1, -1)


class FetchSession:
    """Invariant: `next_epoch` is the only epoch that the next request may carry."""

    def __init__(self, session_id: int, *, uses_topic_ids: bool, privileged: bool, now_ms: int) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.privileged = privileged
        self.next_epoch = 1
        self.last_used_ms = now_ms
        self.partitions: OrderedDict[FetchKey, FetchPosition] = OrderedDict()
        self._told: dict[FetchKey, tuple[int, int]] = {}

    def update(self, wanted: Iterable[tuple[FetchKey, FetchPosition]], forgotten: Iterable[FetchKey]) -> None:
        for key, position in wanted:
            self.partitions[key] = position
        for key in forgotten:
            self.partitions.pop(key, None)
            self._told.pop(key, None)

    def filter_news(self, results: Iterable[tuple[FetchKey, PartitionNews]], *, full: bool) -> set[FetchKey]:
        """The partitions that go into the response. Those with records move to the end of the session's
        order, so that the next response, cut off by its size, starts with others."""
        included = set()
        for key, news in results:
            told = (news.high_watermark, news.log_start_offset)
            failed = news.error is not ErrorCode.none
            if (
                full
                or news.has_records
                or failed
                or news.must_tell
                or self._told.get(key, _NEVER_TOLD) != told
            ):
                included.add(key)
            if failed:
                self._told.pop(key, None)  # told again when it works, whatever it says then
            elif key in self.partitions:
                self._told[key] = told
            if news.has_records and key in self.partitions:
                self.partitions.move_to_end(key)
        return included


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """What one request fetches, and the session that its response belongs to, if any."""

    partitions: tuple[tuple[FetchKey, FetchPosition], ...]
    session: FetchSession | None
    full: bool

    @property
    def session_id(self) -> int:
        return self.session.id if self.session else NO_SESSION


class FetchSessionCache:
    """Owns all sessions of a node. A full cache gives way only to sessions left unused for a while."""

    def __init__(self, *, slots: int, eviction_ms: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        *,
        session_id: int,
        epoch: int,
        wanted: Iterable[tuple[FetchKey, FetchPosition]],
        forgotten: Iterable[FetchKey],
        uses_topic_ids: bool,
        privileged: bool,
        now_ms: int,
    ) -> FetchPlan:
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            partitions = tuple(wanted)
            session = None
            if epoch == INITIAL_EPOCH and partitions:
                session = self._open(uses_topic_ids=uses_topic_ids, privileged=privileged, now_ms=now_ms)
                if session is not None:
                    session.update(partitions, ())
            return FetchPlan(partitions=partitions, session=session, full=True)
        return self._continue(session_id, epoch, wanted, forgotten, uses_topic_ids, now_ms)

    def _continue(
        self,
        session_id: int,
        epoch: int,
        wanted: Iterable[tuple[FetchKey, FetchPosition]],
        forgotten: Iterable[FetchKey],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchPlan:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.next_epoch != epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        session.update(wanted, forgotten)
        session.next_epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        if not session.partitions:
            del self._sessions[session_id]
            return FetchPlan(partitions=(), session=None, full=True)
        return FetchPlan(partitions=tuple(session.partitions.items()), session=session, full=False)

    def _open(self, *, uses_topic_ids: bool, privileged: bool, now_ms: int) -> FetchSession | None:
        if len(self._sessions) >= self._slots and not self._evict_one(privileged, now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(
            session_id, uses_topic_ids=uses_topic_ids, privileged=privileged, now_ms=now_ms
        )
        self._sessions[session_id] = session
        return session

    def _evict_one(self, for_privileged: bool, now_ms: int) -> bool:
        """Drops the least recently used session that is stale, or that a follower's may displace."""
        for session in self._sessions.values():
            stale = now_ms - session.last_used_ms > self._eviction_ms
            if stale or (for_privileged and not session.privileged):
                del self._sessions[session.id]
                return True
        return False
