"""Tokens: who may do what. The token itself is stored nowhere, only its hash."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.ids import TenantId


class Scope(StrEnum):
    """What a token is good for. `admin` is good for everything."""

    CHAT = "chat"  # the OpenAI-compatible API
    READ = "read"  # looking at sessions
    SESSION = "session"  # using and changing them
    APPROVE = "approve"  # answering for a person
    WORKER = "worker"  # claiming and doing tasks
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
    user: str = ""  # whom it stands for
    worker: str | None = None  # a worker's token is good for this worker only

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)
