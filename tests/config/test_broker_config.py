from pathlib import Path

import pytest

from kbus.config import (
    BrokerConfig,
    ConfigError,
    ConfigSource,
    ConfigType,
    Endpoint,
    ZooKeeperAddress,
    broker,
)

# What the server.properties that comes with Kafka sets.
STOCK = """\
# The id of the broker.
broker.id=0
#listeners=PLAINTEXT://:9092
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


def test_kafkas_own_server_properties_loads(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(STOCK)
    config = BrokerConfig.load(path)
    assert config[broker.BROKER_ID] == 0
    assert config.log_dirs == (Path("/tmp/kafka-logs"),)
    assert config[broker.ZOOKEEPER_CONNECT] == ZooKeeperAddress((("localhost", 2181),))
    assert config.zookeeper_connection_timeout_ms == 18000
    assert "num.io.threads is known to Kafka, not used by kbus." in config.warnings
    assert not any("broker.id" in warning for warning in config.warnings)


def test_overrides_go_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=2\nbroker.id=4\n")
    config = BrokerConfig.load(path, {"num.partitions": "8"})
    assert (config[broker.NUM_PARTITIONS], config[broker.BROKER_ID]) == (8, 4)


def test_without_a_file_everything_has_its_default() -> None:
    config = BrokerConfig.load()
    assert config[broker.ZOOKEEPER_CONNECT] is None
    assert config.log_dirs == ()
    assert config.zookeeper_connection_timeout_ms == config[broker.ZOOKEEPER_SESSION_TIMEOUT_MS] == 6000
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("num.partitions", "0", "num.partitions must be a whole number of at least 1, but it is '0'."),
        (
            "num.partitions",
            "three",
            "num.partitions must be a whole number of at least 1, but it is 'three'.",
        ),
        (
            "num.partitions",
            "1_000",
            "num.partitions must be a whole number of at least 1, but it is '1_000'.",
        ),
        ("num.partitions", "2147483648", "num.partitions must be at most 2147483647, but it is 2147483648."),
        ("num.partition", "3", "Unknown broker setting num.partition; did you mean num.partitions?"),
        (
            "zookeeper.conect",
            "a:1",
            "Unknown broker setting zookeeper.conect; did you mean zookeeper.connect?",
        ),
        ("walrus", "3", "Unknown broker setting walrus."),
        ("delete.topic.enable", "yes", "delete.topic.enable must be true or false, but it is 'yes'."),
        (
            "log.retention.ms",
            "0",
            "log.retention.ms must be a whole number of at least 1, or -1, but it is '0'.",
        ),
        ("log.cleaner.min.cleanable.ratio", "nan", "must be a number from 0 to 1, but it is 'nan'."),
        ("log.cleanup.policy", "delete,shred", "log.cleanup.policy must be a list of compact or delete, but"),
        (
            "compression.type",
            "brotli",
            "compression.type must be uncompressed, zstd, lz4, snappy, gzip or producer",
        ),
        ("listeners", "localhost:9092", "listeners must be a list of NAME://host:port, but it is"),
        ("listeners", "PLAINTEXT://:99999", "listeners has the port 99999; ports go from 0 to 65535."),
        ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "listeners names a listener twice"),
        ("listeners", "SSL://:9093", "The listener SSL asks for SSL, but kbus speaks PLAINTEXT only;"),
        ("listeners", "INSIDE://:9093", "add INSIDE:PLAINTEXT to listener.security.protocol.map."),
        (
            "listener.security.protocol.map",
            "A:TLS",
            "listener.security.protocol.map must be a list of LISTENER:",
        ),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "to which no client can connect"),
        (
            "advertised.listeners",
            "OTHER://host:9092",
            "advertised.listeners has OTHER, which is not in listeners",
        ),
        (
            "inter.broker.listener.name",
            "OTHER",
            "inter.broker.listener.name is OTHER, which is not in listeners.",
        ),
        ("zookeeper.connect", "", "zookeeper.connect must be host:port,host:port/chroot, but it is ''."),
        ("zookeeper.connect", "a:2181/x//y", "has the chroot '/x//y', which is not a path"),
        ("process.roles", "broker,controller", "process.roles is for Kafka without ZooKeeper"),
        ("authorizer.class.name", "a.B", "asks for access control, which kbus does not have"),
        ("security.inter.broker.protocol", "SSL", "kbus speaks PLAINTEXT only"),
        ("replica.fetch.wait.max.ms", "40000", "must not exceed replica.socket.timeout.ms (30000)."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(name: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig({name: value})
    assert sentence in str(raised.value)


def test_listeners_of_other_names_work_when_they_are_mapped_to_plaintext() -> None:
    config = BrokerConfig(
        {
            "listeners": "INSIDE://10.0.0.1:9092,outside://:0",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:plaintext",
            "inter.broker.listener.name": "inside",
        }
    )
    assert config[broker.LISTENERS] == (Endpoint("INSIDE", "10.0.0.1", 9092), Endpoint("OUTSIDE", "", 0))
    assert config.inter_broker_listener == "INSIDE"
    assert config.advertised_endpoints({"INSIDE": 9092, "OUTSIDE": 41234}, "host.example") == (
        Endpoint("INSIDE", "10.0.0.1", 9092),
        Endpoint("OUTSIDE", "host.example", 41234),
    )


def test_advertised_listeners_go_before_the_bound_ones() -> None:
    config = BrokerConfig({"advertised.listeners": "PLAINTEXT://[2001:db8::1]:19092"})
    assert config.advertised_endpoints({"PLAINTEXT": 9092}, "here") == (
        Endpoint("PLAINTEXT", "2001:db8::1", 19092),
    )


def test_zookeeper_connect_takes_an_ensemble_and_a_chroot() -> None:
    address = BrokerConfig({"zookeeper.connect": "zk1,zk2:2182, [::1]:2183/kafka/a/"})[
        broker.ZOOKEEPER_CONNECT
    ]
    assert address == ZooKeeperAddress((("zk1", 2181), ("zk2", 2182), ("::1", 2183)), "/kafka/a")
    assert str(address) == "zk1:2181,zk2:2182,[::1]:2183/kafka/a"


def test_describe_tells_where_a_value_comes_from() -> None:
    config = BrokerConfig({"max.connections": "50"}).with_dynamic(
        broker={"max.connections": "70"}, default={"max.connections": "60"}
    )
    entry = next(entry for entry in config.describe() if entry.name == "max.connections")
    assert (entry.value, entry.source, entry.type) == (
        "70",
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigType.INT,
    )
    assert [(synonym.value, int(synonym.source)) for synonym in entry.synonyms] == [
        ("70", 2),
        ("60", 3),
        ("50", 4),
        ("2000", 5),
    ]
    assert not entry.read_only
    assert entry.documentation


def test_read_only_settings_are_not_changed_while_running() -> None:
    with pytest.raises(ConfigError, match=r"broker\.id is read at start; change it in the broker's file"):
        BrokerConfig().with_dynamic(broker={"broker.id": "3"})


def test_dynamic_changes_keep_the_file_below_them() -> None:
    config = BrokerConfig({"num.io.threads": "3", "message.max.bytes": "5"})
    changed = config.with_dynamic(default={"message.max.bytes": "6"})
    assert changed[broker.MESSAGE_MAX_BYTES] == 6
    assert changed.with_dynamic()[broker.MESSAGE_MAX_BYTES] == config[broker.MESSAGE_MAX_BYTES] == 5
    assert changed.warnings == config.warnings
