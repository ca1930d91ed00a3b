"""The `lastgood` command: parses its arguments, runs a command and returns the exit code.

Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper

from lastgood.cli.parser import COMMANDS, Command, CommandParser, build_parser
from lastgood.errors import LastgoodError, WrongUsage


def main(argv: Sequence[str] | None = None) -> int:
    _print_anything()
    args = argparse.Namespace()
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        if not words:
            build_parser(()).print_help(sys.stderr)
            return 2
        if words[0] == "help":  # `lastgood help run` is what many type first
            words = [*words[1:], "--help"]
        args = _parse(build_parser(COMMANDS.keys() & set(words)), words)
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
        if sys.stderr.isatty():
            _end_line()  # the terminal has written ^C, and the prompt of the shell comes next
        return 1
    except Exception as error:
        if os.environ.get("LASTGOOD_DEBUG"):
            traceback.print_exc()
        _complain(f"internal error: {error!r}; please report it, with the output under LASTGOOD_DEBUG=1")
        return 1


def _print_anything() -> None:
    """Escapes characters that the terminal cannot encode, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(message: str) -> None:
    from lastgood.cli.output import complain

    complain(message)


def _end_line() -> None:
    from lastgood.cli.output import announce

    announce("")


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


def _parse(parser: CommandParser, words: Sequence[str]) -> argparse.Namespace:
    """Accepts options between AGENT and MESSAGE, where argparse leaves the words of MESSAGE over."""
    args, left_over = parser.parse_known_args(words)
    end = left_over.index("--") if "--" in left_over else len(left_over)
    message = left_over[:end]
    if left_over and ("message" not in args or any(map(_is_option, message))):
        args.parser.reject_options(left_over)
    if left_over:
        args.message = [*args.message, *message, *left_over[end + 1 :]]
    return args


def _is_option(word: str) -> bool:
    return re.fullmatch(r"-[^\d\s]\S*", word) is not None
