"""compose.yaml and Dockerfile against the code: what can be judged of them without docker.

Each judgement is a function that returns what is wrong, so that the last section can show it something
wrong and see it object.
"""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from lastgood.agents.builtin import BUILTIN_NAMES
from lastgood.cli.parser import DEFAULT_AGENT, build_parser
from lastgood.cli.remote import TOKEN_VARIABLE
from lastgood.errors import WrongUsage
from lastgood.settings import Settings, read_settings
from lastgood.surfaces.http.metrics import Metrics
from lastgood.surfaces.routes import probes

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NODES = ("node-a", "node-b")
#: What a server does after its grace time: last words, and what it has stopped may end.
LAST_SECONDS = 15.0

SETTINGS = {f"LASTGOOD_{name.upper()}" for name in Settings.__dataclass_fields__}


def instructions(text: str) -> list[tuple[str, list[str]]]:
    """Of a Dockerfile: each word that starts a line, and what follows it."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(word, [rest] if word == "RUN" else shlex.split(rest)) for word, rest in found]


def environment_of_image(text: str) -> dict[str, str]:
    pairs = [pair for word, rest in instructions(text) if word == "ENV" for pair in rest]
    return dict(pair.split("=", 1) for pair in pairs)


# -- what is asked of compose.yaml ------------------------------------------------------------------------


def unknown_variables(compose: dict[str, Any]) -> list[str]:
    """Everything that begins like a setting is one, or is the variable that a setting names."""
    wrong = []
    for name in NODES:
        given = compose["services"][name]["environment"] | environment_of_image(DOCKERFILE)
        ours = {variable for variable in given if variable.startswith("LASTGOOD_")}
        wrong += sorted(ours - SETTINGS - {given.get("LASTGOOD_TOKEN_ENV")})
    return wrong


def unlike(compose: dict[str, Any]) -> list[str]:
    """What the nodes do not have in common, but for where they are reached."""
    one, other = (compose["services"][name] for name in NODES)
    return sorted(
        key for key in one.keys() | other.keys() if key != "ports" and one.get(key) != other.get(key)
    )


def unreachable_database(compose: dict[str, Any]) -> list[str]:
    """The nodes ask for what the database was made with."""
    wrong = []
    db = compose["services"]["db"]["environment"]
    for name in NODES:
        given = compose["services"][name]["environment"]
        address = urlsplit(given["LASTGOOD_DATABASE"])
        where = (address.scheme, address.hostname, address.username, address.path)
        if where != ("postgresql", "db", db["POSTGRES_USER"], f"/{db['POSTGRES_DB']}"):
            wrong.append(f"{name} asks for {where}")
        # In the address, a password would have to be escaped, and would be shown in more places.
        if address.password is not None or given["PGPASSWORD"] != db["POSTGRES_PASSWORD"]:
            wrong.append(f"{name} has another password")
    return wrong


def unparsed_commands(compose: dict[str, Any]) -> list[str]:
    wrong = []
    for name in NODES:
        service = compose["services"][name]
        try:
            parsed = build_parser().parse_args(service["command"])
        except WrongUsage:
            wrong.append(f"{name}: {service['command']}")
            continue
        mounted = {one.split(":")[1] for one in service["volumes"]}
        wrong += [agent for agent in parsed.agents if agent not in mounted and agent not in BUILTIN_NAMES]
        if not set(parsed.agents) & set(BUILTIN_NAMES):
            wrong.append(f"{name} serves nobody while ./agents is empty")
    return wrong


def dead_health_checks(compose: dict[str, Any]) -> list[str]:
    async def is_ready() -> None:
        return None

    known = {route.path for route in probes(Metrics(), is_ready) if route.method == "GET" and route.probe}
    port = environment_of_image(DOCKERFILE)["LASTGOOD_LISTEN"].rpartition(":")[2]
    wrong = []
    for name in NODES:
        service = compose["services"][name]
        address = urlsplit(re.findall(r"http://[^']+", " ".join(service["healthcheck"]["test"]))[0])
        if address.path not in known or str(address.port) != port:
            wrong.append(f"{name} is asked for {address.geturl()}")
        wrong += [
            f"{name}: {one}" for one in service["ports"] if not re.fullmatch(rf"127\.0\.0\.1:\d+:{port}", one)
        ]
    return wrong


def too_little_time(compose: dict[str, Any]) -> list[str]:
    """Nobody is killed who could have ended by itself."""
    wrong = []
    for name in NODES:
        service = compose["services"][name]
        grace = read_settings(service["environment"]).shutdown_grace
        given = float(service["stop_grace_period"].removesuffix("s"))
        if given < grace + LAST_SECONDS:
            wrong.append(f"{name} has {given} s to end, and would need {grace + LAST_SECONDS}")
    return wrong


def unnamed_volumes(compose: dict[str, Any]) -> list[str]:
    named = set(compose["volumes"])
    used = {
        one.split(":")[0]
        for service in compose["services"].values()
        for one in service["volumes"]
        if not one.startswith(".")
    }
    return sorted(used ^ named)


JUDGEMENTS: list[Callable[[dict[str, Any]], list[str]]] = [
    unknown_variables,
    unlike,
    unreachable_database,
    unparsed_commands,
    dead_health_checks,
    too_little_time,
    unnamed_volumes,
]


@pytest.mark.parametrize("judgement", JUDGEMENTS)
def test_compose_says_nothing_wrong(judgement: Callable[[dict[str, Any]], list[str]]) -> None:
    assert judgement(COMPOSE) == []


def test_notified_events_are_readable(tmp_path: Path) -> None:
    """The token of the server is also the one that `lastgood … --server` sends, in the same container."""
    for name in NODES:
        given = COMPOSE["services"][name]["environment"]
        settings = read_settings(given | environment_of_image(DOCKERFILE), folder=tmp_path)
        assert settings.database.startswith("postgresql://")
        assert settings.token_env == TOKEN_VARIABLE
        assert ":?" in given[TOKEN_VARIABLE], "without a token it must not even start"
        # What sessions work on is where the engine puts it.
        assert f"work:{settings.data_dir / 'work'}" in COMPOSE["services"][name]["volumes"]


# -- what is asked of the Dockerfile ----------------------------------------------------------------------


def missing_files(text: str) -> list[str]:
    copied = [rest[:-1] for word, rest in instructions(text) if word == "COPY"]
    return [name for names in copied for name in names if not (ROOT / name).exists()]


def unpinned(text: str) -> list[str]:
    """Everything that is installed has a hash, but for our own package."""
    installs = [rest[0] for word, rest in instructions(text) if word == "RUN" and "pip install" in rest[0]]
    return [
        line
        for line in installs
        if "--require-hashes -r requirements/${REQUIREMENTS}.txt" not in line and "--no-deps ." not in line
    ]


def locked(name: str) -> list[str]:
    """The packages of a lock file. Each has a hash."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().split("\n")
    pinned = [number for number, line in enumerate(lines) if re.match(r"[a-z0-9].*==", line)]
    assert all("--hash=sha256:" in lines[number + 1] for number in pinned)
    return [lines[number].split(" ")[0] for number in pinned]


def test_the_image_is_made_of_what_is_there() -> None:
    assert missing_files(DOCKERFILE) == []
    assert unpinned(DOCKERFILE) == []
    words = dict(instructions(DOCKERFILE))
    assert words["USER"] != ["root"]
    assert build_parser().parse_args(json.loads(DOCKERFILE.split("\nCMD ")[1])).agents == [DEFAULT_AGENT]
    ours = {name for name in environment_of_image(DOCKERFILE) if not name.startswith("PYTHON")}
    assert ours <= SETTINGS
    assert words["ARG"] == ["REQUIREMENTS=run"]
    assert len(locked("run")) > 10
    assert set(locked("run")) < set(locked("providers"))  # the same versions, and more


def test_an_image_has_the_clients_of_every_model_whose_key_it_is_given() -> None:
    """A key without its client is found by nobody, and the built-in agent answers with another model."""
    clients = {
        "ANTHROPIC_API_KEY": "anthropic",
        "GEMINI_API_KEY": "google-genai",
        "GOOGLE_API_KEY": "google-genai",
    }
    for name in NODES:
        service = COMPOSE["services"][name]
        installed = {one.split("==")[0] for one in locked(service["build"]["args"]["REQUIREMENTS"])}
        keys = clients.keys() & service["environment"].keys()
        assert {clients[key] for key in keys} <= installed
        assert "ANTHROPIC_API_KEY" in keys


def test_the_image_checks_its_own_health_as_the_nodes_do() -> None:
    check = next(" ".join(rest) for word, rest in instructions(DOCKERFILE) if word == "HEALTHCHECK")
    for name in NODES:
        assert COMPOSE["services"][name]["healthcheck"]["test"][-1] in check


def test_nodes_write_only_where_something_is_mounted() -> None:
    """The image's volume is mounted where compose mounts nothing."""
    volumes = [rest[0] for word, rest in instructions(DOCKERFILE) if word == "VOLUME"]
    for name in NODES:
        service = COMPOSE["services"][name]
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert environment_of_image(DOCKERFILE)["LASTGOOD_DATA_DIR"] in volumes


def test_what_is_copied_is_in_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    copied = {
        name.split("/")[0] for word, rest in instructions(DOCKERFILE) if word == "COPY" for name in rest[:-1]
    }
    assert lines.index("*") < min(lines.index(f"!{name}") for name in copied)


def test_what_the_package_needs_to_be_built_is_copied() -> None:
    copied = {name for word, rest in instructions(DOCKERFILE) if word == "COPY" for name in rest[:-1]}
    assert {"pyproject.toml", "README.md", "LICENSE", "src"} <= copied


# -- that they object -------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], object]
WRONG: dict[str, tuple[Callable[[dict[str, Any]], list[str]], Change]] = {
    "a variable of nobody": (
        unknown_variables,
        lambda node: node["environment"].update({"LASTGOOD_DATABSE": "x"}),
    ),
    "another token": (unlike, lambda node: node["environment"].update({"LASTGOOD_TOKEN": "another"})),
    "another database": (
        unreachable_database,
        lambda node: node["environment"].update({"LASTGOOD_DATABASE": "postgresql://lastgood@db/other"}),
    ),
    "an unknown flag": (unparsed_commands, lambda node: node.update(command=["serve", "--loud", "/agents"])),
    "a folder that is not mounted": (
        unparsed_commands,
        lambda node: node.update(command=["serve", "default", "/x"]),
    ),
    "nobody to serve": (unparsed_commands, lambda node: node.update(command=["serve", "/agents"])),
    "an address that is not there": (
        dead_health_checks,
        lambda node: node["healthcheck"].update(test=["CMD", "'http://127.0.0.1:8080/readiness'"]),
    ),
    "open to everybody": (dead_health_checks, lambda node: node.update(ports=["8080:8080"])),
    "killed too early": (too_little_time, lambda node: node.update(stop_grace_period="20s")),
    "a volume that has no name": (unnamed_volumes, lambda node: node.update(volumes=["mine:/data"])),
}


@pytest.mark.parametrize(("judgement", "change"), WRONG.values(), ids=WRONG)
def test_something_wrong_is_objected_to(
    judgement: Callable[[dict[str, Any]], list[str]], change: Change
) -> None:
    compose = json.loads(json.dumps(COMPOSE))  # anchors share what must now differ
    change(compose["services"]["node-b"])
    assert judgement(compose) != []


def test_a_wrong_dockerfile_is_objected_to() -> None:
    assert missing_files(DOCKERFILE + "\nCOPY nowhere .\n") == ["nowhere"]
    assert unpinned(DOCKERFILE + "\nRUN pip install something\n") != []
