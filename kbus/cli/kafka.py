"""librdkafka's clients as the commands use them: quiet, not without a broker, errors in sentences."""

import socket
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kbus.cli.context import host_and_port
from kbus.cli.output import CliError

REQUEST_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 3.0
UNKNOWN_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
}


class UnknownTopicError(CliError):
    def __init__(self, topic: str, servers: str) -> None:
        super().__init__(
            f"Topic {topic!r} does not exist at {servers}.",
            f"Create it with `kbus topic create {topic}`; `kbus topic list` shows those there are.",
        )


def admin_client(servers: str, properties: Mapping[str, str]) -> AdminClient:
    check_reachable(servers)
    return AdminClient(_config(servers, properties))


def producer(servers: str, properties: Mapping[str, Any]) -> Producer:
    check_reachable(servers)
    try:
        return Producer(_config(servers, properties))
    except KafkaException as error:
        raise refused_properties(error) from None


def consumer(servers: str, properties: Mapping[str, Any]) -> Consumer:
    check_reachable(servers)
    try:
        return Consumer(_config(servers, properties))
    except KafkaException as error:
        raise refused_properties(error) from None


def _config(servers: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    # log_level 0: librdkafka would write its own lines between ours. What matters arrives as an error.
    return {"client.id": "kbus", "log_level": 0, **properties, "bootstrap.servers": servers}


def refused_properties(error: KafkaException) -> CliError:
    reason = error_of(error).str().rstrip(".")
    return CliError(
        f"The client refuses its properties: {reason}.", "It takes librdkafka's names and values."
    )


def check_reachable(servers: str) -> None:
    """One of the servers must accept a connection, or the command ends at once with the reason.

    librdkafka by itself goes on trying, and says no more than that it timed out."""
    failures = []
    for server in servers.split(","):
        host, port = host_and_port(server.strip())
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
        except TimeoutError:
            failures.append(f"{host}:{port} does not answer")
        except OSError as error:
            failures.append(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
        else:
            return
    raise CliError(
        f"Cannot reach the cluster ({'; '.join(failures)}).",
        "Start a broker with `kbus broker start`, or point --bootstrap-server to one that runs.",
    )


def error_of(error: KafkaException) -> KafkaError:
    cause = error.args[0] if error.args else None
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


def explain(error: KafkaError | KafkaException, doing: str, *, servers: str) -> CliError:
    """`doing` completes "Cannot …": what the broker, or the way to it, did not allow."""
    cause = error_of(error) if isinstance(error, KafkaException) else error
    if cause.code() in _UNREACHABLE:
        return CliError(
            f"Cannot {doing}: no broker of {servers} answered in time.",
            "Look at the broker's log, and whether its advertised address can be reached from here.",
        )
    return CliError(f"Cannot {doing}: {reason_of(cause)}.")


def reason_of(error: KafkaError) -> str:
    """The broker's own words if it sent any; librdkafka's for the code otherwise, without its prefix."""
    text = error.str().rstrip(".")
    for prefix in ("Broker: ", "Local: "):
        text = text.removeprefix(prefix)
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def partitions_of(client: Any, topic: str, *, servers: str) -> list[int]:
    """The partitions of a topic, asked for through any of the clients; a CliError if it does not exist."""
    try:
        metadata = client.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        raise explain(error, f"look up topic {topic!r}", servers=servers) from None
    if metadata.error is not None:
        if metadata.error.code() in UNKNOWN_TOPIC:
            raise UnknownTopicError(topic, servers)
        raise explain(metadata.error, f"use topic {topic!r}", servers=servers)
    return sorted(metadata.partitions)
