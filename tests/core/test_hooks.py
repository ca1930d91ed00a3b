"""What the hooks of an event mean together, as tables."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lastgood.core.hooks import (
    CONTRACTS,
    JUDGEMENT,
    Blocks,
    Failure,
    HookDecision,
    HookOutput,
    Proceeds,
    combine,
    has_run,
    matching,
    prompt_notes,
    read_json,
    read_judgement,
    read_reply,
    ruled,
    since_response,
)
from lastgood.core.tool_ledger import ledger
from lastgood.model.attempts import Step, StepKind, said
from lastgood.model.hooks import HookEvent, HookKind, HookSpec, OnHookError
from lastgood.model.messages import Message, Role, ToolCall, assistant, tool_result
from tests.core.builders import attempt

GUARD = HookEvent.PRE_TOOL_USE


def hook(event: HookEvent = GUARD, command: str = "./h", **more: Any) -> HookSpec:
    return HookSpec(event, HookKind.COMMAND, command, **more)


def test_every_event_has_a_contract() -> None:
    assert set(CONTRACTS) == set(HookEvent)


def test_what_guards_a_call_fails_closed() -> None:
    closed = {event for event, contract in CONTRACTS.items() if contract.fails_closed}
    assert closed == {HookEvent.PRE_TOOL_USE, HookEvent.TOOL_GUARD}
    assert all(CONTRACTS[event].blocks for event in closed)


@pytest.mark.parametrize(
    ("matcher", "tool", "fits"),
    [
        ("", "shell", True),
        ("*", "shell", True),
        ("shell", "shell", True),
        ("shell", "shell_x", False),
        ("shell|edit_.*", "edit_file", True),
        ("mcp:.*", "shell", False),
    ],
)
def test_matching(matcher: str, tool: str, fits: bool) -> None:
    one = hook(matcher=matcher)
    assert matching([one, one], GUARD, tool) == ([one] if fits else [])
    assert matching([one], HookEvent.STOP, tool) == []


# -- what one hook said ------------------------------------------------------------------------


def out(**fields: Any) -> str:
    return json.dumps(fields)


def specific(**fields: Any) -> str:
    return out(hook_specific_output=fields)


@pytest.mark.parametrize(
    ("event", "code", "stdout", "stderr", "expected"),
    [
        (GUARD, 0, "", "", HookOutput()),
        (GUARD, 0, "plain text", "", HookOutput()),
        (HookEvent.TURN_START, 0, " plain text\n", "", HookOutput(context="plain text")),
        (GUARD, 2, "", " no \n", HookOutput(blocks=True, reason="no")),
        (GUARD, 2, out(reason="why"), "", HookOutput(blocks=True, reason="why")),
        (GUARD, 2, out(stop_reason="why"), "", HookOutput(blocks=True, reason="why")),
        (GUARD, 2, out(reason=3), "", HookOutput(blocks=True)),
        (GUARD, 2, "[]", "", HookOutput(blocks=True)),
        (GUARD, 2, "{", "", HookOutput(blocks=True)),
        (GUARD, 1, "", "", Failure("it ended with status 1")),
        (GUARD, 1, "", "oh", Failure("it ended with status 1: oh")),
        (GUARD, None, "", "", Failure("it timed out after 60 s")),
        (GUARD, 0, out(decision="block", reason="r"), "", HookOutput(blocks=True, reason="r")),
        (GUARD, 0, '{"continue": false, "stop_reason": "s"}', "", HookOutput(blocks=True, reason="s")),
        (GUARD, 0, out(system_message="w"), "", HookOutput(warning="w")),
        (GUARD, 0, '{"continue": true, "reason": null}', "", HookOutput()),
        (GUARD, 0, specific(permission_decision="ask"), "", HookOutput(decision=HookDecision.ASK)),
        (GUARD, 0, specific(permission_decision=""), "", HookOutput()),
        (HookEvent.POST_TOOL_USE, 0, specific(permission_decision="ask"), "", HookOutput()),
        (GUARD, 0, specific(updated_input={"a": 1}), "", HookOutput(arguments={"a": 1})),
        (HookEvent.TOOL_GUARD, 0, specific(updated_input={"a": 1}), "", HookOutput()),
        (
            HookEvent.TOOL_RESPONSE_TRANSFORM,
            0,
            specific(updated_tool_response=""),
            "",
            HookOutput(response=""),
        ),
        (HookEvent.SESSION_START, 0, specific(additional_context="c"), "", HookOutput(context="c")),
        (HookEvent.STOP, 0, specific(additional_context="c"), "", HookOutput()),
        (HookEvent.STOP, 0, specific(updated_messages=[]), "", HookOutput()),
    ],
)
def test_reply(
    event: HookEvent, code: int | None, stdout: str, stderr: str, expected: HookOutput | Failure
) -> None:
    assert read_reply(hook(event), code, stdout, stderr) == expected


@pytest.mark.parametrize(
    ("stdout", "words"),
    [
        ("{", "not valid JSON"),
        (out(decision="perhaps"), "`decision` must be `block`"),
        (specific(permission_decision="maybe"), "must be allow, ask or deny"),
        ('{"continue": "no"}', "`continue` has the wrong type"),
        (specific(updated_input=[1]), "`updated_input` has the wrong type"),
    ],
)
def test_output_without_meaning_is_a_failure(stdout: str, words: str) -> None:
    found = read_reply(hook(), 0, stdout, "")
    assert isinstance(found, Failure)
    assert words in found.problem


def test_strict_output_takes_no_text_and_no_unknown_field() -> None:
    strict = hook(strict_output=True)
    assert isinstance(read_reply(strict, 0, "text", ""), Failure)
    assert isinstance(read_reply(strict, 0, out(whatever=1), ""), Failure)
    assert isinstance(read_reply(strict, 0, specific(whatever=1), ""), Failure)
    assert read_reply(strict, 0, out(reason="r"), "") == HookOutput(reason="r")
    assert read_reply(hook(), 0, out(whatever=1), "") == HookOutput()


def test_a_hook_that_wants_to_rewrite_the_conversation_refuses() -> None:
    found = read_json(
        hook(HookEvent.BEFORE_LLM_CALL), {"hook_specific_output": {"updated_messages": [{"role": "user"}]}}
    )
    assert isinstance(found, HookOutput)
    assert found.blocks


def test_output_that_is_no_object_is_a_failure() -> None:
    assert isinstance(read_json(hook(), [1]), Failure)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Sure: {"decision": "deny", "reason": "no"}.', HookOutput(decision=HookDecision.DENY, reason="no")),
        ('{"decision": "allow"}', HookOutput(decision=HookDecision.ALLOW)),
        ('{"decision": "perhaps"}', Failure("its model did not answer with a decision")),
        ("{nonsense}", Failure("its model did not answer with a decision")),
        ("allow", Failure("its model did not answer with a decision")),
    ],
)
def test_judgement(text: str, expected: HookOutput | Failure) -> None:
    assert read_judgement(hook(schema=JUDGEMENT), text) == expected


def test_an_endless_object_is_no_decision_and_is_found_at_once() -> None:
    began = time.process_time()
    assert isinstance(read_judgement(hook(schema=JUDGEMENT), "{" * 200_000), Failure)
    assert time.process_time() - began < 3


def test_output_that_is_nested_too_deeply_is_a_failure() -> None:
    deep = '{"a":' * 100_000
    assert isinstance(read_judgement(hook(schema=JUDGEMENT), deep + "}"), Failure)
    assert isinstance(read_reply(hook(), 0, deep, ""), Failure)
    assert read_reply(hook(), 2, deep, "") == HookOutput(blocks=True)


def test_a_model_without_a_schema_adds_its_text() -> None:
    assert read_judgement(hook(HookEvent.TURN_START), " text ") == HookOutput(context="text")


# -- together ----------------------------------------------------------------------------------

FAILED = Failure("it broke")
BLOCKS = HookOutput(blocks=True, reason="no")


@pytest.mark.parametrize(
    ("event", "on_error", "expected"),
    [
        (GUARD, OnHookError.IGNORE, Blocks("the pre_tool_use hook './h' failed: it broke")),
        (HookEvent.USER_PROMPT_SUBMIT, OnHookError.IGNORE, Proceeds()),
        (
            HookEvent.USER_PROMPT_SUBMIT,
            OnHookError.WARN,
            Proceeds(warnings=("the user_prompt_submit hook './h' failed: it broke",)),
        ),
        (
            HookEvent.USER_PROMPT_SUBMIT,
            OnHookError.BLOCK,
            Blocks("the user_prompt_submit hook './h' failed: it broke"),
        ),
        (
            HookEvent.STOP,
            OnHookError.BLOCK,
            Proceeds(warnings=("the stop hook './h' failed: it broke",)),
        ),
    ],
)
def test_a_failed_hook(event: HookEvent, on_error: OnHookError, expected: Proceeds | Blocks) -> None:
    assert combine(event, [(hook(event, on_error=on_error), FAILED)]) == expected


def test_a_result_is_withheld_if_its_rewriting_failed_and_the_file_says_so() -> None:
    event = HookEvent.TOOL_RESPONSE_TRANSFORM
    found = combine(event, [(hook(event, on_error=OnHookError.BLOCK), FAILED)])
    assert isinstance(found, Proceeds)
    assert found.response is not None
    assert "withheld" in found.response


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([], Proceeds()),
        (
            [HookOutput(decision=HookDecision.ALLOW, reason="a")],
            Proceeds(decision=HookDecision.ALLOW, reason="a"),
        ),
        (
            [
                HookOutput(decision=HookDecision.ASK, reason="b"),
                HookOutput(decision=HookDecision.ALLOW, reason="a"),
            ],
            Proceeds(decision=HookDecision.ASK, reason="b"),
        ),
        (
            [HookOutput(decision=HookDecision.ALLOW), HookOutput(decision=HookDecision.DENY, reason="no")],
            Blocks("no"),
        ),
        ([BLOCKS, HookOutput(decision=HookDecision.ALLOW)], Blocks("no")),
        ([BLOCKS, HookOutput(blocks=True, reason="nor that")], Blocks("no\nnor that")),
        ([HookOutput(blocks=True)], Blocks("the pre_tool_use hook './h' refused it")),
        (
            [HookOutput(arguments={"a": 1, "b": 1}), HookOutput(arguments={"b": 2})],
            Proceeds(arguments={"a": 1, "b": 2}),
        ),
        ([HookOutput(response="x"), HookOutput(response="y"), HookOutput()], Proceeds(response="y")),
        (
            [HookOutput(context="c", warning="w"), HookOutput(context="d")],
            Proceeds(context="c\nd", warnings=("w",)),
        ),
    ],
)
def test_several_hooks(replies: list[HookOutput], expected: Proceeds | Blocks) -> None:
    assert combine(GUARD, [(hook(), reply) for reply in replies]) == expected


def test_an_event_that_cannot_stop_the_turn_is_reported() -> None:
    found = combine(HookEvent.STOP, [(hook(HookEvent.STOP), BLOCKS)])
    assert isinstance(found, Proceeds)
    assert "this event cannot" in found.warnings[0]


# -- the journal -------------------------------------------------------------------------------


def note(event: HookEvent, text: str = "") -> Step:
    return Step(StepKind.HOOK, Message(Role.SYSTEM, text), hook=event)


def ruling(call: ToolCall) -> Step:
    return Step(StepKind.HOOK, assistant("", call), hook=GUARD, ruling="allow")


CALL = ToolCall("c", "shell", "{}")
CHANGED = ToolCall("c", "shell", '{"a": 1}')
ASKED = Step(StepKind.MODEL, assistant("", CALL))
RESULT = Step(StepKind.TOOL, tool_result("c", "r"))


def test_only_what_begins_a_session_is_part_of_the_conversation() -> None:
    steps = [
        note(HookEvent.SESSION_START, "s"),
        note(HookEvent.SESSION_START),
        note(HookEvent.TURN_START, "t"),
    ]
    assert [message.content for message in said([*steps, ASKED, ruling(CALL), RESULT])] == ["s", "", "r"]


def test_notes_are_for_the_turn_or_for_the_next_response() -> None:
    before = [note(HookEvent.USER_PROMPT_SUBMIT, "p"), note(HookEvent.TURN_START, "1")]
    after = [note(HookEvent.USER_STEERING_MESSAGES_SUBMIT, "s"), note(HookEvent.TURN_START, "2")]
    assert prompt_notes(before) == ["p", "1"]
    assert prompt_notes([*before, ASKED, RESULT]) == ["p"]
    assert prompt_notes([*before, ASKED, RESULT, *after, note(HookEvent.SESSION_START, "x")]) == [
        "p",
        "s",
        "2",
    ]


def test_has_run() -> None:
    assert has_run([note(HookEvent.TURN_START)], HookEvent.STOP, HookEvent.TURN_START)
    assert not has_run([ASKED], HookEvent.TURN_START)
    assert since_response([note(HookEvent.TURN_START), ASKED, RESULT]) == [RESULT]


def test_a_ruling_is_found_for_its_call_and_for_no_later_one() -> None:
    assert ruled([ASKED], CALL) is None
    first, second = ruling(CALL), ruling(CHANGED)
    assert ruled([ASKED, first], CALL) == first
    assert ruled([ASKED, first, RESULT], CALL) is None
    assert ruled([ASKED, first, RESULT, second], CALL) == second
    assert ruled([ASKED, first, RESULT, ASKED], CALL) is None
    assert ruled([ASKED, ruling(ToolCall("d", "shell", "{}"))], CALL) is None


def test_the_ledger_shows_the_arguments_that_a_call_ran_with() -> None:
    def of(*steps: Step) -> Any:
        return ledger(attempt(), steps)[0]

    plain = of(ASKED, RESULT)
    assert not plain.rewritten
    changed = of(ASKED, ruling(CHANGED), RESULT)
    assert changed.rewritten
    assert changed.arguments_digest != plain.arguments_digest
    other = Step(StepKind.HOOK, assistant("", CHANGED), within="x/", hook=GUARD)
    assert of(ASKED, other, ruling(ToolCall("d", "s", "")), RESULT, ruling(CHANGED)) == plain
    assert of(ASKED, ASKED, ruling(CHANGED)).rewritten is False
