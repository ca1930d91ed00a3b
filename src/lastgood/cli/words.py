"""The words of the `lastgood` command, and their help. What a word starts is imported when it is said."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable

from lastgood import __version__

Command = Callable[[argparse.Namespace], int]

_ID = "a session's id, or -1 for the newest, -2 for the one before it, …"


def start(module: str, function: str) -> Command:
    """A command of another module here, which is imported when the command runs."""

    def command(args: argparse.Namespace) -> int:
        run: Command = getattr(importlib.import_module(f"lastgood.cli.{module}"), function)
        return run(args)

    return command


def all_words() -> argparse.ArgumentParser:
    places = _places()
    top = argparse.ArgumentParser(
        prog="lastgood",
        description="An agent server whose sessions go on from their last good turn.",
        parents=[places],
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"lastgood {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    top.set_defaults(command=_helper(top))
    _add_serve(commands, places)
    _add_run(commands, places)
    _add_sessions(commands, places)
    _add_agents(commands, places)
    _add_init(commands, places)
    _add_tokens(commands, places)
    _add_db(commands, places)
    return top


def _places() -> argparse.ArgumentParser:
    """Before or after the command. Absent ones stay absent: a default would undo what stood before."""
    places = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
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


def _helper(parser: argparse.ArgumentParser) -> Command:
    def command(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return command


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
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


def _add_group(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    about = f"{summary[0].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=about, allow_abbrev=False)
    parser.set_defaults(command=_helper(parser))
    return parser.add_subparsers(title="commands", metavar="COMMAND")


def _add_run(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    run = _add(
        commands,
        places,
        "run",
        start("run", "run"),
        "say something to an agent, or chat with it, and see the answer as it comes",
        "one JSON object per line: every event, and last how the turn ended",
        "Without MESSAGE: the message is read from standard input if that is a pipe or a file; on a terminal "
        "a chat begins (Ctrl-C cancels a turn, Ctrl-D ends the chat).",
    )
    run.add_argument(
        "agent",
        metavar="AGENT",
        help="who is asked: an agent file, a URL, a name from lastgood.toml, or built in: default, coder, "
        "builtin/scripted (offline)",
    )
    run.add_argument(
        "message", metavar="MESSAGE", nargs="*", help="what to say; - reads it from standard input"
    )
    run.add_argument("--session", metavar="ID", help=f"go on with this session: {_ID}; default: a new one")
    run.add_argument(
        "--model", metavar="PROVIDER/MODEL", help="use this model for this turn and every later one"
    )
    run.add_argument("--agent", metavar="NAME", dest="member", help="the agent of the file's team to talk to")
    run.add_argument(
        "--attach",
        metavar="FILE",
        action="append",
        default=[],
        help="send a picture or a file along; may be given several times",
    )
    run.add_argument(
        "--working-dir",
        metavar="DIR",
        type=os.path.abspath,
        help="where the tools of a new session work; default: a folder of its own",
    )
    run.add_argument(
        "--safety",
        metavar="MODE",
        help="what tools may do that no rule allows or denies: restricted (look, and change nothing), "
        "autonomous (everything); strict and balanced ask a person, which is not there yet (LASTGOOD_SAFETY)",
    )
    run.add_argument(
        "--env-file", metavar="FILE", help="NAME=value lines with keys of models (LASTGOOD_ENV_FILE)"
    )
    run.add_argument(
        "--pull-interval",
        metavar="TIME",
        help="how old the copy of an agent's URL may be: 60s, 5m; 0 asks each time (LASTGOOD_PULL_INTERVAL)",
    )
    run.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key: the same message to the same session under the same key is answered once; "
        "sent again, it is told again",
    )


def _add_serve(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    about = "serve agents over HTTP, until it is told to end"
    details = "SIGTERM or Ctrl-C ends it: running turns may finish for a while."
    serve = commands.add_parser(
        "serve",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. {details}",
        parents=[places],
        allow_abbrev=False,
    )
    serve.set_defaults(command=start("serve", "serve"))
    serve.add_argument(
        "agents",
        metavar="AGENT",
        nargs="*",
        help="agent files, folders of them, URLs, names from lastgood.toml or built-in agents (default)",
    )
    for name, metavar, meaning in (
        ("--listen", "ADDRESS", "where to listen: HOST:PORT, unix://PATH or fd://N (127.0.0.1:8080)"),
        ("--metrics-listen", "ADDRESS", "where /metrics is, instead of there"),
        ("--migrate", "MODE", "auto: bring the database up to date; check: refuse one that is not (auto)"),
        ("--token-file", "FILE", "its first line is a token that may do everything"),
        ("--token-env", "NAME", "a variable that holds such a token"),
        ("--public-url", "URL", "the address under which others reach the server"),
        ("--working-dir-root", "DIR", "sessions may only name working folders below this one"),
        ("--safety", "MODE", "what tools may do: strict, balanced, restricted (default) or autonomous"),
        ("--env-file", "FILE", "NAME=value lines with keys of models"),
        ("--max-request-size", "SIZE", "of a request to /v1 (32M)"),
        ("--turn-idle-timeout", "TIME", "how long a model or a tool may give no sign of life (5m)"),
        ("--turn-timeout", "TIME", "how long one attempt may take (1h)"),
        ("--disconnect-grace", "TIME", "how long a turn of /v1 is kept for a client that has gone (30s)"),
        ("--shutdown-grace", "TIME", "how long running turns may finish at the end (10s)"),
        ("--pull-interval", "TIME", "how old the copy of an agent's URL may be (60s)"),
        ("--conversations-max", "N", "histories kept decoded in memory; none is lost by it (256)"),
        ("--retain", "TIME", "how long sessions are kept that nobody uses or has starred (for ever)"),
        ("--token-rate", "N", "turns that may begin in a minute under one token (any)"),
        ("--token-running", "N", "turns that may run at once under one token (any)"),
        ("--user-rate", "N", "turns that may begin in a minute for one user (any)"),
        ("--user-running", "N", "turns that may run at once for one user (any)"),
    ):
        serve.add_argument(name, metavar=metavar, help=meaning)
    for name, metavar, meaning in (
        ("--allowed-host", "HOST", "a name under which the server may be asked for"),
        ("--cors-origin", "ORIGIN", "an origin whose pages may ask"),
        ("--only", "SURFACE", "serve this surface alone: api or chat"),
        ("--preset", "CLIENT", "read requests of this chat client its way: open-webui or librechat"),
        ("--trusted-proxy", "ADDRESS", "a proxy whose X-Forwarded headers are believed"),
    ):
        serve.add_argument(
            name, metavar=metavar, action="append", help=f"{meaning}; may be given several times"
        )
    serve.add_argument(
        "--insecure-no-auth",
        action="store_const",
        const="yes",
        help="anybody may do everything, also from other machines",
    )
    serve.add_argument(
        "--tracing",
        action="store_const",
        const="yes",
        help="send spans to an OpenTelemetry collector, as the OTEL_EXPORTER_OTLP_… variables say",
    )


def _add_sessions(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    group = _add_group(commands, "sessions", "list, show, fork, rename, reset and delete sessions")
    some = _add(
        group,
        places,
        "list",
        start("sessions", "list_sessions"),
        "list sessions, newest first",
        "a JSON array",
    )
    some.add_argument("--limit", metavar="N", type=int, default=50, help="how many at most (50; up to 200)")
    some.add_argument("--cursor", metavar="C", type=_cursor, help="go on where a list before has ended")
    some.add_argument("--query", metavar="Q", default="", help="only those whose title contains this")

    show = _add(
        group,
        places,
        "show",
        start("sessions", "show_session"),
        "show the turns of a session",
        "one JSON object",
    )
    show.add_argument("id", metavar="ID", help=_ID)
    show.add_argument("--attempts", action="store_true", help="also every try, and what became of it")

    fork = _add(
        group,
        places,
        "fork",
        start("sessions", "fork_session"),
        "make a session that goes on from another's turn",
        "a JSON object",
    )
    fork.add_argument("id", metavar="ID", help=_ID)
    fork.add_argument("--turn", metavar="TURN", help="the turn to go on from; default: the last one")

    rename = _add(
        group,
        places,
        "rename",
        start("sessions", "rename_session"),
        "give a session a title",
        "a JSON object",
    )
    rename.add_argument("id", metavar="ID", help=_ID)
    rename.add_argument("title", metavar="TITLE", help="its new title; quote it if it has spaces")

    reset = _add(
        group,
        places,
        "reset",
        start("sessions", "reset_session"),
        "let a session start anew",
        "a JSON object",
        "Its turns are kept, but the agent does not see them any more.",
    )
    reset.add_argument("id", metavar="ID", help=_ID)

    delete = _add(
        group,
        places,
        "delete",
        start("sessions", "delete_sessions"),
        "erase sessions for good",
        "a JSON object",
        "If one of them does not exist, none is deleted.",
    )
    delete.add_argument("ids", metavar="ID", nargs="+", help=_ID)


def _add_db(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    group = _add_group(commands, "db", "look after the database")
    _add(
        group,
        places,
        "check",
        start("db", "check_database"),
        "verify that every committed turn is as it was committed",
        "one JSON object",
        "Changes nothing, and may run beside a server. Exit code 1 if a session is damaged.",
    )


def _add_agents(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    group = _add_group(commands, "agents", "look at agent files")
    check = _add(
        group,
        places,
        "check",
        start("agents", "check_files"),
        "say what agent files mean, and what is wrong with them, by line",
        "a JSON array, one object per file",
        "Executes nothing, and asks nobody. Exit code 1 if a file has an error.",
    )
    check.add_argument("files", metavar="FILE", nargs="+", help="an agent file, or a folder of them")
    _add(
        group,
        places,
        "schema",
        start("agents", "print_schema"),
        "print the JSON schema of agent files, for editors",
        "the schema is JSON in any case",
    )


def _add_init(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    init = _add(
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


def _add_tokens(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    group = _add_group(commands, "tokens", "say who may use a server, and for what")
    create = _add(
        group,
        places,
        "create",
        start("tokens", "create_token"),
        "make a token and print it, this once",
        "a JSON object, the token in it",
        "A SQLite database takes new tokens only while no server uses it; PostgreSQL takes them at any time.",
    )
    create.add_argument("--name", metavar="NAME", required=True, help="what it is for, for people")
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
    _add(
        group,
        places,
        "list",
        start("tokens", "list_tokens"),
        "list tokens, without the tokens themselves",
        "a JSON array",
    )
    revoke = _add(
        group,
        places,
        "revoke",
        start("tokens", "revoke_token"),
        "end a token for good",
        "a JSON object",
        "On PostgreSQL, running servers refuse it within a few seconds; on SQLite, stop the server first.",
    )
    revoke.add_argument("id", metavar="ID", help="a token's id, as the list shows it")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; give a number and its unit: 90s, 30m, 12h, 30d"
        )
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def _cursor(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no cursor; use the number that a list ended with")
    return int(text)
