"""What a partition remembers of an idempotent producer, and what it accepts from it next.

Pure: a `ProducerEntry` is a value. `accept` says no with an error, or gives the entry that holds once the
batch is in the log; whoever owns the entries puts it in place only then.
"""

from typing import NamedTuple

from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.records.batch import MAX_SEQUENCE, BatchHeader
from kbus.records.validation import AppendOrigin
from kbus.types import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, Offset, ProducerEpoch, ProducerId

WINDOW = 5
"""Batches remembered a producer: as many as a client may have in flight."""
_OLD_SEQUENCES = 2**30
"""Sequences wrap, so "before" means at most this far behind."""


class WrittenBatch(NamedTuple):
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    """Offsets (and sequences) from the first to the last record."""
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> Offset:
        return Offset(self.last_offset - self.offset_delta)


class ProducerEntry(NamedTuple):
    """`batches`: the last ones of `producer_epoch`, at most WINDOW, in order of offset."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    batches: tuple[WrittenBatch, ...] = ()
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = -1
    txn_first_offset: Offset | None = None
    """Where the transaction in progress begins in this partition."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


def next_sequence(sequence: int) -> int:
    """After NO_SEQUENCE comes 0, and after MAX_SEQUENCE comes 0 again."""
    return (sequence + 1) & MAX_SEQUENCE


def find_duplicate(entry: ProducerEntry, header: BatchHeader) -> WrittenBatch | None:
    """The batch in the window with exactly this epoch and these sequences: the first try of this retry."""
    if header.producer_epoch == entry.producer_epoch:
        first, last = header.base_sequence, header.last_sequence
        for batch in entry.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
    return None


def accept(
    entry: ProducerEntry,
    header: BatchHeader,
    base_offset: Offset,
    max_timestamp: int,
    origin: AppendOrigin | None,
) -> ProducerEntry:
    """The entry after the data batch `header` is written at `base_offset`. Raises if it must not be.

    A client's batch is checked for epoch and sequence, a coordinator's for the epoch: it has no sequences.
    Without an origin, replicated or read back from the log, a batch has been checked before."""
    epoch = header.producer_epoch
    if origin is not None:
        check_epoch(entry, epoch)
        if origin is AppendOrigin.CLIENT:
            _check_sequence(entry, header)
        if entry.txn_first_offset is not None and not header.is_transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {entry.producer_id} has a transaction open here and wrote outside of it",
            )
    delta = header.last_offset_delta
    batch = WrittenBatch(header.last_sequence, Offset(base_offset + delta), delta, max_timestamp)
    batches = (*entry.batches[1 - WINDOW :], batch) if epoch == entry.producer_epoch else (batch,)
    txn_first_offset = entry.txn_first_offset
    if txn_first_offset is None and header.is_transactional:
        txn_first_offset = base_offset
    return ProducerEntry(
        entry.producer_id, epoch, batches, max_timestamp, entry.coordinator_epoch, txn_first_offset
    )


def end_transaction(
    entry: ProducerEntry,
    producer_epoch: ProducerEpoch,
    coordinator_epoch: int,
    timestamp: int,
    origin: AppendOrigin | None,
) -> ProducerEntry:
    """The entry after a commit or abort marker. An older coordinator, or producer epoch, is fenced."""
    if origin is not None:
        check_epoch(entry, producer_epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"the marker for producer {entry.producer_id} has coordinator epoch {coordinator_epoch}, but "
                f"{entry.coordinator_epoch} is known",
            )
    batches = entry.batches if producer_epoch == entry.producer_epoch else ()
    return ProducerEntry(entry.producer_id, producer_epoch, batches, timestamp, coordinator_epoch, None)


def check_epoch(entry: ProducerEntry, epoch: ProducerEpoch) -> None:
    if epoch < entry.producer_epoch:
        raise KafkaError(
            ErrorCode.invalid_producer_epoch,
            f"producer {entry.producer_id} sent epoch {epoch}, but epoch {entry.producer_epoch} is known",
        )


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
    sequence = header.base_sequence
    if entry.producer_epoch == NO_PRODUCER_EPOCH:
        # Nothing is known: a new producer, or one whose state expired. Any sequence may be its next.
        return
    if header.producer_epoch != entry.producer_epoch:
        if sequence != 0:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {entry.producer_id} began epoch {header.producer_epoch} with sequence {sequence}, "
                "not 0",
            )
        return
    expected = next_sequence(entry.last_sequence)
    if sequence == expected:
        return
    if len(entry.batches) == WINDOW:
        # A client has at most WINDOW batches in flight, so one that lies wholly before a full window was
        # written and acknowledged before: its offset is forgotten, but it is no gap.
        behind = (entry.batches[0].first_sequence - header.last_sequence) & MAX_SEQUENCE
        if 0 < behind < _OLD_SEQUENCES:
            raise KafkaError(
                ErrorCode.duplicate_sequence_number,
                f"producer {entry.producer_id} sent sequence {sequence} again; {expected} comes next",
            )
    raise KafkaError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {entry.producer_id} sent sequence {sequence}, but {expected} comes next",
    )


def is_expired(entry: ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    """A producer with a transaction open never expires."""
    return entry.txn_first_offset is None and now_ms - entry.last_timestamp >= expiration_ms


def prepend(entry: ProducerEntry, older: tuple[WrittenBatch, ...]) -> ProducerEntry:
    """Fill the window with batches found in the log, as far as they lead up to what is known."""
    batches = entry.batches
    for batch in reversed(older):
        if len(batches) == WINDOW or not batches:
            break
        if batch.last_offset >= batches[0].first_offset:
            continue
        if next_sequence(batch.last_sequence) != batches[0].first_sequence:
            break
        batches = (batch, *batches)
    return entry._replace(batches=batches)


def cut(entry: ProducerEntry, end: Offset) -> ProducerEntry | None:
    """The entry of a log that was cut off at `end`, as far as the window tells; None if it does not."""
    batches = tuple(batch for batch in entry.batches if batch.last_offset < end)
    if not batches:
        return None
    first = entry.txn_first_offset
    return entry._replace(
        batches=batches,
        last_timestamp=batches[-1].timestamp,
        txn_first_offset=first if first is not None and first < end else None,
    )
