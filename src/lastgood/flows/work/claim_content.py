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
    ResumeRequest,
    as_record,
    decide_resume,
)
from lastgood.core.runtime_permissions import runtime_rules
from lastgood.core.transcript import TranscriptLine, catch_up, since_reset, text_of_input, transcript
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.dependencies import Dependencies
from lastgood.model.agents import AgentSpec, Safety
from lastgood.model.ids import AttemptId, TenantId, TurnId
from lastgood.model.messages import Message
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.sessions import Session, Turn
from lastgood.model.tasks import Directive, Snapshot

FILES_ELSEWHERE = (
    "The files of this session are on another machine and could not be transferred; what the conversation "
    "says about them may not exist in this folder"
)
FILES_RESTORED = "The files of this session were restored from a snapshot of its last turn on another machine"
SESSION_NOTE = "The session that you resume: {}"


@dataclass(frozen=True, slots=True)
class Situation:
    """A session and the runtime that continues it. `base`: the turn that is continued."""

    tenant: TenantId
    session: Session
    base: TurnId | None
    runtime: RuntimeIdentity
    agent_key: str
    directive: Directive = Directive()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decision with everything that is sent because of it."""

    decision: ResumeDecision
    agent: AgentSpec
    turns: tuple[Turn, ...]  # since the last reset
    snapshot: Snapshot | None
    #: Of the working directory as the worker left it: without a change it need not be uploaded again.
    saved_in: AttemptId | None = None

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
        told = [SESSION_NOTE.format(one) for one in found]
        if self.decision.work_dir is not None and self.decision.work_dir.lacks_files:
            told.append(FILES_ELSEWHERE if self.snapshot is None else FILES_RESTORED)
        return (*told, *runtime_servers(self.agent).disclosures)


async def prepare(deps: Dependencies, situation: Situation) -> Prepared:
    """HistoryDamaged, AgentNotFound: nothing can be decided, so nothing may run."""
    tenant, session = situation.tenant, situation.session
    agent, _ = await resolve(deps.agents, situation.agent_key)
    chain = await _chain(deps, tenant, session, situation.base)
    turns = since_reset(chain)
    request = ResumeRequest(
        runtime=situation.runtime,
        agent_digest=agent.digest,
        history=[turn.id for turn in turns],
        was_reset=len(turns) < len(chain),
        fresh=situation.directive.fresh,
        rerun_of=situation.directive.rerun_of,
    )
    decision = decide_resume(request, await deps.store.list_pointers(tenant, session.id))
    newest = await _newest_snapshot(deps, tenant, session, decision, turns)
    if newest is None or decision.work_dir is None or not decision.work_dir.lacks_files:
        return Prepared(decision, agent, turns, None, newest)
    return Prepared(decision, agent, turns, await deps.store.get_snapshot(tenant, newest))


async def _chain(
    deps: Dependencies, tenant: TenantId, session: Session, base: TurnId | None
) -> tuple[Turn, ...]:
    if session.head is None or base is None:
        return ()
    turns = await deps.histories.turns(tenant, session.head)
    place = next(place for place, turn in enumerate(turns) if turn.id == base)
    return turns[: place + 1]


async def _newest_snapshot(
    deps: Dependencies,
    tenant: TenantId,
    session: Session,
    decision: ResumeDecision,
    turns: Sequence[Turn],
) -> AttemptId | None:
    """What a working directory that lacks files gets, and what one that has them is saved in. Nothing is
    restored into a folder that a person chose for the session."""
    if decision.work_dir is None or session.working_dir is not None:
        return None
    ids = [turn.id for turn in turns]
    lacks_files = decision.work_dir.lacks_files
    if lacks_files and isinstance(decision, NativeResume) and decision.catch_up_after in ids:
        # Older ones are of what the directory itself has held before.
        ids = ids[ids.index(decision.catch_up_after) + 1 :]
    return await deps.store.newest_snapshot(tenant, session.id, ids)


# -- on the wire ---------------------------------------------------------------------------


def resume_json(prepared: Prepared) -> dict[str, Any]:
    decision = prepared.decision
    told: dict[str, Any] = {
        name: value
        for name, value in as_record(decision).items()
        if name in ("decision", "reason", "rejected", "native_session")
    }
    if not isinstance(decision, FreshStart) and prepared.turns:
        told["transcript"] = lines_json(prepared.transcript)
    if lines := prepared.catch_up:
        told["catch_up"] = lines_json(lines)
    return told


def lines_json(lines: Sequence[TranscriptLine]) -> list[dict[str, str]]:
    return [{"role": line.role, "content": line.content} for line in lines]


def work_dir_json(prepared: Prepared) -> dict[str, Any]:
    """The path, and whose machine it is on."""
    found = prepared.decision.work_dir
    if found is None:
        return {"work_dir": None, "work_dir_state": None}
    state: dict[str, Any] = {
        "worker": found.worker,
        "is_local": found.is_local,
        "is_outdated": found.is_outdated,
    }
    if prepared.saved_in is not None:
        state["saved_in"] = prepared.saved_in
    return {"work_dir": found.path, "work_dir_state": state}


def agent_json(agent: AgentSpec, session: Session, ceiling: Safety, model: str | None) -> dict[str, Any]:
    """`model`: an override; None: the CLI chooses. The model of the agent's file is one of this server's."""
    mode, rules = runtime_rules(agent, ceiling, session.rules)
    return {
        "name": agent.name,
        "instruction": agent.instruction,
        "digest": agent.digest,
        "model": model and (model.partition("/")[2] or model),
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
