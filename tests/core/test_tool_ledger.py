"""The ledger of tool calls, derived from the journals of attempts."""

from __future__ import annotations

from dataclasses import replace

from lastgood.core.tool_ledger import RetryPreview, adopted_steps, ledger, retry_preview
from lastgood.model.attempts import AttemptStatus, Step, StepKind, ToolOutcome
from lastgood.model.messages import ToolCall, assistant, tool_result
from tests.core.builders import attempt

CALL = ToolCall("call_1", "shell", '{"cmd": "ls"}')
ASKS = Step(StepKind.MODEL, assistant("", CALL))
DONE = Step(StepKind.TOOL, tool_result("call_1", "a"), outcome=ToolOutcome.DONE, seconds=1.5)
RUNNING = replace(attempt(), status=AttemptStatus.RUNNING, ended_at=None)
ENDED = replace(attempt(), status=AttemptStatus.INTERRUPTED, ended_at=5.0)


def test_a_finished_call_has_its_outcome_and_duration() -> None:
    (found,) = ledger(RUNNING, [ASKS, DONE])
    assert (found.tool, found.outcome, found.seconds) == ("shell", ToolOutcome.DONE, 1.5)
    assert found.key == f"{RUNNING.turn}:1:call_1"
    assert len(found.arguments_digest) == 64
    assert not found.adopted


def test_a_call_without_a_result_is_open_while_it_runs_and_unknown_afterwards() -> None:
    assert ledger(RUNNING, [ASKS])[0].outcome is None
    assert ledger(ENDED, [ASKS])[0].outcome is ToolOutcome.UNKNOWN


def test_an_id_that_is_used_again_is_another_call() -> None:
    first, second = ledger(ENDED, [ASKS, DONE, ASKS])
    assert (first.outcome, second.outcome) == (ToolOutcome.DONE, ToolOutcome.UNKNOWN)
    assert first.key != second.key
    early, late = ledger(ENDED, [ASKS, ASKS, DONE])
    assert (early.outcome, late.outcome) == (ToolOutcome.UNKNOWN, ToolOutcome.DONE)


def test_calls_of_a_sub_agent_are_counted_by_their_own_stage() -> None:
    inner = replace(ASKS, within="1:call_9/")
    result = replace(DONE, within="1:call_9/")
    outer, nested = ledger(ENDED, [ASKS, inner, result])
    assert (outer.outcome, nested.outcome) == (ToolOutcome.UNKNOWN, ToolOutcome.DONE)
    assert nested.key.endswith("1:call_9/1:call_1")


def test_a_result_of_another_call_is_not_taken() -> None:
    other = Step(StepKind.TOOL, tool_result("call_2", "b"), outcome=ToolOutcome.DONE)
    assert ledger(ENDED, [ASKS, other])[0].outcome is ToolOutcome.UNKNOWN


def test_adopted_calls_are_marked() -> None:
    own = Step(StepKind.MODEL, assistant("", ToolCall("call_2", "shell", "{}")))
    adopted = adopted_steps([ASKS, DONE, own], [ASKS, DONE])
    assert adopted == 2
    assert adopted_steps([ASKS, own], [ASKS, DONE]) == 1
    first, second = ledger(RUNNING, [ASKS, DONE, own], adopted)
    assert (first.adopted, second.adopted) == (True, False)


def test_a_retry_keeps_finished_calls_and_repeats_or_asks_about_the_others() -> None:
    quiet, loud = ToolCall("call_2", "read_file", "{}"), ToolCall("call_3", "shell", "{}")
    asks = Step(StepKind.MODEL, assistant("", quiet, loud), effects=(loud.id,))
    assert retry_preview([ASKS, DONE, asks]) == RetryPreview(2, (CALL,), (quiet,), (loud,))
    assert retry_preview([]) == RetryPreview(0, (), (), ())


def test_a_call_that_nobody_approved_is_denied() -> None:
    waited = replace(ENDED, unanswered={"kind": "approval", "place": "1:call_1"})
    assert ledger(waited, [ASKS])[0].outcome is ToolOutcome.DENIED
    assert ledger(waited, [ASKS, DONE])[0].outcome is ToolOutcome.DONE
    unsure = replace(ENDED, unanswered={"kind": "unknown_outcome", "place": "1:call_1"})
    assert ledger(unsure, [ASKS])[0].outcome is ToolOutcome.UNKNOWN


def test_a_retry_makes_a_call_that_nobody_approved() -> None:
    asks = replace(ASKS, effects=("call_1",))
    assert retry_preview([asks]).unknown == (CALL,)
    assert retry_preview([asks], "1:call_1").repeats == (CALL,)
