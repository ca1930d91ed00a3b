"""Stories about hooks: a denial counts, what was said is said to every attempt, and strangers run nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from lastgood.agents.agent_file import read_agent_file
from lastgood.agents.catalog import Catalog
from lastgood.core.approval import Confirmation
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.flows.submission import Submission
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.attempts import Ask
from lastgood.model.hooks import HookEvent, HookKind, HookSpec
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import assistant, user
from lastgood.model.sessions import Usage
from lastgood.wiring import Lastgood, assemble
from tests.faults.approval_probes import ANN
from tests.faults.faults import Faults, FaultyStore, faulty_engine
from tests.faults.probes import Stage, probe
from tests.faults.simulation import LIMITS
from tests.faults.world import AGENT, LoopClock

TOOL = "ledger-repeat"
CALL = f'!tool {TOOL} {{"text": "a"}}\n!say done'


class Judge:
    """The model of a hook. It counts how often it was asked."""

    def __init__(self, says: Callable[[int], str]) -> None:
        self.asked = 0
        self._says = says

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        self.asked += 1
        yield ModelAnswer(assistant(self._says(self.asked)), Usage(1, 1))


def hook(event: HookEvent, schema: str = "") -> HookSpec:
    return HookSpec(event, HookKind.MODEL, model="builtin/judge", prompt="{{ .Prompt }}?", schema=schema)


GUARD = hook(HookEvent.PRE_TOOL_USE, "pre_tool_use_decision")


def hooked(stage: Stage, judge: Judge, *hooks: HookSpec) -> Lastgood:
    faults = Faults()
    store: Any = FaultyStore(stage.store, faults)
    engine = faulty_engine(stage.world.kit().plus({"builtin/judge": judge}, ()), faults)
    agents = Catalog([replace(stage.world.agent(), hooks=hooks)])
    return assemble(store, engine, agents, limits=LIMITS, clock=LoopClock(), node="hooked")


async def say(
    node: Lastgood, text: str, session: SessionId | None = None, **ask: Any
) -> tuple[SessionId, Outcome]:
    """In a session that the checker does not judge: a prompt has more in it here."""
    session = session or (await node.sessions.create(DEFAULT_TENANT, AGENT)).id
    asked = Ask(DEFAULT_TENANT, session, (user(text),), fingerprint=text, durable=True, **ask)
    handle = await node.submitter.submit(Submission(asked))
    return session, await handle.outcome()


@probe
async def a_call_that_a_hook_denies_never_runs(stage: Stage) -> None:
    for says in ('{"decision": "deny"}', "let me think"):
        _, outcome = await say(hooked(stage, Judge(lambda _, says=says: says), GUARD), CALL)  # type: ignore[misc]
        assert outcome.turn is not None, f"the turn failed: {outcome.error}"
        assert stage.world.ledger == [], f"a call ran although its hook said {says!r}"


@probe
async def a_retry_sees_what_the_hooks_of_its_first_try_said(stage: Stage) -> None:
    judge = Judge(lambda asked: f"note {asked}")
    node = hooked(stage, judge, hook(HookEvent.USER_PROMPT_SUBMIT))
    text = f'!tool {TOOL} {{"text": "a"}}\n!say done\n!fail before 1'
    session, failed = await say(node, text, key="k")
    assert failed.turn is None, "it was to fail"
    _, outcome = await say(node, text, session, key="k")
    assert outcome.turn is not None, f"the retry failed: {outcome.error}"
    assert judge.asked == 1, f"the hook of a finished step ran {judge.asked} times"
    for record in stage.world.prompts:
        said = " ".join(one["content"] for one in record["prompt"] if one["role"] == "system")
        assert said.count("note 1") == 1, f"a prompt had {said!r}"
    stage.world.prompts.clear()


@probe
async def what_a_hook_has_ruled_is_not_ruled_again_after_a_person_answered(stage: Stage) -> None:
    """The hook asks for a person the first time, and would allow the call the second time."""
    judge = Judge(lambda asked: '{"decision": "%s"}' % ("ask" if asked == 1 else "allow"))
    node = hooked(stage, judge, GUARD)
    session, _ = await say(node, CALL)
    handle = await node.approvals.answer(session, Confirmation.REJECT, ANN)
    assert handle is not None
    await handle.outcome()
    assert stage.world.ledger == [], "a call ran that a person had rejected"
    assert judge.asked == 1, f"the hook ruled {judge.asked} times about one call"


@probe
async def hooks_of_untrusted_sources_do_not_run(stage: Stage) -> None:
    body = b"agents: {root: {model: auto, hooks: {session_start: [{type: command, command: id}]}}}"
    for trusted in (True, False):
        file = read_agent_file(body, where="agent.yaml", key="agent", trusted=trusted)
        assert bool(file.agents["root"].hooks) is trusted, "hooks of a file from a URL are kept"
        assert any("may not run hooks" in one.message for one in file.warnings) is not trusted
