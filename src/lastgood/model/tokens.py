"""Tokens: who may do what. The token itself is stored nowhere, only its hash."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.ids import TenantId


class Scope(StrEnum):
    """What a token may do. `admin` may do everything."""

    CHAT = "chat"  # the OpenAI-compatible API
    READ = "read"  # read sessions
    SESSION = "session"  # use and change sessions
    APPROVE = "approve"  # answer approvals
    WORKER = "worker"  # claim and run tasks
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Token:
    id: str
    tenant: TenantId
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    user: str = ""  # the user that it acts as
    worker: str | None = None  # a worker's token is good for this worker only

    @property
    def is_unbound(self) -> bool:
        """A worker's token that no worker has used yet; the first one to register keeps it."""
        return self.worker is None and Scope.WORKER in self.scopes and Scope.ADMIN not in self.scopes

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)
