"""What a partition accepts from an idempotent producer."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbus.core.producer_window import (
    WINDOW,
    ProducerEntry,
    WrittenBatch,
    accept,
    check_epoch,
    cut,
    end_transaction,
    find_duplicate,
    is_expired,
    next_sequence,
    prepend,
)
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import MAX_SEQUENCE, BatchHeader, make_attributes
from kbus.records.validation import AppendOrigin
from kbus.types import NO_EPOCH, Offset, ProducerEpoch, ProducerId

PRODUCER = ProducerId(7)


def header(sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False) -> BatchHeader:
    return BatchHeader(
        base_offset=Offset(0),
        batch_length=100,
        leader_epoch=NO_EPOCH,
        magic=2,
        crc=0,
        attributes=make_attributes(transactional=transactional),
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=PRODUCER,
        producer_epoch=ProducerEpoch(epoch),
        base_sequence=sequence,
        record_count=count,
    )


def write(
    entry: ProducerEntry, *headers: BatchHeader, origin: AppendOrigin | None = AppendOrigin.CLIENT
) -> ProducerEntry:
    for one in headers:
        base = entry.batches[-1].last_offset + 1 if entry.batches else 0
        entry = accept(entry, one, Offset(base), 1000, origin)
    return entry


def new() -> ProducerEntry:
    return ProducerEntry(PRODUCER)


def refusal(entry: ProducerEntry, one: BatchHeader, origin: AppendOrigin = AppendOrigin.CLIENT) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        accept(entry, one, Offset(0), 0, origin)
    return caught.value.code


def test_sequences_go_on_without_a_gap() -> None:
    entry = write(new(), header(0, 3), header(3, 2))
    assert entry.last_sequence == 4
    assert refusal(entry, header(6)) is ErrorCode.out_of_order_sequence_number
    assert write(entry, header(5)).last_sequence == 5


def test_a_producer_without_state_may_begin_with_any_sequence() -> None:
    assert write(new(), header(41)).last_sequence == 41


def test_a_new_epoch_begins_at_sequence_0() -> None:
    entry = write(new(), header(0), header(1))
    assert refusal(entry, header(2, epoch=1)) is ErrorCode.out_of_order_sequence_number
    entry = write(entry, header(0, epoch=1))
    assert entry.producer_epoch == 1
    assert len(entry.batches) == 1


def test_an_older_epoch_is_refused_whoever_appends() -> None:
    entry = write(new(), header(0, epoch=3))
    for origin in AppendOrigin:
        assert refusal(entry, header(1, epoch=2), origin) is ErrorCode.invalid_producer_epoch
    with pytest.raises(KafkaError):
        check_epoch(entry, ProducerEpoch(2))


def test_a_coordinator_writes_without_sequences() -> None:
    entry = write(new(), header(-1), header(-1), origin=AppendOrigin.COORDINATOR)
    assert len(entry.batches) == 2


def test_what_was_checked_before_is_taken_as_it_is() -> None:
    entry = write(new(), header(9, epoch=4))
    assert write(entry, header(77, epoch=2), origin=None).last_sequence == 77


def test_sequences_wrap_to_0() -> None:
    entry = write(new(), header(MAX_SEQUENCE - 1, 4))
    assert entry.last_sequence == 1
    assert find_duplicate(entry, header(MAX_SEQUENCE - 1, 4)) == entry.batches[0]
    assert write(entry, header(2)).last_sequence == 2
    ends_at_maximum = write(new(), header(MAX_SEQUENCE))
    assert write(ends_at_maximum, header(0)).last_sequence == 0
    assert next_sequence(-1) == 0


def test_a_retry_of_any_of_the_last_five_batches_is_recognised() -> None:
    entry = write(new(), *(header(i) for i in range(8)))
    assert len(entry.batches) == WINDOW
    for sequence in range(3, 8):
        found = find_duplicate(entry, header(sequence))
        assert found is not None
        assert found.first_offset == found.last_offset == sequence
    assert find_duplicate(entry, header(2)) is None


def test_only_the_same_sequences_and_epoch_make_a_retry() -> None:
    entry = write(new(), header(0, 3))
    assert find_duplicate(entry, header(0, 3)) is not None
    assert find_duplicate(entry, header(0, 2)) is None
    assert find_duplicate(entry, header(1, 2)) is None
    assert find_duplicate(entry, header(0, 3, epoch=1)) is None


def test_a_batch_wholly_before_a_full_window_is_a_duplicate_not_a_gap() -> None:
    entry = write(new(), *(header(10 * i, 10) for i in range(7)))
    assert refusal(entry, header(10, 10)) is ErrorCode.duplicate_sequence_number
    # It overlaps what is known without being it.
    assert refusal(entry, header(15, 10)) is ErrorCode.out_of_order_sequence_number
    assert refusal(entry, header(20, 20)) is ErrorCode.out_of_order_sequence_number


def test_a_batch_before_a_short_window_may_never_have_been_written() -> None:
    """Its state had expired: nothing is known of what came before."""
    entry = write(new(), header(10), header(11))
    assert refusal(entry, header(9)) is ErrorCode.out_of_order_sequence_number


def test_old_sequences_are_recognised_across_the_wrap() -> None:
    entry = write(new(), *(header((MAX_SEQUENCE - 2 + i) & MAX_SEQUENCE) for i in range(8)))
    assert refusal(entry, header(MAX_SEQUENCE - 2)) is ErrorCode.duplicate_sequence_number
    assert refusal(entry, header(9)) is ErrorCode.out_of_order_sequence_number


def test_a_producer_expires_by_its_last_timestamp_but_not_within_a_transaction() -> None:
    entry = write(new(), header(0))
    assert not is_expired(entry, 1999, 1000)
    assert is_expired(entry, 2000, 1000)
    assert not is_expired(write(new(), header(0, transactional=True)), 10**15, 1000)


def test_a_transaction_begins_with_its_first_batch_and_ends_with_its_marker() -> None:
    entry = write(new(), header(0, 2), header(2, transactional=True), header(3, transactional=True))
    assert entry.txn_first_offset == 2
    assert refusal(entry, header(4)) is ErrorCode.invalid_txn_state
    entry = end_transaction(entry, ProducerEpoch(0), 5, 2000, AppendOrigin.COORDINATOR)
    assert entry.txn_first_offset is None
    assert (entry.coordinator_epoch, entry.last_timestamp, entry.last_sequence) == (5, 2000, 3)
    assert write(entry, header(4, transactional=True)).txn_first_offset == 4


def test_an_older_coordinator_and_an_older_producer_cannot_end_a_transaction() -> None:
    entry = end_transaction(write(new(), header(0, epoch=2)), ProducerEpoch(2), 5, 0, None)
    for epoch, coordinator_epoch, code in (
        (2, 4, ErrorCode.transaction_coordinator_fenced),
        (1, 5, ErrorCode.invalid_producer_epoch),
    ):
        with pytest.raises(KafkaError) as caught:
            end_transaction(entry, ProducerEpoch(epoch), coordinator_epoch, 0, AppendOrigin.COORDINATOR)
        assert caught.value.code is code


def test_a_marker_with_a_new_epoch_fences_the_old_one() -> None:
    entry = end_transaction(write(new(), header(0)), ProducerEpoch(1), 0, 0, AppendOrigin.COORDINATOR)
    assert refusal(entry, header(1)) is ErrorCode.invalid_producer_epoch
    assert write(entry, header(0, epoch=1)).last_sequence == 0


def test_a_window_is_completed_only_with_what_leads_up_to_it() -> None:
    full = write(new(), *(header(2 * i, 2) for i in range(5)))
    short = full._replace(batches=full.batches[-1:])
    assert prepend(short, full.batches) == full
    assert prepend(short, full.batches[:3]) == short
    assert prepend(new(), full.batches) == new()


def test_a_window_is_cut_with_the_log() -> None:
    entry = write(new(), header(0, 2), header(2, 2), header(4, 2, transactional=True))
    shorter = cut(entry, Offset(4))
    assert shorter is not None
    assert (shorter.last_sequence, len(shorter.batches), shorter.txn_first_offset) == (3, 2, None)
    assert cut(entry, Offset(6)) == entry
    assert cut(entry, Offset(1)) is None


class Sent(NamedTuple):
    sequence: int
    records: int


@given(
    start=st.sampled_from([0, 5, MAX_SEQUENCE - 20]),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=25),
    retries=st.data(),
)
def test_every_record_is_written_exactly_once_however_often_it_is_sent(
    start: int, counts: list[int], retries: st.DataObject
) -> None:
    """A client with at most five batches in flight resends any of them at any time."""
    entry = new()
    sent: list[Sent] = []
    written: list[Sent] = []
    sequence = start
    for count in counts:
        sent.append(Sent(sequence, count))
        sequence = (sequence + count) & MAX_SEQUENCE
        tries = [sent[-1], *retries.draw(st.lists(st.sampled_from(sent[-WINDOW:]), max_size=3))]
        for one in tries:
            head = header(one.sequence, one.records)
            duplicate = find_duplicate(entry, head)
            if duplicate is None:
                entry = write(entry, head)
                written.append(one)
            else:
                assert duplicate.offset_delta == one.records - 1
    assert written == sent
    assert sum(one.records for one in written) == entry.batches[-1].last_offset + 1
    assert all(isinstance(b, WrittenBatch) for b in entry.batches)
