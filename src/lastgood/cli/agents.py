"""`lastgood agents`: its arguments. Handlers are imported when they run: `--help` needs no YAML parser."""

from __future__ import annotations

import argparse

from lastgood.cli.parser import CommandParser, add_agents, add_command, add_commands, add_settings


def configure(parser: CommandParser) -> None:
    commands = add_commands(parser)
    listed = add_command(
        commands,
        "list",
        list_agents,
        "list the agents that `lastgood serve` would serve, with their models and problems",
        json="print a JSON array with one object per agent",
        details="Accepts the same AGENT arguments as `lastgood serve`. Exits with 1 if an agent cannot be "
        "served.",
    )
    add_agents(listed)
    add_settings(listed, "env_file", "pull_interval")
    check = add_command(
        commands,
        "check",
        check_files,
        "validate agent files and summarize what they define",
        json="print a JSON array with one object per file",
        details="Runs no tools, and sends requests only with --connect. Exits with 1 if a file has errors.",
    )
    check.add_argument(
        "--connect", action="store_true", help="start or reach each MCP server and list its tools"
    )
    add_settings(check, "env_file")
    check.add_argument("files", metavar="FILE", nargs="+", help="agent file, or directory of agent files")
    add_command(
        commands,
        "schema",
        print_schema,
        "print the JSON Schema of agent files",
        json="accepted for consistency; the schema is always JSON",
        details="Use it in an editor to complete and validate agent files.",
    )


def list_agents(args: argparse.Namespace) -> int:
    from lastgood.cli import agents_list

    return agents_list.list_agents(args)


def check_files(args: argparse.Namespace) -> int:
    from lastgood.cli import agents_check

    return agents_check.check_files(args)


def print_schema(args: argparse.Namespace) -> int:
    from lastgood.cli import agents_check

    return agents_check.print_schema(args)
