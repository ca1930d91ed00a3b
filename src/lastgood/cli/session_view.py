"""Sessions, turns and attempts as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.cli.output import count, one_line, print_line, when
from lastgood.client.models import AttemptInfo, SessionInfo, ToolCallInfo, TurnInfo
from lastgood.model.messages import Message, Role


def headline(session: SessionInfo) -> str:
    title = one_line(session.title) or "(no title)"
    turns = count(session.turns, "turn")
    created = when(session.created_at.timestamp())  # lists are sorted by this time
    return f"{session.id}  {created}  {session.status:7}  {turns:>9}  {title}"


def print_session(session: SessionInfo, turns: Sequence[TurnInfo]) -> None:
    print_line(headline(session))
    model = f", model {one_line(session.model)}" if session.model else ""
    print_line(f"agent {one_line(session.agent_key)}{model}")
    if session.forked_from is not None:
        source, at = session.forked_from
        print_line(f"forked from {source}" + (f" at {at}" if at else ""))
    for number, turn in enumerate(turns, 1):
        created = when(turn.created_at.timestamp())
        print_line(f"\nturn {number}  {turn.id}  {created}  {one_line(turn.model)}".rstrip())
        if turn.kind == "reset":
            print_line("  (reset: the agent does not see earlier turns)")
        for message in turn.messages:
            _print_message(message)


def _print_message(message: Message) -> None:
    if message.content or not message.tool_calls:
        indent = "\n" + " " * (len(message.role) + 4)
        print_line(f"  {message.role.value}: {message.content.replace(chr(10), indent)}")
    for call in message.tool_calls:
        print_line(f"  {message.role.value} calls {one_line(call.name)} {one_line(call.arguments)}")


def print_recent(turns: Sequence[TurnInfo]) -> None:
    """The last turns of a session that is continued: who said what, without the work in between."""
    for turn in turns:
        for message in turn.messages:
            if message.role is Role.USER:
                print_line(f"> {message.content.replace(chr(10), chr(10) + '  ')}")
            elif message.role is Role.ASSISTANT and message.content:
                print_line(message.content)


def print_attempts(attempts: Sequence[AttemptInfo]) -> None:
    print_line(f"\n{count(len(attempts), 'attempt')}")
    before: Mapping[str, Any] | None = None
    for attempt in attempts:
        print_line(f"  {attempt.id}  attempt {attempt.number} of {attempt.turn}: {attempt.status}")
        if attempt.replaces is not None:
            print_line(f"    edit: after {attempt.base or 'the start'}, replaces turns to {attempt.replaces}")
        if attempt.error_code is not None:
            print_line(f"    error: {attempt.error_code}: {one_line(attempt.error_message or '')}")
        if attempt.decision != before or attempt.decision.get("agent") != "exact":
            for name, value in attempt.decision.items():
                print_line(f"    {name}: {one_line(str(value))}")
        before = attempt.decision


def print_tool_calls(calls: Sequence[ToolCallInfo]) -> None:
    """The ledger: keys are the same in every attempt at a turn, so a call that ran twice shows."""
    print_line(f"\n{count(len(calls), 'tool call')}")
    for call in calls:
        notes = [*(["adopted"] if call.adopted else []), *(["rewritten by a hook"] if call.rewritten else [])]
        more = f"  ({', '.join(notes)})" if notes else ""
        outcome = call.outcome or "open"
        print_line(f"  {outcome:7}  {call.seconds:6.1f} s  {one_line(call.tool)}{more}")
        print_line(
            f"    key {call.key}  attempt {call.attempt}  arguments sha256:{call.arguments_sha256[:16]}"
        )
