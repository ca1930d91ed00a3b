"""What the model sees, and that it is always valid (I1, I4)."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.history import (
    NO_RESULT,
    History,
    building_history,
    history_of,
    open_calls,
    repair,
    valid_message,
    valid_text,
    with_unique_call_ids,
)
from lastgood.model.messages import Message, Role, ToolCall, assistant, tool_result, user
from lastgood.model.sessions import Head, Turn, TurnKind
from tests.core.builders import turn

A, B = ToolCall("a", "read", "{}"), ToolCall("b", "write", "{}")
OTHER_A = replace(A, id="a_1")
MADE_A, MADE_B = tool_result("a", NO_RESULT), tool_result("b", NO_RESULT)


def is_text(text: str) -> bool:
    return "\x00" not in text and not any(0xD800 <= ord(char) <= 0xDFFF for char in text)


def faults(messages: Sequence[Message]) -> list[str]:
    """What a strict provider would refuse, told without knowing how a repair is made."""
    found: list[str] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        texts = [message.content, message.tool_call_id or ""]
        texts += [text for call in message.tool_calls for text in (call.id, call.name, call.arguments)]
        if not all(map(is_text, texts)):
            found.append(f"{place}: no text")
        if message.role is Role.TOOL:
            found.append(f"{place}: a result without its call")
            continue
        if message.tool_call_id is not None:
            found.append(f"{place}: answers a call but is no result")
        if message.role is not Role.ASSISTANT:
            if message.tool_calls:
                found.append(f"{place}: calls a tool but is not the assistant's")
            continue
        if not message.content.strip() and not message.tool_calls:
            found.append(f"{place}: empty")
        results: Counter[str | None] = Counter()
        while (
            place < len(messages)
            and messages[place].role is Role.TOOL
            and results.total() < len(message.tool_calls)
        ):
            results[messages[place].tool_call_id] += 1
            if messages[place].tool_calls or not is_text(messages[place].content):
                found.append(f"{place}: a bad result")
            place += 1
        called = Counter(call.id for call in message.tool_calls)
        if results != called:
            found.append(f"{place}: calls and results differ")
        if called.total() > len(called) or "" in called:
            found.append(f"{place}: calls share an id, or have none")
    return found


TEXTS = st.one_of(
    st.sampled_from(["", " ", "\n", "hello", "\x00", "\ud800", "\udc00", "é\udfff", "🧭", "\ud83d\udcaf"]),
    st.text(max_size=3),
)
CALLS = st.builds(
    ToolCall, st.sampled_from(["a", "b", "c", "\x00"]), st.sampled_from(["read", "w\x00"]), TEXTS
)
ODD = st.builds(
    Message,
    st.sampled_from(Role),
    TEXTS,
    st.lists(CALLS, max_size=3).map(tuple),
    st.sampled_from([None, "a", "b", "c", "\x00", "\ufffd"]),
)
#: Nearly right ones, so that calls do meet results.
LIKELY = st.one_of(
    TEXTS.map(user),
    TEXTS.map(assistant),
    st.lists(CALLS, min_size=1, max_size=3).map(lambda calls: assistant("", *calls)),
    st.builds(tool_result, st.sampled_from(["a", "b", "c"]), TEXTS),
)
CONVERSATIONS = st.lists(st.one_of(LIKELY, ODD), max_size=12).map(tuple)


@st.composite
def valid_conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    made: list[Message] = []
    for kind in draw(st.lists(st.sampled_from(["user", "answer", "calls", "system"]), max_size=8)):
        if kind == "user":
            made.append(user(draw(st.sampled_from(["", "hello", "🧭"]))))
        elif kind == "system":
            made.append(Message(Role.SYSTEM, "be kind"))
        elif kind == "answer":
            made.append(assistant("fine"))
        else:
            several = st.lists(
                st.sampled_from([A, B, ToolCall("c", "x", "")]), min_size=1, max_size=3, unique=True
            )
            calls = draw(several)
            made.append(assistant(draw(st.sampled_from(["", "let me see"])), *calls))
            made += [
                tool_result(call.id, draw(st.sampled_from(["", "x"])))
                for call in draw(st.permutations(calls))
            ]
    return tuple(made)


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        ((), ()),
        ((user("u"), assistant("a")), (user("u"), assistant("a"))),
        # a call without a result gets one, next to it
        ((assistant("", A),), (assistant("", A), MADE_A)),
        ((assistant("", A), user("u")), (assistant("", A), MADE_A, user("u"))),
        (
            (assistant("", A, B), tool_result("b", "x"), user("u")),
            (assistant("", A, B), tool_result("b", "x"), MADE_A, user("u")),
        ),
        ((assistant("", A), assistant("", B)), (assistant("", A), MADE_A, assistant("", B), MADE_B)),
        # a result without its call goes
        ((tool_result("a", "x"), user("u")), (user("u"),)),
        ((assistant("", A), tool_result("b", "x")), (assistant("", A), MADE_A)),
        ((assistant("", A), user("u"), tool_result("a", "x")), (assistant("", A), MADE_A, user("u"))),
        (
            (assistant("", A), tool_result("a", "x"), tool_result("a", "y")),
            (assistant("", A), tool_result("a", "x")),
        ),
        # providers reuse ids: pairs are made by adjacency
        (
            (assistant("", A), tool_result("a", "x"), user("u"), assistant("", A)),
            (assistant("", A), tool_result("a", "x"), user("u"), assistant("", A), MADE_A),
        ),
        # and calls of one message that share an id are told apart: providers refuse them
        (
            (assistant("", A, A), tool_result("a", "x")),
            (assistant("", A, OTHER_A), tool_result("a", "x"), tool_result("a_1", NO_RESULT)),
        ),
        (
            (assistant("", A, A), tool_result("a", "x"), tool_result("a", "y"), user("u")),
            (assistant("", A, OTHER_A), tool_result("a", "x"), tool_result("a_1", "y"), user("u")),
        ),
        (
            (assistant("", replace(A, id="")), tool_result("", "x")),
            (assistant("", replace(A, id="call_0")), tool_result("call_0", "x")),
        ),
        # empty assistant messages go, other empty ones stay
        ((user(""), assistant(""), assistant(" \n"), user("u")), (user(""), user("u"))),
        # text is made Unicode
        ((user("\x00"), assistant("\ud800")), (user("\ufffd"), assistant("\ufffd"))),
        (
            (assistant("", ToolCall("a", "read", "\ud800")),),
            (assistant("", ToolCall("a", "read", "\ufffd")), MADE_A),
        ),
        # only the assistant calls, only results answer
        ((Message(Role.USER, "u", (A,), "b"),), (user("u"),)),
        ((assistant("", A), Message(Role.TOOL, "x", (B,), "a")), (assistant("", A), tool_result("a", "x"))),
    ],
)
def test_I4_what_goes_out_is_the_nearest_valid_conversation(
    stored: tuple[Message, ...], sent: tuple[Message, ...]
) -> None:
    assert repair(stored) == sent
    assert faults(sent) == []


@given(CONVERSATIONS)
def test_I4_a_repaired_conversation_is_valid_and_stays_as_it_is(messages: tuple[Message, ...]) -> None:
    repaired = repair(messages)
    assert faults(repaired) == []
    assert repair(repaired) == repaired


@given(valid_conversations())
def test_I4_a_valid_conversation_is_left_unchanged(messages: tuple[Message, ...]) -> None:
    assert faults(messages) == []
    assert repair(messages) == messages


@given(CONVERSATIONS)
def test_I8_a_repair_keeps_every_user_message(messages: tuple[Message, ...]) -> None:
    said = [valid_text(message.content) for message in messages if message.role is Role.USER]
    assert [message.content for message in repair(messages) if message.role is Role.USER] == said


def turns_of(contents: Sequence[tuple[Message, ...]]) -> list[Turn]:
    made: list[Turn] = []
    base: Head | None = None
    for messages in contents:
        storable = tuple(
            Message(
                message.role,
                message.content.encode(errors="replace").decode(),
                tuple(
                    ToolCall(call.id, call.name, call.arguments.encode(errors="replace").decode())
                    for call in message.tool_calls
                ),
                message.tool_call_id,
            )
            for message in messages
        )
        made.append(turn(base, *storable))
        base = made[-1].head
    return made


@given(st.lists(CONVERSATIONS, max_size=4), CONVERSATIONS)
def test_I1_a_prompt_is_the_committed_turns_and_the_attempts_own_messages(
    contents: list[tuple[Message, ...]], own: tuple[Message, ...]
) -> None:
    """Repaired turn by turn as they come in, or all at once: the same prompt."""
    turns = turns_of(contents)
    flat = tuple(message for each in turns for message in each.messages)
    prompt = prompt_of(history_of(turns), own)
    assert prompt == repair((*flat, *own))
    assert faults(prompt) == []


@given(st.lists(CONVERSATIONS, min_size=1, max_size=4), st.integers(0, 3))
def test_I1_a_history_can_be_continued_from_anywhere(contents: list[tuple[Message, ...]], place: int) -> None:
    turns = turns_of(contents)
    history = history_of(turns[:place])
    for each in turns[place:]:
        history = history.then(each)
    assert history == history_of(turns)


def prompt_of(history: History, own: Sequence[Message]) -> tuple[Message, ...]:
    return history.settled + history.answered(own)


def test_I1_a_prompt_starts_after_the_last_reset() -> None:
    first = turn(None, user("old"), assistant("", A))
    reset = turn(first.head, kind=TurnKind.RESET)
    second = turn(reset.head, user("new"), assistant("answer"))
    history = history_of([first, reset, second])
    assert prompt_of(history, [user("next")]) == (user("new"), assistant("answer"), user("next"))
    assert history.head == second.head
    assert history_of([first, reset]) == History(reset.head, agent=first.agent_digest)


def test_a_call_left_open_by_a_turn_can_be_answered_by_the_next() -> None:
    history = history_of([turn(None, user("u"), assistant("", A, B), tool_result("a", "x"))])
    assert history.tail
    answered = prompt_of(history, [tool_result("b", "y"), user("v")])
    assert answered[-3:] == (tool_result("a", "x"), tool_result("b", "y"), user("v"))
    assert prompt_of(history, [user("v")])[-2:] == (MADE_B, user("v"))


def test_of_two_calls_with_one_id_the_second_stays_open() -> None:
    history = history_of([turn(None, assistant("", A, A), tool_result("a", "x"))])
    assert prompt_of(history, [tool_result("a", "y")])[-1] == tool_result("a_1", "y")


def test_M2_4_a_history_shares_nothing_that_can_change() -> None:
    before = history_of([turn(None, user("u"), assistant("a"))])
    kept = (before.head, before.settled, before.tail)
    after = before.then(turn(before.head, user("v"), assistant("b")))
    prompt_of(before, [user("w")])
    assert (before.head, before.settled, before.tail) == kept
    assert after.settled[: len(before.settled)] == before.settled


@pytest.mark.parametrize(
    ("messages", "calls"),
    [
        ([], ()),
        ([user("u")], ()),
        ([assistant("", A, B)], (A, B)),
        ([assistant("", A, B), tool_result("a", "x")], (B,)),
        ([assistant("", A), tool_result("a", "x")], ()),
        ([assistant("", A), user("u")], ()),
        ([assistant("", A, A), tool_result("a", "x")], (A,)),
        ([tool_result("a", "x")], ()),
        ([Message(Role.USER, "u", (A,))], ()),
    ],
)
def test_open_calls_are_those_of_the_last_assistant_message(
    messages: list[Message], calls: tuple[ToolCall, ...]
) -> None:
    assert open_calls(messages) == calls


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        ("é\x00", "é\ufffd"),
        ("\ud83e\udded", "🧭"),
        ("\ud83e", "\ufffd"),
        ("\udded\ud83e", "\ufffd\ufffd"),
        ("é", "é"),
    ],
)
def test_invalid_text_becomes_valid_unicode(text: str, valid: str) -> None:
    assert valid_text(text) == valid


@given(TEXTS)
def test_text_made_valid_is_valid_and_stays_unchanged(text: str) -> None:
    valid = valid_text(text)
    assert is_text(valid)
    assert valid_text(valid) == valid
    if is_text(text):
        assert valid == text


@given(valid_conversations())
def test_a_good_message_is_not_even_copied(messages: tuple[Message, ...]) -> None:
    assert all(valid_message(message) is message for message in messages)


def test_I40_building_a_history_costs_what_its_turns_add() -> None:
    """Adding each turn to a tuple copied all that was there: 24 s for 45,000 turns."""
    first = turn(None, user("u"), assistant("a"))
    assert _build_cost([first] * 64_000) < 40 * _build_cost([first] * 4_000)
    assert len(list(building_history([first] * 5))) == 5, "it can be paused after every turn"


def _build_cost(turns: list[Turn]) -> float:
    started = time.process_time()
    assert len(history_of(turns).settled) == 2 * len(turns)
    return time.process_time() - started


def test_a_history_continues_after_a_reset_as_if_it_were_read_again() -> None:
    first = turn(None, user("u"), assistant("a"))
    reset = turn(first.head, kind=TurnKind.RESET)
    assert history_of([first]).then(reset) == history_of([first, reset])


# -- ids of calls ----------------------------------------------------------------------


def ids(*given: str) -> list[str]:
    message = assistant("", *(ToolCall(id, "f", "{}") for id in given))
    return [call.id for call in with_unique_call_ids(message).tool_calls]


def test_calls_that_share_an_id_get_ids_of_their_own() -> None:
    assert ids("a", "a", "b") == ["a", "a_1", "b"]
    assert len(set(ids("a", "a_1", "a", "a"))) == 4


def test_a_missing_id_is_the_same_every_time() -> None:
    assert ids("", "") == ids("", "") == ["call_0", "call_1"]
    assert len(set(ids("call_1", ""))) == 2


def test_a_message_whose_calls_have_ids_is_left_alone() -> None:
    message = assistant("", ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))
    assert with_unique_call_ids(message) is message
