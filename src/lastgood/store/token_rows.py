"""Rows of tokens to model values and back, the same for both databases."""

from __future__ import annotations

from typing import Any

from lastgood.model.ids import TenantId
from lastgood.model.tokens import Scope, Token
from lastgood.store.rows import Row


def to_token(row: Row) -> Token:
    id, tenant, name, scopes, created_at, expires_at, revoked_at, user, worker = row
    return Token(
        id,
        TenantId(tenant),
        name,
        frozenset(map(Scope, scopes.split())),
        created_at,
        expires_at,
        revoked_at,
        user,
        worker,
    )


def of_token(token: Token, hash: bytes) -> dict[str, Any]:
    return {
        "id": token.id,
        "tenant": token.tenant,
        "name": token.name,
        "hash": hash,
        "scopes": " ".join(sorted(token.scopes)),
        "expires_at": token.expires_at,
        "user": token.user,
        "worker": token.worker,
    }
