"""Records into a topic through librdkafka, with an honest account of what became of them."""

import time
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kbus.cli.console_record import ConsoleRecord
from kbus.cli.interrupt import Interrupt
from kbus.cli.kafka import reason_of
from kbus.cli.output import CliError, note
from kbus.client.partitioner import Partitioner

_POLL_EVERY = 1000
_WAIT_S = 0.1
_FULL_QUEUE_WAIT_S = 0.01
_REASONS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    sent: int
    acknowledged: int
    failed: int
    unknown: int
    """Sent, but neither acknowledged nor refused when the command had to end."""
    seconds: float

    @property
    def complete(self) -> bool:
        return self.failed == 0 and self.unknown == 0


class Failures:
    """Counts what was not delivered, by reason. Its `delivered` is the producer's `on_delivery`."""

    def __init__(self) -> None:
        self._by_reason: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self._by_reason.total()

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.add(error)

    def add(self, error: KafkaError) -> None:
        reason = reason_of(error)
        self._by_reason[reason] += 1
        if self._by_reason[reason] == 1 and len(self._by_reason) <= _REASONS_SHOWN:
            note(f"A record failed: {reason}.")


class Sender:
    """Queues records without growing: a full queue waits for the broker. `finish` waits for the last answer.

    librdkafka is asked to report failures only (`delivery.report.only.error`), which spares a call a record:
    what has left its queue and has not failed was acknowledged."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        failures: Failures,
        partitioner: Partitioner | None,
        interrupt: Interrupt,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._failures = failures
        self._partitioner = partitioner
        self._interrupt = interrupt
        self._started = time.monotonic()
        self._sent = 0

    def send(self, record: ConsoleRecord) -> None:
        key, value, headers, partition, timestamp_ms = record
        if partition is None:
            if self._partitioner is None:
                partition = -1
            else:
                partition = self._partitioner.choose(key, len(value or b"") + len(key or b""))
        while self._interrupt.signal_number is None:
            try:
                if headers or timestamp_ms is not None:
                    self._producer.produce(
                        self._topic, value, key, partition, timestamp=timestamp_ms or 0, headers=[*headers]
                    )
                else:
                    self._producer.produce(self._topic, value, key, partition)
            except BufferError:
                self._producer.poll(_FULL_QUEUE_WAIT_S)
            except KafkaException as error:
                self._refused(error.args[0])
                return
            else:
                self._sent += 1
                if self._sent % _POLL_EVERY == 0:
                    self._producer.poll(0)
                return

    def flush(self) -> None:
        while len(self._producer) and self._interrupt.signal_number is None:
            self._producer.flush(_WAIT_S)

    def finish(self, timeout_s: float) -> Summary:
        """Waits until everything is answered; after a signal, no longer than `timeout_s`."""
        deadline: float | None = None
        try:
            while len(self._producer):
                self._producer.flush(_WAIT_S)
                if self._interrupt.signal_number is not None:
                    now = time.monotonic()
                    deadline = now + timeout_s if deadline is None else deadline
                    if now > deadline:
                        break
        except KeyboardInterrupt:
            pass  # asked to stop a second time: the account below says what is not known
        unknown = len(self._producer)
        failed = self._failures.total
        return Summary(
            sent=self._sent,
            acknowledged=self._sent - failed - unknown,
            failed=failed,
            unknown=unknown,
            seconds=time.monotonic() - self._started,
        )

    def _refused(self, error: KafkaError) -> None:
        """Refused before it was queued: sent, from the point of view of the person who typed it."""
        if error.fatal():
            raise CliError(f"The producer cannot go on: {reason_of(error)}.")
        self._sent += 1
        self._failures.add(error)
