"""What a worker gets with a claim: the prompt, the resume decision, and what its runtime cannot know.

The decision is made here, from what is stored, and is stored before the claim is sent. What cannot be read
fails the claim: it never looks like an empty history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lastgood.core.mcp_servers import runtime_servers
from lastgood.core.resume import (
    FreshStart,
    NativeResume,
    ResumeDecision,
    ResumePolicy,
    ResumeRequest,
    as_record,
    decide_resume,
)
from lastgood.core.runtime_access import may_use
from lastgood.core.runtime_permissions import runtime_rules
from lastgood.core.session_files import about_files, lacks_files, unseen
from lastgood.core.transcript import TranscriptLine, catch_up, since_reset, text_of_input, transcript
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.dependencies import Dependencies
from lastgood.model.agents import AgentSpec, Safety
from lastgood.model.ids import TenantId, TurnId
from lastgood.model.messages import Message
from lastgood.model.runtimes import Runtime
from lastgood.model.sessions import Session, Turn
from lastgood.model.tasks import Directive, SnapshotSummary

#: So many pointers of a session are considered and listed, the newest ones.
MOST_POINTERS = 1000
SESSION_NOTE = "The session that you resume: {}"


@dataclass(frozen=True, slots=True)
class Situation:
    """A session and the runtime that continues it. `base`: the turn that is continued."""

    tenant: TenantId
    session: Session
    base: TurnId | None
    runtime: Runtime
    agent_key: str
    directive: Directive = Directive()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decision with everything that is sent because of it."""

    decision: ResumeDecision
    agent: AgentSpec
    turns: tuple[Turn, ...]  # since the last reset
    snapshot: SnapshotSummary | None

    @property
    def record(self) -> dict[str, Any]:
        return as_record(self.decision) | {"disclosures": list(self.disclosures)}

    @property
    def transcript(self) -> tuple[TranscriptLine, ...]:
        """Sent with a native resume, too: a CLI that refuses it before its first tool call starts over."""
        return transcript(self.turns)

    @property
    def catch_up(self) -> tuple[TranscriptLine, ...]:
        decision = self.decision
        if isinstance(decision, NativeResume) and decision.is_behind:
            return catch_up(self.turns, decision.catch_up_after)
        return ()

    @property
    def disclosures(self) -> tuple[str, ...]:
        found = self.decision.disclosures if isinstance(self.decision, NativeResume) else ()
        notes = [SESSION_NOTE.format(one) for one in found]
        restored = self.snapshot.turn if self.snapshot is not None else None
        if (files := about_files(self.decision, self.turns, restored)) is not None:
            notes.append(files)
        return (*notes, *runtime_servers(self.agent).disclosures)


async def prepare(deps: Dependencies, situation: Situation) -> Prepared:
    """HistoryDamaged, AgentNotFound: nothing can be decided, so nothing may run."""
    tenant, session = situation.tenant, situation.session
    agent, _ = await resolve(deps.agents, situation.agent_key)
    chain = await _chain(deps, tenant, session, situation.base)
    turns = since_reset(chain)
    request = ResumeRequest(
        runtime=situation.runtime.identity,
        agent_digest=agent.digest,
        history=[turn.id for turn in turns],
        was_reset=len(turns) < len(chain),
        fresh=situation.directive.fresh,
        rerun_of=situation.directive.rerun_of,
        policy=await _policy(deps, situation),
    )
    # A rerun has exactly the session of its source, however old that is.
    most = MOST_POINTERS if situation.directive.rerun_of is None else None
    decision = decide_resume(request, await deps.store.list_pointers(tenant, session.id, limit=most))
    return Prepared(decision, agent, turns, await _snapshot(deps, tenant, session, decision, turns))


async def _policy(deps: Dependencies, situation: Situation) -> ResumePolicy:
    """Of the agent's binding. One that the owner of this runtime may not use says nothing about it."""
    binding = await deps.store.get_binding(situation.tenant, situation.agent_key)
    if binding is None:
        return ResumePolicy()
    if binding.runtime != situation.runtime.id:
        bound = await deps.store.get_runtime(situation.tenant, binding.runtime)
        if bound is None or not may_use(bound, situation.runtime.owner):
            return ResumePolicy()
    return ResumePolicy(binding.on_agent_change, binding.on_dirty)


async def _chain(
    deps: Dependencies, tenant: TenantId, session: Session, base: TurnId | None
) -> tuple[Turn, ...]:
    if session.head is None or base is None:
        return ()
    turns = await deps.histories.turns(tenant, session.head)
    place = next(place for place, turn in enumerate(turns) if turn.id == base)
    return turns[: place + 1]


async def _snapshot(
    deps: Dependencies,
    tenant: TenantId,
    session: Session,
    decision: ResumeDecision,
    turns: Sequence[Turn],
) -> SnapshotSummary | None:
    """Only if the working directory lacks what the turns did: otherwise it is there, and newer. Nothing is
    restored into a folder that a person chose for the session. A fork has the turns of the session that it
    was forked from, and their snapshots."""
    if not lacks_files(decision) or session.working_dir is not None:
        return None
    missing = unseen(decision, turns) or turns
    origins = {turn.session for turn in missing}
    return await deps.store.newest_snapshot(tenant, origins, [turn.id for turn in missing])


# -- on the wire ---------------------------------------------------------------------------


def resume_json(prepared: Prepared) -> dict[str, Any]:
    decision = prepared.decision
    content: dict[str, Any] = {
        name: value
        for name, value in as_record(decision).items()
        if name in ("decision", "reason", "rejected", "native_session")
    }
    if not isinstance(decision, FreshStart) and prepared.turns:
        content["transcript"] = lines_json(prepared.transcript)
    if lines := prepared.catch_up:
        content["catch_up"] = lines_json(lines)
    return content


def lines_json(lines: Sequence[TranscriptLine]) -> list[dict[str, str]]:
    return [{"role": line.role, "content": line.content} for line in lines]


def work_dir_json(decision: ResumeDecision) -> dict[str, Any]:
    """The path, and whose machine it is on."""
    found = decision.work_dir
    if found is None:
        return {"work_dir": None, "work_dir_state": None}
    state = {"worker": found.worker, "is_local": found.is_local, "is_outdated": found.is_outdated}
    return {"work_dir": found.path, "work_dir_state": state}


def agent_json(agent: AgentSpec, session: Session, ceiling: Safety, model: str | None) -> dict[str, Any]:
    """`model`: an override; None: the harness of the file or the CLI chooses. The agent's own model is one of
    this server's."""
    mode, rules = runtime_rules(agent, ceiling, session.rules)
    return {
        "name": agent.name,
        "instruction": agent.instruction,
        "digest": agent.digest,
        "model": model.partition("/")[2] or model if model else agent.harness_model,
        "effort": agent.harness_effort,
        "permissions": {
            "mode": mode.value,
            "allow": list(rules.allow),
            "ask": list(rules.ask),
            "deny": list(rules.deny),
        },
        "mcp_servers": list(runtime_servers(agent).servers),
    }


def prompt_of(messages: Sequence[Message], directive: Directive) -> str:
    """The directive's note comes before the prompt."""
    text = text_of_input(messages)
    return f"{directive.note}\n\n{text}" if directive.note else text
