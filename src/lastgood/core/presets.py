"""Decides what requests of well-known chat clients mean, where an operator says that they come from one.

These clients send their whole history each time and a chat id in a header of their own;
and they ask for titles, tags and suggestions behind the user's back. Such an errand is no
part of any conversation: it is answered without a session and without tools.
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
    is_errand: bool = False


_CHAT_HEADERS = {
    Preset.OPEN_WEBUI: "x-openwebui-chat-id",
    Preset.LIBRECHAT: "x-conversation-id",
}
#: What a client sends as the name of a chat that has none yet, or whose template was not filled in.
_NO_NAMES = frozenset({"", "new", "null", "none", "undefined", "local"})

#: All patterns of one row must be found, in a request that says one thing.
_ERRANDS = {
    Preset.OPEN_WEBUI: (
        (r"\A\s*### Task:", r"<chat_history>|### Output:|<type>"),
        (r"\A\s*### Task:", r"autocompletion|follow.?up|tags|title|queries"),
    ),
    Preset.LIBRECHAT: (
        (r"concise,? 5-word-or-less title for the conversation",),
        (r"analyze this conversation and provide", r"detected language"),
        (r"generate a concise title \(max 40 characters\) for a conversation",),
    ),
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
        if _is_errand(preset, body):
            return Understood(None, is_errand=True)
        return Understood(_a_name(name), reconciles=mode != "append")
    return Understood(named, reconciles=mode == "reconcile")


def _a_name(name: str) -> str | None:
    plain = name.strip()
    return None if plain.lower() in _NO_NAMES or plain.startswith(("{{", "temporary")) else plain


def _is_errand(preset: Preset, body: Sequence[Message]) -> bool:
    said = [message for message in body if message.role is not Role.SYSTEM]
    if len(said) != 1:
        return False
    return any(
        all(re.search(pattern, said[0].content, re.IGNORECASE) for pattern in patterns)
        for patterns in _ERRANDS[preset]
    )
