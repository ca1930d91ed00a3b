"""The parser of the `lastgood` command. Every command adds its own arguments, in the module of its name.

Only the modules of commands that are on the command line are imported, so that `--help` stays fast.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from lastgood import __version__
from lastgood.errors import WrongUsage
from lastgood.settings import ROWS
from lastgood.settings.setting_rows import Row

Command = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

#: Each is a module of this package whose `configure` adds its arguments, unless _MODULES names another.
COMMANDS: Mapping[str, str] = {
    "serve": "serve agents over HTTP until stopped",
    "run": "send a message to an agent, or chat with it, and stream the answer",
    "sessions": "list, show, fork, rename, reset, move, export, import and delete sessions",
    "tasks": "queue, list, show, cancel, continue and rerun tasks for runtimes",
    "runtimes": "list, bind, share, remove and explain runtimes",
    "agents": "list agents, check agent files and print their JSON Schema",
    "init": "create a starter agent file",
    "tokens": "create, list and revoke API tokens, and enroll workers",
    "webhooks": "add, list, test and remove webhooks, and list their deliveries",
    "audit": "list audit records: who changed or decided what",
    "db": "check, back up, restore, measure and upgrade the database",
    "demo": "show on a real server, offline, that sessions survive failures; takes about 10 seconds",
    "bench": "measure what a turn costs on this machine",
    "doctor": "check what a server needs on this machine",
    "worker": "claim tasks from a server and run them with agent CLIs on this machine",
    "import": "import sessions from another system",
    "completion": "print a script that completes commands in a shell",
}
#: Where the module has another name than its command.
_MODULES = {"import": "import_multica"}

#: Options of every command.
_GLOBAL = ("data_dir", "config", "database")

#: Served if no agent is named.
DEFAULT_AGENT = "default"

SESSION_ID = "session id, or -1 for the newest session, -2 for the second newest, …"


class CommandParser(argparse.ArgumentParser):
    """Reports errors in one line that names the help. `args.parser` is the parser of the command."""

    #: An example, for whoever leaves out what is required.
    example = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.set_defaults(parser=self)

    def error(self, message: str) -> NoReturn:
        if self.example and message.startswith("the following arguments are required"):
            message += f"; for example: {self.example}"
        raise WrongUsage(f"{message}; see {self.prog} --help")

    def reject_options(self, unknown: Sequence[str]) -> NoReturn:
        near = nearest(unknown[0].partition("=")[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = nearest(value, action.choices) or f"; choose one of {', '.join(action.choices)}"
            self.error(f"unknown command {value!r}{known}")
        super()._check_value(action, value)


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    from difflib import get_close_matches  # only after a typo

    near = get_close_matches(word, list(known), 1)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""


def build_parser(complete: Collection[str] = COMMANDS) -> CommandParser:
    """Commands that are not in `complete` have a name and a summary, but no arguments."""
    top = CommandParser(
        prog="lastgood",
        description="Serve agents whose sessions always continue from the last committed turn.",
    )
    top.add_argument("--version", action="version", version=f"lastgood {__version__}")
    add_global_options(top)
    commands = add_commands(top)
    for name, summary in COMMANDS.items():
        parser = commands.add_parser(name, help=summary, description=_sentence(summary))
        if name in complete:
            importlib.import_module(f"lastgood.cli.{_MODULES.get(name, name)}").configure(parser)
    return top


def add_commands(parser: CommandParser) -> Commands:
    """Makes the parser a group, one of whose commands must be given."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(_: argparse.Namespace) -> int:
        parser.error(f"missing command; choose one of {', '.join(commands.choices)}")

    parser.set_defaults(command=command)
    return commands


def add_command(
    commands: Commands, name: str, command: Command, summary: str, *, json: str, details: str = ""
) -> CommandParser:
    """`json` is the help of its option `--json`."""
    parser = commands.add_parser(name, help=summary, description=_sentence(summary))
    configure_command(parser, command, json=json, details=details)
    return parser


def configure_command(
    parser: CommandParser, command: Command, *, json: str | None, details: str = ""
) -> None:
    parser.description = f"{parser.description} {details}".strip()
    parser.set_defaults(command=command)
    if json is not None:
        parser.add_argument("--json", action="store_true", help=json)
    add_global_options(parser)


def run_async(work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]) -> Command:
    """The command of an async function."""
    return lambda args: asyncio.run(work(args))


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


# -- arguments that several commands have --------------------------------------------


def page_size(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) <= 200:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 200, not {text!r}")
    return int(text)


def add_global_options(parser: CommandParser) -> None:
    """Accepted before and after the command."""
    add_settings(parser.add_argument_group("global options"), *_GLOBAL)


def add_all_settings(parser: CommandParser) -> None:
    add_settings(parser, *(name for name, row in ROWS.items() if row.has_flag and name not in _GLOBAL))


def add_settings(parser: argparse._ActionsContainer, *names: str, rows: Mapping[str, Row] = ROWS) -> None:
    """Settings that are not given are absent: a default would replace what was given before the command."""
    for row in map(rows.__getitem__, names):
        options: dict[str, Any] = {"help": _help(row), "default": argparse.SUPPRESS}
        if row.type.is_switch:
            parser.add_argument(row.flag, action="store_const", const="yes", **options)
        elif row.type.is_list:
            parser.add_argument(row.flag, action="append", metavar=row.type.metavar, **options)
        else:
            parser.add_argument(row.flag, metavar=row.type.metavar, **options)


def _help(row: Row) -> str:
    repeatable = "; repeatable" if row.type.is_list else ""
    default = f"; default: {row.default}" if row.default and not row.type.is_switch else ""
    return f"{row.help}{repeatable}{default} ({row.variable})"


def add_agents(parser: CommandParser) -> None:
    parser.add_argument(
        "agents",
        metavar="AGENT",
        nargs="*",
        default=[DEFAULT_AGENT],
        help="agent file, directory of agent files, URL, name from lastgood.toml or built-in agent; "
        "default: the built-in agent `default`",
    )


def add_server(parser: CommandParser) -> None:
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
