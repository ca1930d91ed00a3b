"""Ids are distinct types, so that a turn's id cannot be passed for an attempt's."""

from __future__ import annotations

from typing import NewType

TenantId = NewType("TenantId", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
AttemptId = NewType("AttemptId", str)
TaskId = NewType("TaskId", str)

#: The tenant of a server that has only one.
DEFAULT_TENANT = TenantId("default")
