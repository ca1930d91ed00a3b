"""What requests of well-known chat clients mean."""

import pytest

from lastgood.core.presets import Preset, Understood, understand
from lastgood.model.messages import Message, Role, assistant, user

BOTH = frozenset(Preset)
WEBUI = {"x-openwebui-chat-id": "chat-1"}
LIBRE = {"x-conversation-id": "chat-1"}
SAID = (user("hello"),)
TITLE = (
    user(
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
        "### Output:\nJSON format: {}\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>"
    ),
)
LIBRE_TITLE = (
    user(
        "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. "
        "Only return the title itself.\n\nConversation:\nUser: hi"
    ),
)


def test_without_a_preset_only_our_own_headers_count() -> None:
    assert understand((), WEBUI, SAID) == Understood(None)
    assert understand((), LIBRE, SAID) == Understood("chat-1")
    assert understand((), LIBRE | {"x-conversation-mode": "reconcile"}, SAID) == Understood("chat-1", True)
    assert understand((), LIBRE, LIBRE_TITLE) == Understood("chat-1")


@pytest.mark.parametrize("headers", [WEBUI, LIBRE])
def test_a_preset_maps_the_chat_id_and_reconciles(headers: dict[str, str]) -> None:
    assert understand(BOTH, headers, SAID) == Understood("chat-1", True)
    assert understand(BOTH, headers | {"x-conversation-mode": "append"}, SAID) == Understood("chat-1")


@pytest.mark.parametrize("name", ["", "new", "null", "{{LIBRECHAT_BODY_CONVERSATIONID}}", " undefined "])
def test_a_chat_without_a_name_is_no_conversation(name: str) -> None:
    assert understand(BOTH, {"x-conversation-id": name}, SAID).conversation is None


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (WEBUI, TITLE),
        (WEBUI, (Message(Role.SYSTEM, "be kind"), *TITLE)),
        (LIBRE, LIBRE_TITLE),
        (LIBRE, (user("Analyze this conversation and provide:\n1. The detected language of it"),)),
    ],
)
def test_an_errand_belongs_to_no_conversation(headers: dict[str, str], body: tuple[Message, ...]) -> None:
    assert understand(BOTH, headers, body) == Understood(None, is_errand=True)


def test_what_a_person_says_is_no_errand() -> None:
    for text in ("Write a title for my talk", "### Task list\n- one", "tags: a, b"):
        assert understand(BOTH, WEBUI, (user(text),)).conversation == "chat-1"
    assert understand(BOTH, WEBUI, (user("hi"), assistant("hello"), *TITLE)).conversation == "chat-1"
    assert understand(BOTH, {}, SAID) == Understood(None)
    assert understand({Preset.LIBRECHAT}, WEBUI, SAID) == Understood(None)
