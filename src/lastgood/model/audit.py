"""The audit log: one append-only record of each decision that a person or a machine made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastgood.model.ids import TenantId


class AuditKind(StrEnum):
    APPROVAL = "approval"
    CALL_DENIED = "call_denied"
    RULES_CHANGED = "rules_changed"
    AGENT_REBOUND = "agent_rebound"
    RUNTIME_BOUND = "runtime_bound"
    WORKER_REPLACED = "worker_replaced"
    TOKEN_CREATED = "token_created"
    TOKEN_REVOKED = "token_revoked"
    WEBHOOK_ADDED = "webhook_added"
    WEBHOOK_REMOVED = "webhook_removed"
    RESUME_DECIDED = "resume_decided"
    CLAIM_TAKEN_OVER = "claim_taken_over"
    DATABASE_RESTORED = "database_restored"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`actor` is the authenticated token, `user` the user that it acts as; both are empty if nobody decided.
    `subject`: the id of what changed. `machine`: the address that the request came from, the id of the worker
    that reported it, or the name of the node that decided by itself."""

    tenant: TenantId
    kind: AuditKind
    actor: str
    user: str
    subject: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    machine: str = ""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    number: int  # rises; orders the list, because no clock may
    at: float
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class AuditFilter:
    kind: AuditKind | None = None
    subject: str | None = None
    user: str | None = None
