"""The `lastgood` command: its words, its help and its exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage. What a command needs is imported
when it runs, so that `--help` opens no database driver.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from lastgood import __version__
from lastgood.errors import LastgoodError

Command = Callable[[argparse.Namespace], int]

_ID = "a session's id, or -1 for the newest, -2 for the one before it, …"


def main(argv: Sequence[str] | None = None) -> int:
    _print_anything()
    args = argparse.Namespace()
    try:
        args = _parse(_parser(), argv)
        command: Command = args.command
        code = command(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else 0
    except LastgoodError as error:
        return _fail(error, as_json=getattr(args, "json", False))
    except BrokenPipeError:
        _hush()
        return 1
    except KeyboardInterrupt:
        return 1
    except Exception as error:
        if os.environ.get("LASTGOOD_DEBUG"):
            traceback.print_exc()
        print(f"lastgood: internal error: {error!r}; please report it", file=sys.stderr)
        return 1


def _print_anything() -> None:
    """A terminal that lacks a character gets its number instead of a crash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _hush() -> None:
    from lastgood.cli.output import drop_stdout

    drop_stdout()


def _fail(error: LastgoodError, *, as_json: bool) -> int:
    from lastgood.cli.output import complain, error_json, print_json

    complain(error.message)
    if as_json:
        try:
            print_json({"error": error_json(error)})
        except BrokenPipeError:
            _hush()
    return 1


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Lets options stand between AGENT and MESSAGE: argparse leaves the words after them over."""
    args, left_over = parser.parse_known_args(argv)
    end = left_over.index("--") if "--" in left_over else len(left_over)
    words = left_over[:end]
    if left_over and ("message" not in args or any(map(_is_option, words))):
        parser.error(f"unrecognized arguments: {' '.join(left_over)}")
    if left_over:
        args.message = [*args.message, *words, *left_over[end + 1 :]]
    return args


def _is_option(word: str) -> bool:
    return re.fullmatch(r"-[^\d\s]\S*", word) is not None


# -- words and their help --------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    places = _places()
    parser = argparse.ArgumentParser(
        prog="lastgood",
        description="An agent server whose sessions go on from their last good turn.",
        parents=[places],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lastgood {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(command=_helper(parser))
    _add_run(commands, places)
    _add_sessions(commands, places)
    _add_db(commands, places)
    return parser


def _places() -> argparse.ArgumentParser:
    """Before or after the command. Absent ones stay absent: a default would undo what stood before."""
    places = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    places.add_argument(
        "--data-dir", metavar="DIR", help="where Lastgood keeps its files (LASTGOOD_DATA_DIR)"
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
        _run,
        "say something to an agent, or chat with it, and see the answer as it comes",
        "one JSON object per line: every event, and last how the turn ended",
        "Without MESSAGE: the message is read from standard input if that is a pipe or a file; on a terminal "
        "a chat begins (Ctrl-C cancels a turn, Ctrl-D ends the chat).",
    )
    run.add_argument("agent", metavar="AGENT", help="who is asked; builtin/scripted is served")
    run.add_argument(
        "message", metavar="MESSAGE", nargs="*", help="what to say; - reads it from standard input"
    )
    run.add_argument("--session", metavar="ID", help=f"go on with this session: {_ID}; default: a new one")
    run.add_argument(
        "--model", metavar="PROVIDER/MODEL", help="use this model for this turn and every later one"
    )
    run.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key: the same message to the same session under the same key is answered once; "
        "sent again, it is told again",
    )


def _add_sessions(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], places: argparse.ArgumentParser
) -> None:
    group = _add_group(commands, "sessions", "list, show, fork, rename, reset and delete sessions")
    some = _add(group, places, "list", _sessions_list, "list sessions, newest first", "a JSON array")
    some.add_argument("--limit", metavar="N", type=int, default=50, help="how many at most (50; up to 200)")
    some.add_argument("--cursor", metavar="C", type=_cursor, help="go on where a list before has ended")
    some.add_argument("--query", metavar="Q", default="", help="only those whose title contains this")

    show = _add(group, places, "show", _sessions_show, "show the turns of a session", "one JSON object")
    show.add_argument("id", metavar="ID", help=_ID)
    show.add_argument("--attempts", action="store_true", help="also every try, and what became of it")

    fork = _add(
        group,
        places,
        "fork",
        _sessions_fork,
        "make a session that goes on from another's turn",
        "a JSON object",
    )
    fork.add_argument("id", metavar="ID", help=_ID)
    fork.add_argument("--turn", metavar="TURN", help="the turn to go on from; default: the last one")

    rename = _add(group, places, "rename", _sessions_rename, "give a session a title", "a JSON object")
    rename.add_argument("id", metavar="ID", help=_ID)
    rename.add_argument("title", metavar="TITLE", help="its new title; quote it if it has spaces")

    reset = _add(
        group,
        places,
        "reset",
        _sessions_reset,
        "let a session start anew",
        "a JSON object",
        "Its turns are kept, but the agent does not see them any more.",
    )
    reset.add_argument("id", metavar="ID", help=_ID)

    delete = _add(
        group,
        places,
        "delete",
        _sessions_delete,
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
        _db_check,
        "verify that every committed turn is as it was committed",
        "one JSON object",
        "Changes nothing, and may run beside a server. Exit code 1 if a session is damaged.",
    )


def _cursor(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no cursor; use the number that a list ended with")
    return int(text)


# -- what they start ---------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from lastgood.cli import run

    return run.run(args)


def _sessions_list(args: argparse.Namespace) -> int:
    from lastgood.cli import sessions

    return sessions.list_sessions(args)


def _sessions_show(args: argparse.Namespace) -> int:
    from lastgood.cli import sessions

    return sessions.show_session(args)


def _sessions_fork(args: argparse.Namespace) -> int:
    from lastgood.cli import sessions

    return sessions.fork_session(args)


def _sessions_rename(args: argparse.Namespace) -> int:
    from lastgood.cli import sessions

    return sessions.rename_session(args)


def _sessions_reset(args: argparse.Namespace) -> int:
    from lastgood.cli import sessions

    return sessions.reset_session(args)


def _sessions_delete(args: argparse.Namespace) -> int:
    from lastgood.cli import sessions

    return sessions.delete_sessions(args)


def _db_check(args: argparse.Namespace) -> int:
    from lastgood.cli import db

    return db.check_database(args)
