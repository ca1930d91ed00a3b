"""What a runtime is told in words, if its native session does not hold it (I28)."""

from __future__ import annotations

import pytest

from lastgood.core.transcript import TranscriptLine, catch_up, since_reset, text_of_input, transcript
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import (
    File,
    Image,
    Message,
    Role,
    ToolCall,
    assistant,
    tool_result,
    user,
    user_parts,
)
from lastgood.model.sessions import Turn, TurnKind, Usage


def turn(number: int, *messages: Message, kind: TurnKind = TurnKind.RUN) -> Turn:
    said = messages or (user(f"ask {number}"), assistant(f"answer {number}"))
    return Turn(
        TurnId(f"t{number}"),
        SessionId("s"),
        number,
        None,
        AttemptId("a"),
        kind,
        b"",
        "",
        "",
        "",
        {},
        Usage(),
        0.0,
        "",
        1,
        b"",
        messages=said,
    )


def texts(lines: tuple[TranscriptLine, ...]) -> list[str]:
    return [f"{line.role}: {line.content}" for line in lines]


THREE = [turn(1), turn(2), turn(3)]


def test_all_of_it_if_it_fits() -> None:
    assert texts(transcript(THREE[:2])) == [
        "user: ask 1",
        "assistant: answer 1",
        "user: ask 2",
        "assistant: answer 2",
    ]
    assert transcript([]) == ()


@pytest.mark.parametrize(("most", "omitted"), [(30, 1), (26, 1), (25, 2), (13, 2)])
def test_the_newest_whole_turns_and_a_marker_for_the_others(most: int, omitted: int) -> None:
    lines = transcript(THREE, most)
    assert lines[0].role == "system"
    assert f"{omitted} earlier turn" in lines[0].content
    assert texts(lines[-2:]) == ["user: ask 3", "assistant: answer 3"]
    assert len(lines) == 1 + 2 * (3 - omitted)


def test_the_newest_turn_is_shortened_rather_than_left_out() -> None:
    lines = transcript([turn(1), turn(2, user("x" * 100), assistant("ok"))], 60)
    assert [line.role for line in lines] == ["system", "user", "assistant"]
    assert "[… 70 characters left out …]" in lines[1].content
    assert lines[2].content == "ok"


def test_tool_results_are_left_out_and_tool_calls_named() -> None:
    call = ToolCall("1", "shell", "{}")
    lines = transcript(
        [turn(1, user("look"), assistant("", call), tool_result("1", "secret"), assistant("ok"))]
    )
    assert texts(lines) == ["user: look", "assistant: [called the tool shell]", "assistant: ok"]


def test_what_is_not_text_is_named() -> None:
    said = user_parts("see", Image("https://example.com/a.png"), File("a.pdf", "data:,"))
    assert text_of_input([said, user("and this")]) == (
        "see\n[an image, left out]\n[the file a.pdf, left out]\n\nand this"
    )


def test_a_turn_without_words_is_no_turn_of_the_transcript() -> None:
    assert transcript([turn(1, user(" "))]) == ()


def test_I27_what_came_after_a_turn() -> None:
    assert texts(catch_up(THREE, TurnId("t2"))) == ["user: ask 3", "assistant: answer 3"]
    assert catch_up(THREE, TurnId("t3")) == ()
    assert catch_up(THREE, None) == transcript(THREE)


def test_prompts_start_after_the_last_reset() -> None:
    turns = [turn(1), turn(2, kind=TurnKind.RESET), turn(3), turn(4, kind=TurnKind.RESET), turn(5)]
    assert [one.id for one in since_reset(turns)] == ["t5"]
    assert since_reset(THREE) == tuple(THREE)


def test_an_input_that_carries_its_own_history_says_who_speaks() -> None:
    said = (Message(Role.SYSTEM, "be brief"), user("one"), assistant("two"), user("three"))
    assert text_of_input(said) == "system: be brief\n\nuser: one\n\nassistant: two\n\nuser: three"
