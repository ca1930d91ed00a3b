"""The words of `lastgood run` and `lastgood sessions`, which work here or on a server."""

from __future__ import annotations

import argparse
import os

from lastgood.cli.command_group import SESSION_ID, CommandParser, Commands, add, add_group, add_server, start


def add_run(commands: Commands, places: CommandParser) -> None:
    run = add(
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
        "builtin/scripted (offline); with --server: the name it is served under",
    )
    run.add_argument(
        "message", metavar="MESSAGE", nargs="*", help="what to say; - reads it from standard input"
    )
    add_server(run)
    run.add_argument(
        "--session", metavar="ID", help=f"go on with this session: {SESSION_ID}; default: a new one"
    )
    run.add_argument(
        "--after",
        metavar="TURN",
        help="replace what follows this turn of the session (`start`: replace every turn); the replaced "
        "turns stay as a branch",
    )
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


def add_sessions(commands: Commands, places: CommandParser) -> None:
    group = add_group(
        commands,
        "sessions",
        "list, show, fork, rename, reset, export, import and delete sessions",
    )
    some = add(
        group,
        places,
        "list",
        start("sessions", "list_sessions"),
        "list sessions, newest first",
        "a JSON array",
    )
    add_server(some)
    some.add_argument(
        "--limit", metavar="N", type=_limit, default=50, help="how many at most (50; up to 200)"
    )
    some.add_argument("--cursor", metavar="C", type=_cursor, help="go on where a list before has ended")
    some.add_argument("--query", metavar="Q", default="", help="only those whose title contains this")

    show = add(
        group,
        places,
        "show",
        start("sessions", "show_session"),
        "show the turns of a session",
        "one JSON object",
    )
    add_server(show)
    show.add_argument("id", metavar="ID", help=SESSION_ID)
    show.add_argument("--attempts", action="store_true", help="also every try, and what became of it")

    branches = add(
        group,
        places,
        "branches",
        start("sessions", "list_branches"),
        "list the turns of a session that edits have replaced",
        "a JSON array",
        "`lastgood sessions fork ID --turn TURN` makes a session from any of their turns.",
    )
    add_server(branches)
    branches.add_argument("id", metavar="ID", help=SESSION_ID)

    fork = add(
        group,
        places,
        "fork",
        start("sessions", "fork_session"),
        "make a session that goes on from another's turn",
        "a JSON object",
    )
    add_server(fork)
    fork.add_argument("id", metavar="ID", help=SESSION_ID)
    fork.add_argument("--turn", metavar="TURN", help="the turn to go on from; default: the last one")

    rename = add(
        group,
        places,
        "rename",
        start("sessions", "rename_session"),
        "give a session a title",
        "a JSON object",
    )
    add_server(rename)
    rename.add_argument("id", metavar="ID", help=SESSION_ID)
    rename.add_argument("title", metavar="TITLE", help="its new title; quote it if it has spaces")

    reset = add(
        group,
        places,
        "reset",
        start("sessions", "reset_session"),
        "let a session start anew",
        "a JSON object",
        "Its turns are kept, but the agent does not see them any more.",
    )
    add_server(reset)
    reset.add_argument("id", metavar="ID", help=SESSION_ID)

    export = add(
        group,
        places,
        "export",
        start("sessions", "export_session"),
        "write all of a session to a file",
        "the session is JSON in any case; with FILE, a JSON object about it",
        "Any server and any database can import it.",
    )
    add_server(export)
    export.add_argument("id", metavar="ID", help=SESSION_ID)
    export.add_argument(
        "file", metavar="FILE", nargs="?", help="where to; default: standard output. It must not be there yet"
    )

    take_in = add(
        group,
        places,
        "import",
        start("sessions", "import_session"),
        "make a session from a file that was exported",
        "a JSON object",
        "If one of its turns is not as it was committed, nothing is imported.",
    )
    add_server(take_in)
    take_in.add_argument("file", metavar="FILE", help="the file; - reads it from standard input")

    delete = add(
        group,
        places,
        "delete",
        start("sessions", "delete_sessions"),
        "erase sessions for good",
        "a JSON object",
        "If one of them does not exist, none is deleted.",
    )
    add_server(delete)
    delete.add_argument("ids", metavar="ID", nargs="+", help=SESSION_ID)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) <= 200:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be listed; give a number from 1 to 200")
    return int(text)


def _cursor(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no cursor; use the number that a list ended with")
    return int(text)
