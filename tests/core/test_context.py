"""How much of a conversation a model is shown: views that leave things out and stay valid (I1, I4, I8)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.context import (
    CHARACTERS_PER_TOKEN,
    LEFT_OUT,
    RESULT_CHARACTERS,
    cap_result,
    fade_results,
    fitting,
    repeats,
    shown_of,
    trim,
    without_oldest,
)
from lastgood.core.history import repair
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

CALL = ToolCall("a", "read", "{}")

#: A conversation as it is stored: questions, answers, and answers that used a tool first.
exchanges = st.lists(st.sampled_from(["said", "used"]), max_size=6).map(
    lambda kinds: tuple(message for number, kind in enumerate(kinds) for message in _exchange(number, kind))
)


def _exchange(number: int, kind: str) -> tuple[Message, ...]:
    question, answer = user(f"q{number}"), assistant(f"a{number}")
    if kind == "said":
        return question, answer
    return question, assistant("", CALL), tool_result("a", f"r{number}"), answer


def is_valid(messages: Sequence[Message]) -> bool:
    return repair(messages) == tuple(messages)


def test_trimming_drops_the_oldest_answers_with_their_results_and_keeps_questions() -> None:
    history = (*_exchange(1, "used"), *_exchange(2, "said"))
    assert trim(history, 4) == (user("q1"), assistant("a1"), user("q2"), assistant("a2"))
    assert trim(history, 3) == (user("q1"), user("q2"), assistant("a2"))
    assert trim(history, 6) == history


@given(exchanges, st.integers(0, 30))
def test_a_trimmed_conversation_is_valid_and_loses_no_question(
    history: tuple[Message, ...], items: int
) -> None:
    shown = trim(history, items)
    questions = [message for message in history if message.role is Role.USER]
    assert is_valid(shown)
    assert [message for message in shown if message.role is Role.USER] == questions
    assert len(shown) <= max(items, len(questions)) or len(history) <= items


@given(exchanges)
def test_shortening_ends_with_nothing_earlier_and_always_cuts_before_a_question(
    history: tuple[Message, ...],
) -> None:
    left_out, before = 0, -1
    while (more := without_oldest(history, left_out)) is not None:
        assert more > left_out > before
        assert more == len(history) or history[more].role is Role.USER
        assert is_valid(history[more:])
        before, left_out = left_out, more
    assert left_out == len(history)


def test_shortening_leaves_out_about_half_at_a_time() -> None:
    history = tuple(message for number in range(8) for message in _exchange(number, "said"))
    assert without_oldest(history, 0) == 8
    assert without_oldest(history, 8) == 12
    assert without_oldest(history, 2) == 10  # half would be 9, which is an answer
    assert without_oldest((), 0) is None


def test_what_frames_a_conversation_is_shown_whatever_is_left_out() -> None:
    framing = Message(Role.SYSTEM, "Summary: much was said")
    history = (framing, *_exchange(1, "said"), *_exchange(2, "said"))
    assert shown_of(history, 0) == history
    assert shown_of(history, 3) == (framing, *_exchange(2, "said"))
    assert shown_of(history, len(history)) == (framing,)


def test_old_results_fade_and_new_ones_stay_whole() -> None:
    old, new = "o" * 100, "n" * 100
    messages = (
        user("q"),
        assistant("", CALL),
        tool_result("a", old),
        assistant("", CALL),
        tool_result("a", "short"),
        assistant("", CALL),
        tool_result("a", new),
    )
    shown = fade_results(messages, 105 // CHARACTERS_PER_TOKEN)
    assert [message.content for message in shown if message.role is Role.TOOL] == [LEFT_OUT, "short", new]
    assert is_valid(shown)


@pytest.mark.parametrize(("tokens", "most"), [(0, RESULT_CHARACTERS), (30, 120)])
def test_a_long_result_keeps_both_ends_and_is_kept_whole_beside(tokens: int, most: int) -> None:
    fits = cap_result("x" * most, tokens)
    assert (fits.text, fits.full) == ("x" * most, None)
    text = "begin" + "x" * most + "end"
    capped = cap_result(text, tokens)
    assert capped.full == text
    assert capped.text.startswith("begin")
    assert capped.text.endswith("end")
    left_out = len(text) - most * 2 // 3 - most // 3
    assert f"{left_out} characters omitted" in capped.text


def test_the_same_calls_again_and_again_are_a_loop_whatever_their_ids() -> None:
    def asked(number: int, text: str = "{}") -> tuple[ToolCall, ...]:
        return (ToolCall(f"id-{number}", "read", text),)

    same = [asked(1), asked(2), asked(3)]
    assert repeats(same, 3)
    assert not repeats(same, 4)
    assert not repeats([asked(1), asked(2, '{"x":1}'), asked(3)], 3)
    assert not repeats(same, 0)


PICTURE = Image("data:image/png;base64,AA")
PAPER = File("a.pdf", "data:application/pdf;base64,AA")
SOUND = File("a.wav", "data:audio/wav;base64,AA")
NOTES = File("a.txt", "data:text/plain;base64,AA")


def test_attachments_that_a_model_does_not_accept_are_left_out_and_that_is_said() -> None:
    said = user_parts("look", PICTURE, PAPER, SOUND, NOTES)
    [shown] = fitting([said], frozenset({"pdf"}))
    left_out = [f"[{kind} left out: this model does not accept it]" for kind in ("image", "audio")]
    assert shown.parts == ("look", left_out[0], PAPER, left_out[1], NOTES)
    assert shown.content == said.content
    plain = user("look")
    whole = frozenset({"image", "pdf", "audio"})
    assert fitting([plain, said], whole) == (plain, said)
    assert fitting([said], whole)[0] is said
