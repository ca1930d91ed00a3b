"""The principal of a request: tenant, token and scopes."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.core.session_rules import strongest
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TaskId, TenantId
from lastgood.model.rules import Setter
from lastgood.model.tokens import Scope


@dataclass(frozen=True, slots=True)
class Principal:
    """`name` identifies the token; it is not secret. `user` is the user that it acts as."""

    tenant: TenantId
    name: str
    scopes: frozenset[Scope]
    user: str = ""
    worker: str | None = None  # the only worker that may use it
    task: TaskId | None = None  # of a task token: it may read this task and its session only
    session: SessionId | None = None
    peer: str = ""  # the address that the request came from

    def may(self, scope: Scope) -> bool:
        if scope is Scope.READ and Scope.SESSION in self.scopes:
            return True
        return scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def setter(self) -> Setter:
        """Recorded with the session rules that this principal sets."""
        return Setter(strongest(self.scopes), self.name, self.user, self.peer)


#: Used if the server requires no token.
ANYBODY = Principal(DEFAULT_TENANT, "anybody", frozenset({Scope.ADMIN}))
