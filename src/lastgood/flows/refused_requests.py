"""Remembers rejected first requests, so that their retries never get the response of an older turn.

An SDK sends a refused request again, marked as a retry. If an older turn was made by the same body, the
retry would be taken for a retry of that one, and what the user said would be lost. So a refusal closes the
older ones, in the database, because the retry may come to any node. Nearly always there are none.

If the database cannot be written, this process remembers the refusal itself. A retry that another process
gets after that is the one case in which it can still be matched with an older turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from lastgood.core.admission import RETRY_WITH_HISTORY_SECONDS
from lastgood.errors import StoreError
from lastgood.flows.dependencies import Dependencies
from lastgood.model.ids import TenantId

#: Oldest first out: each is a few hundred bytes.
_MOST_REMEMBERED = 10_000

_Request = tuple[TenantId, str, str, str]


class RefusedRequests:
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._refused: OrderedDict[_Request, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    async def remember(self, tenant: TenantId, conversation: str, *, fingerprint: str, caller: str) -> None:
        """Never fails: the client must get the reason for the refusal, and no other error."""
        try:
            session = await self._deps.store.find_conversation(tenant, conversation)
            if session is not None:
                await self._deps.store.close_requests(
                    tenant, session.id, fingerprint=fingerprint, caller=caller
                )
        except StoreError:
            self.remember_here(tenant, conversation, fingerprint=fingerprint, caller=caller)

    def remember_here(self, tenant: TenantId, conversation: str, *, fingerprint: str, caller: str) -> None:
        """For refusals by the store itself: asking it again would only make the caller wait longer."""
        self._refused[tenant, conversation, fingerprint, caller] = asyncio.get_running_loop().time()
        if len(self._refused) > _MOST_REMEMBERED:
            self._refused.popitem(last=False)

    def was_refused(self, tenant: TenantId, conversation: str, *, fingerprint: str, caller: str) -> bool:
        at = self._refused.get((tenant, conversation, fingerprint, caller))
        return at is not None and asyncio.get_running_loop().time() - at <= RETRY_WITH_HISTORY_SECONDS

    def forget(self, tenant: TenantId, conversation: str, *, fingerprint: str, caller: str) -> None:
        """It has a turn of its own now, which later retries mean."""
        self._refused.pop((tenant, conversation, fingerprint, caller), None)
