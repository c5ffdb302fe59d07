"""A producer that writes to one partition all the time, to see when writes are acknowledged, and when not."""

import asyncio
import threading
import time
from bisect import insort
from itertools import pairwise
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Producer

from kbus.types import TopicPartition

KEY: Final = b"kbus-chaos-probe"
_EVERY_S: Final = 0.005
_POLL_S: Final = 0.002
_MAX_WAITING: Final = 500
_LOOK_EVERY_S: Final = 0.005

_CONFIG: Final[dict[str, Any]] = {
    "client.id": "kbus-chaos-probe",
    "acks": "all",
    "linger.ms": 0,
    # To see the cluster's own delay and not the client's patience: it asks anew after milliseconds.
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "topic.metadata.refresh.interval.ms": 1000,
    "request.timeout.ms": 1000,
    "socket.timeout.ms": 1000,
    "socket.connection.setup.timeout.ms": 1000,
    "message.timeout.ms": 300_000,
    "allow.auto.create.topics": False,
    "log_level": 0,
}


class Write(NamedTuple):
    acknowledged_ns: int
    """By `time.monotonic_ns`."""
    sent_ns: int
    offset: int


class WriteProbe:
    """`with WriteProbe(servers, partition) as probe: await probe.acknowledged_after(ns)`

    A record every 5 ms, each with the key "kbus-chaos-probe", acks=all, retried until it is acknowledged."""

    def __init__(self, servers: str, partition: TopicPartition) -> None:
        self.partition = partition
        self.writes: list[Write] = []
        """Acknowledged ones, by the time of that."""
        self.sent = 0
        self.failed = 0
        self.last_error: str | None = None
        self._servers = servers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def __enter__(self) -> "WriteProbe":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self._thread.join()

    async def acknowledged_after(self, ns: int) -> Write:
        """The first acknowledged of the writes that were sent after `ns`."""
        while True:
            for write in tuple(self.writes):
                if write.sent_ns >= ns:
                    return write
            await asyncio.sleep(_LOOK_EVERY_S)

    def longest_pause_ms(self, since_ns: int) -> float | None:
        """The longest time without an acknowledgement, from the last one before `since_ns` on; up to now, if
        the last one was long ago. None if there was none at all."""
        times = [write.acknowledged_ns for write in tuple(self.writes)]
        marks = [*[at for at in times if at <= since_ns][-1:], *(at for at in times if at > since_ns)]
        if not marks:
            return None
        return max(later - earlier for earlier, later in pairwise((*marks, time.monotonic_ns()))) / 1e6

    def _run(self) -> None:
        """The producer is nobody else's, so that it and its connections end with this."""
        producer = Producer({**_CONFIG, "bootstrap.servers": self._servers, "error_cb": self._on_error})
        due_ns = time.monotonic_ns()
        while not self._stopping.is_set():
            if time.monotonic_ns() >= due_ns and len(producer) < _MAX_WAITING:
                self._send(producer)
                due_ns = time.monotonic_ns() + int(_EVERY_S * 1e9)
            producer.poll(_POLL_S)
        # What is not acknowledged by now is of no interest any more.
        producer.purge()
        producer.flush(1.0)

    def _send(self, producer: Producer) -> None:
        sent_ns = time.monotonic_ns()
        self.sent += 1

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            if error is None:
                insort(self.writes, Write(time.monotonic_ns(), sent_ns, message.offset()))
            elif not self._stopping.is_set():
                self.failed += 1
                self.last_error = error.str()

        producer.produce(
            self.partition.topic,
            partition=self.partition.partition,
            key=KEY,
            value=str(self.sent).encode(),
            on_delivery=on_delivery,
        )

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error.str()
