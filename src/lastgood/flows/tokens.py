"""Tokens: created, checked and revoked.

Knows no HTTP; the surfaces check scopes. A token is 256 random bits and cannot be guessed, so a plain SHA-256
of it is stored and needs no slow hash. It is looked up by that hash: timing reveals at most something about
hashes, and a token cannot be chosen by its hash. Lookups are cached for SECONDS_KEPT: a token that is revoked
elsewhere, by a command or by another node, is rejected here after that time at the latest.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from lastgood.core.input_checks import check_text
from lastgood.errors import InvalidRequest, NotFound, OutcomeUnknown
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.ids import TenantId
from lastgood.model.rules import LOCAL, Setter
from lastgood.model.tokens import Scope, Token
from lastgood.ports import Clock, TokenStore

SECONDS_KEPT = 5.0
MOST_KEPT = 1000
MOST_IN_NAME = 200
MOST_DAYS = 36_500

_DAY = 86_400.0
_SHAPE = re.compile(r"lg_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class _Kept:
    token: Token
    read_at: float


class Tokens:
    def __init__(self, store: TokenStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: dict[bytes, _Kept] = {}  # by hash, the one read longest ago first

    async def create(
        self,
        name: str,
        tenant: TenantId,
        scopes: Iterable[str],
        expires_in_seconds: float | None = None,
        *,
        user: str = "",
        worker: str | None = None,
        by: Setter = LOCAL,
    ) -> tuple[Token, str]:
        """Returns the token's record and the token itself, which is never shown again.

        `user`: the user that it acts as. `worker`: the only worker that may use it. `by`: who creates it.
        """
        plain = f"lg_{secrets.token_urlsafe(32)}"
        now = self._clock.now()
        new = Token(
            id=f"tok_{secrets.token_hex(16)}",
            tenant=TenantId(_checked(tenant, "the tenant")),
            name=_checked(name, "the name"),
            scopes=_scopes(scopes),
            created_at=now,
            expires_at=_end(now, expires_in_seconds),
            user=_checked(user, "the user") if user else "",
            worker=worker,
        )
        try:
            audit = _audit(AuditKind.TOKEN_CREATED, new, by)
            return await self._store.create_token(new, _hash_of(plain), audit), plain
        except OutcomeUnknown:
            raise OutcomeUnknown(
                f"The database did not confirm that token {new.id} was stored; revoke it if it is in the "
                "list of tokens, and create another"
            ) from None

    async def check(self, plain: str) -> Token | None:
        """Returns None if the token is unknown, expired or revoked."""
        if _SHAPE.fullmatch(plain) is None:
            return None
        token = await self._find(_hash_of(plain))
        return token if token is not None and token.is_valid(self._clock.now()) else None

    async def _find(self, hash: bytes) -> Token | None:
        # The time before the read: a revocation that the read has just missed counts from here.
        now = self._clock.now()
        kept = self._kept
        known = kept.get(hash)
        # A clock that was set back would make what is old look young.
        if known is not None and 0 <= now - known.read_at < SECONDS_KEPT:
            return known.token
        found = await self._store.find_token(hash)
        kept.pop(hash, None)
        # Unknown ones are not remembered: strangers could fill the memory with them, and a token
        # is good from the moment it was made. Unbound ones are read again: another node may bind them.
        if found is not None and not found.is_unbound:
            while len(kept) >= MOST_KEPT:
                del kept[next(iter(kept))]
            kept[hash] = _Kept(found, now)
        return found

    async def bind(self, id: str, worker: str) -> str | None:
        """Returns the worker that the token is bound to now: the first one that used it."""
        bound = await self._store.bind_token(id, worker)
        return None if bound is None else bound.worker

    async def list(self) -> tuple[Token, ...]:
        """Those of every tenant, oldest first; revoked and expired ones, too."""
        return await self._store.list_tokens()

    async def revoke(self, id: str, by: Setter = LOCAL) -> Token:
        """Works at once here, and elsewhere within SECONDS_KEPT. Revoking it again changes nothing."""
        check_text(id, "the token's id")
        try:
            known = next((one for one in await self._store.list_tokens() if one.id == id), None)
            audit = None if known is None else _audit(AuditKind.TOKEN_REVOKED, known, by)
            revoked = await self._store.revoke_token(id, audit)
        except OutcomeUnknown:
            raise OutcomeUnknown(
                "The database did not confirm that the token was revoked; revoke it again"
            ) from None
        finally:
            # A new one: a check that has read the token before this puts it into the old one.
            self._kept = {}
        if revoked is None:
            raise NotFound("Token not found; list the tokens to see their ids")
        return revoked


def _audit(kind: AuditKind, token: Token, by: Setter) -> AuditEntry:
    about = {"name": token.name, "scopes": sorted(token.scopes), "user": token.user, "worker": token.worker}
    return AuditEntry(token.tenant, kind, by.token, by.user, token.id, about, by.machine)


def _hash_of(plain: str) -> bytes:
    return hashlib.sha256(plain.encode()).digest()


def _checked(text: str, what: str) -> str:
    check_text(text, what)
    if not text.strip() or len(text) > MOST_IN_NAME:
        raise InvalidRequest(f"{what} must have 1 to {MOST_IN_NAME} characters and not be blank")
    return text


def _scopes(names: Iterable[str]) -> frozenset[Scope]:
    known = {scope.value: scope for scope in Scope}
    wanted = set(names)
    unknown = sorted(wanted - known.keys())
    if unknown or not wanted:
        problem = f"Unknown scope {unknown[0]!r}" if unknown else "A token needs at least one scope"
        raise InvalidRequest(f"{problem}; use one or more of {', '.join(known)}")
    return frozenset(known[name] for name in wanted)


def _end(now: float, seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if not 0 < seconds <= MOST_DAYS * _DAY:
        raise InvalidRequest(f"Token lifetime must be more than 0 seconds and at most {MOST_DAYS} days")
    return now + seconds
