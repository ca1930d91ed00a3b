"""What is new in a request that carries a whole conversation (M2.3), and where it goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.admission import Admission, Admitted, Rejected, admit
from lastgood.core.conversation import Append, Change, Reconciled, new_input, reconcile
from lastgood.errors import InvalidRequest, StaleHead
from lastgood.model.messages import (
    Image,
    Message,
    Role,
    ToolCall,
    assistant,
    tool_result,
    user,
    user_parts,
)
from lastgood.model.sessions import Turn, TurnKind
from tests import webui
from tests.core.builders import HEAD, ask, session, standing, turn

SYSTEM = Message(Role.SYSTEM, "be good")
A, B = ToolCall("a", "weather", "{}"), ToolCall("b", "time", "{}")
RAIN, NOON = tool_result("a", "rain"), tool_result("b", "noon")
PIXEL, OTHER = Image("data:image/png;base64,AA"), Image("data:image/png;base64,BB")


# -- what is new -------------------------------------------------------------------

NEW: dict[str, tuple[list[Message], tuple[ToolCall, ...], list[Message]]] = {
    "only the new message is sent": ([user("2")], (), [user("2")]),
    "the whole history is sent": ([SYSTEM, user("1"), assistant("one"), user("2")], (), [user("2")]),
    "of several, the last": ([user("1"), assistant("one"), user("2"), user("3")], (), [user("3")]),
    "a system message after the answer is not asked": (
        [user("1"), assistant("one"), SYSTEM, user("2")],
        (),
        [user("2")],
    ),
    "the result of an open call": ([user("1"), assistant("", A), RAIN], (A,), [RAIN]),
    "the results of all": ([user("1"), assistant("", A, B), NOON, RAIN], (A, B), [NOON, RAIN]),
    "results and what was said to them": (
        [user("1"), assistant("", A), RAIN, user("2")],
        (A,),
        [RAIN, user("2")],
    ),
    "results alone, without the call": ([RAIN], (A,), [RAIN]),
    "a result, not the message before it": ([user("1"), RAIN], (A,), [RAIN]),
    "a word instead of the result": ([user("1"), assistant("", A), user("2")], (A,), [user("2")]),
    "a result that nobody waits for any more": (
        [user("1"), assistant("", A), RAIN, user("2")],
        (),
        [user("2")],
    ),
}


@pytest.mark.parametrize("row", NEW.values(), ids=NEW)
def test_only_what_follows_the_last_answer_is_new(
    row: tuple[list[Message], tuple[ToolCall, ...], list[Message]],
) -> None:
    body, calls, new = row
    assert list(new_input(body, is_first=False, open_calls=calls)) == new


NOTHING: dict[str, list[Message]] = {
    "the answer comes last": [user("1"), assistant("one")],
    "only what the system says": [user("1"), assistant("one"), SYSTEM],
    "a result of a call that is closed": [user("1"), assistant("", A), RAIN],
    "a message before a result of a call that is closed": [user("1"), RAIN],
    "nothing": [],
}


@pytest.mark.parametrize("body", NOTHING.values(), ids=NOTHING)
def test_M2_3_what_was_answered_is_never_asked_again(body: list[Message]) -> None:
    with pytest.raises(InvalidRequest, match="No new user message"):
        new_input(body, is_first=False, open_calls=())


def test_the_whole_body_starts_a_conversation() -> None:
    """Also one that a client began elsewhere, and one whose first try failed."""
    body = (SYSTEM, user("1"), assistant("one"), user("2"))
    assert new_input(body, is_first=True, open_calls=()) == body


MESSAGES = st.sampled_from([SYSTEM, user("1"), user("2"), assistant("one"), assistant("", A), RAIN, NOON])


@given(st.lists(MESSAGES, max_size=6), st.sampled_from([(), (A,), (A, B)]))
def test_nothing_before_the_last_answer_is_ever_new(body: list[Message], calls: tuple[ToolCall, ...]) -> None:
    def after_last(*roles: Role) -> list[Message]:
        found = [at for at, message in enumerate(body) if message.role in roles]
        return body[found[-1] + 1 :] if found else body

    fresh, unanswered = after_last(Role.ASSISTANT), after_last(Role.ASSISTANT, Role.TOOL)
    try:
        new = new_input(body, is_first=False, open_calls=calls)
    except InvalidRequest:
        assert not any(message.role is Role.USER for message in unanswered)
    else:
        assert new
        assert all(any(message is one for one in fresh) for message in new)
        said = [message for message in new if message.role is Role.USER]
        assert len(said) <= 1
        assert all(any(message is one for one in unanswered) for message in said)


def test_a_body_that_begins_a_session_is_refused_where_there_is_a_turn() -> None:
    """M2: whoever read the session a moment before that turn was committed takes the whole body for new."""
    first = ask(is_first=True)
    assert admit(first, standing(session=session(head=None))) == Admitted()
    assert is_stale(admit(first, standing(session=session(head=HEAD))))


def is_stale(decision: Admission) -> bool:
    return isinstance(decision, Rejected) and isinstance(decision.error, StaleHead)


# -- where it goes on --------------------------------------------------------------


def chain(*turns: tuple[Message, ...] | TurnKind) -> list[Turn]:
    made: list[Turn] = []
    for one in turns:
        base = made[-1].head if made else None
        made.append(turn(base, kind=one) if isinstance(one, TurnKind) else turn(base, *one))
    return made


ONE = (user("1"), assistant("one"))
TWO = (user("2"), assistant("two"))
WITH_TOOLS = (user("1"), assistant("let me see", A), RAIN, assistant("one"))
OPEN = (user("1"), assistant("", A))
OPEN_WITH_WORDS = (user("1"), assistant("let me see", A))
ANSWERED = (RAIN, assistant("it rains"))

GOES_ON: dict[str, tuple[list[Turn], list[Message], Reconciled]] = {
    "from the head": (chain(ONE, TWO), [*ONE, *TWO, user("3")], Append((user("3"),))),
    "all that is new": (chain(ONE), [*ONE, user("2"), user("3")], Append((user("2"), user("3")))),
    "from nothing": (chain(), [SYSTEM, user("1")], Append((SYSTEM, user("1")))),
    "with a history from elsewhere": (chain(), [*ONE, user("2")], Append((*ONE, user("2")))),
    "knowing more than we do": (chain(ONE), [*ONE, *TWO, user("3")], Append((*TWO, user("3")))),
    "after a reset": (chain(ONE, TurnKind.RESET, TWO), [*TWO, user("3")], Append((user("3"),))),
    "from the first message after a reset": (
        chain(ONE, TurnKind.RESET, TWO),
        [user("other")],
        Change(chain(ONE, TurnKind.RESET)[1].id, (user("other"),)),
    ),
    "right after a reset": (chain(ONE, TurnKind.RESET), [user("3")], Append((user("3"),))),
    "with its own system message": (chain(ONE), [SYSTEM, *ONE, user("2")], Append((user("2"),))),
    "spaced in its own way": (
        chain(ONE),
        [user(" 1\n"), assistant("one "), user("2")],
        Append((user("2"),)),
    ),
    "knowing nothing of our tools": (
        chain(WITH_TOOLS),
        [user("1"), assistant("let me see\n\none"), user("2")],
        Append((user("2"),)),
    ),
    "with another answer wanted": (
        chain(ONE, TWO),
        [*ONE, user("2")],
        Change(chain(ONE)[0].id, (user("2"),)),
    ),
    "with an earlier word changed": (
        chain(ONE, TWO),
        [*ONE, user("2!")],
        Change(chain(ONE)[0].id, (user("2!"),)),
    ),
    "with an answer changed": (
        chain(ONE, TWO),
        [*ONE, user("2"), assistant("due"), user("3")],
        Change(chain(ONE)[0].id, (user("2"), assistant("due"), user("3"))),
    ),
    "with the first word changed": (chain(ONE, TWO), [user("0")], Change(None, (user("0"),))),
    "with another picture": (
        chain((user_parts("this?", PIXEL), assistant("a"))),
        [user_parts("this?", OTHER), assistant("a"), user("2")],
        Change(None, (user_parts("this?", OTHER), assistant("a"), user("2"))),
    ),
    "with the same picture": (
        chain((user_parts("this?", PIXEL), assistant("a"))),
        [user_parts("this?", PIXEL), assistant("a"), user("2")],
        Append((user("2"),)),
    ),
    "with the result of its call": (chain(OPEN), [*OPEN, RAIN], Append((RAIN,))),
    "with the result, after words": (chain(OPEN_WITH_WORDS), [*OPEN_WITH_WORDS, RAIN], Append((RAIN,))),
    "with a result and a word": (chain(OPEN), [*OPEN, RAIN, user("2")], Append((RAIN, user("2")))),
    "with a word instead of the result": (chain(OPEN), [*OPEN, user("2")], Append((user("2"),))),
    "after words on both sides of its result": (
        chain(OPEN_WITH_WORDS, ANSWERED),
        [*OPEN_WITH_WORDS, *ANSWERED, user("2")],
        Append((user("2"),)),
    ),
    "with calls that are not ours": (
        chain(OPEN),
        [user("1"), assistant("", B), NOON],
        Append((assistant("", B), NOON)),
    ),
    "with another answer to a result": (
        chain(OPEN, ANSWERED),
        [*OPEN, RAIN],
        Change(chain(OPEN)[0].id, (RAIN,)),
    ),
    "with a result that nobody waits for": (
        chain((user("1"), assistant("let me see"))),
        [*OPEN_WITH_WORDS, RAIN, user("2")],
        Append((user("2"),)),
    ),
}


@pytest.mark.parametrize("row", GOES_ON.values(), ids=GOES_ON)
def test_a_client_that_resends_its_history_continues(
    row: tuple[list[Turn], list[Message], Reconciled],
) -> None:
    turns, body, goes_on = row
    assert reconcile(body, turns) == goes_on


FILE, BOTH_FILES = webui.with_sources("2", "a"), webui.with_sources("2", "a", "b</source>c")
ABOUT_A_FILE = (user(FILE), assistant("two"))
CALLED = (user(FILE), assistant("let me see", A))

SAID_OF_SOURCES: dict[str, tuple[list[Turn], list[Message], Reconciled]] = {
    "without the sources that it once sent": (
        chain(ONE, ABOUT_A_FILE),
        [*ONE, *TWO, user(webui.with_sources("3", "a"))],
        Append((user(webui.with_sources("3", "a")),)),
    ),
    "with sources that it found afterwards": (
        chain(OPEN),
        [user(webui.with_sources("1", "a")), assistant("", A), RAIN],
        Append((RAIN,)),
    ),
    "with more sources than before": (
        chain(ONE, CALLED),
        [*ONE, user(BOTH_FILES), assistant("let me see", A), RAIN],
        Append((RAIN,)),
    ),
    "with other words about the same file": (
        chain(ABOUT_A_FILE),
        [user("0"), assistant("two"), user("3")],
        Change(None, (user("0"), assistant("two"), user("3"))),
    ),
    "with words that only look like it": (
        chain((user("close it by </source>"), assistant("one"))),
        [user("open it by </source>"), assistant("one"), user("2")],
        Change(None, (user("open it by </source>"), assistant("one"), user("2"))),
    ),
    "with a file that is attached": (
        chain((user(webui.with_sources(webui.attached("1"), "a")), assistant("one"))),
        [user(webui.attached("1")), assistant("one"), user("2")],
        Append((user("2"),)),
    ),
}


@pytest.mark.parametrize("row", SAID_OF_SOURCES.values(), ids=SAID_OF_SOURCES)
def test_sources_that_a_client_looked_up_are_not_compared(
    row: tuple[list[Turn], list[Message], Reconciled],
) -> None:
    """Open WebUI puts them before what the person said, in the last message alone."""
    turns, body, goes_on = row
    assert reconcile(body, turns) == goes_on


def test_a_history_from_elsewhere_in_which_tools_ran_is_gone_on_from() -> None:
    """The results in it are the client's, so the words on both sides of one are two sayings to it."""
    elsewhere = (*OPEN_WITH_WORDS, RAIN, assistant("it rains"), user("2"))
    turns = [replace(one, inputs=len(elsewhere)) for one in chain((*elsewhere, assistant("two")))]
    assert reconcile([*elsewhere, assistant("two"), user("3")], turns) == Append((user("3"),))


STANDS: dict[str, tuple[list[Turn], list[Message]]] = {
    "the answer comes last": (chain(ONE), [*ONE]),
    "nothing is said": (chain(ONE), [*ONE, SYSTEM]),
    "a result that nobody waits for": (
        chain((user("1"), assistant("let me see"))),
        [*OPEN_WITH_WORDS, RAIN],
    ),
}


@pytest.mark.parametrize("row", STANDS.values(), ids=STANDS)
def test_M2_3_nothing_new_goes_nowhere(row: tuple[list[Turn], list[Message]]) -> None:
    turns, body = row
    with pytest.raises(InvalidRequest, match="No new user message"):
        reconcile(body, turns)
