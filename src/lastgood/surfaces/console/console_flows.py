"""The flows that the pages call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lastgood.errors import ShuttingDown
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.approvals import Approvals
from lastgood.flows.attention import Attention
from lastgood.flows.authors import Authors
from lastgood.flows.queue import Queue
from lastgood.flows.sessions import Sessions
from lastgood.flows.submit import Submitter
from lastgood.flows.turns import Turns
from lastgood.flows.usage import UsageReader
from lastgood.flows.work.assembly import WorkFlows
from lastgood.model.attempts import TurnRequest
from lastgood.model.ids import TenantId
from lastgood.surfaces.http.rate_limit import RateLimiter


@dataclass(frozen=True, slots=True)
class ConsoleFlows:
    sessions: Sessions
    submitter: Submitter
    turns: Turns
    queue: Queue
    approvals: Approvals
    work: WorkFlows
    attention: Attention
    authors: Authors
    agents: AgentDirectory
    usage: UsageReader
    now: Callable[[], float]
    limiter: RateLimiter
    is_draining: Callable[[], bool]

    def check_open(self) -> None:
        if self.is_draining():
            raise ShuttingDown()

    async def author(self, tenant: TenantId, sent: TurnRequest | None) -> str:
        """Returns who sent a request, for people; an empty text if that is not known."""
        return "" if sent is None else await self.authors.name(tenant, sent.user, sent.caller)
