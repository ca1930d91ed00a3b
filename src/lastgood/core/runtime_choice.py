"""Decides on which runtime a session runs its next turn.

The request's own runtime comes first, then the session's, then the one its agent is bound to, then the agent
file's harness: the only usable runtime of that provider. If there are several, it is an error, never a guess.
An agent with none of these is local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.model.runtimes import AgentBinding, Runtime

#: A runtime whose worker was not seen for this long is offline.
OFFLINE_SECONDS = 150.0

#: A worker that deregisters clears the time at which its runtimes were seen, which then reads as decades ago.
_DEREGISTERED_SECONDS = 10 * 365 * 86400.0

#: Provider of a runtime, by docker-agent's type of a harness, where they differ.
_PROVIDERS = {"claude-code": "claude"}


@dataclass(frozen=True, slots=True)
class OnRuntime:
    runtime: str
    reason: str


@dataclass(frozen=True, slots=True)
class IsLocal:
    reason: str = "the agent is bound to no runtime and its file names no harness"


@dataclass(frozen=True, slots=True)
class AmbiguousRuntime:
    provider: str
    candidates: tuple[Runtime, ...]

    @property
    def reason(self) -> str:
        names = ", ".join(f"{one.name} ({one.id})" for one in self.candidates)
        return (
            f"{len(self.candidates)} runtimes offer {self.provider}: {names}. Bind the agent or the session "
            "to one of them"
        )


@dataclass(frozen=True, slots=True)
class NoRuntime:
    provider: str

    @property
    def reason(self) -> str:
        return (
            f"No runtime offers {self.provider}, which the agent's harness names; start a worker that does, "
            "or bind the agent to a runtime"
        )


RuntimeChoice = OnRuntime | IsLocal | AmbiguousRuntime | NoRuntime


def choose_runtime(
    *,
    wanted: str | None,
    pinned: str | None,
    binding: AgentBinding | None,
    harness: str | None,
    usable: Sequence[Runtime],
) -> RuntimeChoice:
    """`wanted`: by the request. `pinned`: the session's own. `usable`: those that the caller may use and
    that were not removed; only the harness is looked up there, so others may be removed or foreign."""
    if wanted is not None:
        return OnRuntime(wanted, "the request names this runtime")
    if pinned is not None:
        return OnRuntime(pinned, "the session is bound to this runtime")
    if binding is not None:
        return OnRuntime(binding.runtime, "the agent is bound to this runtime")
    if harness is None:
        return IsLocal()
    provider = _PROVIDERS.get(harness, harness)
    found = tuple(one for one in usable if one.identity.provider == provider)
    if not found:
        return NoRuntime(provider)
    if len(found) > 1:
        return AmbiguousRuntime(provider, found)
    return OnRuntime(found[0].id, f"it is the only runtime that offers {provider}, the agent's harness")


def has_deregistered(seen_seconds_ago: float) -> bool:
    """Whether the runtime is offline because its worker has stopped, not because it is silent."""
    return seen_seconds_ago > _DEREGISTERED_SECONDS


def is_offline(runtime: Runtime) -> bool:
    return runtime.removed_at is not None or runtime.seen_seconds_ago > OFFLINE_SECONDS
