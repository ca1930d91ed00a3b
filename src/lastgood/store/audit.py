"""The audit record, on either database. Rows are only ever added."""

from __future__ import annotations

from typing import Any

import orjson

from lastgood.model.audit import AuditEntry, AuditFilter, AuditKind, AuditRecord
from lastgood.model.ids import TenantId
from lastgood.store.rows import Row
from lastgood.store.task_rows import as_text
from lastgood.store.work_access import Statements, WorkTransactions


def of_audit(entry: AuditEntry) -> dict[str, Any]:
    return {
        "tenant": entry.tenant,
        "kind": entry.kind.value,
        "actor": entry.actor,
        "user": entry.user,
        "subject": entry.subject,
        "machine": entry.machine,
        "detail": as_text(dict(entry.detail)),
    }


def to_record(row: Row) -> AuditRecord:
    number, at, tenant, kind, actor, user, subject, detail, machine = row
    about = orjson.loads(detail)
    entry = AuditEntry(TenantId(tenant), AuditKind(kind), actor, user, subject, about, machine)
    return AuditRecord(number, at, entry)


async def add_audit(statements: Statements, audit: AuditEntry | None) -> None:
    """In the transaction of what it records. None: nothing to record."""
    if audit is not None:
        await statements.rows("insert_audit", of_audit(audit))


class SqlAudit(WorkTransactions):
    async def record(self, entry: AuditEntry) -> None:
        await self._transact(lambda statements: add_audit(statements, entry))

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
        return tuple(to_record(row) for row in await self._rows("list_audit", wanted))
