"""What a command of an agent file becomes, with what was typed after its name."""

from __future__ import annotations

import pytest

from lastgood.core.command_prompts import (
    command_prompt,
    command_url,
    unknown_expressions,
    uses_environment,
    why_no_page,
)


@pytest.mark.parametrize(
    ("instruction", "typed", "prompt"),
    [
        ("Fix it", "", "Fix it"),
        ("Fix it ", "the door", "Fix it the door"),
        ("", "the door", "the door"),
        ("Fix ${args}", "a b", "Fix a b"),
        ("Fix ${args[0]}, then ${args[1]}", "'the door' \"a roof\"", "Fix the door, then a roof"),
        ("Fix ${args[3]}.", "a", "Fix ."),
        ("Fix ${args[3] || 'all'}.", "a", "Fix all."),
        ('Fix ${args || "all"}', "", "Fix all"),
        ("Fix ${args.join()}", "a b", "Fix a,b"),
        ("Fix ${args.join(', ')}", "a b", "Fix a, b"),
        ("Ask ${env.NAME}", "", "Ask Ada"),
        ("Ask ${env.NAME}", "now", "Ask Ada now"),
        ("Ask ${env.OTHER}.", "", "Ask ."),
        ("Ask ${env.OTHER || 'Bob'}", "", "Ask Bob"),
        ("Ask ${read()}", "", "Ask ${read()}"),
    ],
)
def test_a_command_gets_what_was_typed(instruction: str, typed: str, prompt: str) -> None:
    assert command_prompt(instruction, typed, {"NAME": "Ada"}) == prompt


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("plain", []),
        ("${args[0]} ${env.NAME} costs $5", []),
        ("${read()} and !run(a)", ["${read()}", "!run(a)"]),
        ("${args.length}", ["${args.length}"]),
    ],
)
def test_expressions_that_stay_as_they_are_written_are_named(text: str, unknown: list[str]) -> None:
    assert list(unknown_expressions(text)) == unknown


def test_an_instruction_says_whether_it_needs_the_environment() -> None:
    assert uses_environment("${env.NAME}")
    assert not uses_environment("${args}")


def test_a_page_has_the_session_where_its_url_says_so() -> None:
    assert command_url("https://example.com/?s={{session_id}}#{{session_id}}", "a b&c") == (
        "https://example.com/?s=a%20b%26c#a%20b%26c"
    )
    assert command_url("https://example.com", "ses_1") == "https://example.com"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.com/{{session_id}}", None),
        ("docker-desktop://dashboard/session/{{session_id}}", None),
        ("example.com", "it needs a scheme"),
        ("JavaScript:alert(1)", "it needs a scheme"),
        ("file:///etc/passwd", "it needs a scheme"),
        ("https://[", "it needs a scheme"),
        ("https://example.com/a b", "percent-encode"),
        ("https://example.com/\x1b[2J", "percent-encode"),
        ("https://exämple.com", "percent-encode"),
    ],
)
def test_what_is_no_page_is_not_shown(url: str, why: str | None) -> None:
    said = why_no_page(url)
    assert said is None if why is None else why in (said or "")


@pytest.mark.parametrize("piece", ["${", "${ env", "${args ", "!a(", "${a(", "${args||'"])
def test_I40_a_text_of_half_expressions_is_read_once(piece: str) -> None:
    text = piece * (400_000 // len(piece))
    list(unknown_expressions(text))
    assert command_prompt(text, "typed", {}).startswith(piece.strip())
