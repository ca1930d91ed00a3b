"""One node with workers around it: what a worker would send, in one line each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lastgood.flows.work.assembly import WorkFlows
from lastgood.flows.work.claims import ClaimCall, SentClaim
from lastgood.flows.work.report_content import ClaimRef, Completion, RunFailure
from lastgood.flows.work.tasks import NewTaskRequest, ShownTask
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.attempts import Attempt
from lastgood.model.events import TERMINAL, StoredEvent
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TaskId, TenantId
from lastgood.model.runtimes import (
    AgentBinding,
    Heartbeat,
    HeartbeatResult,
    LiveClaim,
    NewRuntime,
    OnQueued,
    Registration,
    Runtime,
    RuntimeIdentity,
)
from lastgood.model.sessions import ScopeKind, Session, TaskScope, Turn
from lastgood.model.tasks import Directive, Pointer, Task
from lastgood.wiring import Lastgood
from tests.flows.cluster import Cluster, eventually

Plain = dict[str, Any]

AGENT = "coder"
#: A lease that ends at once: for those who wait for the next claim.
NO_LEASE = WorkLimits(lease_seconds=0.0, prepare_seconds=5.0, poll_seconds=0.02)
LIMITS = WorkLimits(poll_seconds=0.02, sweep_seconds=0.02)


@dataclass(slots=True)
class Machine:
    """A worker with one runtime."""

    site: Site
    worker: str
    runtime: Runtime
    epoch: int

    @property
    def id(self) -> str:
        return self.runtime.id

    @property
    def owner(self) -> str:
        return self.runtime.owner

    async def claims(self, most: int = 1, wait: float = 0.0) -> tuple[SentClaim, ...]:
        call = ClaimCall(self.site.tenant, self.worker, self.epoch, (self.id,), most, wait, user=self.owner)
        return await self.site.work.claims.claim(call)

    async def claim(self) -> SentClaim:
        found = await self.claims()
        assert len(found) == 1, "there is nothing to claim"
        return found[0]

    async def claim_again(self) -> SentClaim:
        """Once the lease of the claim before has ended."""
        found: SentClaim = (await eventually(self.claims))[0]
        return found

    def key(self, sent: SentClaim) -> ClaimRef:
        return ClaimRef(self.site.tenant, sent.claimed.task.id, sent.token, self.worker, self.owner)

    async def complete(self, sent: SentClaim, output: str = "done", **fields: Any) -> Plain:
        return await self.site.work.final_reports.complete(self.key(sent), Completion(output, **fields))

    async def fail(self, sent: SentClaim, code: str = "cli_failed", **fields: Any) -> Plain:
        return await self.site.work.final_reports.fail(
            self.key(sent), RunFailure(code, fields.pop("error", "it broke"), **fields)
        )

    async def start(self, sent: SentClaim) -> Plain:
        return await self.site.work.reports.start(self.key(sent))

    async def pin(self, sent: SentClaim, native: str, work_dir: str | None = None) -> Plain:
        return await self.site.work.reports.pin(self.key(sent), native, work_dir)

    async def beat(self, *live: SentClaim, **fields: Any) -> HeartbeatResult:
        claims = tuple(LiveClaim(one.claimed.task.id, self.key(one).hash) for one in live)
        beat = Heartbeat(self.site.tenant, self.worker, self.epoch, (self.id,), claims, owner=self.owner)
        return await self.site.work.runtimes.beat(replace(beat, **fields))

    async def turn(self, prompt: str, output: str, native: str | None, **fields: Any) -> SentClaim:
        """One good turn, from its task to its commit."""
        await self.site.queue(prompt, runtime=self.id)
        sent = await self.claim()
        await self.complete(sent, output, native_session=native, **fields)
        return sent


@dataclass(slots=True)
class Site:
    cluster: Cluster
    node: Lastgood
    tenant: TenantId = DEFAULT_TENANT
    scope: TaskScope = TaskScope(ScopeKind.ISSUE, "42")
    agent: str = AGENT

    @property
    def work(self) -> WorkFlows:
        return self.node.work

    @property
    def store(self) -> Any:
        return self.node.deps.store

    async def machine(
        self,
        worker: str = "laptop",
        *,
        provider: str = "claude",
        owner: str = "ann",
        instance: str = "one",
        **identity: Any,
    ) -> Machine:
        new = NewRuntime(
            RuntimeIdentity("", worker, provider, identity.pop("account", ""), identity.pop("format", "1")),
            f"{worker}-{provider}",
            **identity,
        )
        made = await self.work.runtimes.register(
            Registration(self.tenant, worker, worker, owner, instance, "1", (new,))
        )
        return Machine(self, worker, made.runtimes[0], made.epoch)

    async def bind(self, machine: Machine, queued: OnQueued = OnQueued.KEEP, **fields: Any) -> int:
        by = fields.pop("bound_by", "ann")
        return await self.work.runtimes.bind(
            AgentBinding(self.tenant, self.agent, machine.id, bound_by=by, **fields), queued
        )

    def new_task(self, prompt: str, **fields: Any) -> NewTaskRequest:
        known: Plain = {
            "tenant": self.tenant,
            "caller": "tok",
            "user": "ann",
            "agent_key": self.agent,
            "scope": self.scope,
            "fingerprint": prompt,
        }
        return NewTaskRequest(prompt=prompt, **known | fields)

    async def queue(self, prompt: str = "do it", **fields: Any) -> Task:
        """`fresh`, `rerun_of` and `note` make up the directive."""
        directive = Directive(
            fields.pop("fresh", False), fields.pop("rerun_of", None), fields.pop("note", "")
        )
        queued = await self.work.tasks.add(self.new_task(prompt, directive=directive, **fields))
        return queued.task

    async def cancel(self, task: TaskId, user: str = "ann") -> Task:
        return await self.work.tasks.cancel(self.tenant, task, user)

    # -- what is stored ------------------------------------------------------------------

    async def task(self, id: TaskId) -> ShownTask:
        return await self.work.tasks.get(self.tenant, id, "ann")

    async def session(self, id: SessionId) -> Session:
        found = await self.store.get_session(self.tenant, id)
        assert isinstance(found, Session)
        return found

    async def turns(self, id: SessionId) -> tuple[Turn, ...]:
        session = await self.session(id)
        if session.head is None:
            return ()
        found: tuple[Turn, ...] = await self.store.read_turns(self.tenant, session.head.turn)
        return found

    async def said(self, id: SessionId) -> list[str]:
        return [message.content for turn in await self.turns(id) for message in turn.messages]

    async def pointers(self, id: SessionId) -> list[Pointer]:
        return list(await self.store.list_pointers(self.tenant, id))

    async def attempts(self, id: SessionId) -> list[Attempt]:
        return list(await self.store.list_attempts(self.tenant, id))

    async def events(self, id: SessionId) -> list[StoredEvent]:
        return list(await self.store.read_events(self.tenant, id, after=0))

    async def check_ends(self, id: SessionId) -> None:
        """Exactly one terminal event per attempt that has ended, none of one that runs (I24)."""
        events = await self.events(id)
        for attempt in await self.attempts(id):
            ends = [event for event in events if event.attempt == attempt.id and event.kind in TERMINAL]
            assert len(ends) == (attempt.ended_at is not None), (attempt.status, ends)
