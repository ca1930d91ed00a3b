"""The audit record, on either database. Rows are only ever added."""

from __future__ import annotations

from typing import Any

import orjson

from lastgood.model.audit import AuditEntry, AuditFilter, AuditKind, AuditRecord
from lastgood.model.ids import TenantId
from lastgood.store.rows import Row
from lastgood.store.work_access import Statements, WorkAccess


def of_audit(entry: AuditEntry) -> dict[str, Any]:
    return {
        "tenant": entry.tenant,
        "kind": entry.kind.value,
        "actor": entry.actor,
        "user": entry.user,
        "subject": entry.subject,
        "detail": orjson.dumps(dict(entry.detail)).decode(),
    }


def _to_record(row: Row) -> AuditRecord:
    number, at, tenant, kind, actor, user, subject, detail = row
    entry = AuditEntry(TenantId(tenant), AuditKind(kind), actor, user, subject, orjson.loads(detail))
    return AuditRecord(number, at, entry)


class SqlAudit(WorkAccess):
    async def record(self, entry: AuditEntry) -> None:
        async def work(statements: Statements) -> None:
            await statements.rows("insert_audit", of_audit(entry))

        await self._transact(work)

    async def list_audit(
        self, tenant: TenantId, filter: AuditFilter, *, limit: int, after: int = 0
    ) -> tuple[AuditRecord, ...]:
        wanted = {
            "tenant": tenant,
            "after": after,
            "kind": filter.kind.value if filter.kind else None,
            "subject": filter.subject,
            "user": filter.user,
            "limit": limit,
        }
        return tuple(_to_record(row) for row in await self._rows("list_audit", wanted))
