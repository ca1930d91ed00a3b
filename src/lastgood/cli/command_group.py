"""How a command is added to the others, and what several of them take."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from lastgood.errors import WrongUsage

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

#: How a session is named on the command line.
SESSION_ID = "session id, or -1 for the newest session, -2 for the second newest, …"


class CommandParser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where to read on; `args.words` are those that were said last."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.set_defaults(words=self)

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(f"{message}; see {self.prog} --help")


def start(module: str, function: str) -> Command:
    """A command of another module here, which is imported when the command runs."""

    def command(args: argparse.Namespace) -> int:
        run: Command = getattr(importlib.import_module(f"lastgood.cli.{module}"), function)
        return run(args)

    return command


def add_commands(words: CommandParser) -> Commands:
    """Those of a group, one of which has to be said."""
    commands = words.add_subparsers(title="commands", metavar="COMMAND")

    def command(_: argparse.Namespace) -> int:
        words.error(f"missing command; choose one of {', '.join(commands.choices)}")

    words.set_defaults(command=command)
    return commands


def add(
    commands: Commands,
    places: CommandParser,
    name: str,
    command: Command,
    summary: str,
    json: str,
    details: str = "",
) -> CommandParser:
    about = f"{summary[0].upper()}{summary[1:]}. {details}".strip()
    parser = commands.add_parser(name, help=summary, description=about, parents=[places])
    parser.add_argument("--json", action="store_true", help=json)
    parser.set_defaults(command=command)
    return parser


def add_group(commands: Commands, name: str, summary: str) -> Commands:
    about = f"{summary[0].upper()}{summary[1:]}."
    return add_commands(commands.add_parser(name, help=summary, description=about))


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        help="run the command on this server: http://HOST:PORT, https://… or unix:///PATH",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        dest="server_token",
        help="read the token for --server from the first line of this file; default: the variable "
        "LASTGOOD_TOKEN",
    )
