"""Asks the person at the terminal about a tool call: yes, no, always, or no with a reason for the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastgood.cli.output import one_line, remark
from lastgood.cli.terminal_input import next_line

if TYPE_CHECKING:
    from lastgood.cli.chat import Interrupts


@dataclass(frozen=True, slots=True)
class Said:
    confirmation: str
    reason: str = ""


#: None: the person left without an answer.
AskPerson = Callable[[Mapping[str, Any]], Awaitable[Said | None]]

_YES, _NO, _ALWAYS = frozenset({"y", "yes"}), frozenset({"n", "no"}), frozenset({"a", "always"})


def how_to_answer(session: str) -> str:
    return f'POST /api/sessions/{session}/resume with {{"confirmation": "approve" or "reject"}}'


def understood(question: Mapping[str, Any], line: str) -> Said | None:
    """None: the line answers nothing, and the person is asked again."""
    word = line.strip().lower()
    if question.get("kind") == "unknown_outcome":
        return Said("repeat") if word in _YES else Said("skip") if word in _NO else None
    if word in _YES:
        return Said("approve")
    if word in _ALWAYS:
        return Said("approve-tool")
    if word in _NO:
        return Said("reject")
    return Said("reject", line.strip()) if len(word) > 1 else None


def shown(question: Mapping[str, Any]) -> tuple[str, str]:
    """What is asked, and how to answer it. Nothing is cut off: a person approves what they have read."""
    call = f"{question.get('tool', '')} {question.get('arguments', question.get('input', ''))}"
    if question.get("kind") == "unknown_outcome":
        return f"whether this call ran before the crash is unknown: {one_line(call)}", "run it again? [y/n] "
    why = f" ({one_line(str(question['reason']))})" if question.get("reason") else ""
    return f"needs approval: {one_line(call)}{why}", "[y]es, [n]o, [a]lways in this session, or a reason: "


def terminal_prompt(interrupts: Interrupts) -> AskPerson:
    async def ask(question: Mapping[str, Any]) -> Said | None:
        about, prompt = shown(question)
        remark(about)
        while (line := await next_line(interrupts, prompt)) is not None:
            if (said := understood(question, line)) is not None:
                return said
        return None

    return ask
