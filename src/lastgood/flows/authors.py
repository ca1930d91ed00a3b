"""Who sent an input: the user, else the token that it came with."""

from __future__ import annotations

from lastgood.model.ids import TenantId
from lastgood.ports import TokenStore


class Authors:
    def __init__(self, store: TokenStore) -> None:
        self._store = store

    async def name(self, tenant: TenantId, user: str, caller: str) -> str:
        """`user`: whom the caller named; `caller`: the token's id. Empty: neither is recorded, or the server
        asked for no token."""
        if user or not caller.startswith("tok_"):
            return user
        token = await self._store.get_token(tenant, caller)
        if token is None:
            return caller
        return token.user or f"{token.name or caller} (token)"
