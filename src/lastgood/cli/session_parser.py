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
        "send a message to an agent, or chat with it, and stream the answer",
        "print one JSON object per line: every event, then the result of the turn",
        "Without MESSAGE, opens a chat on a terminal (Ctrl-C cancels the turn, Ctrl-D ends the chat). "
        "If standard input is a pipe or a file, reads the message from it instead.",
    )
    run.add_argument(
        "agent",
        metavar="AGENT",
        help="agent file, URL, name from lastgood.toml, or a built-in agent: default, coder, "
        "builtin/scripted (offline); with --server: the agent's name on that server",
    )
    run.add_argument(
        "message", metavar="MESSAGE", nargs="*", help="message to send; - reads it from standard input"
    )
    add_server(run)
    run.add_argument(
        "--session", metavar="ID", help=f"continue this session: {SESSION_ID}; default: a new session"
    )
    run.add_argument(
        "--after",
        metavar="TURN",
        help="replace the turns after this one (`start`: all turns) with this message; the replaced turns "
        "are kept as a branch",
    )
    run.add_argument(
        "--model", metavar="PROVIDER/MODEL", help="use this model for this turn and every later one"
    )
    run.add_argument("--agent", metavar="NAME", dest="member", help="talk to this agent of the file's team")
    run.add_argument(
        "--attach",
        metavar="FILE",
        action="append",
        default=[],
        help="attach an image or a file; repeatable",
    )
    run.add_argument(
        "--working-dir",
        metavar="DIR",
        type=os.path.abspath,
        help="run the tools of a new session in this directory; default: a new directory per session",
    )
    run.add_argument(
        "--safety",
        metavar="MODE",
        help="handle tool calls that no permission rule covers: restricted (read-only tools), autonomous "
        "(all tools), or strict and balanced, which deny what would need approval (LASTGOOD_SAFETY)",
    )
    run.add_argument(
        "--env-file", metavar="FILE", help="read API keys from NAME=value lines (LASTGOOD_ENV_FILE)"
    )
    run.add_argument(
        "--pull-interval",
        metavar="TIME",
        help="cache agents from URLs this long: 60s, 5m; 0 disables the cache (LASTGOOD_PULL_INTERVAL)",
    )
    run.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key: sending the same message to the same session with the same key again "
        "replays the stored answer",
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
        "print a JSON array",
    )
    add_server(some)
    some.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        default=50,
        help="list at most N sessions, up to 200; default: 50",
    )
    some.add_argument("--cursor", metavar="C", type=_cursor, help="continue a previous list at this cursor")
    some.add_argument("--query", metavar="Q", default="", help="list only sessions whose title contains Q")

    show = add(
        group,
        places,
        "show",
        start("sessions", "show_session"),
        "show a session and its turns",
        "print one JSON object",
    )
    add_server(show)
    show.add_argument("id", metavar="ID", help=SESSION_ID)
    show.add_argument("--attempts", action="store_true", help="also show every attempt and its result")

    branches = add(
        group,
        places,
        "branches",
        start("sessions", "list_branches"),
        "list the branches of a session: turns that edits replaced",
        "print a JSON array",
        "`lastgood sessions fork ID --turn TURN` creates a session from any of these turns.",
    )
    add_server(branches)
    branches.add_argument("id", metavar="ID", help=SESSION_ID)

    fork = add(
        group,
        places,
        "fork",
        start("sessions", "fork_session"),
        "create a session that continues from a turn of another session",
        "print a JSON object",
    )
    add_server(fork)
    fork.add_argument("id", metavar="ID", help=SESSION_ID)
    fork.add_argument("--turn", metavar="TURN", help="turn to continue from; default: the last turn")

    rename = add(
        group,
        places,
        "rename",
        start("sessions", "rename_session"),
        "set the title of a session",
        "print a JSON object",
    )
    add_server(rename)
    rename.add_argument("id", metavar="ID", help=SESSION_ID)
    rename.add_argument("title", metavar="TITLE", help="new title; quote it if it contains spaces")

    reset = add(
        group,
        places,
        "reset",
        start("sessions", "reset_session"),
        "reset the context of a session",
        "print a JSON object",
        "The session keeps its turns, but the agent no longer sees them.",
    )
    add_server(reset)
    reset.add_argument("id", metavar="ID", help=SESSION_ID)

    export = add(
        group,
        places,
        "export",
        start("sessions", "export_session"),
        "export a session as JSON",
        "with FILE, print a JSON object about the export; the session itself is always JSON",
        "`lastgood sessions import` can import the file into any Lastgood database.",
    )
    add_server(export)
    export.add_argument("id", metavar="ID", help=SESSION_ID)
    export.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="file to create, which must not exist; default: standard output",
    )

    take_in = add(
        group,
        places,
        "import",
        start("sessions", "import_session"),
        "import an exported session",
        "print a JSON object",
        "Imports nothing if the hash of any turn does not match.",
    )
    add_server(take_in)
    take_in.add_argument("file", metavar="FILE", help="exported file; - reads standard input")

    delete = add(
        group,
        places,
        "delete",
        start("sessions", "delete_sessions"),
        "delete sessions permanently",
        "print a JSON object",
        "Deletes nothing if one of the sessions does not exist.",
    )
    add_server(delete)
    delete.add_argument("ids", metavar="ID", nargs="+", help=SESSION_ID)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) <= 200:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 200, not {text!r}")
    return int(text)


def _cursor(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) < 2**63:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a cursor; use the one that a previous list printed"
        )
    return int(text)
