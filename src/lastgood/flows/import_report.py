"""The options of an import from another system, and its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lastgood.model.ids import TenantId


@dataclass(frozen=True, slots=True)
class ImportOptions:
    tenant: TenantId
    owner: str = ""  # the user to whom the sessions belong
    workspace: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)  # our agent key, by the name or id of an agent
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ImportedRuntime:
    """Which worker and runtime, as options of `lastgood worker`, find the native sessions again."""

    name: str
    worker: str
    runtime: str


@dataclass(slots=True)
class ImportReport:
    chats: int = 0
    issues: int = 0
    created: int = 0
    extended: int = 0
    unchanged: int = 0
    empty: int = 0  # neither turns nor pointers
    turns: int = 0
    pointers: int = 0
    without_runtime: int = 0  # pointers of chats whose runtime is not certain
    left_out: int = 0  # messages that are no part of a turn
    continued: list[str] = field(default_factory=list)  # chats with new messages that went on here
    busy: list[str] = field(default_factory=list)  # chats whose session was in use
    agents: dict[str, str] = field(default_factory=dict)  # our key, by multica's name
    runtimes: list[ImportedRuntime] = field(default_factory=list)
