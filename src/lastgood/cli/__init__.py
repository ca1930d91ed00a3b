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
from collections.abc import Sequence
from io import TextIOWrapper

from lastgood.cli.command_group import Command, CommandParser
from lastgood.cli.parser import all_words
from lastgood.errors import LastgoodError, WrongUsage


def main(argv: Sequence[str] | None = None) -> int:
    _print_anything()
    args = argparse.Namespace()
    try:
        args = _parse(all_words(), argv)
        command: Command = args.command
        code = command(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # --help or --version
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
        _complain(f"internal error: {error!r}; please report it, with the output under LASTGOOD_DEBUG=1")
        return 1


def _print_anything() -> None:
    """A terminal that lacks a character gets its number instead of a crash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(message: str) -> None:
    from lastgood.cli.output import complain

    complain(message)


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
    return 2 if isinstance(error, WrongUsage) else 1


def _parse(words: CommandParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Lets options stand between AGENT and MESSAGE: argparse leaves the words after them over."""
    args, left_over = words.parse_known_args(argv)
    end = left_over.index("--") if "--" in left_over else len(left_over)
    said = left_over[:end]
    if left_over and ("message" not in args or any(map(_is_option, said))):
        args.words.error(f"unrecognized arguments: {' '.join(left_over)}")
    if left_over:
        args.message = [*args.message, *said, *left_over[end + 1 :]]
    return args


def _is_option(word: str) -> bool:
    return re.fullmatch(r"-[^\d\s]\S*", word) is not None
