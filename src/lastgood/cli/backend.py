"""The interface between commands and sessions, which are in the local database or on a server.

Both backends return the models of the client, so output is the same.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lastgood.cli.approval_prompt import PromptAnswer
from lastgood.client.models import AttemptInfo, BranchInfo, SessionInfo, SessionList, ToolCallInfo, TurnInfo
from lastgood.core import agent_identity
from lastgood.errors import LastgoodError, WrongUsage
from lastgood.model.attempts import After
from lastgood.model.events import StoredEvent
from lastgood.model.messages import Message
from lastgood.settings import SAFETIES


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The result of a turn, or that it waits for approval. `committed` is None if nothing was committed."""

    session: str
    turn: str
    attempt: str | None  # None: its task ended before a worker claimed it
    status: str
    committed: TurnInfo | None
    error: LastgoodError | None
    replayed: bool

    @property
    def is_good(self) -> bool:
        return self.committed is not None

    @property
    def reason(self) -> str:
        if self.error is not None:
            return self.error.message
        return f"the turn is {self.status}; nothing was committed"


class BackendTurn(Protocol):
    """An accepted turn."""

    def events(self) -> AsyncGenerator[StoredEvent, None]:
        """Yields the events of the turn to its end. A replayed turn has none."""

    async def ended(self) -> TurnEnd: ...

    async def answer(self, said: PromptAnswer, question: str | None) -> None:
        """Answers the question with this id; None: the only one. Its events continue. Raises NothingPending
        if it is not pending any more."""

    async def cancel(self) -> None:
        """Does nothing if the turn has ended. Raises an error if the request could not be sent."""

    async def leave(self) -> None:
        """The output of the turn is no longer read."""

    async def close(self) -> None: ...


class ReadBackend(Protocol):
    async def find(self, text: str) -> SessionInfo:
        """Returns the session with this id, or the N-th newest session for -N."""

    async def page(self, *, limit: int, cursor: int | None, query: str) -> SessionList: ...

    async def turns(self, session: str) -> tuple[TurnInfo, ...]: ...

    async def attempts(self, session: str) -> tuple[AttemptInfo, ...]: ...

    async def tool_calls(self, session: str) -> tuple[ToolCallInfo, ...]: ...

    async def branches(self, session: str) -> tuple[BranchInfo, ...]: ...

    def export(self, session: str) -> AsyncGenerator[bytes, None]:
        """Streams the JSON document of a session."""


class Backend(ReadBackend, Protocol):
    async def attempt(self, session: str, attempt: str) -> AttemptInfo: ...

    def follow(self, attempt: AttemptInfo, since: int) -> BackendTurn:
        """Returns the turn of an attempt that waits for an answer; its events come after number `since`."""

    async def create(self, agent: str) -> SessionInfo: ...

    async def check_model(self, agent: str, model: str) -> None:
        """Raises ModelUnknown, if that can be known without sending a message."""

    async def fork(self, session: str, turn: str | None = None) -> SessionInfo: ...

    async def rename(self, session: str, title: str) -> SessionInfo: ...

    async def reset(self, session: str) -> TurnInfo: ...

    async def delete(self, session: str) -> None: ...

    async def take_in(self, document: Mapping[str, Any]) -> SessionInfo: ...

    async def ask(
        self,
        session: str,
        message: Message,
        agent: str,
        model: str | None,
        key: str | None,
        after: After | None = None,
        expected_head: str | None = None,
    ) -> BackendTurn:
        """`after` replaces the turns that follow it; None: the turn follows the last one.

        Raises StaleHead if `expected_head` is given and is not the last turn of the session.
        """


def other_than(recorded: str, named: str) -> str | None:
    """Returns None if the named agent is the session's own, maybe with another query string."""
    match agent_identity.resolve(recorded, [named]):
        case agent_identity.Exact() | agent_identity.Stable():
            return None
        case _:
            return named


#: Settings that cannot be combined with --server.
_OF_HERE = ("data_dir", "database", "config", "env_file", "pull_interval")


def check_place(args: argparse.Namespace) -> None:
    """Raises WrongUsage for options that cannot be combined and values that a server would reject."""
    if args.server is None:
        if args.server_token:
            raise WrongUsage("--token-file needs --server")
        return
    for name in _OF_HERE:
        if getattr(args, name, None) is not None:
            option = f"--{name.replace('_', '-')}"
            raise WrongUsage(f"{option} and --server cannot be combined: the server has its own {option}")
    safety = getattr(args, "safety", None)
    if safety is not None and args.session is not None:
        raise WrongUsage("--safety and --session cannot be combined: --safety applies to new sessions")
    if safety is not None and safety not in SAFETIES:
        raise WrongUsage(f"--safety must be one of {', '.join(SAFETIES)}")
