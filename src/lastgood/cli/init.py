"""`lastgood init`: an agent file to begin with."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from lastgood.cli.output import print_json, print_line
from lastgood.cli.parser import CommandParser, configure_command
from lastgood.errors import InvalidRequest


def configure(parser: CommandParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default="agent.yaml", help="file to create; default: agent.yaml"
    )
    configure_command(
        parser, write_starter, json="print a JSON object", details="Never overwrites an existing file."
    )


def write_starter(args: argparse.Namespace) -> int:
    from lastgood.agents.builtin import builtin_file  # `--help` needs no YAML parser

    path = Path(args.path)
    if path.is_dir():
        path /= "agent.yaml"
    try:
        # Created exclusively: a file that another process writes in between is kept.
        with path.open("xb") as file:
            file.write(builtin_file("starter"))
    except FileExistsError:
        raise InvalidRequest(f"{path} already exists; choose another name") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror}") from None
    if args.json:
        print_json({"path": str(path)})
    else:
        name = shlex.quote(str(path))
        print_line(f"Created {path}. Edit it, then run:")
        print_line(f"  lastgood agents check {name}")
        # With a database of its own: a server that runs may hold the usual one.
        print_line(f'  lastgood run {name} --data-dir .lastgood --working-dir . "What is in this folder?"')
    return 0
