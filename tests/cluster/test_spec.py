from pathlib import Path

import pytest

from kbus.cluster import toml_file
from kbus.cluster.spec import BrokerWishes, ClusterSpec, SpecError, Wishes, check_name, planned

SAMPLE = Path(__file__).parents[2] / "sample_configs" / "cluster.toml"


def spec(**wishes: object) -> ClusterSpec:
    return planned("local", None, Wishes(**wishes))  # type: ignore[arg-type]


class TestANewCluster:
    def test_has_three_brokers_and_replicated_topics_unless_told_otherwise(self) -> None:
        new = spec()
        assert [broker.id for broker in new.brokers] == [1, 2, 3]
        assert new.settings == {"default.replication.factor": "3", "min.insync.replicas": "2"}

    def test_with_fewer_brokers_asks_for_no_more_replicas_than_there_are(self) -> None:
        assert spec(brokers=1).settings == {"default.replication.factor": "1", "min.insync.replicas": "1"}
        assert spec(brokers=2).settings == {"default.replication.factor": "2", "min.insync.replicas": "1"}

    def test_gives_racks_to_the_brokers_in_turn(self) -> None:
        assert [broker.rack for broker in spec(brokers=5, racks=("a", "b")).brokers] == [
            "a",
            "b",
            "a",
            "b",
            "a",
        ]

    def test_has_ports_from_the_base_port_on(self) -> None:
        assert [broker.port for broker in spec(base_port=9092).brokers] == [9092, 9093, 9094]

    def test_starts_each_broker_with_its_own_settings_over_those_of_all(self) -> None:
        new = spec(
            settings={"num.partitions": "4", "log.retention.hours": "1"},
            per_broker={2: BrokerWishes(settings={"num.partitions": "7"}, rack="x", port=1234)},
        )
        properties = new.properties(new.broker(2), data=Path("/data"), zookeeper="localhost:2181")
        assert properties == {
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "num.partitions": "7",
            "log.retention.hours": "1",
            "broker.id": "2",
            "broker.rack": "x",
            "listeners": "PLAINTEXT://127.0.0.1:1234",
            "log.dirs": "/data",
            "zookeeper.connect": "localhost:2181",
        }


class TestAClusterThatExists:
    def test_is_as_it_was_without_wishes(self) -> None:
        old = spec(brokers=2, racks=("a",), base_port=9092, settings={"num.partitions": "4"}, restart=True)
        assert planned("local", old, Wishes()) == old

    def test_gets_more_brokers_with_new_numbers(self) -> None:
        grown = planned("local", spec(brokers=2, base_port=9092), Wishes(brokers=4))
        assert [(broker.id, broker.port) for broker in grown.brokers] == [
            (1, 9092),
            (2, 9093),
            (3, 0),
            (4, 0),
        ]

    def test_never_loses_brokers(self) -> None:
        with pytest.raises(SpecError, match="taking some away would lose what is on them"):
            planned("local", spec(brokers=3), Wishes(brokers=2))

    def test_is_the_same_after_it_was_written_down(self) -> None:
        old = spec(
            racks=("a",), base_port=9092, per_broker={2: BrokerWishes(settings={"num.partitions": "4"})}
        )
        assert ClusterSpec.from_json(old.to_json()) == old

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", '{"name": "x", "brokers": [{"no": 1}]}', '{"brokers": 1}']
    )
    def test_that_was_damaged_is_an_error_and_not_another_one(self, text: str) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
            ClusterSpec.from_json(text)


class TestWhatCannotBe:
    @pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 65, "default", "zookeeper"])
    def test_names(self, name: str) -> None:
        with pytest.raises(SpecError):
            check_name(name)

    def test_settings_that_the_launcher_makes_itself(self) -> None:
        with pytest.raises(SpecError, match=r"broker\.id cannot be in the cluster's settings"):
            spec(settings={"broker.id": "7"})
        with pytest.raises(SpecError, match=r"zookeeper\.connect is the same for all"):
            spec(per_broker={1: BrokerWishes(settings={"zookeeper.connect": "a:1"})})

    def test_settings_that_no_broker_knows_before_any_is_started(self) -> None:
        with pytest.raises(SpecError, match=r"did you mean num\.partitions\?"):
            spec(settings={"num.partition": "3"})

    def test_ports_beyond_the_last_or_given_twice(self) -> None:
        with pytest.raises(SpecError, match="choose a lower base port"):
            spec(base_port=65534)
        with pytest.raises(SpecError, match="Two brokers would have port 9093"):
            spec(base_port=9092, per_broker={1: BrokerWishes(port=9093)})

    @pytest.mark.parametrize("count", [0, 101])
    def test_numbers_of_brokers(self, count: int) -> None:
        with pytest.raises(SpecError, match="1 to 100 brokers"):
            spec(brokers=count)


class TestTheFile:
    def load(self, tmp_path: Path, text: str) -> tuple[str | None, Wishes]:
        path = tmp_path / "cluster.toml"
        path.write_text(text)
        return toml_file.load(path)

    def test_that_is_a_sample_describes_a_cluster(self) -> None:
        name, wishes = toml_file.load(SAMPLE)
        assert name == "sample"
        new = planned(name, None, wishes)
        assert [(broker.id, broker.port, broker.rack) for broker in new.brokers] == [
            (1, 19092, "a"),
            (2, 19093, "b"),
            (3, 19094, "b"),
        ]
        assert new.settings["num.partitions"] == "3"
        assert new.broker(3).settings == {"log.retention.hours": "24"}

    def test_takes_kafka_names_quoted_or_not_and_values_of_any_kind(self, tmp_path: Path) -> None:
        _, wishes = self.load(
            tmp_path,
            "[settings]\n'num.partitions' = 3\nauto.create.topics.enable = false\n"
            "compression.type = 'zstd'\nlog.cleanup.policy = ['delete', 'compact']\n",
        )
        assert wishes.settings == {
            "num.partitions": "3",
            "auto.create.topics.enable": "false",
            "compression.type": "zstd",
            "log.cleanup.policy": "delete,compact",
        }

    def test_lets_the_command_line_win(self, tmp_path: Path) -> None:
        _, in_file = self.load(tmp_path, "brokers = 5\nbase_port = 1\n[settings]\nnum.partitions = 3\n")
        wishes = Wishes(brokers=2, settings={"num.partitions": "9"}).over(in_file)
        assert (wishes.brokers, wishes.base_port, wishes.settings) == (2, 1, {"num.partitions": "9"})

    def test_with_a_broker_beyond_three_has_as_many(self, tmp_path: Path) -> None:
        _, wishes = self.load(tmp_path, "[broker.4]\nrack = 'x'\n")
        assert len(planned("local", None, wishes).brokers) == 4

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("broker = 3", "broker must be a table"),
            ("borkers = 3", "borkers is unknown; did you mean brokers?"),
            ("retention = 3", r"retention is unknown; settings of brokers belong into \[settings\]"),
            ("brokers = '3'", "brokers must be a number"),
            ("brokers = true", "brokers must be a number"),
            ("racks = 'a'", "racks must be a list"),
            ("[broker.x]\nport = 1", "broker.x must be broker.1"),
            ("[broker.1]\nposrt = 1", "broker.1.posrt is unknown; did you mean port?"),
            ("[settings]\na.b = 1979-05-27", "a.b must be a text"),
            ("a = ", "is not TOML"),
        ],
    )
    def test_with_a_mistake_says_where(self, tmp_path: Path, text: str, problem: str) -> None:
        with pytest.raises(SpecError, match=problem):
            self.load(tmp_path, text)

    def test_that_is_not_there_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="cannot be read: No such file"):
            toml_file.load(tmp_path / "none.toml")


def test_wishes_arrive_as_they_were_sent() -> None:
    wishes = Wishes(
        brokers=2, racks=("a", "b"), settings={"x": "y"}, per_broker={3: BrokerWishes(port=1, rack="r")}
    )
    assert Wishes.from_dict(wishes.to_dict()) == wishes
