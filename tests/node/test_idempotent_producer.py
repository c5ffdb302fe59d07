"""InitProducerId and idempotent produce over the wire: no id is given twice, no batch is kept twice."""

import time
from datetime import timedelta

import pytest

from kbus.protocol.api import ApiKey, Entity
from kbus.protocol.errors import ErrorCode
from kbus.types import ProducerEpoch, ProducerId
from tests.conftest import NodeFactory
from tests.node.honest import unique
from tests.node.wire import Wire, batch_of, create_topic, end_offset, every_version, latest, produce
from tests.nodes import NodeProcess

BLOCK = 1000
MAX_SEQUENCE = 2**31 - 1
_NOW_MS = int(time.time() * 1000)


def init_producer_id(wire: Wire, version: int | None = None, transactional_id: str | None = None) -> Entity:
    return wire.call(
        ApiKey.INIT_PRODUCER_ID,
        latest(ApiKey.INIT_PRODUCER_ID) if version is None else version,
        transactional_id=transactional_id,
        transaction_timeout=timedelta(seconds=60),
    )


def sequenced(producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    # The time matters: a producer whose last records are older than producer.id.expiration.ms is forgotten.
    return batch_of(
        *(values or (b"value",)),
        timestamp=_NOW_MS,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        base_sequence=sequence,
    )


# ---- ids


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.INIT_PRODUCER_ID))
def test_every_producer_gets_an_id_of_its_own(node: NodeProcess, api: ApiKey, version: int) -> None:
    with Wire(node.port) as wire:
        given = [init_producer_id(wire, version) for _ in range(5)]
    assert all(response.error_code is ErrorCode.none for response in given)
    assert all(response.producer_epoch == 0 for response in given)
    assert len({response.producer_id for response in given}) == 5


def test_ids_go_on_from_one_block_to_the_next(node: NodeProcess) -> None:
    with Wire(node.port) as wire:
        given = [init_producer_id(wire).producer_id for _ in range(BLOCK + 10)]
    assert len(set(given)) == len(given)
    assert given == sorted(given)


@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_ids_are_not_given_again_after_a_restart(start_node: NodeFactory, stop: str) -> None:
    node = start_node()
    given = []
    for _ in range(3):
        with Wire(node.port) as wire:
            given += [init_producer_id(wire).producer_id for _ in range(3)]
        getattr(node, stop)()
        node.start()
    assert len(set(given)) == len(given)


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.INIT_PRODUCER_ID))
def test_transactional_ids_are_refused(node: NodeProcess, api: ApiKey, version: int) -> None:
    with Wire(node.port) as wire:
        refused = init_producer_id(wire, version, transactional_id="mine")
        assert refused.error_code is not ErrorCode.none
        assert (refused.producer_id, refused.producer_epoch) == (-1, -1)


# ---- sequences


@pytest.mark.parametrize(("api", "version"), every_version(ApiKey.PRODUCE))
def test_a_batch_sent_again_is_answered_with_its_first_offset_and_not_kept_twice(
    node: NodeProcess, api: ApiKey, version: int
) -> None:
    topic = unique("again")
    with Wire(node.port) as wire:
        topic_id = create_topic(wire, topic)
        name = topic_id if version >= 13 else topic
        producer_id = init_producer_id(wire).producer_id
        batches = [sequenced(producer_id, 2 * n, b"one", b"two") for n in range(5)]
        for batch in batches:
            assert produce(wire, name, batch, version=version).error_code is ErrorCode.none
        for number, batch in enumerate(batches):
            again = produce(wire, name, batch, version=version)
            assert (again.error_code, again.base_offset) == (ErrorCode.none, 2 * number)
        assert end_offset(wire, topic) == 10


def test_a_gap_in_the_sequence_is_out_of_order_and_what_is_forgotten_a_duplicate(node: NodeProcess) -> None:
    topic = unique("gap")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        producer_id = init_producer_id(wire).producer_id
        for sequence in range(7):
            assert produce(wire, topic, sequenced(producer_id, sequence)).error_code is ErrorCode.none
        gap = produce(wire, topic, sequenced(producer_id, 8))
        assert gap.error_code is ErrorCode.out_of_order_sequence_number
        forgotten = produce(wire, topic, sequenced(producer_id, 0))  # only the last five are remembered
        assert forgotten.error_code is ErrorCode.duplicate_sequence_number
        assert end_offset(wire, topic) == 7
        assert produce(wire, topic, sequenced(producer_id, 7)).base_offset == 7


def test_a_new_epoch_begins_at_sequence_0_and_fences_the_old_one(node: NodeProcess) -> None:
    topic = unique("epoch")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        producer_id = init_producer_id(wire).producer_id
        assert produce(wire, topic, sequenced(producer_id, 0)).error_code is ErrorCode.none
        late_start = produce(wire, topic, sequenced(producer_id, 1, epoch=1))
        assert late_start.error_code is ErrorCode.out_of_order_sequence_number
        assert produce(wire, topic, sequenced(producer_id, 0, epoch=1)).base_offset == 1
        fenced = produce(wire, topic, sequenced(producer_id, 1, epoch=0))
        assert fenced.error_code is ErrorCode.invalid_producer_epoch
        assert end_offset(wire, topic) == 2


def test_a_producer_that_the_partition_does_not_know_may_begin_anywhere_and_sequences_wrap(
    node: NodeProcess,
) -> None:
    topic = unique("wrap")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        producer_id = init_producer_id(wire).producer_id
        across = sequenced(producer_id, MAX_SEQUENCE, b"last", b"first")
        assert produce(wire, topic, across).base_offset == 0
        assert produce(wire, topic, across).base_offset == 0
        assert produce(wire, topic, sequenced(producer_id, 1)).base_offset == 2


def test_sequences_are_counted_for_each_partition(node: NodeProcess) -> None:
    topic = unique("partitions")
    with Wire(node.port) as wire:
        create_topic(wire, topic, partitions=2)
        producer_id = init_producer_id(wire).producer_id
        for partition in (0, 1):
            appended = produce(wire, topic, sequenced(producer_id, 0), partition=partition)
            assert (appended.error_code, appended.base_offset) == (ErrorCode.none, 0)


@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_a_batch_sent_again_after_a_restart_is_not_kept_twice(start_node: NodeFactory, stop: str) -> None:
    node = start_node()
    with Wire(node.port) as wire:
        create_topic(wire, "survives")
        producer_id = init_producer_id(wire).producer_id
        for sequence in range(3):
            produce(wire, "survives", sequenced(producer_id, sequence))
    getattr(node, stop)()
    node.start()
    with Wire(node.port) as wire:
        again = produce(wire, "survives", sequenced(producer_id, 2))
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 2)
        gap = produce(wire, "survives", sequenced(producer_id, 4))
        assert gap.error_code is ErrorCode.out_of_order_sequence_number
        assert produce(wire, "survives", sequenced(producer_id, 3)).base_offset == 3


def test_a_transactional_produce_is_refused(node: NodeProcess) -> None:
    topic = unique("transactional")
    with Wire(node.port) as wire:
        create_topic(wire, topic)
        refused = produce(wire, topic, batch_of(b"value"), transactional_id="mine")
        assert refused.error_code is ErrorCode.invalid_txn_state
        flagged = batch_of(
            b"value",
            producer_id=ProducerId(1),
            producer_epoch=ProducerEpoch(0),
            base_sequence=0,
            transactional=True,
        )
        assert produce(wire, topic, flagged).error_code is ErrorCode.invalid_txn_state
        assert end_offset(wire, topic) == 0
