"""Hooks in the life of a turn: what they decide is in the journal, and no denial is ignored (I1, I4, I33)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastgood.core.tool_ledger import ledger
from lastgood.errors import HookBlocked
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.agents import Permissions, Safety
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.attempts import AttemptStatus, StepKind, ToolOutcome
from lastgood.model.audit import AuditFilter, AuditKind
from lastgood.model.events import HookDenied, HookWarned, ToolCalled, ToolStreamed
from lastgood.model.hooks import HookEvent, HookKind, HookSpec, OnHookError
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.queue import QueueKind
from lastgood.wiring import Lastgood
from tests.flows.cluster import (
    PATIENCE_SECONDS,
    Cluster,
    Gate,
    TitleModel,
    eventually,
    gate_tool,
)
from tests.flows.test_queue import put, until_said

pytestmark = pytest.mark.anyio

CALL = '!tool echo {"text": "a"}\n!say done'

#: Where the store has no part in what is shown: one store is enough, and commands take their time.
ON_SQLITE = pytest.mark.parametrize("where", ["sqlite"], indirect=True)


def command(event: HookEvent, line: str, **more: Any) -> HookSpec:
    return HookSpec(event, HookKind.COMMAND, line, **more)


def says(event: HookEvent, **output: Any) -> HookSpec:
    return command(event, f"echo '{json.dumps(output)}'")


def decides(event: HookEvent, decision: str, **more: Any) -> HookSpec:
    return says(
        event,
        hook_specific_output={
            "permission_decision": decision,
            "permission_decision_reason": "says the hook",
            **more,
        },
    )


def logs(event: HookEvent, path: Path) -> HookSpec:
    """Appends what it was given, one JSON object in a line."""
    return command(event, f"""printf '%s\\n' "$(cat)" >>{path}""")


def logged(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line]


class Desk:
    """A node whose agent has these hooks."""

    def __init__(self, cluster: Cluster, tmp_path: Path) -> None:
        self.cluster, self.tmp_path = cluster, tmp_path
        self.node: Lastgood = None  # type: ignore[assignment]
        self.session = SessionId("")

    async def open(self, *hooks: HookSpec, name: str = "node", limits: Any = None, **fields: Any) -> Desk:
        kit = {"work_dirs": self.tmp_path / "work", "safety": fields.pop("server", Safety.AUTONOMOUS)}
        more = {"limits": limits} if limits else {}
        more |= {"tools": fields.pop("node_tools")} if "node_tools" in fields else {}
        more |= {"providers": fields.pop("providers")} if "providers" in fields else {}
        agent = self.cluster.agent(hooks=hooks, **fields)
        self.node = await self.cluster.node(name, agents=[agent], **more, **kit)
        self.session = self.session or await self.cluster.session(self.node)
        return self

    async def say(self, text: str = CALL, **fields: Any) -> Outcome:
        return await self.cluster.say(self.node, self.session, text, **fields)

    async def good(self, text: str = CALL, **fields: Any) -> list[tuple[str, str]]:
        turn = await self.cluster.good(self.node, self.session, text, **fields)
        return [(message.role.value, message.content) for message in turn.messages]

    async def events(self, kind: type[Any]) -> list[Any]:
        stored = await self.cluster.backend.store.read_events(DEFAULT_TENANT, self.session, after=0)
        return [event.data for event in stored if isinstance(event.data, kind)]

    async def steps(self) -> list[Any]:
        newest = max(await self.cluster.attempts(self.session), key=lambda one: one.number)
        return list(await self.cluster.backend.store.read_steps(DEFAULT_TENANT, newest.id))


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path)


def result_in(messages: list[tuple[str, str]]) -> str:
    return next(content for role, content in messages if role == "tool")


# -- before a tool ---------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.parametrize(
    "hook",
    [
        decides(HookEvent.PRE_TOOL_USE, "deny"),
        decides(HookEvent.TOOL_GUARD, "deny"),
        says(HookEvent.PRE_TOOL_USE, decision="block", reason="says the hook"),
        says(HookEvent.TOOL_INPUT_TRANSFORM, **{"continue": False, "stop_reason": "says the hook"}),
        command(HookEvent.PRE_TOOL_USE, "echo says the hook >&2; exit 2"),
    ],
    ids=lambda hook: f"{hook.event}-{hook.command[:12]}",
)
async def test_a_hook_that_denies_a_call_keeps_it_from_running(desk: Desk, hook: HookSpec) -> None:
    await desk.open(hook)
    assert "a hook denied echo: says the hook" in result_in(await desk.good())
    [denied] = await desk.events(HookDenied)
    assert (denied.name, denied.message) == ("echo", "says the hook")
    [step] = [step for step in await desk.steps() if step.kind is StepKind.TOOL]
    assert step.outcome is ToolOutcome.DENIED


@ON_SQLITE
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("exit 1", "ended with status 1"),
        ("kill -9 $$", "status 137"),
        ("sleep 600", "timed out after 0.2 s"),
        ("echo '{nonsense'", "not valid JSON"),
        ("""echo '{"hook_specific_output": {"permission_decision": "perhaps"}}'""", "must be allow, ask"),
        ("/no/such/program", "status 127"),
    ],
)
@pytest.mark.parametrize("event", [HookEvent.PRE_TOOL_USE, HookEvent.TOOL_GUARD])
async def test_a_guard_that_does_not_complete_denies(
    desk: Desk, line: str, words: str, event: HookEvent
) -> None:
    await desk.open(command(event, line, seconds=0.2 if "sleep" in line else 60, on_error=OnHookError.IGNORE))
    text = result_in(await desk.good())
    assert "a hook denied echo" in text
    assert words in text


@ON_SQLITE
async def test_one_denial_among_hooks_that_allow_is_enough(desk: Desk) -> None:
    await desk.open(
        decides(HookEvent.PRE_TOOL_USE, "allow"),
        command(HookEvent.PRE_TOOL_USE, "exit 2"),
        decides(HookEvent.TOOL_GUARD, "allow"),
    )
    assert "a hook denied echo" in result_in(await desk.good())


@ON_SQLITE
async def test_a_matcher_chooses_the_tools(desk: Desk) -> None:
    await desk.open(command(HookEvent.PRE_TOOL_USE, "exit 2", matcher="ech|shell"))
    assert result_in(await desk.good()) == "a"


async def test_I33_a_rewritten_call_runs_as_rewritten_and_the_ledger_shows_it(desk: Desk) -> None:
    seen = desk.tmp_path / "seen"
    await desk.open(
        says(HookEvent.TOOL_INPUT_TRANSFORM, hook_specific_output={"updated_input": {"text": "b"}}),
        logs(HookEvent.PRE_TOOL_USE, seen),
        logs(HookEvent.TOOL_GUARD, seen),
    )
    messages = await desk.good()
    assert result_in(messages) == "b"
    assert [one["tool_input"] for one in logged(seen)] == [{"text": "b"}, {"text": "b"}]
    [called] = await desk.events(ToolCalled)
    assert json.loads(called.arguments) == {"text": "b"}
    [attempt] = await desk.cluster.attempts(desk.session)
    steps = await desk.steps()
    [effect] = ledger(attempt, steps)
    [said] = [step.message.tool_calls[0] for step in steps if step.kind is StepKind.MODEL]
    assert json.loads(said.arguments) == {"text": "a"}  # history keeps what the model said
    assert effect.rewritten
    assert (
        effect.arguments_digest
        != ledger(attempt, [s for s in steps if s.kind is not StepKind.HOOK])[0].arguments_digest
    )


async def test_I4_an_approval_is_for_the_arguments_that_hooks_left_and_they_are_not_asked_again(
    desk: Desk,
) -> None:
    """The hook would rewrite the call differently the second time; the approved arguments count."""
    count = desk.tmp_path / "count"
    rewrite = command(
        HookEvent.TOOL_INPUT_TRANSFORM,
        f"echo x >>{count}; n=$(wc -l <{count}); "
        """echo '{"hook_specific_output": {"updated_input": {"text": "try '$n'"}}}'""",
    )
    await desk.open(rewrite, permissions=Permissions(ask=("echo",)))
    await desk.say(durable=True)
    [waiting] = await desk.cluster.attempts(desk.session)
    assert waiting.question is not None
    assert waiting.status is AttemptStatus.WAITING
    assert "try 1" in waiting.question["arguments"]
    approved = Answer(AnswerAction.APPROVE)
    turn = await desk.node.turns.answer(DEFAULT_TENANT, desk.session, waiting.id, approved)
    outcome = await desk.cluster.outcome(desk.node, turn)
    assert outcome.turn is not None, outcome.error
    assert result_in([(one.role.value, one.content) for one in outcome.turn.messages]).strip() == "try 1"
    assert count.read_text() == "x\n"


async def test_an_approved_call_runs_as_it_was_shown_even_if_its_hooks_are_gone(desk: Desk) -> None:
    """The file may change while a person decides: what was approved are the arguments of the question."""
    rewrite = says(
        HookEvent.TOOL_INPUT_TRANSFORM, hook_specific_output={"updated_input": {"text": "harmless"}}
    )
    await desk.open(rewrite, permissions=Permissions(ask=("echo",)))
    await desk.say(durable=True)
    [waiting] = await desk.cluster.attempts(desk.session)
    assert waiting.question is not None
    assert "harmless" in waiting.question["arguments"]
    await desk.open(name="without hooks", permissions=Permissions(ask=("echo",)))
    approved = Answer(AnswerAction.APPROVE)
    turn = await desk.node.turns.answer(DEFAULT_TENANT, desk.session, waiting.id, approved)
    outcome = await desk.cluster.outcome(desk.node, turn)
    assert outcome.turn is not None, outcome.error
    said = [(one.role.value, one.content) for one in outcome.turn.messages]
    assert result_in(said).strip() == "harmless"


@pytest.mark.parametrize("asked_by", ["hook", "rule"])
async def test_a_rejected_call_does_not_run_even_if_nothing_asks_for_approval_any_more(
    desk: Desk, asked_by: str
) -> None:
    """The file may change while a person decides, and the person has decided."""
    if asked_by == "hook":
        await desk.open(decides(HookEvent.PRE_TOOL_USE, "ask"))
    else:
        await desk.open(permissions=Permissions(ask=("echo",)))
    await desk.say(durable=True)
    [waiting] = await desk.cluster.attempts(desk.session)
    assert waiting.status is AttemptStatus.WAITING
    await desk.open(name="free")
    rejected = Answer(AnswerAction.REJECT, "no")
    turn = await desk.node.turns.answer(DEFAULT_TENANT, desk.session, waiting.id, rejected)
    outcome = await desk.cluster.outcome(desk.node, turn)
    assert outcome.turn is not None, outcome.error
    said = [(one.role.value, one.content) for one in outcome.turn.messages]
    assert "a person rejected this call of echo: no" in result_in(said)


async def test_a_person_is_asked_about_the_arguments_that_a_lost_call_ran_with(desk: Desk) -> None:
    rewrite = says(
        HookEvent.TOOL_INPUT_TRANSFORM, hook_specific_output={"updated_input": {"text": "rewritten"}}
    )
    await desk.open(rewrite, name="dead")
    dead, died = desk.node, asyncio.Event()

    def on_effect(line: dict[str, Any]) -> None:
        desk.cluster.faults(dead).dead = True
        died.set()

    desk.cluster.world.on_effect = on_effect
    text = '!tool ledger-ask {"text": "b"}\n!say done'
    await desk.cluster.submit(dead, desk.session, text, durable=True, key="k")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await died.wait()
    desk.cluster.world.on_effect = None
    await desk.cluster.kill(dead, lease_ends=True)
    await desk.open(rewrite, name="next")

    async def question() -> Any:
        return next((one.question for one in await desk.cluster.attempts(desk.session) if one.question), None)

    assert "rewritten" in (await eventually(question))["arguments"]


# -- asking ------------------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.parametrize("event", [HookEvent.PRE_TOOL_USE, HookEvent.PERMISSION_REQUEST])
async def test_I42_a_hook_answers_what_a_person_would_be_asked_and_that_is_recorded(
    desk: Desk, event: HookEvent
) -> None:
    await desk.open(decides(event, "allow"), permissions=Permissions(ask=("echo",)))
    assert result_in(await desk.good()) == "a"
    (record,) = await desk.cluster.backend.store.list_audit(DEFAULT_TENANT, AuditFilter(), limit=9)
    entry = record.entry
    assert (entry.kind, entry.actor, entry.detail["decision"]) == (AuditKind.APPROVAL, "", "approve")
    assert entry.detail["tool"] == "echo"
    assert entry.detail["said"] == "a hook approved echo: says the hook"


async def test_I42_a_hook_that_allows_what_needs_no_approval_is_not_recorded(desk: Desk) -> None:
    await desk.open(decides(HookEvent.PRE_TOOL_USE, "allow"))
    assert result_in(await desk.good()) == "a"
    assert not await desk.cluster.backend.store.list_audit(DEFAULT_TENANT, AuditFilter(), limit=9)


@ON_SQLITE
@pytest.mark.parametrize(
    "event", [HookEvent.PRE_TOOL_USE, HookEvent.TOOL_GUARD, HookEvent.PERMISSION_REQUEST]
)
async def test_a_hook_cannot_allow_what_a_rule_denies(desk: Desk, event: HookEvent) -> None:
    await desk.open(decides(event, "allow"), permissions=Permissions(deny=("echo",)))
    assert "not allowed" in result_in(await desk.good())


async def test_a_hook_asks_where_no_rule_does(desk: Desk) -> None:
    seen = desk.tmp_path / "seen"
    await desk.open(decides(HookEvent.TOOL_GUARD, "ask"), logs(HookEvent.ON_USER_INPUT, seen))
    outcome = await desk.say()
    assert outcome.turn is None
    [attempt] = await desk.cluster.attempts(desk.session)
    assert attempt.question is not None
    assert attempt.question["reason"] == "a hook asks for approval: says the hook"
    assert [one["hook_event_name"] for one in logged(seen)] == ["on_user_input"]


@ON_SQLITE
async def test_a_permission_hook_that_denies_keeps_the_call_from_running(desk: Desk) -> None:
    seen = desk.tmp_path / "seen"
    await desk.open(
        decides(HookEvent.PERMISSION_REQUEST, "deny"),
        logs(HookEvent.ON_TOOL_APPROVAL_DECISION, seen),
        permissions=Permissions(ask=("echo",)),
    )
    assert "a hook denied echo: says the hook" in result_in(await desk.good())
    [decided] = logged(seen)
    assert (decided["approval_decision"], decided["approval_source"]) == ("deny", "permissions_deny")


# -- after a tool -------------------------------------------------------------------------------


@ON_SQLITE
async def test_a_hook_rewrites_a_result_before_anybody_sees_it(desk: Desk) -> None:
    seen = desk.tmp_path / "seen"
    await desk.open(
        command(
            HookEvent.TOOL_RESPONSE_TRANSFORM,
            """echo '{"hook_specific_output": {"updated_tool_response": "hidden"}}'""",
        ),
        logs(HookEvent.POST_TOOL_USE, seen),
    )
    assert result_in(await desk.good()) == "hidden"
    assert await desk.events(ToolStreamed) == []
    [received] = logged(seen)
    assert received["tool_response"] == "hidden"
    assert received["tool_error"] is False


@ON_SQLITE
async def test_a_result_whose_rewriting_failed_is_withheld_where_the_file_says_so(desk: Desk) -> None:
    await desk.open(command(HookEvent.TOOL_RESPONSE_TRANSFORM, "exit 1", on_error=OnHookError.BLOCK))
    assert "the result is withheld" in result_in(await desk.good())


async def test_a_hook_ends_the_turn_after_a_tool_and_no_retry_gets_past_it(desk: Desk) -> None:
    """The hook refuses once only. What it refused stays refused for this turn."""
    marker = desk.tmp_path / "refused"
    once = f"test -e {marker} && exit 0; touch {marker}; echo enough >&2; exit 2"
    await desk.open(command(HookEvent.POST_TOOL_USE, once))
    for _ in range(2):
        outcome = await desk.say(key="k")
        assert isinstance(outcome.error, HookBlocked)
        assert "enough" in outcome.error.message
    assert await desk.cluster.turns(desk.session) == ()
    assert result_in(await desk.good("again\n" + CALL)) == "a"


# -- prompts --------------------------------------------------------------------------------------


def system_of(record: dict[str, Any]) -> list[str]:
    return [message["content"] for message in record["prompt"] if message["role"] == "system"]


async def test_I1_what_begins_a_session_is_part_of_its_first_turn_and_of_every_later_prompt(
    desk: Desk,
) -> None:
    await desk.open(command(HookEvent.SESSION_START, "echo branch main"))
    assert ("system", "branch main") in await desk.good("!say one")
    assert ("system", "branch main") not in await desk.good("!say two")
    for record in desk.cluster.world.prompts:
        assert system_of(record).count("branch main") == 1


async def test_what_a_prompt_hook_adds_is_for_this_turn_only(desk: Desk) -> None:
    await desk.open(command(HookEvent.USER_PROMPT_SUBMIT, "echo note on $(tr -dc a-z | tail -c 3)"))
    committed = await desk.good(CALL)
    await desk.good("!say two")
    assert not [role for role, _ in committed if role == "system"]
    first, second, third = (" ".join(system_of(one)) for one in desk.cluster.world.prompts)
    assert first.count("note on") == second.count("note on") == third.count("note on") == 1


@ON_SQLITE
async def test_what_a_turn_hook_adds_is_for_one_model_call(desk: Desk) -> None:
    count = desk.tmp_path / "count"
    await desk.open(command(HookEvent.TURN_START, f"echo x >>{count}; echo call $(wc -l <{count})"))
    await desk.good(CALL)
    first, second = (" ".join(system_of(one)) for one in desk.cluster.world.prompts)
    assert ("call 1" in first, "call 1" in second, "call 2" in second) == (True, False, True)


@pytest.mark.parametrize("event", [HookEvent.USER_PROMPT_SUBMIT, HookEvent.BEFORE_LLM_CALL])
async def test_I2_a_refused_prompt_reaches_no_model_and_leaves_no_trace(desk: Desk, event: HookEvent) -> None:
    seen = desk.tmp_path / "seen"
    await desk.open(
        command(event, "grep -q secret && { echo not that >&2; exit 2; }; exit 0"),
        logs(HookEvent.NOTIFICATION, seen),
    )
    outcome = await desk.say("a secret\n!say one")
    assert isinstance(outcome.error, HookBlocked)
    assert "not that" in outcome.error.message
    assert desk.cluster.world.prompts == []
    assert [one["notification_level"] for one in logged(seen)] == ["error"]
    await desk.good("!say two")


@ON_SQLITE
async def test_a_hook_that_wants_to_rewrite_the_conversation_ends_the_turn(desk: Desk) -> None:
    await desk.open(
        says(HookEvent.BEFORE_LLM_CALL, hook_specific_output={"updated_messages": [{"role": "user"}]})
    )
    outcome = await desk.say("!say one")
    assert isinstance(outcome.error, HookBlocked)


@ON_SQLITE
async def test_a_hook_that_fails_where_it_cannot_deny_is_a_warning(desk: Desk) -> None:
    await desk.open(
        command(HookEvent.USER_PROMPT_SUBMIT, "exit 1"),
        command(HookEvent.SESSION_START, "exit 1", on_error=OnHookError.IGNORE),
    )
    await desk.good("!say one")
    [warned] = await desk.events(HookWarned)
    assert warned.event == "user_prompt_submit"
    assert "ended with status 1" in warned.message


@ON_SQLITE
async def test_a_failed_prompt_hook_ends_the_turn_where_the_file_says_so(desk: Desk) -> None:
    await desk.open(command(HookEvent.USER_PROMPT_SUBMIT, "exit 1", on_error=OnHookError.BLOCK))
    assert isinstance((await desk.say("!say one")).error, HookBlocked)


async def test_hooks_of_messages_that_are_sent_to_a_running_turn(desk: Desk) -> None:
    seen, gate = desk.tmp_path / "seen", Gate()
    hooks = (
        command(
            HookEvent.USER_STEERING_MESSAGES_SUBMIT, f"""printf '%s\\n' "$(cat)" >>{seen}; echo look out"""
        ),
        logs(HookEvent.USER_PROMPT_SUBMIT, seen),
        logs(HookEvent.USER_FOLLOWUP_SUBMIT, seen),
    )
    await desk.open(*hooks, tools=("gate",), node_tools=(gate_tool(gate),))
    turn = await desk.cluster.submit(desk.node, desk.session, "!tool gate {}\n!say done")
    await gate.until_reached()
    await put(desk.node, desk.session, QueueKind.STEER, "hurry\n!say done")
    await put(desk.node, desk.session, QueueKind.FOLLOWUP, "and then\n!say two")
    gate.open()
    await desk.cluster.outcome(desk.node, turn)
    await until_said(
        desk.cluster, desk.session, ["!tool gate {}\n!say done", "hurry\n!say done"], ["and then\n!say two"]
    )
    received = [
        (one["hook_event_name"], one.get("steering_messages") or one["prompt"]) for one in logged(seen)
    ]
    assert received == [
        ("user_prompt_submit", "!tool gate {}\n!say done"),
        ("user_steering_messages_submit", ["hurry\n!say done"]),
        ("user_followup_submit", "and then\n!say two"),
    ]
    first, second, _ = (" ".join(system_of(one)) for one in desk.cluster.world.prompts)
    assert ("look out" in first, "look out" in second) == (False, True)


# -- the journal ------------------------------------------------------------------------------------


async def test_I1_a_retry_sees_the_context_of_the_attempt_it_continues_and_runs_no_hook_again(
    desk: Desk,
) -> None:
    """The first attempt fails in its second model call; the hooks would say something else by then."""
    count = desk.tmp_path / "count"
    line = f"echo x >>{count}; echo run $(wc -l <{count})"
    await desk.open(
        command(HookEvent.USER_PROMPT_SUBMIT, line), command(HookEvent.SESSION_START, "echo start")
    )
    text = '!tool echo {"text": "a"}\n!say done\n!fail before 1'
    assert (await desk.say(text, key="k")).error is not None
    messages = await desk.good(text, key="k")
    assert count.read_text() == "x\n"
    assert [content for role, content in messages if role == "system"] == ["start"]
    for record in desk.cluster.world.prompts:
        assert " ".join(system_of(record)).count("run 1") == 1
        assert system_of(record).count("start") == 1


async def test_after_a_death_hooks_of_finished_steps_do_not_run_again(desk: Desk) -> None:
    seen = desk.tmp_path / "seen"
    events = (HookEvent.SESSION_START, HookEvent.USER_PROMPT_SUBMIT, HookEvent.PRE_TOOL_USE)
    after = replace(logs(HookEvent.POST_TOOL_USE, seen), matcher="echo")
    hooks = (*(logs(event, seen) for event in events), after)
    await desk.open(*hooks, name="dead")
    text = '!tool echo {"text": "a"}\n!tool ledger-repeat {"text": "b"}\n!say done'
    dead, died = desk.node, asyncio.Event()

    def on_effect(line: dict[str, Any]) -> None:
        desk.cluster.faults(dead).dead = True
        died.set()

    desk.cluster.world.on_effect = on_effect
    await desk.cluster.submit(dead, desk.session, text, durable=True, key="k")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await died.wait()
    desk.cluster.world.on_effect = None
    await desk.cluster.kill(dead, lease_ends=True)
    await desk.open(*hooks, name="next")
    await eventually(lambda: desk.cluster.turns(desk.session))
    ran = [(one["hook_event_name"], one.get("tool_name"), one["attempt"]) for one in logged(seen)]
    assert ran == [
        ("session_start", None, 1),
        ("user_prompt_submit", None, 1),
        ("pre_tool_use", "echo", 1),
        ("post_tool_use", "echo", 1),
        ("pre_tool_use", "ledger-repeat", 1),
    ]
    keys = {one["key"] for one in logged(seen) if one.get("tool_name") == "ledger-repeat"}
    assert keys == {line["key"] for line in desk.cluster.world.ledger}


# -- watching -----------------------------------------------------------------------------------------


@ON_SQLITE
async def test_observing_hooks_get_every_event(desk: Desk) -> None:
    seen = desk.tmp_path / "seen"
    watched = (
        HookEvent.AFTER_LLM_CALL,
        HookEvent.TURN_END,
        HookEvent.STOP,
        HookEvent.SESSION_END,
        HookEvent.ON_ERROR,
    )
    await desk.open(*(logs(event, seen) for event in watched))
    await desk.good(CALL)
    received = [
        (one["hook_event_name"], one.get("reason") or one.get("stop_response")) for one in logged(seen)
    ]
    assert received == [
        ("after_llm_call", ""),
        ("turn_end", "continue"),
        ("after_llm_call", "done"),
        ("stop", "done"),
        ("turn_end", "normal"),
        ("session_end", "other"),
    ]
    seen.unlink()
    await desk.say("!fail before")
    received = [(one["hook_event_name"], one.get("reason")) for one in logged(seen)]
    assert received == [("turn_end", "error"), ("on_error", None), ("session_end", "other")]


@ON_SQLITE
async def test_a_cancelled_turn_does_not_wait_for_its_hooks_and_they_run(desk: Desk) -> None:
    seen = desk.tmp_path / "seen"
    await desk.open(logs(HookEvent.SESSION_END, seen), logs(HookEvent.TURN_END, seen))
    await desk.cluster.submit(desk.node, desk.session, "!slow 60\n!say never said")
    await desk.cluster.until_prompted()
    await desk.node.turns.cancel(DEFAULT_TENANT, desk.session)

    async def both() -> bool:
        return len(logged(seen)) == 2

    await eventually(both)
    assert {one["reason"] for one in logged(seen)} == {"canceled", "other"}


@ON_SQLITE
async def test_a_command_finds_no_key_of_the_server_and_knows_its_attempt(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    seen = desk.tmp_path / "seen"
    await desk.open(command(HookEvent.SESSION_START, f"env >{seen}; pwd >>{seen}", env={"MINE": "1"}))
    await desk.good("!say one")
    said = seen.read_text()
    assert "sk-canary" not in said
    assert {"LASTGOOD_ATTEMPT=1", "MINE=1"} <= set(said.splitlines())
    assert said.splitlines()[-1] == str(desk.tmp_path / "work" / desk.session)


# -- models that judge --------------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"decision": "allow"}', "a"),
        ('{"decision": "deny", "reason": "not today"}', "error: a hook denied echo: not today"),
        ("let me think", "its model did not answer with a decision"),
    ],
)
async def test_a_model_decides_about_a_call(desk: Desk, answer: str, expected: str) -> None:
    """The rule would ask a person."""
    judge = HookSpec(
        HookEvent.PRE_TOOL_USE,
        HookKind.MODEL,
        model="builtin/judge",
        prompt="{{ .ToolName }} {{ .ToolInput | toJSON }}",
        schema="pre_tool_use_decision",
    )
    model = TitleModel(answer)
    await desk.open(judge, permissions=Permissions(ask=("echo",)), providers={"builtin/judge": model})
    assert expected in result_in(await desk.good())
    [(system, asked)] = model.prompts
    assert "one JSON object" in system.content
    assert asked.content == 'echo {"text": "a"}'


# -- teams --------------------------------------------------------------------------------------------


@ON_SQLITE
async def test_hooks_of_a_team(desk: Desk) -> None:
    """Each agent has hooks of its own; the one that delegates learns when the other has finished."""
    seen = desk.tmp_path / "seen"
    watched = (HookEvent.SUBAGENT_STOP, HookEvent.ON_AGENT_SWITCH)
    helper = desk.cluster.agent(
        name="helper", hooks=(command(HookEvent.SESSION_START, "echo for the helper"),)
    )
    await desk.open(
        *(logs(event, seen) for event in watched), sub_agents=("helper",), members={"helper": helper}
    )
    task = json.dumps({"agent": "helper", "task": "!say helped"})
    await desk.good(f"!tool transfer_task {task}\n!say done")
    assert [(one["hook_event_name"], one.get("agent_switch_kind")) for one in logged(seen)] == [
        ("on_agent_switch", "transfer_task"),
        ("on_agent_switch", "transfer_task_return"),
        ("subagent_stop", None),
    ]
    assert logged(seen)[-1]["stop_response"] == "helped"
    mine, theirs, _ = desk.cluster.world.prompts
    assert ("for the helper" in str(mine), "for the helper" in str(theirs)) == (False, True)


@ON_SQLITE
async def test_a_denied_task_is_not_given(desk: Desk) -> None:
    helper = desk.cluster.agent(name="helper")
    await desk.open(
        command(HookEvent.PRE_TOOL_USE, "exit 2", matcher="transfer_task"),
        sub_agents=("helper",),
        members={"helper": helper},
    )
    task = json.dumps({"agent": "helper", "task": "!say helped"})
    assert "a hook denied transfer_task" in result_in(
        await desk.good(f"!tool transfer_task {task}\n!say done")
    )
    assert len(desk.cluster.world.prompts) == 2


@ON_SQLITE
async def test_hooks_see_a_forced_handoff_and_what_the_user_asked_for(desk: Desk) -> None:
    """The note of the handoff is nothing that the user said, and each final response stops an agent."""
    seen = desk.tmp_path / "seen"
    stops = logs(HookEvent.STOP, seen)
    writer = desk.cluster.agent(name="writer", hooks=(stops,))
    await desk.open(
        stops,
        logs(HookEvent.ON_AGENT_SWITCH, seen),
        logs(HookEvent.TURN_END, seen),
        force_handoff="writer",
        members={"writer": writer},
    )
    await desk.good("!say facts")
    first, ended, switched, second = logged(seen)
    assert (first["agent_name"], first["stop_response"]) == (switched["from_agent"], "facts")
    assert (switched["to_agent"], switched["agent_switch_kind"]) == ("writer", "force_handoff")
    assert (ended["hook_event_name"], ended["reason"]) == ("turn_end", "continue")
    assert second["agent_name"] == "writer"
    assert first["last_user_message"] == second["last_user_message"] == "!say facts"
