"""Names that a Kafka broker knows and kbus has no use for: a file that contains them loads all the same.

A few cannot be passed over, because a cluster that ignored them would not be what its owner asked for.
"""

_NAMES = frozenset(
    (
        "alter.config.policy.class.name",
        "auto.leader.rebalance.enable",
        "background.threads",
        "broker.heartbeat.interval.ms",
        "broker.id.generation.enable",
        "broker.session.timeout.ms",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "control.plane.listener.name",
        "controller.listener.names",
        "controller.socket.timeout.ms",
        "create.topic.policy.class.name",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "follower.replication.throttled.rate",
        "initial.broker.registration.timeout.ms",
        "inter.broker.protocol.version",
        "leader.imbalance.check.interval.seconds",
        "leader.imbalance.per.broker.percentage",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.enable",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "log.dir.failure.timeout.ms",
        "log.initial.task.delay.ms",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "max.connection.creation.rate",
        "max.connections.per.ip.overrides",
        "max.request.partition.size.limit",
        "node.id",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offset.metadata.max.bytes",
        "principal.builder.class",
        "producer.id.expiration.check.interval.ms",
        "producer.purgatory.purge.interval.requests",
        "queued.max.request.bytes",
        "queued.max.requests",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "replica.selector.class",
        "replica.socket.receive.buffer.bytes",
        "request.timeout.ms",
        "security.inter.broker.protocol",
        "security.providers",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "telemetry.max.bytes",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
        "zookeeper.clientCnxnSocket",
        "zookeeper.max.in.flight.requests",
        "zookeeper.set.acl",
    )
)
_PREFIXES = (
    "alter.log.dirs.replication.quota.",
    "auto.include.jmx.reporter",
    "client.quota.",
    "confluent.",
    "controlled.shutdown.",
    "controller.quorum.",
    "controller.quota.",
    "delegation.token.",
    "group.",
    "kafka.metrics.",
    "listener.name.",
    "metadata.",
    "metric.",
    "metrics.",
    "offsets.",
    "password.encoder.",
    "quota.",
    "remote.",
    "replication.quota.",
    "sasl.",
    "share.",
    "ssl.",
    "super.users",
    "transaction.",
    "zookeeper.metadata.migration.",
    "zookeeper.ssl.",
)


def is_kafka_only(name: str) -> bool:
    """Asked after the table of settings, so that a prefix may cover settings that kbus does use."""
    return name in _NAMES or name.startswith(_PREFIXES)


def refusal(name: str, value: str) -> str | None:
    """Why a broker must not start with this setting ignored, as a sentence."""
    if name == "process.roles" and value:
        return (
            "process.roles is for Kafka without ZooKeeper (KRaft); kbus keeps its state in ZooKeeper: remove "
            "it, and set zookeeper.connect or nothing for a ZooKeeper of its own."
        )
    if name == "authorizer.class.name" and value:
        return (
            "authorizer.class.name asks for access control, which kbus does not have; remove it if anyone "
            "who can connect may read and write."
        )
    if name == "security.inter.broker.protocol" and value.upper() != "PLAINTEXT":
        return f"security.inter.broker.protocol cannot be {value}: kbus speaks PLAINTEXT only, so remove it."
    return None
