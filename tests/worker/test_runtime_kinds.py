"""NAME=KIND[:COMMAND]."""

import pytest

from lastgood.worker.runtimes.runtime_kinds import KINDS, UnknownKind, kind_named, parse_runtime


def test_every_kind_is_found_by_its_name() -> None:
    for kind in KINDS:
        found = kind_named(kind, ["program"], {})
        assert found.provider == kind
        assert found.format
    assert kind_named("goose", None, {}).provider == "goose"


@pytest.mark.parametrize(
    ("text", "name", "kind", "command"),
    [
        ("laptop=claude", "laptop", "claude", None),
        ("g=goose:/opt/goose", "g", "goose", ("/opt/goose",)),
        ("q=acp:qwen --acp --auth-type 'open ai'", "q", "acp", ("qwen", "--acp", "--auth-type", "open ai")),
        ("s=command:./run.sh a:b=c", "s", "command", ("./run.sh", "a:b=c")),
    ],
)
def test_runtimes_are_parsed(text: str, name: str, kind: str, command: tuple[str, ...] | None) -> None:
    choice = parse_runtime(text)
    assert (choice.name, choice.kind, choice.command) == (name, kind, command)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claude", "NAME=KIND"),
        ("=claude", "NAME=KIND"),
        ("x=cursor", "use one of acp, claude, codex, command, goose"),
        ("x=acp", "needs a command: NAME=acp:COMMAND"),
        ("x=command:", "needs a command"),
        ("x=command:'open", "cannot be read"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(UnknownKind, match=message):
        parse_runtime(text)
