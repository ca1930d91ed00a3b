"""How a command is added to the others, and what several of them take."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import TypeAlias

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: How a session is named on the command line.
SESSION_ID = "a session's id, or -1 for the newest, -2 for the one before it, …"


def start(module: str, function: str) -> Command:
    """A command of another module here, which is imported when the command runs."""

    def command(args: argparse.Namespace) -> int:
        run: Command = getattr(importlib.import_module(f"lastgood.cli.{module}"), function)
        return run(args)

    return command


def helper(parser: argparse.ArgumentParser) -> Command:
    def command(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return command


def add(
    commands: Commands,
    places: argparse.ArgumentParser,
    name: str,
    command: Command,
    summary: str,
    json: str,
    details: str = "",
) -> argparse.ArgumentParser:
    about = f"{summary[0].upper()}{summary[1:]}. {details}".strip()
    parser = commands.add_parser(name, help=summary, description=about, parents=[places], allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help=json)
    parser.set_defaults(command=command)
    return parser


def add_group(commands: Commands, name: str, summary: str) -> Commands:
    about = f"{summary[0].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=about, allow_abbrev=False)
    parser.set_defaults(command=helper(parser))
    return parser.add_subparsers(title="commands", metavar="COMMAND")


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", help="do it on this server: http://HOST:PORT, https://… or unix:///PATH"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        dest="server_token",
        help="its first line is the token for --server; default: the variable LASTGOOD_TOKEN",
    )
