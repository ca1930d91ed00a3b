"""The seam to usage: counted with attempts, merged by a sweep, read in sums."""

from __future__ import annotations

from typing import Protocol

from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import TenantId
from lastgood.model.usage import AttemptUse, UsageQuery, UsageRow


class UsageStore(Protocol):
    async def record_use(
        self, tenant: TenantId, user: str, agent_key: str, status: AttemptStatus, use: AttemptUse
    ) -> None:
        """Of a run without a session. May be lost in a power cut."""
        ...

    async def merge_usage(self, *, limit: int) -> int:
        """Merges so many rows into one for each hour and dimension. Returns how many were merged."""
        ...

    async def read_usage(self, tenant: TenantId, query: UsageQuery, *, limit: int) -> tuple[UsageRow, ...]:
        """Sums, in the order of time and name. Does not block the event loop, however many rows it reads."""
        ...
