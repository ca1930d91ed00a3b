"""Asks the person at the terminal about a tool call: yes, no, always, or no with a reason for the model.

A tool that needs information asks for one property of its schema after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastgood.cli.output import one_line, remark
from lastgood.cli.terminal_input import next_line
from lastgood.core.visible_text import visible

if TYPE_CHECKING:
    from lastgood.cli.chat import Interrupts


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    confirmation: str
    reason: str = ""
    content: Mapping[str, Any] | None = None

    @property
    def is_elicitation(self) -> bool:
        return self.confirmation in ("accept", "decline", "cancel")


#: None: the person left without an answer.
AskPerson = Callable[[Mapping[str, Any]], Awaitable[PromptAnswer | None]]

_YES, _NO, _ALWAYS = frozenset({"y", "yes"}), frozenset({"n", "no"}), frozenset({"a", "always"})


def how_to_answer(session: str, question: Mapping[str, Any]) -> str:
    """For a person who left without an answer, and for a script that cannot give one."""
    body = '/resume with {"confirmation": "approve" or "reject"}'
    if question.get("kind") == "elicitation":
        body = '/elicitation with {"action": "accept", "content": {…}}'
    here = f"in a terminal (`lastgood run AGENT --session {session}`) or in the console"
    return f"{here}, or POST /api/sessions/{session}{body}"


def understood(question: Mapping[str, Any], line: str) -> PromptAnswer | None:
    """None: the line answers nothing, and the person is asked again."""
    word = line.strip().lower()
    if question.get("kind") == "unknown_outcome":
        return PromptAnswer("repeat") if word in _YES else PromptAnswer("skip") if word in _NO else None
    if word in _YES:
        return PromptAnswer("approve")
    if word in _ALWAYS:
        return PromptAnswer("approve-tool")
    if word in _NO:
        return PromptAnswer("reject")
    return PromptAnswer("reject", line.strip()) if len(word) > 1 else None


def shown(question: Mapping[str, Any]) -> tuple[str, str]:
    """Prints the question and how to answer it. Nothing is truncated: a person approves what they have
    read."""
    call = call_of(question)
    if question.get("kind") == "unknown_outcome":
        return f"whether this call ran before the crash is unknown: {call}", "run it again? [y/n] "
    why = f" ({_all_of(question['reason'])})" if question.get("reason") else ""
    return (
        f"needs approval: {call}{why}",
        "[y]es, [n]o, [a]lways in this session, or a reason to reject it: ",
    )


def call_of(question: Mapping[str, Any]) -> str:
    """The call that waits, or what is asked."""
    if question.get("kind") == "elicitation":
        return _all_of(question.get("message", ""))
    return _all_of(f"{question.get('tool', '')} {question.get('arguments', question.get('input', ''))}")


def _all_of(text: object) -> str:
    """In one line, with nothing invisible in it."""
    return one_line(visible(str(text)))


def terminal_prompt(interrupts: Interrupts) -> AskPerson:
    async def ask(question: Mapping[str, Any]) -> PromptAnswer | None:
        if question.get("kind") == "elicitation":
            return await _ask_for_content(interrupts, question)
        about, prompt = shown(question)
        remark(about)
        while (line := await next_line(interrupts, prompt)) is not None:
            if (said := understood(question, line)) is not None:
                return said
        return None

    return ask


async def _ask_for_content(interrupts: Interrupts, question: Mapping[str, Any]) -> PromptAnswer | None:
    """An empty line skips an optional property, and declines where one is required."""
    remark(f"the agent asks: {_all_of(question.get('message', ''))}")
    if question.get("url"):
        remark(f"go to {_all_of(question['url'])}")
        line = await next_line(interrupts, "done? [y/n] ")
        return None if line is None else PromptAnswer("accept" if line.strip().lower() in _YES else "decline")
    schema = question.get("schema") or {}
    content: dict[str, Any] = {}
    for name, about in (schema.get("properties") or {}).items():
        is_required = name in (schema.get("required") or ())
        value: Any = None
        while value is None:
            line = await next_line(interrupts, _property_prompt(name, about, is_required=is_required))
            if line is None:
                return None
            if not line.strip():
                break
            value = value_of(about, line.strip())
        if value is not None:
            content[name] = value
        elif is_required:
            return PromptAnswer("decline")
    return PromptAnswer("accept", content=content)


def _property_prompt(name: str, about: Mapping[str, Any], *, is_required: bool) -> str:
    kind = "/".join(map(str, about["enum"])) if about.get("enum") else about.get("type", "text")
    described = one_line(str(about.get("description") or about.get("title") or name))
    return f"{described} [{one_line(str(kind))}; empty to {'decline' if is_required else 'skip'}]: "


def value_of(about: Mapping[str, Any], line: str) -> Any:
    """The line as a value of the property. None: it does not fit, and the person is asked again."""
    try:
        match about.get("type", "string"):
            case "integer":
                value: Any = int(line)
            case "number":
                value = float(line)
            case "boolean":
                word = line.lower()
                value = True if word in _YES | {"true"} else False if word in _NO | {"false"} else None
            case "array":
                value = [one.strip() for one in line.split(",")]
            case _:
                value = line
    except ValueError:
        return None
    return value if value in about.get("enum", (value,)) else None
