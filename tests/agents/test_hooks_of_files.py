"""Hooks as agent files write them: what becomes of them, and what is wrong with the others (I39)."""

from __future__ import annotations

import pytest

from lastgood.model.hooks import HookEvent, HookKind, HookSpec, OnHookError
from tests.agents.corpus import errors_of, parse, warnings_of


def file(hooks: str, more: str = "") -> str:
    return f"agents:\n  root:\n    model: auto{more}\n    hooks:\n      {hooks}\n"


def test_a_command_is_read_with_all_its_keys() -> None:
    text = file(
        "pre_tool_use:\n        - matcher: shell|edit_file\n          hooks:\n"
        "            - {type: command, name: n, command: ./a.sh, args: [x], timeout: 5, env: {A: b},\n"
        "               working_dir: w, on_error: block, strict_output: true}"
    )
    assert warnings_of(text) == []
    [hook] = parse(text).agents["root"].hooks
    assert hook == HookSpec(
        HookEvent.PRE_TOOL_USE,
        HookKind.COMMAND,
        "./a.sh",
        "shell|edit_file",
        "n",
        ("x",),
        5.0,
        {"A": "b"},
        "w",
        OnHookError.BLOCK,
        True,
    )


def test_I39_hooks_of_a_file_from_a_URL_are_left_out_and_reported() -> None:
    text = file("session_start: [{type: command, command: curl evil}]")
    assert parse(text).agents["root"].has_hooks
    assert not parse(text, trusted=False).agents["root"].has_hooks
    [(line, message)] = warnings_of(text, trusted=False)
    assert (line, "an agent file from a URL may not run hooks" in message) == (4, True)


def test_hooks_of_an_agent_on_a_runtime_are_left_out_and_reported() -> None:
    agent = "harness: {type: codex}\n    hooks:\n      stop: [{type: command, command: a}]\n"
    text = f"agents:\n  root:\n    {agent}"
    assert parse(text).agents["root"].hooks == ()
    assert [line for line, message in warnings_of(text) if "not supported with a harness" in message] == [4]


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("session_start: [{type: command}]", "needs a 'command'"),
        ("session_start: [{type: command, command: '  '}]", "needs a 'command'"),
        ("session_start: [{type: builtin, command: add_dates}]", "did you mean 'add_date'"),
        ("stop: [{type: builtin, command: add_date}]", "not for stop"),
        ("before_llm_call: [{type: builtin, command: max_iterations}]", "needs one number"),
        ("turn_start: [{type: model, prompt: p}]", "needs a 'model'"),
        ("turn_start: [{type: model, model: auto}]", "needs a 'prompt'"),
        ("turn_start: [{type: model, model: no, prompt: p}]", "unknown model 'no'"),
        ("stop: [{type: model, model: auto, prompt: p}]", "has no effect on stop"),
        (
            "turn_start: [{type: model, model: auto, prompt: p, schema: pre_tool_use_decision}]",
            "has no effect on turn_start",
        ),
        ("tool_guard: [{matcher: '(', hooks: [{type: command, command: a}]}]", "not a valid regular"),
    ],
)
def test_a_hook_that_could_never_run_is_an_error(hook: str, words: str) -> None:
    [(line, message)] = errors_of(file(hook))
    assert (line, words in message) == (5, True), message


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("turn_end: [{type: builtin, command: snapshot}]", "'snapshot' is not supported yet"),
        (
            "tool_response_transform: [{hooks: [{type: builtin, command: limit_large_tool_results}]}]",
            "'limit_large_tool_results' is not supported yet: long results are always cut",
        ),
        (
            "tool_guard: [{hooks: [{type: evaluator, evaluator: e, evaluator_policy: "
            "{decisions: {a: allow}, min_probability: 0.5, fallback: ask}}]}]",
            "'evaluator' are not supported yet",
        ),
        (
            "tool_guard: [{hooks: [{type: evaluator, evaluator: e, routing_policy: "
            "{routes: {a: root}, min_probability: 0.5}}]}]",
            "'evaluator' are not supported yet",
        ),
        ("turn_start: [{type: model, model: auto, prompt: p, schema: x}]", "'x' is not supported yet"),
        ("pre_compact: [{type: command, command: a}]", "conversations are not summarized"),
    ],
)
def test_a_hook_that_cannot_run_yet_is_a_warning(hook: str, words: str) -> None:
    [(line, message)] = warnings_of(file(hook))
    assert (line, words in message) == (5, True), message
    assert parse(file(hook)).agents["root"].hooks == ()


@pytest.mark.parametrize(
    ("event", "preempts", "words"),
    [
        ("pre_tool_use", "true", None),
        ("tool_guard", "true", None),
        ("pre_tool_use", "false", "'preempt_yolo: false' has no effect: hooks of pre_tool_use run before"),
        ("post_tool_use", "true", "'preempt_yolo' has no effect on post_tool_use"),
        ("permission_request", "true", "'preempt_yolo' has no effect on permission_request"),
    ],
)
def test_an_order_of_hooks_that_cannot_be_had_is_a_warning(
    event: str, preempts: str, words: str | None
) -> None:
    text = file(f"{event}: [{{preempt_yolo: {preempts}, hooks: [{{type: command, command: a}}]}}]")
    found = [message for _, message in warnings_of(text) if "preempt_yolo" in message]
    assert len(found) == (words is not None)
    assert (words or "") in "".join(found)


def test_a_hook_that_takes_secrets_out_of_prompts_is_the_agents_own_setting() -> None:
    assert (
        parse(file("before_llm_call: [{type: builtin, command: redact_secrets}]"))
        .agents["root"]
        .redact_secrets
    )
    assert not parse(file("stop: [{type: command, command: a}]")).agents["root"].redact_secrets


def test_a_change_of_a_hook_is_a_change_of_the_agent() -> None:
    one, other = (parse(file(f"stop: [{{type: command, command: {name}}}]")) for name in "ab")
    assert one.agents["root"].digest != other.agents["root"].digest
