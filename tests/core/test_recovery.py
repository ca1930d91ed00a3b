"""What becomes of a turn whose holder died."""

from dataclasses import replace

import pytest

from lastgood.core.recovery import (
    MOST_DEATHS,
    GiveUp,
    Leave,
    Recovery,
    TryAgain,
    Unsettled,
    approval_place,
    has_effects,
    is_due,
    not_begun,
    recover,
    unsettled,
)
from lastgood.model.agents import OnUnknown
from lastgood.model.attempts import AttemptStatus, Edit, Expected, Interrupted, Step, StepKind
from lastgood.model.ids import TurnId
from lastgood.model.messages import ToolCall, assistant, tool_result
from tests.core.builders import HEAD, attempt, request, step

TASK = ToolCall("0", "transfer_task", "{}")
FOUND = Interrupted(
    attempt(AttemptStatus.INTERRUPTED), request(durable=True), (step(assistant("a")),), HEAD.turn
)


@pytest.mark.parametrize(
    ("found", "digest", "model", "expected"),
    [
        (FOUND, "digest", "model", TryAgain(True, "continues after 1 finished steps")),
        (replace(FOUND, steps=()), "digest", "model", TryAgain(True, "continues after 0 finished steps")),
        (
            replace(FOUND, head=TurnId("newer")),
            "digest",
            "model",
            TryAgain(False, "the head of the session changed, so it restarts from its input"),
        ),
        (
            FOUND,
            "new",
            "model",
            TryAgain(False, "the agent definition changed, so it restarts from its input"),
        ),
        (FOUND, "digest", "new", TryAgain(False, "the model changed, so it restarts from its input")),
        (FOUND, None, "model", Leave("its agent is not served")),
        (
            replace(FOUND, request=request()),
            "digest",
            "model",
            Leave("its client is gone, and the request was neither answered 202 nor sent with a key"),
        ),
    ],
)
def test_a_durable_turn_runs_again_and_adopts_steps_that_are_still_valid(
    found: Interrupted, digest: str | None, model: str, expected: Recovery
) -> None:
    assert recover(found, digest=digest, model=model) == expected


def test_a_durable_edit_whose_head_has_moved_ends_visibly_and_never_runs_on_another_head() -> None:
    edit = request(durable=True, edit=Edit(None, HEAD.turn), condition=Expected(HEAD.turn))
    found = replace(FOUND, request=edit)
    assert recover(found, digest="digest", model="model") == TryAgain(
        True, "continues after 1 finished steps"
    )
    moved = recover(replace(found, head=TurnId("newer")), digest="digest", model="model")
    assert isinstance(moved, GiveUp)
    assert moved.error.code == "stale_head"


@pytest.mark.parametrize("expected", [HEAD.turn, None])
def test_a_durable_turn_that_names_its_head_never_runs_on_another_one(expected: TurnId | None) -> None:
    found = replace(FOUND, request=request(durable=True, condition=Expected(expected)), head=expected)
    assert isinstance(recover(found, digest="digest", model="model"), TryAgain)
    moved = recover(replace(found, head=TurnId("newer")), digest="digest", model="model")
    assert isinstance(moved, GiveUp)
    assert moved.error.code == "stale_head"


@pytest.mark.parametrize("deaths", range(MOST_DEATHS + 2))
def test_I8_a_turn_that_kills_its_server_is_given_up(deaths: int) -> None:
    decision = recover(replace(FOUND, deaths=deaths), digest="digest", model="model")
    assert isinstance(decision, TryAgain if deaths < MOST_DEATHS else Leave)


def test_I12_attempts_that_did_not_die_are_not_counted() -> None:
    """However often the store was out of reach, or the server was restarted."""
    found = replace(FOUND, attempt=attempt(AttemptStatus.INTERRUPTED, number=20), deaths=MOST_DEATHS - 1)
    assert isinstance(recover(found, digest="digest", model="model"), TryAgain)


def test_I26_the_same_facts_give_the_same_answer() -> None:
    assert recover(FOUND, digest="d", model="m") == recover(FOUND, digest="d", model="m")


READ_DONE = replace(step(tool_result("1", "done")), kind=StepKind.TOOL)
RESULT = replace(step(tool_result("2", "done")), kind=StepKind.TOOL)
ASKED = replace(
    step(assistant("", ToolCall("1", "read", "{}"), ToolCall("2", "write", "{}"))), effects=("2",)
)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((), False),
        ((step(assistant("a")),), False),
        ((replace(ASKED, effects=()),), False),
        # Asked for, and nobody knows whether it ran.
        ((ASKED,), True),
        ((ASKED, READ_DONE), True),
        # It ran, or it was denied.
        ((ASKED, replace(RESULT, effects=("2",))), True),
        ((ASKED, READ_DONE, RESULT), False),
        ((ASKED, READ_DONE, RESULT, step(assistant("b"))), False),
        ((replace(RESULT, effects=("2",)), step(assistant("b"))), True),
        # Another agent's steps count, and its calls are answered among its own.
        ((step(assistant("", TASK)), replace(ASKED, within="0/")), True),
        ((ASKED, replace(RESULT, within="0/")), True),
        (
            (replace(ASKED, within="0/"), replace(RESULT, within="0/", effects=("2",)), step(assistant("b"))),
            True,
        ),
    ],
)
def test_I33_a_tool_that_is_not_repeatable_has_effects_once_it_ran_or_may_have(
    steps: tuple[Step, ...], expected: bool
) -> None:
    assert has_effects(steps) is expected


READ, WRITE = ToolCall("1", "read", "{}"), ToolCall("2", "write", "{}")
POLICIES = {"read": OnUnknown.REPEAT, "write": OnUnknown.ASK}


def test_I33_calls_without_a_result_are_unsettled_and_judged_by_their_tool() -> None:
    steps = (step(assistant("", READ, WRITE)),)
    assert unsettled(steps, POLICIES.__getitem__) == (
        Unsettled(READ, OnUnknown.REPEAT),
        Unsettled(WRITE, OnUnknown.ASK),
    )


def test_I33_a_call_with_a_result_is_settled() -> None:
    steps = (step(assistant("", READ, WRITE)), step(tool_result("1", "done")))
    assert unsettled(steps, POLICIES.__getitem__) == (Unsettled(WRITE, OnUnknown.ASK),)
    assert unsettled((*steps, step(tool_result("2", "done"))), POLICIES.__getitem__) == ()
    assert unsettled((), POLICIES.__getitem__) == ()


@pytest.mark.parametrize(
    ("number", "waited", "due"),
    [
        (1, 0.0, True),
        (3, 0.0, True),
        (4, 9.9, False),
        (4, 10.0, True),
        (5, 19.9, False),
        (5, 20.0, True),
        (9, 320.0, True),
        (10, 599.0, False),
        (10, 600.0, True),
        (1000, 599.0, False),
        (1000, 600.0, True),
        (1000, -1.0, True),
    ],
)
def test_outages_are_not_counted_but_further_tries_come_at_growing_intervals(
    number: int, waited: float, due: bool
) -> None:
    tried = replace(attempt(AttemptStatus.INTERRUPTED), number=number, ended_at=1000.0)
    assert is_due(tried, 1000.0 + waited) is due


# -- calls that waited for a person ----------------------------------------------------

A, B, C = (ToolCall(id, "shell", "{}") for id in "abc")


@pytest.mark.parametrize(
    ("waits_at", "waiting"),
    [
        (None, ()),
        ("2:b", (B, C)),
        ("2:a", (A, B, C)),
        ("1:b", ()),  # another response
        ("2:b/1:x", (C,)),  # a call of the agent that b gave its task to
        ("2:bb", ()),
    ],
)
def test_no_call_after_the_one_that_waits_has_begun(
    waits_at: str | None, waiting: tuple[ToolCall, ...]
) -> None:
    assert not_begun((A, B, C), "2:", waits_at) == waiting


def test_a_call_that_waits_for_approval_has_no_effects() -> None:
    asks = replace(step(assistant("", A, B)), effects=("a", "b"))
    done = Step(StepKind.TOOL, tool_result("a", "done"))
    assert has_effects([asks])
    assert not has_effects([asks], "1:a")
    assert has_effects([asks], "1:b"), "the first one may have run"
    assert not has_effects([asks, done], "1:b")


def test_only_a_call_that_needs_approval_begins_after_the_answer() -> None:
    assert approval_place({"kind": "approval", "place": "1:a"}) == "1:a"
    assert approval_place({"kind": "unknown_outcome", "place": "1:a"}) is None
    assert approval_place({"kind": "elicitation", "place": "1:a"}) is None
    assert approval_place(None) is None
