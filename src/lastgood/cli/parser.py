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
        description="An agent server whose sessions go on from their last good turn.",
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
        "--data-dir", metavar="DIR", help="where Lastgood keeps its files (LASTGOOD_DATA_DIR)"
    )
    places.add_argument(
        "--config", metavar="FILE", help="settings file (LASTGOOD_CONFIG); default: lastgood.toml here"
    )
    places.add_argument(
        "--database",
        metavar="URL",
        help="sqlite:///PATH or postgresql://… (LASTGOOD_DATABASE); default: a file in the data dir",
    )
    return places


def _add_db(commands: Commands, places: CommandParser) -> None:
    group = add_group(commands, "db", "look after the database")
    add(
        group,
        places,
        "check",
        start("db", "run_check"),
        "check every session of every tenant for damage",
        "one JSON object",
        "Verifies the database file, the hash of every turn and the checksum of every stored step and input. "
        "Changes nothing, and may run beside a server. Exit code 1 if anything is damaged.",
    )


def _add_agents(commands: Commands, places: CommandParser) -> None:
    group = add_group(commands, "agents", "look at agents and their files")
    listed = add(
        group,
        places,
        "list",
        start("agents_list", "list_agents"),
        "say what would be served, on which models, and whether something is wrong with it",
        "a JSON array, one object per agent",
        "Takes what `lastgood serve` takes. Exit code 1 if an agent cannot be served.",
    )
    add_served(listed)
    listed.add_argument(
        "--env-file", metavar="FILE", help="NAME=value lines with keys of models (LASTGOOD_ENV_FILE)"
    )
    listed.add_argument(
        "--pull-interval",
        metavar="TIME",
        help="how old the copy of an agent's URL may be: 60s, 5m; 0 asks each time (LASTGOOD_PULL_INTERVAL)",
    )
    check = add(
        group,
        places,
        "check",
        start("agents", "check_files"),
        "say what agent files mean, and what is wrong with them, by line",
        "a JSON array, one object per file",
        "Executes nothing, and asks nobody. Exit code 1 if a file has an error.",
    )
    check.add_argument("files", metavar="FILE", nargs="+", help="an agent file, or a folder of them")
    add(
        group,
        places,
        "schema",
        start("agents", "print_schema"),
        "print the JSON schema of agent files, for editors",
        "the schema is JSON in any case",
    )


def _add_init(commands: Commands, places: CommandParser) -> None:
    init = add(
        commands,
        places,
        "init",
        start("init", "write_starter"),
        "write an agent file to begin with",
        "a JSON object",
        "A file that is already there is left as it is.",
    )
    init.add_argument(
        "path", metavar="PATH", nargs="?", default="agent.yaml", help="where to; default: agent.yaml here"
    )


def _add_tokens(commands: Commands, places: CommandParser) -> None:
    group = add_group(commands, "tokens", "say who may use a server, and for what")
    create = add(
        group,
        places,
        "create",
        start("tokens", "create_token"),
        "make a token and print it, this once",
        "a JSON object, the token in it",
        "A server that runs on the database takes it at once, if it asks for tokens already.",
    )
    create.add_argument("--name", metavar="NAME", default="token", help="what it is for, for people (token)")
    create.add_argument("--tenant", metavar="T", default="default", help="whose sessions it sees (default)")
    create.add_argument(
        "--scope",
        metavar="SCOPES",
        action="append",
        help="what it may do, separated by commas: chat (/v1), read, session (use and change sessions), "
        "approve, worker, admin (everything); default: chat,session",
    )
    create.add_argument(
        "--expires", metavar="TIME", type=_seconds, help="when it ends: 12h, 30d; default: when it is revoked"
    )
    add(
        group,
        places,
        "list",
        start("tokens", "list_tokens"),
        "list tokens, without the tokens themselves",
        "a JSON array",
    )
    revoke = add(
        group,
        places,
        "revoke",
        start("tokens", "revoke_token"),
        "end a token for good",
        "a JSON object",
        "Servers that run on the database refuse it within a few seconds.",
    )
    revoke.add_argument("id", metavar="ID", help="a token's id, as the list shows it")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; give a number and its unit: 90s, 30m, 12h, 30d"
        )
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
