"""Decides what requests of well-known chat clients mean, where an operator says that they come from one.

These clients send their whole history each time, with a chat id in a header of their own; and they request
titles, tags and suggestions in the background. Such a background request is not part of a conversation: it is
answered without a session and without tools.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.messages import Message, Role


class Preset(StrEnum):
    OPEN_WEBUI = "open-webui"
    LIBRECHAT = "librechat"


@dataclass(frozen=True, slots=True)
class Understood:
    """`conversation` is None where the request belongs to none."""

    conversation: str | None
    reconciles: bool = False
    is_background: bool = False


_CHAT_HEADERS = {
    Preset.OPEN_WEBUI: "x-openwebui-chat-id",
    Preset.LIBRECHAT: "x-conversation-id",
}
#: Header in which a client names its background task, if the operator configured it.
_TASK_HEADERS = {Preset.OPEN_WEBUI: "x-openwebui-task"}
#: What a client sends as the name of a chat that has none yet, or whose template was not filled in.
_NO_NAMES = frozenset({"", "new", "null", "none", "undefined", "local"})
#: Prefixes of ids of chats that a client does not keep, or renames each time.
_NOT_KEPT = {
    Preset.OPEN_WEBUI: ("temporary:", "local:", "channel:"),
    Preset.LIBRECHAT: (),
}

#: All patterns of one row must be found, in a request that says one thing.
_BACKGROUND = {
    Preset.OPEN_WEBUI: (
        # A question about a file begins so too; but it ends in the person's own words.
        (r"\A\s*### Task:", r"</chat_history>\s*\Z"),
        (r"\A\s*### Task:\s+You are an autocompletion system",),
        (r"\A\s*### Task:\s+Summarize the conversation history that will be compacted",),
        (r"\A\s*Your task is to reflect the speaker's likely facial expression",),
        (r"\A\s*You have been provided with a set of responses from various models",),
    ),
    Preset.LIBRECHAT: (
        (r"concise,? 5-word-or-less title for the conversation",),
        (r"analyze this conversation and provide", r"detected language"),
        (r"generate a concise title \(max 40 characters\) for a conversation",),
    ),
}
#: The same of its system message, where what is said is the person's own.
_BACKGROUND_BY_SYSTEM = {
    Preset.OPEN_WEBUI: (
        (r"\A\s*Available Tools:", r"your task is to choose and return the correct tool"),
        (r"\A\s*You are Open WebUI's private memory reviewer",),
    ),
    Preset.LIBRECHAT: (),
}


def understand(
    presets: Collection[Preset], headers: Mapping[str, str], body: Sequence[Message]
) -> Understood:
    named = headers.get("x-conversation-id")
    mode = headers.get("x-conversation-mode", "")
    for preset in Preset:
        if preset not in presets:
            continue
        name = headers.get(_CHAT_HEADERS[preset])
        if name is None:
            continue
        task = headers.get(_TASK_HEADERS.get(preset, ""), "")
        if _is_filled_in(task) or _is_background(preset, body):
            return Understood(None, is_background=True)
        return Understood(_a_name(preset, name), reconciles=mode != "append")
    return Understood(named, reconciles=mode == "reconcile")


def _a_name(preset: Preset, name: str) -> str | None:
    plain = name.strip()
    return plain if _is_filled_in(plain) and not plain.startswith(_NOT_KEPT[preset]) else None


def _is_filled_in(value: str) -> bool:
    plain = value.strip()
    return plain.lower() not in _NO_NAMES and not plain.startswith("{{")


def _is_background(preset: Preset, body: Sequence[Message]) -> bool:
    said = [message for message in body if message.role is not Role.SYSTEM]
    if len(said) != 1:
        return False
    systems = [message for message in body if message.role is Role.SYSTEM]
    return _is_any(_BACKGROUND[preset], said) or _is_any(_BACKGROUND_BY_SYSTEM[preset], systems)


def _is_any(rows: Sequence[Sequence[str]], messages: Sequence[Message]) -> bool:
    return any(
        all(re.search(pattern, message.content, re.IGNORECASE) for pattern in patterns)
        for message in messages
        for patterns in rows
    )
