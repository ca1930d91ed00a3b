"""How a new machine gets its token: a user makes a one-time code, and the machine exchanges it.

The token is bound to one worker and to the user who made the code.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from lastgood.errors import Forbidden, InvalidRequest
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.tokens import Tokens
from lastgood.model.ids import TenantId
from lastgood.model.rules import Setter
from lastgood.model.runtimes import Enrollment
from lastgood.model.tokens import Scope, Token

CODE_SECONDS = 600.0
MOST_CODE_SECONDS = 24 * 3600.0
_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Enrolled:
    token: Token
    plain: str  # nobody sees it again


class Enroller:
    def __init__(self, deps: Dependencies, tokens: Tokens) -> None:
        self._deps = deps
        self._store = deps.store
        self._tokens = tokens

    async def create(
        self, tenant: TenantId, owner: str, worker: str | None, seconds: float | None
    ) -> tuple[str, Enrollment]:
        """The code and what it is for. This is the only time that anybody sees the code."""
        seconds = CODE_SECONDS if seconds is None else seconds
        if not 0 < seconds <= MOST_CODE_SECONDS:
            raise InvalidRequest(
                f"`ttl_seconds` must be more than 0 and at most {MOST_CODE_SECONDS:.0f}", param="ttl_seconds"
            )
        worker = check_worker(worker) if worker else f"worker-{secrets.token_hex(4)}"
        await self.check_owner(tenant, worker, owner)
        code = f"lge_{secrets.token_urlsafe(18)}"
        enrollment = Enrollment(tenant, owner, worker, self._deps.clock.now() + seconds)
        await self._store.create_enrollment(enrollment, _hash_of(code))
        return code, enrollment

    async def exchange(self, code: str, name: str) -> Enrolled:
        found = await self._store.use_enrollment(_hash_of(code))
        if found is None:
            raise Forbidden(
                "Unknown, used or expired one-time code; create a new one with `lastgood tokens enroll`"
            )
        # The worker may have registered with another user's token since the code was created.
        await self.check_owner(found.tenant, found.worker, found.owner)
        token, plain = await self._tokens.create(
            name,
            found.tenant,
            [Scope.WORKER.value],
            user=found.owner,
            worker=found.worker,
            by=Setter(Scope.WORKER, "enrollment", found.owner),
        )
        return Enrolled(token, plain)

    async def bind(self, tenant: TenantId, token: str, user: str, worker: str) -> None:
        """Binds a token to the first worker that registers with it. Forbidden: another one did."""
        await self.check_owner(tenant, check_worker(worker), user)
        bound = await self._tokens.bind(token, worker)
        if bound != worker:
            raise Forbidden(f"This token is bound to worker {bound!r}, not to {worker!r}")

    async def check_owner(self, tenant: TenantId, worker: str, user: str) -> None:
        """Forbidden: another user's worker has registered with this id, whatever became of its runtimes. What
        a token may claim is decided by the owner of the worker, not here."""
        known = await self._store.get_worker(tenant, worker)
        if known is not None and known.owner != user:
            raise worker_is_taken(worker)


def _hash_of(code: str) -> bytes:
    """Random, so a plain hash is enough."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


def worker_is_taken(worker: str) -> Forbidden:
    return Forbidden(f"Worker id {worker!r} belongs to another user; use another one")


def check_worker(worker: str) -> str:
    if _WORKER.fullmatch(worker) is None:
        raise InvalidRequest(
            f"Worker id {worker!r} must have 1 to 100 letters, digits, dots, dashes or underscores, and must "
            "begin with a letter or a digit",
            param="worker_id",
        )
    return worker
