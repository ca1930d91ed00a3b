"""`lastgood completion`: a script for the shell that completes commands and options with the Tab key.

Generated from the parser, so it knows what `--help` knows. The script starts no process of ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lastgood.cli.output import print_script
from lastgood.cli.parser import CommandParser, build_parser, configure_command


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    about: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A command. `path` are its words after `lastgood`, each after a blank; empty: the program itself."""

    path: str
    commands: tuple[tuple[str, str], ...]  # with their summaries
    options: tuple[Option, ...]
    choices: tuple[str, ...]  # of its first argument


def configure(parser: CommandParser) -> None:
    parser.add_argument(
        "shell", metavar="SHELL", choices=[*SCRIPTS], help=f"the shell to complete in: {' or '.join(SCRIPTS)}"
    )
    configure_command(
        parser,
        run,
        json=None,
        details='Bash: eval "$(lastgood completion bash)" in ~/.bashrc. Zsh: the same with zsh in ~/.zshrc, '
        "after compinit. Fish: lastgood completion fish > ~/.config/fish/completions/lastgood.fish.",
    )


def run(args: argparse.Namespace) -> int:
    print_script(SCRIPTS[args.shell](tuple(_nodes(build_parser(), ""))))
    return 0


def _nodes(parser: argparse.ArgumentParser, path: str) -> Iterator[Node]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    summaries = {one.dest: one.help or "" for group in groups for one in group._choices_actions}
    below = {name: under for group in groups for name, under in group.choices.items()}
    plain = [action for action in parser._actions if action not in groups]
    arguments = [action for action in plain if not action.option_strings and action.choices]
    yield Node(
        path,
        tuple((name, summaries.get(name, "")) for name in below),
        tuple(_option(action) for action in plain if action.option_strings),
        tuple(map(str, arguments[0].choices or ())) if arguments else (),
    )
    for name, under in below.items():
        yield from _nodes(under, f"{path} {name}")


def _option(action: argparse.Action) -> Option:
    about = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    return Option(
        tuple(action.option_strings), about, action.nargs != 0, tuple(map(str, action.choices or ()))
    )


# -- bash and zsh ----------------------------------------------------------------------

_BASH = """\
_lastgood() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at= words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${{COMP_WORDS[i]}}" in
            {paths}) at="$at ${{COMP_WORDS[i]}}" ;;
        esac
    done
    COMPREPLY=()
    case "$at|$prev" in
{values}
    esac
    case "$at" in
{words}
    esac
    if [[ $cur != -* ]]; then words=${{words%% -*}}; fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _lastgood lastgood
"""


def bash(nodes: tuple[Node, ...]) -> str:
    """No reply leaves it to the shell, which completes file names."""
    paths = "|".join(f'"{node.path}"' for node in nodes if node.path)
    values, words = [], []
    for node in nodes:
        names = [name for option in node.options for name in option.names]
        first = [*(name for name, _ in node.commands), *node.choices]
        words.append(f'        "{node.path}") words=" {" ".join([*first, *names])}" ;;')
        for option in node.options:
            if option.takes_value:
                known = "|".join(f'"{node.path}|{name}"' for name in option.names)
                reply = f'COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$cur")); '
                values.append(f"        {known}) {reply if option.choices else ''}return ;;")
    return _BASH.format(paths=paths, values="\n".join(values), words="\n".join(words))


def zsh(nodes: tuple[Node, ...]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(nodes)}"


# -- fish ------------------------------------------------------------------------------

_FISH = """\
function __lastgood_at
    set -l at ""
    for word in (commandline -opc)[2..-1]
        switch "$at $word"
            case {paths}
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
complete -c lastgood -f -n '__lastgood_at ""'
"""


def fish(nodes: tuple[Node, ...]) -> str:
    paths = " ".join(f'"{node.path}"' for node in nodes if node.path)
    lines = [_FISH.format(paths=paths)]
    for node in nodes:
        here = f"complete -c lastgood -n '__lastgood_at \"{node.path}\"'"
        lines += [f"{here} -f -a {name} -d {_quoted(about)}\n" for name, about in node.commands]
        if node.choices:
            lines.append(f"{here} -f -a {_quoted(' '.join(node.choices))}\n")
        for option in node.options:
            names = " ".join(_fish_name(name) for name in option.names)
            value = " -r" if option.takes_value else ""
            if option.choices:
                value = f" -x -a {_quoted(' '.join(option.choices))}"
            lines.append(f"{here} {names}{value} -d {_quoted(option.about)}\n")
    return "".join(lines)


def _fish_name(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"


def _quoted(text: str) -> str:
    escaped = text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: dict[str, Callable[[tuple[Node, ...]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
