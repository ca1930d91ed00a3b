"""Quotas of tenants and tokens: how many sessions, and how many bytes of committed turns.

They are soft limits. Usage is read by one query and cached for a few seconds, so there is no row that all
commits of a tenant wait for. In between, sessions that this process adds are counted; turns, and what other
nodes add, are not.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from lastgood.core.quotas import NO_QUOTA, NOTHING, Quota, QuotaUsage, breach_of, describe
from lastgood.errors import QuotaExceeded
from lastgood.model.ids import TenantId

#: How long what is used is remembered; longer where reading it takes long, so that it costs at most 1 %.
FRESH_SECONDS = 5.0
_MOST_OF_TIME = 0.01

#: What each token of a tenant uses, by the token's id.
ReadUsage = Callable[[TenantId], Awaitable[Mapping[str, QuotaUsage]]]


@dataclass(slots=True)
class _Known:
    by_token: dict[str, QuotaUsage]
    until: float


class Quotas:
    """Without quotas, nothing is read."""

    def __init__(
        self, read: ReadUsage, tenant: Quota, token: Quota, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._tenant = tenant
        self._token = token
        self._now = now
        self._known: dict[TenantId, _Known] = {}
        self.is_limited = tenant != NO_QUOTA or token != NO_QUOTA

    async def check(self, tenant: TenantId, token: str, adds: QuotaUsage = NOTHING) -> None:
        """QuotaExceeded: the tenant, or the token that made the session, may not store this."""
        if not self.is_limited:
            return
        by_token = (await self._usage(tenant)).by_token
        everything = sum(by_token.values(), NOTHING)
        for setting, who, quota, used in (
            ("tenant", f"tenant {tenant}", self._tenant, everything),
            ("token", f"token {token}", self._token, by_token.get(token, NOTHING)),
        ):
            breach = breach_of(quota, used, adds)
            if breach is not None:
                raise QuotaExceeded(describe(breach, who, setting), quota=setting)

    def add(self, tenant: TenantId, token: str, added: QuotaUsage) -> None:
        """Counts what was just stored, until it is read again."""
        known = self._known.get(tenant)
        if known is not None:
            known.by_token[token] = known.by_token.get(token, NOTHING) + added

    def forget(self, tenant: TenantId) -> None:
        """Something was deleted: the next check reads again."""
        self._known.pop(tenant, None)

    async def _usage(self, tenant: TenantId) -> _Known:
        known = self._known.get(tenant)
        began = self._now()
        if known is None or began >= known.until:
            by_token = dict(await self._read(tenant))
            ended = self._now()
            known = _Known(by_token, ended + max(FRESH_SECONDS, (ended - began) / _MOST_OF_TIME))
            self._known[tenant] = known
        return known
