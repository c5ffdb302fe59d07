"""Fetch sessions as pure state: epochs, what is told, who gives way."""

import itertools
from collections.abc import Iterator
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbus.core.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchKey,
    FetchPlan,
    FetchPosition,
    FetchSessionCache,
    PartitionNews,
)
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import LeaderEpoch, Offset

MAX_EPOCH = 2**31 - 1
EVICTION_MS = 1000


def position(offset: int = 0) -> FetchPosition:
    return FetchPosition(
        fetch_offset=Offset(offset),
        max_bytes=1 << 20,
        current_leader_epoch=LeaderEpoch(-1),
        last_fetched_epoch=LeaderEpoch(-1),
        log_start_offset=Offset(-1),
    )


def key(partition: int, topic: str = "t") -> FetchKey:
    return FetchKey(topic, partition)


def news(
    *,
    records: bool = False,
    error: ErrorCode = ErrorCode.none,
    high_watermark: int = 0,
    start: int = 0,
    must_tell: bool = False,
) -> PartitionNews:
    return PartitionNews(records, error, Offset(high_watermark), Offset(start), must_tell)


class Cache:
    """A cache with the arguments that most tests do not care for filled in."""

    def __init__(self, slots: int = 10, ids: Iterator[int] | None = None) -> None:
        numbers = ids or itertools.count(1)
        self.cache = FetchSessionCache(slots=slots, eviction_ms=EVICTION_MS, new_id=lambda: next(numbers))

    def plan(
        self,
        session_id: int = 0,
        epoch: int = INITIAL_EPOCH,
        *wanted: int,
        forgotten: tuple[int, ...] = (),
        now_ms: int = 0,
        privileged: bool = False,
        topic_ids: bool = False,
    ) -> FetchPlan:
        return self.cache.plan(
            session_id=session_id,
            epoch=epoch,
            wanted=[(key(partition), position()) for partition in wanted],
            forgotten=[key(partition) for partition in forgotten],
            uses_topic_ids=topic_ids,
            privileged=privileged,
            now_ms=now_ms,
        )

    def error(self, *arguments: int, **options: bool) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            self.plan(*arguments, **options)  # type: ignore[arg-type]
        return refused.value.code


def partitions(plan: FetchPlan) -> list[int]:
    return [fetch_key.partition for fetch_key, _ in plan.partitions]


def test_a_session_remembers_what_is_fetched() -> None:
    cache = Cache()
    opened = cache.plan(0, INITIAL_EPOCH, 0, 1)
    assert (opened.session_id, opened.full, partitions(opened)) == (1, True, [0, 1])
    going_on = cache.plan(1, 1)
    assert (going_on.session_id, going_on.full, partitions(going_on)) == (1, False, [0, 1])
    assert partitions(cache.plan(1, 2, 2, forgotten=(0,))) == [1, 2]


def test_a_position_that_moves_keeps_its_place() -> None:
    cache = Cache()
    cache.plan(0, INITIAL_EPOCH, 0, 1)
    moved = cache.cache.plan(
        session_id=1,
        epoch=1,
        wanted=[(key(0), position(7))],
        forgotten=[],
        uses_topic_ids=False,
        privileged=False,
        now_ms=0,
    )
    assert [(k.partition, p.fetch_offset) for k, p in moved.partitions] == [(0, 7), (1, 0)]


def test_only_the_next_epoch_goes_on() -> None:
    cache = Cache()
    cache.plan(0, INITIAL_EPOCH, 0)
    for wrong in (2, 5, MAX_EPOCH, -2):
        assert cache.error(1, wrong) is ErrorCode.invalid_fetch_session_epoch
    cache.plan(1, 1)
    assert cache.error(1, 1) is ErrorCode.invalid_fetch_session_epoch
    assert cache.error(9, 1) is ErrorCode.fetch_session_id_not_found


def test_epochs_wrap_to_1_since_0_would_ask_for_a_new_session() -> None:
    cache = Cache()
    session = cache.plan(0, INITIAL_EPOCH, 0).session
    assert session is not None
    session.next_epoch = MAX_EPOCH
    cache.plan(1, MAX_EPOCH)
    assert session.next_epoch == 1
    cache.plan(1, 1)


def test_a_fetch_without_a_session_ends_the_one_it_names() -> None:
    cache = Cache()
    cache.plan(0, INITIAL_EPOCH, 0)
    final = cache.plan(1, FINAL_EPOCH, 0)
    assert (final.session, final.session_id, final.full, len(cache.cache)) == (None, 0, True, 0)


def test_a_session_from_which_all_is_forgotten_ends() -> None:
    cache = Cache()
    cache.plan(0, INITIAL_EPOCH, 0)
    emptied = cache.plan(1, 1, forgotten=(0,))
    assert (emptied.session, partitions(emptied), len(cache.cache)) == (None, [], 0)


def test_a_fetch_of_nothing_opens_no_session() -> None:
    cache = Cache()
    assert cache.plan(0, INITIAL_EPOCH).session is None
    assert len(cache.cache) == 0


def test_names_and_ids_do_not_mix() -> None:
    cache = Cache()
    cache.plan(0, INITIAL_EPOCH, 0)
    assert cache.error(1, 1, topic_ids=True) is ErrorCode.fetch_session_topic_id_error
    cache.plan(1, 1)  # and the session is none the worse for it
    by_id = FetchKey(UUID(int=1), 0)
    assert by_id != FetchKey(str(UUID(int=1)), 0)


def test_ids_in_use_and_the_id_of_no_session_are_not_given() -> None:
    cache = Cache(ids=iter([5, 5, 0, 6]))
    assert cache.plan(0, INITIAL_EPOCH, 0).session_id == 5
    assert cache.plan(0, INITIAL_EPOCH, 0).session_id == 6


# ---- what is told


def told(plan: FetchPlan, results: dict[int, PartitionNews]) -> set[int]:
    assert plan.session is not None
    found = plan.session.filter_news([(key(p), item) for p, item in results.items()], full=plan.full)
    return {fetch_key.partition for fetch_key in found}


def test_a_full_answer_tells_everything_and_an_incremental_one_what_has_changed() -> None:
    cache = Cache()
    opened = cache.plan(0, INITIAL_EPOCH, 0, 1, 2)
    assert told(opened, {p: news() for p in range(3)}) == {0, 1, 2}
    going_on = cache.plan(1, 1)
    assert told(going_on, {p: news() for p in range(3)}) == set()
    changes = {0: news(high_watermark=5), 1: news(start=1), 2: news(must_tell=True)}
    assert told(going_on, changes) == {0, 1, 2}
    assert told(going_on, {0: news(high_watermark=5), 1: news(start=1), 2: news()}) == set()
    assert told(going_on, {0: news(records=True, high_watermark=5)}) == {0}


def test_an_error_is_told_each_time_and_so_is_its_end() -> None:
    cache = Cache()
    plan = cache.plan(0, INITIAL_EPOCH, 0)
    told(plan, {0: news()})
    going_on = cache.plan(1, 1)
    failed = news(error=ErrorCode.not_leader_or_follower)
    assert told(going_on, {0: failed}) == {0}
    assert told(going_on, {0: failed}) == {0}
    assert told(going_on, {0: news()}) == {0}
    assert told(going_on, {0: news()}) == set()


def test_a_partition_that_is_forgotten_and_wanted_again_is_told_anew() -> None:
    cache = Cache()
    told(cache.plan(0, INITIAL_EPOCH, 0, 1), {0: news(), 1: news()})
    cache.plan(1, 1, forgotten=(0,))
    assert told(cache.plan(1, 2, 0), {0: news(), 1: news()}) == {0}


def test_partitions_with_records_go_to_the_end_of_the_line() -> None:
    cache = Cache()
    plan = cache.plan(0, INITIAL_EPOCH, 0, 1, 2)
    told(plan, {0: news(records=True), 1: news(), 2: news()})
    plan = cache.plan(1, 1)
    assert partitions(plan) == [1, 2, 0]
    told(plan, {1: news(records=True), 2: news(records=True), 0: news()})
    assert partitions(cache.plan(1, 2)) == [0, 1, 2]


# ---- who gives way


def test_a_full_cache_opens_no_session_until_one_is_stale() -> None:
    cache = Cache(slots=2)
    cache.plan(0, INITIAL_EPOCH, 0, now_ms=0)
    cache.plan(0, INITIAL_EPOCH, 0, now_ms=500)
    refused = cache.plan(0, INITIAL_EPOCH, 0, now_ms=EVICTION_MS)
    assert (refused.session_id, refused.full, partitions(refused)) == (0, True, [0])
    evicting = cache.plan(0, INITIAL_EPOCH, 0, now_ms=EVICTION_MS + 1)
    assert evicting.session_id == 3
    assert cache.error(1, 1) is ErrorCode.fetch_session_id_not_found
    assert len(cache.cache) == 2


def test_use_keeps_a_session_from_going_stale() -> None:
    cache = Cache(slots=2)
    cache.plan(0, INITIAL_EPOCH, 0, now_ms=0)
    cache.plan(0, INITIAL_EPOCH, 0, now_ms=1)
    cache.plan(1, 1, now_ms=1500)
    cache.plan(0, INITIAL_EPOCH, 0, now_ms=2000)
    cache.plan(1, 2, now_ms=2000)
    assert cache.error(2, 1) is ErrorCode.fetch_session_id_not_found


def test_a_followers_session_displaces_a_clients_but_not_another_followers() -> None:
    cache = Cache(slots=2)
    cache.plan(0, INITIAL_EPOCH, 0)
    cache.plan(0, INITIAL_EPOCH, 0, privileged=True)
    assert cache.plan(0, INITIAL_EPOCH, 0, privileged=True).session_id == 3
    assert cache.error(1, 1) is ErrorCode.fetch_session_id_not_found
    assert cache.plan(0, INITIAL_EPOCH, 0, privileged=True).session_id == 0
    assert cache.plan(0, INITIAL_EPOCH, 0).session_id == 0


def test_a_cache_without_slots_opens_none() -> None:
    assert Cache(slots=0).plan(0, INITIAL_EPOCH, 0).session_id == 0


# ---- a client and a broker that keep in step


class InStep(RuleBasedStateMachine):
    """A client that follows the protocol knows at all times the last state of every partition it fetches,
    however much of it the broker leaves out of its answers."""

    @initialize()
    def begin(self) -> None:
        self.cache = Cache(slots=1)
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self.wanted: set[int] = set()
        self.known: dict[int, PartitionNews] = {}
        self.actual = {partition: news() for partition in range(4)}

    @rule(partition=st.integers(0, 3), high_watermark=st.integers(0, 3), start=st.integers(0, 3))
    def change(self, partition: int, high_watermark: int, start: int) -> None:
        self.actual[partition] = news(high_watermark=high_watermark, start=start)

    @rule(partition=st.integers(0, 3))
    def fail(self, partition: int) -> None:
        self.actual[partition] = news(error=ErrorCode.not_leader_or_follower, high_watermark=-1, start=-1)

    @rule(add=st.sets(st.integers(0, 3)), forget=st.sets(st.integers(0, 3)))
    def fetch(self, add: set[int], forget: set[int]) -> None:
        forget -= add
        new = add - self.wanted
        self.wanted = (self.wanted | add) - forget
        asked = tuple(sorted(self.wanted if self.epoch == INITIAL_EPOCH else new))
        plan = self.cache.plan(self.session_id, self.epoch, *asked, forgotten=tuple(sorted(forget)))
        assert set(partitions(plan)) == self.wanted
        results = {p: self.actual[p] for p in partitions(plan)}
        if plan.session is None:
            answered = set(results)
            self.session_id, self.epoch = 0, INITIAL_EPOCH
        else:
            answered = told(plan, results)
            self.session_id = plan.session_id
            self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        for partition in forget:
            self.known.pop(partition, None)
        self.known |= {partition: results[partition] for partition in answered}
        assert self.known == results

    @rule()
    def lose_the_answer(self) -> None:
        """The client cannot tell how far the broker got, and starts over."""
        if self.epoch != INITIAL_EPOCH:
            self.cache.plan(self.session_id, self.epoch)
        self.epoch = INITIAL_EPOCH
        self.known = {}

    @invariant()
    def the_cache_keeps_to_its_size(self) -> None:
        assert len(self.cache.cache) <= 1


TestInStep = InStep.TestCase


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 4)), max_size=30))
def test_whatever_clients_ask_is_answered_or_refused(requests: list[tuple[int, int]]) -> None:
    cache = Cache(slots=2)
    for session_id, epoch in requests:
        answer: list[int] | ErrorCode
        try:
            answer = partitions(cache.plan(session_id, epoch, 0))
        except KafkaError as refused:
            answer = refused.code
        assert answer in (
            [0],
            ErrorCode.fetch_session_id_not_found,
            ErrorCode.invalid_fetch_session_epoch,
        )
        assert len(cache.cache) <= 2
