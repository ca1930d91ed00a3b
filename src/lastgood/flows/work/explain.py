"""What a claim of a session would decide, without running anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lastgood.errors import InvalidRequest
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.claim_content import Situation, prepare, work_dir_json
from lastgood.flows.work.enqueue import Enqueuer, RuntimeWish
from lastgood.flows.work.visibility import WorkAccess
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.runtimes import Runtime
from lastgood.model.sessions import Session


@dataclass(frozen=True, slots=True)
class Explanation:
    runtime: Runtime
    chosen: str  # why this runtime
    decision: dict[str, Any]
    content: dict[str, Any]  # how much would be sent along


class Explainer:
    def __init__(self, deps: Dependencies, access: WorkAccess, enqueuer: Enqueuer) -> None:
        self._deps = deps
        self._access = access
        self._enqueuer = enqueuer

    async def explain(
        self, tenant: TenantId, session: SessionId, user: str, *, if_moved_to: str | None = None
    ) -> Explanation:
        found = await self._access.session(tenant, session, user)
        agent, _ = await resolve(self._deps.agents, found.agent_key)
        wish = RuntimeWish(tenant, user, agent.key, agent.harness, found, if_moved_to)
        plan = await self._enqueuer.choose(wish)
        if plan is None:
            raise InvalidRequest(
                f"Agent {agent.key} runs on this server; name a runtime to see what would happen there",
                param="runtime",
            )
        base = found.head.turn if found.head else None
        situation = Situation(tenant, found, base, plan.runtime, agent.key)
        prepared = await prepare(self._deps, situation)
        content = {
            "transcript": len(prepared.transcript),
            "catch_up": len(prepared.catch_up),
            **work_dir_json(prepared.decision),
            "snapshot": None if prepared.snapshot is None else prepared.snapshot.attempt,
        }
        return Explanation(plan.runtime, plan.reason, prepared.record, content)

    async def decisions(self, session: Session, user: str, runtime: str | None) -> list[dict[str, Any]]:
        """What would be decided on each runtime that the user may use, or on one of them."""
        found = []
        for one in await self._access.usable(session.tenant, user):
            if runtime in (None, one.id):
                base = session.head.turn if session.head else None
                situation = Situation(session.tenant, session, base, one, session.agent_key)
                prepared = await prepare(self._deps, situation)
                found.append({"runtime_id": one.id, "runtime": one.name, **prepared.record})
        return found
