"""Incremental fetch sessions (KIP-227) over the wire, in every version that has them."""

from uuid import UUID, uuid4

import pytest

from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from tests.conftest import NodeFactory
from tests.node.honest import unique
from tests.node.wire import Wire, batch_of, create_topic, fetch_fields, latest, produce
from tests.nodes import NodeProcess

SESSION_VERSIONS = range(7, latest(ApiKey.FETCH) + 1)
NEW_SESSION, NO_SESSION = 0, -1


class SessionClient:
    """One session of one client, which counts its epochs."""

    def __init__(self, wire: Wire, version: int) -> None:
        self.wire = wire
        self.version = version
        self.id = 0
        self.epoch = NEW_SESSION

    def fetch(self, *wanted: tuple[str | UUID, int, int], **fields: object) -> Entity:
        """The response; (topic, partition, offset) are what is asked for anew."""
        response = self.wire.call(
            ApiKey.FETCH,
            self.version,
            **fetch_fields(*wanted, session_id=self.id, session_epoch=self.epoch, **fields),  # type: ignore[arg-type]
        )
        if response.error_code is ErrorCode.none:
            if self.epoch == NEW_SESSION:
                self.id = response.session_id
            self.epoch += 1
        return response


def told(response: Entity) -> dict[int, int]:
    """Partitions in a response, with the bytes of records of each."""
    return {p.partition_index: len(p.records) for t in response.responses for p in t.partitions}


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_session_tells_everything_once_and_then_only_what_is_new(node: NodeProcess, version: int) -> None:
    topic = unique("session")
    size = len(batch_of(b"value"))
    with Wire(node.port) as wire, Wire(node.port) as producer:
        topic_id = create_topic(producer, topic, partitions=3)
        name: str | UUID = topic_id if version >= 13 else topic
        session = SessionClient(wire, version)

        full = session.fetch((name, 0, 0), (name, 1, 0), (name, 2, 0))
        assert full.session_id > 0
        assert told(full) == {0: 0, 1: 0, 2: 0}

        assert told(session.fetch()) == {}

        produce(producer, topic, batch_of(b"value"), partition=1)
        news = session.fetch()
        assert (news.session_id, told(news)) == (session.id, {1: size})
        # Asked again from where it was, it is sent again; the client has not moved on.
        assert told(session.fetch()) == {1: size}
        assert told(session.fetch((name, 1, 1))) == {}

        produce(producer, topic, batch_of(b"value"), partition=0)
        produce(producer, topic, batch_of(b"value"), partition=2)
        assert told(session.fetch(forgotten=((name, 2),))) == {0: size}
        assert told(session.fetch((name, 2, 0))) == {0: size, 2: size}


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_session_refuses_wrong_epochs_and_unknown_ids(node: NodeProcess, version: int) -> None:
    topic = unique("epochs")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        name: str | UUID = topic_id if version >= 13 else topic
        session = SessionClient(wire, version)
        session.fetch((name, 0, 0))
        for wrong in (2, 7, 2**31 - 1):
            session.epoch = wrong
            refused = session.fetch()
            assert refused.error_code is ErrorCode.invalid_fetch_session_epoch
            assert refused.responses == ()
        session.epoch = 1
        assert session.fetch().error_code is ErrorCode.none
        session.epoch = 1  # once more, as if its answer had been lost
        assert session.fetch().error_code is ErrorCode.invalid_fetch_session_epoch
        session.id, session.epoch = session.id ^ 0x5A5A5A5A, 2
        assert session.fetch().error_code is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_session_is_ended_by_its_final_epoch_or_replaced_by_a_new_one(
    node: NodeProcess, version: int
) -> None:
    topic = unique("ended")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        name: str | UUID = topic_id if version >= 13 else topic
        session = SessionClient(wire, version)
        session.fetch((name, 0, 0))
        first = session.id
        session.epoch = NEW_SESSION
        replaced = session.fetch((name, 0, 0))
        assert told(replaced) == {0: 0}
        assert replaced.session_id not in (0, first)
        session.epoch = NO_SESSION
        final = session.fetch((name, 0, 0))
        assert (final.session_id, told(final)) == (0, {0: 0})
        for gone in (first, replaced.session_id):
            session.id, session.epoch = gone, 1
            assert session.fetch().error_code is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_an_error_is_told_every_time_and_its_end_once(node: NodeProcess, version: int) -> None:
    topic = unique("erring")
    with Wire(node.port) as wire, Wire(node.port) as other:
        topic_id = create_topic(other, topic)
        name: str | UUID = topic_id if version >= 13 else topic
        session = SessionClient(wire, version)
        session.fetch((name, 0, 0))
        for response in (session.fetch((name, 0, 5)), session.fetch()):
            (partition,) = response.responses[0].partitions
            assert partition.error_code is ErrorCode.offset_out_of_range
        (partition,) = session.fetch((name, 0, 0)).responses[0].partitions
        assert partition.error_code is ErrorCode.none
        assert told(session.fetch()) == {}


def test_a_topic_that_is_made_later_appears_in_the_session(node: NodeProcess) -> None:
    topic = unique("made-later")
    with Wire(node.port) as wire, Wire(node.port) as other:
        session = SessionClient(wire, 12)
        (missing,) = session.fetch((topic, 0, 0)).responses[0].partitions
        assert missing.error_code is ErrorCode.unknown_topic_or_partition
        create_topic(other, topic)
        produce(other, topic, batch_of(b"value"))
        (found,) = session.fetch().responses[0].partitions
        assert (found.error_code, len(found.records)) == (ErrorCode.none, len(batch_of(b"value")))


def test_names_and_ids_are_not_mixed_in_a_session(node: NodeProcess) -> None:
    topic = unique("mixed")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        session = SessionClient(wire, 12)
        session.fetch((topic, 0, 0))
        session.version = 13
        assert session.fetch((topic_id, 0, 0)).error_code is ErrorCode.fetch_session_topic_id_error


def test_an_unknown_topic_id_is_told_in_a_session(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        session = SessionClient(wire, latest(ApiKey.FETCH))
        (missing,) = session.fetch((uuid4(), 0, 0)).responses[0].partitions
        assert missing.error_code is ErrorCode.unknown_topic_id


def test_a_long_poll_in_a_session_tells_only_what_woke_it(node: NodeProcess) -> None:
    topic = unique("polled")
    with Wire(node.port) as wire, Wire(node.port) as producer:
        create_topic(producer, topic, partitions=2)
        session = SessionClient(wire, 12)
        session.fetch((topic, 0, 0), (topic, 1, 0))
        poll = wire.begin_long_poll(12, **fetch_fields(session_id=session.id, session_epoch=1, max_wait_s=20))
        produce(producer, topic, batch_of(b"value"), partition=1)
        assert told(wire.receive(ApiKey.FETCH, 12, poll)) == {1: len(batch_of(b"value"))}


def test_records_beyond_the_limit_come_in_the_next_fetches_from_every_partition_in_turn(
    node: NodeProcess,
) -> None:
    """A partition that was sent goes to the end of the line: none is starved by those before it."""
    topic = unique("fair")
    with Wire(node.port) as wire, Wire(node.port) as producer:
        create_topic(producer, topic, partitions=3)
        for partition in range(3):
            produce(producer, topic, batch_of(bytes(1000)), partition=partition)
        session = SessionClient(wire, 12)
        seen = [session.fetch(*((topic, index, 0) for index in range(3)), max_bytes=1)]
        seen += [session.fetch(max_bytes=1) for _ in range(2)]
        with_records = [{p for p, size in told(response).items() if size} for response in seen]
        assert with_records == [{0}, {1}, {2}]


def test_sessions_beyond_the_cache_fetch_in_full_and_go_on(start_node: NodeFactory) -> None:
    node = start_node({"max.incremental.fetch.session.cache.slots": "2"})
    with Wire(node.port) as wire:
        create_topic(wire, "cached")
        sessions = [SessionClient(wire, 12) for _ in range(3)]
        opened = [session.fetch(("cached", 0, 0)) for session in sessions]
        assert [response.session_id > 0 for response in opened] == [True, True, False]
        assert told(opened[2]) == {0: 0}
        sessions[0].epoch = NO_SESSION  # leaves, and makes room
        sessions[0].fetch(("cached", 0, 0))
        again = SessionClient(wire, 12)
        assert again.fetch(("cached", 0, 0)).session_id > 0
        assert sessions[1].fetch().error_code is ErrorCode.none


def test_no_sessions_are_kept_where_the_broker_has_no_room_for_any(start_node: NodeFactory) -> None:
    node = start_node({"max.incremental.fetch.session.cache.slots": "0"})
    with Wire(node.port) as wire:
        create_topic(wire, "uncached")
        response = SessionClient(wire, 12).fetch(("uncached", 0, 0))
        assert (response.error_code, response.session_id, told(response)) == (ErrorCode.none, 0, {0: 0})
