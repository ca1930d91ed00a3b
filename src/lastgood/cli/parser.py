"""The words of the `lastgood` command, and their help. What a word starts is imported when it is said."""

from __future__ import annotations

import argparse
import re

from lastgood import __version__
from lastgood.cli.command_group import CommandParser, Commands, add, add_commands, add_group, start
from lastgood.cli.serve_parser import add_serve, add_served
from lastgood.cli.session_parser import add_run, add_sessions


def all_words() -> CommandParser:
    places = _places()
    top = CommandParser(
        prog="lastgood",
        description="Serve agents whose sessions always continue from the last committed turn.",
        parents=[places],
    )
    top.add_argument("--version", action="version", version=f"lastgood {__version__}")
    commands = add_commands(top)
    add_serve(commands, places)
    add_run(commands, places)
    add_sessions(commands, places)
    _add_agents(commands, places)
    _add_init(commands, places)
    _add_tokens(commands, places)
    _add_db(commands, places)
    return top


def _places() -> CommandParser:
    """Before or after the command. Absent ones stay absent: a default would undo what stood before."""
    places = CommandParser(add_help=False, argument_default=argparse.SUPPRESS)
    places.add_argument(
        "--data-dir", metavar="DIR", help="store Lastgood's files in this directory (LASTGOOD_DATA_DIR)"
    )
    places.add_argument(
        "--config",
        metavar="FILE",
        help="read settings from this file (LASTGOOD_CONFIG); default: ./lastgood.toml",
    )
    places.add_argument(
        "--database",
        metavar="URL",
        help="use this database: sqlite:///PATH or postgresql://… (LASTGOOD_DATABASE); default: a file in "
        "the data directory",
    )
    return places


def _add_db(commands: Commands, places: CommandParser) -> None:
    group = add_group(commands, "db", "check the database")
    add(
        group,
        places,
        "check",
        start("db", "run_check"),
        "check the sessions of all tenants for damage",
        "print one JSON object",
        "Verifies the database file, the hashes of all turns and the checksums of all steps and inputs. "
        "Changes nothing and can run while a server uses the database. Exits with 1 if anything is damaged.",
    )


def _add_agents(commands: Commands, places: CommandParser) -> None:
    group = add_group(commands, "agents", "list agents, check agent files and print their JSON Schema")
    listed = add(
        group,
        places,
        "list",
        start("agents_list", "list_agents"),
        "list the agents that `lastgood serve` would serve, with their models and problems",
        "print a JSON array with one object per agent",
        "Accepts the same AGENT arguments as `lastgood serve`. Exits with 1 if an agent cannot be served.",
    )
    add_served(listed)
    listed.add_argument(
        "--env-file", metavar="FILE", help="read API keys from NAME=value lines (LASTGOOD_ENV_FILE)"
    )
    listed.add_argument(
        "--pull-interval",
        metavar="TIME",
        help="cache agents from URLs this long: 60s, 5m; 0 disables the cache (LASTGOOD_PULL_INTERVAL)",
    )
    check = add(
        group,
        places,
        "check",
        start("agents", "check_files"),
        "validate agent files and summarize what they define",
        "print a JSON array with one object per file",
        "Runs no tools and sends no requests. Exits with 1 if a file has errors.",
    )
    check.add_argument("files", metavar="FILE", nargs="+", help="agent file, or directory of agent files")
    add(
        group,
        places,
        "schema",
        start("agents", "print_schema"),
        "print the JSON Schema of agent files",
        "accepted for consistency; the schema is always JSON",
        "Use it in an editor to complete and validate agent files.",
    )


def _add_init(commands: Commands, places: CommandParser) -> None:
    init = add(
        commands,
        places,
        "init",
        start("init", "write_starter"),
        "create a starter agent file",
        "print a JSON object",
        "Never overwrites an existing file.",
    )
    init.add_argument(
        "path", metavar="PATH", nargs="?", default="agent.yaml", help="file to create; default: agent.yaml"
    )


def _add_tokens(commands: Commands, places: CommandParser) -> None:
    group = add_group(commands, "tokens", "create, list and revoke API tokens")
    create = add(
        group,
        places,
        "create",
        start("tokens", "create_token"),
        "create an API token and print it once",
        "print a JSON object that contains the token",
        "A running server accepts the token at once, unless it was started before the first token existed: "
        "then restart it.",
    )
    create.add_argument("--name", metavar="NAME", default="token", help="describe the token; default: token")
    create.add_argument(
        "--tenant", metavar="T", default="default", help="limit the token to this tenant; default: default"
    )
    create.add_argument(
        "--scope",
        metavar="SCOPES",
        action="append",
        help="grant these scopes, separated by commas: chat (/v1), read, session (use and change sessions), "
        "approve, worker, admin (everything); default: chat,session",
    )
    create.add_argument(
        "--expires",
        metavar="TIME",
        type=_seconds,
        help="expire the token after this long: 12h, 30d; default: never",
    )
    add(
        group,
        places,
        "list",
        start("tokens", "list_tokens"),
        "list API tokens without their secrets",
        "print a JSON array",
    )
    revoke = add(
        group,
        places,
        "revoke",
        start("tokens", "revoke_token"),
        "revoke an API token permanently",
        "print a JSON object",
        "Running servers reject the token within a few seconds.",
    )
    revoke.add_argument("id", metavar="ID", help="token id, as shown by `lastgood tokens list`")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration; use a number and a unit: 90s, 30m, 12h, 30d"
        )
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
