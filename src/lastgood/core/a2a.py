"""Decides what an agent card offers, what is sent to its agent, and what an answer means: A2A 0.3 and 1.0.

Of a card, only its JSON-RPC interface counts. Whatever a card or an answer says is untrusted text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

#: Where an agent's card is, below its address.
CARD = "/.well-known/agent-card.json"
VERSION_HEADER = "A2A-Version"
MOST_SKILLS = 50
MOST_CHARACTERS = 1024
_LONGEST_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_WORKING = frozenset({"submitted", "working"})


@dataclass(frozen=True, slots=True)
class RemoteSkill:
    """A tool: every skill of an agent is called with a message."""

    tool: str
    about: str


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    name: str
    about: str
    url: str
    is_old: bool  # it speaks 0.3, whose methods and roles have other names
    skills: tuple[RemoteSkill, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    text: str


@dataclass(frozen=True, slots=True)
class Works:
    """The task is still running, and is polled again."""

    task: str


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


def card_url(address: str) -> str:
    return address if urlsplit(address).path.endswith(".json") else address.rstrip("/") + CARD


def read_card(card: Any, prefix: str) -> RemoteAgent:
    """`prefix`: goes before the names of its tools. ValueError: it is no card, or names no such interface."""
    if not isinstance(card, dict) or not _text(card, "name"):
        raise ValueError("it is not an agent card")
    url, is_old = _interface(card)
    name, about = _text(card, "name"), _text(card, "description")
    given = [one for one in _listed(card, "skills") if isinstance(one, dict)]
    skills = [_skill(one, name, prefix) for one in given[:MOST_SKILLS]]
    alone = RemoteSkill(_tool_name(name, prefix), f"Sends a message to the agent {name}. {about}")
    return RemoteAgent(name, about, url, is_old, tuple(skills) or (alone,))


def _interface(card: Mapping[str, Any]) -> tuple[str, bool]:
    """The newest that both sides speak."""
    found = dict[bool, str]()
    for one in _listed(card, "supportedInterfaces"):
        if isinstance(one, dict) and one.get("protocolBinding") == "JSONRPC" and _text(one, "url"):
            found.setdefault(_text(one, "protocolVersion").startswith("0."), _text(one, "url"))
    if card.get("url") and card.get("preferredTransport", "JSONRPC") == "JSONRPC":
        found.setdefault(True, str(card["url"]))
    for one in _listed(card, "additionalInterfaces"):
        if isinstance(one, dict) and one.get("transport") == "JSONRPC" and _text(one, "url"):
            found.setdefault(True, _text(one, "url"))
    if not found:
        raise ValueError("its card names no JSON-RPC interface")
    is_old = min(found)
    return found[is_old], is_old


def _skill(skill: Mapping[str, Any], agent: str, prefix: str) -> RemoteSkill:
    name, about = _text(skill, "name"), _text(skill, "description")
    tool = _tool_name(_text(skill, "id") or name or agent, prefix)
    return RemoteSkill(tool, f"Calls the skill '{name or tool}' of the agent {agent}. {about}".strip())


def _tool_name(name: str, prefix: str) -> str:
    full = f"{prefix}_{name}" if prefix else name
    return _NOT_IN_NAMES.sub("_", full.lower()).strip("_")[:_LONGEST_NAME].strip("_") or "agent"


def instruction_of(agent: RemoteAgent) -> str:
    return f"{agent.name} is an agent of another server. {agent.about}".strip()


# -- what is sent ------------------------------------------------------------------------


def message_request(agent: RemoteAgent, text: str, key: str) -> dict[str, Any]:
    """`key`: the same in each attempt at the call, so that the agent can tell a repeated message."""
    message: dict[str, Any] = {"messageId": key, "role": "ROLE_USER", "parts": [{"text": text}]}
    if not agent.is_old:
        return _rpc("SendMessage", {"message": message}, key)
    message |= {"kind": "message", "role": "user", "parts": [{"kind": "text", "text": text}]}
    return _rpc("message/send", {"message": message, "configuration": {"blocking": True}}, key)


def task_request(agent: RemoteAgent, task: str, key: str) -> dict[str, Any]:
    return _rpc("tasks/get" if agent.is_old else "GetTask", {"id": task}, key)


def _rpc(method: str, params: dict[str, Any], key: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


# -- what comes back -----------------------------------------------------------------------


def read_answer(answer: Any) -> Answered | Works | Failed:
    if not isinstance(answer, dict):
        return Failed("it sent JSON that is no answer")
    if error := answer.get("error"):
        said = _text(error, "message") if isinstance(error, dict) else str(error)
        return Failed(said or "it refused the message")
    result = answer.get("result")
    if not isinstance(result, dict):
        return Failed("it sent no result")
    if isinstance(message := result.get("message"), dict) or "parts" in result:
        return Answered(_said(message or result))
    task = result.get("task", result)
    return _read_task(task) if isinstance(task, dict) else Failed("it sent no result")


def _read_task(task: Mapping[str, Any]) -> Answered | Works | Failed:
    status = task.get("status")
    state = _text(status, "state") if isinstance(status, dict) else ""
    state = state.removeprefix("TASK_STATE_").lower().replace("_", "-")
    if state in _WORKING:
        return Works(_text(task, "id")) if _text(task, "id") else Failed("its task has no id")
    message = status.get("message") if isinstance(status, dict) else None
    closing = _said(message) if isinstance(message, dict) else ""
    if state not in ("completed", "input-required"):
        return Failed(closing or f"its task ended as {state or 'unknown'}")
    artifacts = [_said(one) for one in _listed(task, "artifacts") if isinstance(one, dict)]
    return Answered("\n\n".join(filter(None, (*artifacts, closing))))


def _said(message: Mapping[str, Any]) -> str:
    return "".join(_texts(message))


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    for part in _listed(message, "parts"):
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            yield text


def _text(plain: Mapping[str, Any], name: str) -> str:
    value = plain.get(name)
    return value[:MOST_CHARACTERS] if isinstance(value, str) else ""


def _listed(plain: Mapping[str, Any], name: str) -> list[Any]:
    value = plain.get(name)
    return value if isinstance(value, list) else []
