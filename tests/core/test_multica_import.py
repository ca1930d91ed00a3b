"""What rows of a multica database mean: the pairing rule of old chat pointers, turns, pointers."""

from dataclasses import replace

import pytest

from lastgood.core.multica_import import ExchangeReader, ImportedPointer, pointers_of, runtime_of_chat
from lastgood.model.ids import TurnId
from lastgood.model.multica import MulticaChat, MulticaMessage, MulticaTask
from lastgood.model.tasks import PointerOutcome

A, B = "runtime-a", "runtime-b"
CHAT = MulticaChat("chat", "agent", "A chat", "s1", None, "/work")


def task(
    id: str,
    at: float,
    session: str | None = "s1",
    runtime: str | None = A,
    status: str = "completed",
    **more: str | None,
) -> MulticaTask:
    return MulticaTask(
        id,
        "agent",
        status,
        session,
        runtime,
        more.get("work_dir", f"/work/{id}"),
        more.get("retired_session"),
        more.get("failure"),
        at,
    )


PAIRINGS = {
    "the latest finished task made the chat's session": ([task("t1", 1)], A),
    "its last run of two": ([task("t1", 1), task("t2", 2)], A),
    "a failed task counts": ([task("t1", 1, status="failed")], A),
    "a cancelled task counts": ([task("t1", 1, status="cancelled")], A),
    "there is no task": ([], None),
    "no task has finished": ([task("t1", 1, status="running"), task("t2", 2, status="queued")], None),
    "no task recorded a session": ([task("t1", 1, session=None)], None),
    "a stale pointer beside a newer task of another runtime": (
        [task("t1", 1), task("t2", 2, session="s2", runtime=B)],
        None,
    ),
    "a stale pointer beside a newer session of the same runtime": (
        [task("t1", 1), task("t2", 2, session="s2")],
        None,
    ),
    "a stale pointer beside a newer failed task": (
        [task("t1", 1), task("t2", 2, session="s2", runtime=B, status="failed")],
        None,
    ),
    "a stale pointer beside a newer cancelled task": (
        [task("t1", 1), task("t2", 2, session="s2", runtime=B, status="cancelled")],
        None,
    ),
    "a newer task that never had a session says nothing": (
        [task("t1", 1), task("t2", 2, session=None, runtime=B)],
        A,
    ),
    "a newer task that has not finished says nothing": (
        [task("t1", 1), task("t2", 2, session="s2", runtime=B, status="running")],
        A,
    ),
    "the same session id on another runtime, later": ([task("t1", 1), task("t2", 2, runtime=B)], B),
    "the order of the rows does not matter": (
        [task("t2", 2, session="s2", runtime=B), task("t1", 1)],
        None,
    ),
    "two at the same moment agree": ([task("t1", 1), task("t2", 1)], A),
    "two at the same moment on two runtimes": ([task("t1", 1), task("t2", 1, runtime=B)], None),
    "two at the same moment with two sessions": ([task("t1", 1), task("t2", 1, session="s2")], None),
    "the runtime of the task was deleted": ([task("t1", 1, runtime=None)], None),
    "only other sessions": ([task("t1", 1, session="s0"), task("t2", 2, session="s2")], None),
}


@pytest.mark.parametrize(("tasks", "runtime"), PAIRINGS.values(), ids=PAIRINGS.keys())
def test_M4_5_a_chat_gets_the_runtime_of_its_latest_finished_task_or_none(
    tasks: list[MulticaTask], runtime: str | None
) -> None:
    assert runtime_of_chat(CHAT, tasks) == runtime
    assert runtime_of_chat(CHAT, tasks[::-1]) == runtime


def test_M4_5_a_chat_without_a_session_gets_no_runtime() -> None:
    assert runtime_of_chat(replace(CHAT, native_session=None, runtime=A), [task("t1", 1)]) is None


@pytest.mark.parametrize(("recorded", "runtime"), [(None, A), (A, A), (B, None)])
def test_M4_5_a_runtime_that_the_chat_itself_names_must_agree(
    recorded: str | None, runtime: str | None
) -> None:
    assert runtime_of_chat(replace(CHAT, runtime=recorded), [task("t1", 1)]) == runtime


# -- pointers --------------------------------------------------------------------------------


def test_M4_5_M4_6_a_stale_chat_pointer_stays_without_a_runtime_beside_the_rows_of_its_tasks() -> None:
    tasks = [task("t1", 1), task("t2", 2, session="s2", runtime=B)]
    turns = {"t1": TurnId("turn-1"), "t2": TurnId("turn-2")}
    assert pointers_of(CHAT, tasks, turns) == [
        ImportedPointer(None, "s1", None, "/work", None, PointerOutcome.UNCOUNTED, is_dirty=True),
        ImportedPointer("t1", "s1", A, "/work/t1", TurnId("turn-1"), PointerOutcome.COMMITTED),
        ImportedPointer("t2", "s2", B, "/work/t2", TurnId("turn-2"), PointerOutcome.COMMITTED),
    ]


def test_a_chat_pointer_that_is_certain_is_the_pointer_of_its_task() -> None:
    found = pointers_of(CHAT, [task("t1", 1)], {})
    assert [(one.task, one.runtime, one.through) for one in found] == [("t1", A, None)]


def test_a_chat_that_never_ran_has_no_pointer() -> None:
    assert pointers_of(replace(CHAT, native_session=None, work_dir=None), [], {}) == []


def test_a_working_directory_alone_is_a_pointer() -> None:
    (one,) = pointers_of(None, [task("t1", 1, session=None)], {})
    assert (one.native_session, one.work_dir) == (None, "/work/t1")
    (chat,) = pointers_of(replace(CHAT, native_session=None), [], {})
    assert (chat.native_session, chat.work_dir) == (None, "/work")


def test_unfinished_tasks_and_those_without_a_trace_have_no_pointer() -> None:
    tasks = [task("t1", 1, status="running"), task("t2", 2, session=None, work_dir=None)]
    assert pointers_of(None, tasks, {}) == []


def test_a_run_without_a_good_end_has_seen_what_its_session_had_seen_before() -> None:
    tasks = [
        task("t1", 1),
        task("t2", 2, status="failed"),
        task("t3", 3, status="cancelled"),
        task("t4", 4, status="failed", runtime=B),
    ]
    found = pointers_of(None, tasks, {"t1": TurnId("turn-1"), "t2": TurnId("turn-2")})
    assert [(one.through, one.outcome, one.is_dirty) for one in found] == [
        ("turn-1", PointerOutcome.COMMITTED, False),
        ("turn-1", PointerOutcome.FAILED, True),
        ("turn-1", PointerOutcome.UNCOUNTED, True),
        (None, PointerOutcome.FAILED, True),
    ]


def test_native_sessions_that_multica_gave_up_are_retired() -> None:
    tasks = [
        task("t1", 1, session="full"),
        task("t2", 2, session="full", status="failed", failure="agent_error.context_overflow"),
        task("t3", 3, session="recovered", status="failed", failure="api_invalid_request"),
        task("t4", 4, session="recovered"),
        task("t5", 5, session="flaky", status="failed", failure="agent_error.provider_network"),
        task("t6", 6, session="new", retired_session="dead"),
        task("t7", 7, session="dead"),
    ]
    retired = {one.task: one.retired for one in pointers_of(None, tasks, {})}
    full = "multica abandoned it: agent_error.context_overflow"
    assert retired == {
        "t1": full,
        "t2": full,
        "t3": None,
        "t4": None,
        "t5": None,
        "t6": None,
        "t7": "multica abandoned it",
    }


# -- turns -----------------------------------------------------------------------------------


def said(id: str, text: str = "?", **more: object) -> MulticaMessage:
    message = MulticaMessage(id, "user", text, "message", False, None, 1, 0.0)
    return replace(message, **more)  # type: ignore[arg-type]


def replied(id: str, text: str = "!", **more: object) -> MulticaMessage:
    return replace(said(id, text, **more), role="assistant")


def read(*messages: MulticaMessage) -> tuple[list[tuple[str, str, bool]], int]:
    """Exchanges as the ids of their two sides, and how many messages were left out."""
    reader = ExchangeReader()
    found = [reader.read(message) for message in messages] + [reader.finish()]
    pairs = [
        ("".join(m.id for m in one.said), "".join(m.id for m in one.replied), one.resets)
        for one in found
        if one is not None
    ]
    return pairs, reader.left_out


@pytest.mark.parametrize(
    ("messages", "pairs", "left_out"),
    [
        ([], [], 0),
        ([said("a"), replied("b")], [("a", "b", False)], 0),
        ([said("a"), replied("b"), said("c"), replied("d")], [("a", "b", False), ("c", "d", False)], 0),
        ([said("a"), said("b"), replied("c"), replied("d")], [("ab", "cd", False)], 0),
        ([said("a"), replied("b"), said("c")], [("a", "b", False)], 1),
        ([said("a")], [], 1),
        ([replied("a"), said("b"), replied("c")], [("b", "c", False)], 1),
        ([said("a"), replied("b", is_failure=True)], [], 2),
        (
            [said("a"), replied("b"), said("c"), replied("d", is_failure=True), said("e"), replied("f")],
            [("a", "b", False), ("e", "f", False)],
            2,
        ),
        ([said("a"), replied("b"), replied("c", is_failure=True)], [("a", "b", False)], 1),
        (
            [said("a"), replied("b", kind="no_response"), replied("c", " "), replied("d")],
            [("a", "d", False)],
            2,
        ),
        (
            [said("a"), replied("b"), said("c", generation=2), replied("d", generation=2)],
            [("a", "b", False), ("c", "d", True)],
            0,
        ),
        ([said("a", generation=2), replied("b", generation=2)], [("a", "b", False)], 0),
    ],
)
def test_turns_are_what_was_said_and_what_was_replied(
    messages: list[MulticaMessage], pairs: list[tuple[str, str, bool]], left_out: int
) -> None:
    assert read(*messages) == (pairs, left_out)


def test_an_exchange_names_its_last_message_and_the_tasks_that_replied() -> None:
    reader = ExchangeReader()
    for message in (said("a"), replied("b", task="t1"), replied("c", task="t1"), replied("d")):
        reader.read(message)
    exchange = reader.finish()
    assert exchange is not None
    assert (exchange.last.id, exchange.tasks) == ("d", ("t1",))
