"""The rules of one session: which tool calls it may make, and who set them."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from lastgood.model.agents import Permissions, Safety
from lastgood.model.tokens import Scope


@dataclass(frozen=True, slots=True)
class Setter:
    """Who sets rules: the strongest scope they have, and their token's id."""

    scope: Scope
    token: str
    user: str = ""  # the user that the token acts as
    machine: str = ""  # for the audit record


#: A process that can open the database file can change anything in it, so a local command is an admin.
LOCAL = Setter(Scope.ADMIN, "local", machine=platform.node())


@dataclass(frozen=True, slots=True)
class RuleLayer:
    """Rules and a safety mode that were set together, or only one of them."""

    set_by: Scope
    token: str
    permissions: Permissions = Permissions()
    safety: Safety | None = None  # only ever narrows what the server allows
