"""Sessions, turns, attempts, branches and queue entries, as a server returns them.

States are strings and not enums: a newer server may have states that this version does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from lastgood.errors import ResponseUnreadable
from lastgood.model.agents import Permissions
from lastgood.model.messages import Message, Reasoning, Role, as_chat, from_json, user
from lastgood.model.sessions import Usage

_T = TypeVar("_T")

#: Input of a turn: text of the user, one message, or several messages as objects or in OpenAI's format.
Said = str | Message | Sequence[Message | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RulesInfo:
    """Permission rules that one token set on a session. Weaker scopes cannot remove them."""

    set_by: str  # session, approve, admin
    token: str
    permissions: Permissions
    safety: str | None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    id: str
    title: str
    agent_key: str
    model: str | None  # the override of later turns; None: the agent's own
    working_dir: str | None
    status: str  # idle, running, waiting, queued
    attempt: str | None  # the one that runs or waits
    head: str | None  # the last committed turn
    turns: int
    usage: Usage
    last_event_seq: int
    starred: bool
    metadata: Mapping[str, Any]
    permissions: Permissions | None  # the rules of all setters together
    safety: str | None
    rules: tuple[RulesInfo, ...]  # by setter, the strongest first
    forked_from: tuple[str, str | None] | None  # a session, and the turn of it
    conversation: str | None  # its name on /v1
    created_at: datetime
    updated_at: datetime
    owner: str = ""  # the user who made it
    runtime: str | None = None  # of its newest task, if its agent is on a runtime


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """A committed turn. It is immutable."""

    id: str
    seq: int
    parent: str | None
    attempt: str
    kind: str  # run, append, reset
    messages: tuple[Message, ...]
    inputs: int  # how many of the messages are input; the others are output of the agent
    agent_key: str
    agent_digest: str
    model: str
    usage: Usage
    decision: Mapping[str, Any]
    user: str
    open_calls: tuple[str, ...]  # of the client's own tools: the next turn answers them
    created_at: datetime

    @property
    def text(self) -> str:
        """The last message of the agent, or an empty string."""
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role is Role.ASSISTANT else ""


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One attempt to run a turn."""

    id: str
    session: str
    turn: str
    number: int
    status: str  # running, waiting, committed, failed, cancelled, interrupted, superseded
    base: str | None  # the turn that it follows
    replaces: str | None  # the head that it replaces, if it is an edit
    fence: int
    agent_key: str
    agent_digest: str
    model: str
    decision: Mapping[str, Any]
    error_code: str | None
    error_message: str | None
    continues: str | None  # the attempt whose finished steps it adopted
    question: Mapping[str, Any] | None
    started_at: datetime
    ended_at: datetime | None
    task: str | None = None  # the task that a worker has claimed, if the agent is on a runtime


@dataclass(frozen=True, slots=True)
class ToolCallInfo:
    """One call of the ledger. `key` is the same in every attempt at the turn."""

    key: str
    turn: str
    attempt: str
    tool: str
    arguments_sha256: str
    outcome: str | None  # done, failed, denied, unknown; None while it runs or waits
    seconds: float
    adopted: bool  # an earlier attempt ran it
    rewritten: bool = False  # by a hook


@dataclass(frozen=True, slots=True)
class BranchInfo:
    """Turns that an edit has replaced. Each can be read and forked."""

    head: str  # the last turn of the branch
    turns: int
    after: str | None  # the last turn that it shares with what replaced it
    replaced_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class QueuedInfo:
    """A steer or a follow-up. `is_known`: it was sent before with the same key."""

    number: int
    turn: str
    kind: str
    messages: tuple[Message, ...]
    failures: int
    attempt: str | None
    parked: str | None  # why it is no longer retried
    is_known: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AgentInfo:
    key: str
    description: str
    model: str
    welcome_message: str
    commands: Mapping[str, str]  # what each is for
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionList:
    """One page of sessions. `next_cursor` is None on the last page."""

    sessions: tuple[SessionInfo, ...]
    next_cursor: int | None


# -- from the wire ---------------------------------------------------------------------


def read(make: Callable[[Any], _T], plain: Any) -> _T:
    try:
        return make(plain)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ResponseUnreadable() from None


def read_all(make: Callable[[Any], _T], plain: Any) -> tuple[_T, ...]:
    if not isinstance(plain, list):
        raise ResponseUnreadable()
    return tuple(read(make, one) for one in plain)


def session_of(plain: Mapping[str, Any]) -> SessionInfo:
    rules, source = plain.get("permissions"), plain.get("forked_from")
    return SessionInfo(
        id=plain["id"],
        title=plain["title"],
        agent_key=plain["agent_key"],
        model=plain["model"],
        working_dir=plain["working_dir"],
        status=plain["status"],
        attempt=plain["attempt"],
        head=plain["head"],
        turns=plain["turns"],
        usage=_usage(plain),
        last_event_seq=plain["last_event_seq"],
        starred=plain["starred"],
        metadata=plain["metadata"],
        permissions=None if rules is None else _permissions(rules),
        safety=plain.get("safety_policy"),
        rules=tuple(map(_layer, plain.get("rules", ()))),
        forked_from=None if source is None else (source["session"], source["turn"]),
        conversation=plain.get("conversation"),
        created_at=moment(plain["created_at"]),
        updated_at=moment(plain["updated_at"]),
        owner=plain.get("owner", ""),
        runtime=plain.get("runtime"),
    )


def _layer(plain: Mapping[str, Any]) -> RulesInfo:
    rules = plain.get("permissions")
    return RulesInfo(
        set_by=plain["set_by"],
        token=plain["token"],
        permissions=Permissions() if rules is None else _permissions(rules),
        safety=plain.get("safety_policy"),
    )


def _permissions(plain: Mapping[str, Any]) -> Permissions:
    return Permissions(*(tuple(plain[kind]) for kind in ("allow", "ask", "deny")))


def turn_of(plain: Mapping[str, Any]) -> TurnInfo:
    return TurnInfo(
        id=plain["id"],
        seq=plain["seq"],
        parent=plain["parent"],
        attempt=plain["attempt"],
        kind=plain["kind"],
        messages=tuple(map(_message, plain["messages"])),
        inputs=plain["inputs"],
        agent_key=plain["agent_key"],
        agent_digest=plain["agent_digest"],
        model=plain["model"],
        usage=_usage(plain["usage"]),
        decision=plain["decision"],
        user=plain.get("user", ""),
        open_calls=tuple(plain.get("open_calls", ())),
        created_at=moment(plain["created_at"]),
    )


def tool_call_of(plain: Mapping[str, Any]) -> ToolCallInfo:
    return ToolCallInfo(
        key=plain["key"],
        turn=plain["turn"],
        attempt=plain["attempt"],
        tool=plain["tool"],
        arguments_sha256=plain["arguments_sha256"],
        outcome=plain["outcome"],
        seconds=plain["seconds"],
        adopted=plain["adopted"],
        rewritten=plain.get("rewritten", False),
    )


def attempt_of(plain: Mapping[str, Any]) -> AttemptInfo:
    error = plain.get("error") or {}
    ended = plain.get("ended_at")
    return AttemptInfo(
        id=plain["id"],
        session=plain["session"],
        turn=plain["turn"],
        number=plain["number"],
        status=plain["status"],
        base=plain["base"],
        replaces=plain.get("replaces"),
        fence=plain["fence"],
        agent_key=plain["agent_key"],
        agent_digest=plain["agent_digest"],
        model=plain["model"],
        decision=plain["decision"],
        error_code=code_of(error) if error else None,
        error_message=error.get("message"),
        continues=plain.get("continues"),
        question=plain.get("question"),
        started_at=moment(plain["started_at"]),
        ended_at=None if ended is None else moment(ended),
        task=plain.get("task"),
    )


def branch_of(plain: Mapping[str, Any]) -> BranchInfo:
    return BranchInfo(
        head=plain["head"],
        turns=plain["turns"],
        after=plain["after"],
        replaced_by=plain["replaced_by"],
        created_at=moment(plain["created_at"]),
    )


def queued_of(plain: Mapping[str, Any]) -> QueuedInfo:
    return QueuedInfo(
        number=plain["id"],
        turn=plain["turn"],
        kind=plain["kind"],
        messages=tuple(map(_message, plain["messages"])),
        failures=plain["failures"],
        attempt=plain.get("attempt"),
        parked=plain.get("parked"),
        is_known=plain.get("duplicate", False),
        created_at=moment(plain["created_at"]),
    )


def agent_of(plain: Mapping[str, Any]) -> AgentInfo:
    """Commands are with the first member of an agent that was read alone."""
    root = plain["agents"][0] if "agents" in plain else plain
    return AgentInfo(
        key=plain["name"],
        description=plain["description"],
        model=plain.get("model", ""),
        welcome_message=plain.get("welcome_message", ""),
        commands={name: one.get("description", "") for name, one in root.get("commands", {}).items()},
        warnings=tuple(plain.get("warnings", ())),
    )


def code_of(fields: Mapping[str, Any]) -> str:
    """Returns the most precise code: several failures of a provider share their `code`."""
    return str(fields.get("kind") or fields["code"])


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _usage(plain: Mapping[str, Any]) -> Usage:
    return Usage(plain["input_tokens"], plain["output_tokens"], plain["cost"])


def _message(plain: Mapping[str, Any]) -> Message:
    """The server sends the text of reasoning, without the data that only the provider can read."""
    message = from_json({name: value for name, value in plain.items() if name != "reasoning"})
    thought = plain.get("reasoning")
    if thought is None:
        return message
    reasoning = Reasoning("", thought)
    return Message(
        message.role, message.content, message.tool_calls, message.tool_call_id, message.parts, reasoning
    )


# -- to the wire -----------------------------------------------------------------------


def as_messages(said: Said) -> list[Mapping[str, Any]]:
    if isinstance(said, str):
        return [as_chat(user(said))]
    messages = [said] if isinstance(said, Message) else said
    return [as_chat(one) if isinstance(one, Message) else one for one in messages]
