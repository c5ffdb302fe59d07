"""`kbus topic`: create, list, describe, alter, delete."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kbus.cli.app import new_app
from kbus.cli.context import (
    BootstrapOption,
    TopicOption,
    bootstrap_servers,
    key_values,
    one_topic,
    properties,
)
from kbus.cli.output import (
    CliError,
    OutputFormat,
    OutputOption,
    note,
    print_fields,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from kbus.cli.topic_admin import Topic, TopicAdmin

app = new_app(help="Create, list, describe, alter and delete topics.")

TopicArgument = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)]
TopicsArgument = Annotated[list[str] | None, typer.Argument(metavar="TOPIC", show_default=False)]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; may be repeated."),
]
AssignmentOption = Annotated[
    str | None,
    typer.Option(
        "--replica-assignment",
        metavar="0:1,1:0,…",
        help="Brokers of each partition: partitions separated by commas, replicas by colons.",
    ),
]
IfExistsOption = Annotated[bool, typer.Option("--if-exists", help="A missing topic is no error.")]
ValidateOption = Annotated[bool, typer.Option("--validate-only", help="Only say whether it would work.")]
InternalOption = Annotated[
    bool, typer.Option("--exclude-internal", help="Leave out topics that the cluster keeps for itself.")
]
CommandConfigOption = Annotated[
    Path | None, typer.Option("--command-config", metavar="FILE", help="Properties for the client.")
]


@app.command()
def create(
    topic: TopicArgument = None,
    topic_option: TopicOption = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions. Default: the broker's num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Copies of each. Default: the broker's.")
    ] = None,
    replica_assignment: AssignmentOption = None,
    config: ConfigOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is already there is no error.")
    ] = False,
    validate_only: ValidateOption = False,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a topic.

    With --replica-assignment 0:1,1:0 it has two partitions of two copies each; the first broker of a
    partition is its preferred leader."""
    name = one_topic(topic, topic_option)
    assignment = parse_assignment(replica_assignment)
    if assignment is not None and (partitions is not None or replication_factor is not None):
        raise typer.BadParameter(
            "says how many partitions and copies there are; leave out --partitions and --replication-factor.",
            param_hint="--replica-assignment",
        )
    configs = key_values(config or (), "--config")
    admin = _admin(bootstrap_server, command_config)

    from kbus.cli.topic_admin import TopicExistsError

    existed = False
    try:
        admin.create(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignment=assignment,
            configs=configs,
            validate_only=validate_only,
        )
    except TopicExistsError:
        if not if_not_exists:
            raise
        existed = True
    if output is OutputFormat.JSON:
        print_json(
            {"topic": name, "created": not existed and not validate_only, "validated_only": validate_only}
        )
    elif existed:
        note(f"Topic {name!r} already exists; nothing to do.")
    else:
        note(f"Topic {name!r} could be created." if validate_only else f"Created topic {name!r}.")


@app.command("list")
def list_topics(
    exclude_internal: InternalOption = False,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the topics, with the number of their partitions and copies."""
    topics = _admin(bootstrap_server, command_config).replicas()
    rows = [
        (name, len(partitions), max(map(len, partitions.values()), default=0))
        for name, partitions in topics.items()
        if not (exclude_internal and _is_internal(name))
    ]
    if output is OutputFormat.JSON:
        print_json(
            [
                {"topic": name, "partitions": partitions, "replication_factor": replicas}
                for name, partitions, replicas in rows
            ]
        )
    else:
        empty = "There are no topics. `kbus topic create NAME` makes one."
        print_table(("topic", "partitions", "replicas"), rows, empty=empty)


@app.command()
def describe(
    topics: TopicsArgument = None,
    topic_option: TopicOption = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with copies out of sync.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    exclude_internal: InternalOption = False,
    if_exists: IfExistsOption = False,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show leader, replicas and in-sync replicas of each partition, and the settings of the topic's own.

    Without a topic, all are described."""
    admin = _admin(bootstrap_server, command_config)
    names = _names(topics, topic_option) or list(admin.replicas())
    described = admin.describe(
        [name for name in names if not (exclude_internal and _is_internal(name))], skip_missing=if_exists
    )
    if under_replicated or unavailable:
        described = [
            shown
            for topic in described
            if (shown := _only_troubled(topic, under_replicated, unavailable)).partitions
        ]
    if output is OutputFormat.JSON:
        print_json(
            [
                topic._asdict() | {"partitions": [partition._asdict() for partition in topic.partitions]}
                for topic in described
            ]
        )
        return
    for topic in described:
        _print_topic(topic)
    if not described:
        note("No such partitions." if under_replicated or unavailable else "There are no topics to describe.")


@app.command()
def alter(
    topic: TopicArgument = None,
    topic_option: TopicOption = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="New, higher number of partitions. Keys then change partition.")
    ] = None,
    replica_assignment: AssignmentOption = None,
    config: ConfigOption = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="A setting that goes back to its default."),
    ] = None,
    if_exists: IfExistsOption = False,
    validate_only: ValidateOption = False,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Add partitions to a topic, or change its settings.

    --replica-assignment goes with --partitions and lists all partitions, the old ones included, as Kafka's
    own tool has it."""
    name = one_topic(topic, topic_option)
    changes = key_values(config or (), "--config")
    deletions = [item.strip() for item in delete_config or ()]
    if clash := changes.keys() & set(deletions):
        raise typer.BadParameter(f"{', '.join(sorted(clash))} cannot be both set and deleted.")
    assignment = parse_assignment(replica_assignment)
    if assignment is not None and partitions != len(assignment):
        raise typer.BadParameter(
            f"lists {len(assignment)} partitions; --partitions must say the same.",
            param_hint="--replica-assignment",
        )
    if partitions is None and not changes and not deletions:
        raise typer.BadParameter("say what to change: --partitions, --config or --delete-config.")

    admin = _admin(bootstrap_server, command_config)
    existing = admin.replicas().get(name)
    if existing is None:
        if not if_exists:
            from kbus.cli.kafka import UnknownTopicError

            raise UnknownTopicError(name, bootstrap_servers(bootstrap_server))
    else:
        if partitions is not None:
            added = None if assignment is None else assignment[len(existing) :]
            admin.add_partitions(name, partitions, assignment=added, validate_only=validate_only)
        if changes or deletions:
            admin.change_configs(name, changes=changes, deletions=deletions, validate_only=validate_only)
    if output is OutputFormat.JSON:
        altered = existing is not None and not validate_only
        print_json({"topic": name, "altered": altered, "validated_only": validate_only})
    elif existing is None:
        note(f"Topic {name!r} does not exist; nothing to do.")
    else:
        note(f"Topic {name!r} could be altered." if validate_only else f"Altered topic {name!r}.")


@app.command()
def delete(
    topics: TopicsArgument = None,
    topic_option: TopicOption = None,
    if_exists: IfExistsOption = False,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete topics, with all of their records."""
    names = _names(topics, topic_option)
    if not names:
        raise typer.BadParameter("name a topic.", param_hint="TOPIC")
    admin = _admin(bootstrap_server, command_config)

    from kbus.cli.kafka import UnknownTopicError

    outcomes = admin.delete(names)
    deleted = [name for name, error in outcomes.items() if error is None]
    failures = [
        error
        for error in outcomes.values()
        if error and not (if_exists and isinstance(error, UnknownTopicError))
    ]
    if output is OutputFormat.JSON:
        print_json({"deleted": deleted})
    else:
        for name in deleted:
            note(f"Deleted topic {name!r}.")
    if failures:
        raise CliError(" ".join(failure.message for failure in failures), failures[-1].hint)


def parse_assignment(text: str | None) -> list[list[int]] | None:
    """Kafka's syntax: partitions separated by commas, the brokers of one by colons."""
    if text is None:
        return None
    try:
        assignment = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of broker ids such as 0:1,1:0.", param_hint="--replica-assignment"
        ) from None
    for number, replicas in enumerate(assignment):
        if len(set(replicas)) < len(replicas):
            raise typer.BadParameter(
                f"partition {number} names a broker twice.", param_hint="--replica-assignment"
            )
        if len(replicas) != len(assignment[0]):
            raise typer.BadParameter(
                f"partition {number} has {len(replicas)} replicas, partition 0 has {len(assignment[0])}.",
                param_hint="--replica-assignment",
            )
    return assignment


def _admin(bootstrap_server: str | None, command_config: Path | None) -> "TopicAdmin":
    servers = bootstrap_servers(bootstrap_server)
    client_properties = properties(command_config, (), "--command-config")

    from kbus.cli.topic_admin import TopicAdmin

    return TopicAdmin(servers, client_properties)


def _names(topics: list[str] | None, topic_option: str | None) -> list[str]:
    """Kafka's tool takes several topics, separated by commas, in one --topic."""
    return [*(topics or ()), *(topic_option.split(",") if topic_option else ())]


def _is_internal(topic: str) -> bool:
    return topic.startswith("__")


def _only_troubled(topic: "Topic", under_replicated: bool, unavailable: bool) -> "Topic":
    return topic._replace(
        partitions=[
            partition
            for partition in topic.partitions
            if (unavailable and partition.leader is None)
            or (under_replicated and len(partition.isr) < len(partition.replicas))
        ]
    )


def _print_topic(topic: "Topic") -> None:
    fields: dict[str, object] = {"Topic": topic.topic}
    if topic.topic_id is not None:
        fields["Id"] = topic.topic_id
    fields["Settings"] = ", ".join(f"{name}={value}" for name, value in topic.configs.items()) or "defaults"
    print_fields(fields)
    print_table(
        ("partition", "leader", "replicas", "in sync"),
        [
            (
                partition.partition,
                partition.leader,
                ",".join(map(str, partition.replicas)),
                ",".join(map(str, partition.isr)) or "none",
            )
            for partition in topic.partitions
        ],
    )
    typer.echo()
