"""Deliberate defects of webhooks; registered with all the others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from lastgood.core import webhooks as core_webhooks
from lastgood.flows import webhook_delivery as flow_delivery
from lastgood.model.attempts import Commit, CommitResult, Hold
from lastgood.model.usage import NO_USE, AttemptUse
from lastgood.model.webhooks import WebhookKind
from lastgood.store.announcements import announcement
from lastgood.store.rows import of_hold
from lastgood.store.sqlite.store import SqliteStore
from tests.faults.defects import DEFECTS, defect, statement

_BEFORE = len(DEFECTS)


@defect("a webhook is told before the commit")
def _() -> Iterator[None]:
    real = SqliteStore.commit_if_head

    async def commit_if_head(
        self: SqliteStore, hold: Hold, commit: Commit, events: Any, task: Any = None, use: AttemptUse = NO_USE
    ) -> CommitResult:
        await self._write("announce_attempt", of_hold(hold) | announcement(WebhookKind.TURN_COMMITTED))
        with statement("announce_attempt", ("WHERE", "WHERE 0 AND")):
            return await real(self, hold, commit, events, task, use)

    with patch.object(SqliteStore, "commit_if_head", commit_if_head):
        yield


@defect("a webhook hears of other tenants")
def _() -> Iterator[None]:
    with statement("announce_attempt", ("webhooks.tenant = :tenant AND", "")):
        yield


@defect("a webhook message is not leased while it is sent")
def _() -> Iterator[None]:
    with statement("lease_delivery", (", due_at = clock() + :lease", "")):
        yield


@defect("each try of a webhook message has its own id")
def _() -> Iterator[None]:
    def headers_of(delivery: Any, *rest: Any) -> Any:
        return core_webhooks.headers_of(replace(delivery, id=f"msg_{secrets.token_hex(4)}"), *rest)

    with patch.object(flow_delivery, "headers_of", headers_of):
        yield


#: The simulation has no webhooks.
OF_WEBHOOKS = frozenset(one.name for one in DEFECTS[_BEFORE:])
