"""What requests of well-known chat clients mean."""

import pytest

from lastgood.core.client_presets import Preset, Understood, understand
from lastgood.model.messages import Message, Role, assistant, user
from tests import webui

BOTH = frozenset(Preset)
WEBUI = {webui.CHAT_ID: "chat-1"}
LIBRE = {"x-conversation-id": "chat-1"}
SAID = (user("hello"),)
TITLE = (user(webui.TITLE),)
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
def test_a_background_request_belongs_to_no_conversation(
    headers: dict[str, str], body: tuple[Message, ...]
) -> None:
    assert understand(BOTH, headers, body) == Understood(None, is_background=True)


@pytest.mark.parametrize("background", webui.BACKGROUND_REQUESTS.values(), ids=webui.BACKGROUND_REQUESTS)
def test_every_background_request_of_open_webui_is_recognized(background: tuple[str, str]) -> None:
    system, said = background
    body = (*([Message(Role.SYSTEM, system)] if system else []), user(said))
    assert understand(BOTH, webui.HEADERS, body) == Understood(None, is_background=True)


def test_a_background_request_with_a_custom_prompt_is_recognized_by_its_header() -> None:
    named = WEBUI | {"x-openwebui-task": "title_generation"}
    assert understand(BOTH, named, SAID) == Understood(None, is_background=True)
    assert understand({Preset.LIBRECHAT}, LIBRE | named, SAID) == Understood("chat-1", True)
    for task in ("", "{{TASK}}"):
        assert understand(BOTH, WEBUI | {"x-openwebui-task": task}, SAID) == Understood("chat-1", True)


def test_a_question_about_a_file_is_no_background_request() -> None:
    """It begins like one, has an output section and speaks of tags."""
    for words in ("what is in it?", webui.attached("what is in it?")):
        body = (user(webui.with_sources(words, "a title, <chat_history>x</chat_history>, queries")),)
        assert understand(BOTH, webui.HEADERS, body) == Understood(webui.CHAT, True)


@pytest.mark.parametrize("name", webui.NOT_KEPT)
def test_what_open_webui_does_not_keep_is_not_kept(name: str) -> None:
    assert understand(BOTH, {webui.CHAT_ID: name}, SAID).conversation is None
    # Of another client, it is a name like any other.
    assert understand(BOTH, {"x-conversation-id": name}, SAID).conversation == name


def test_a_users_message_is_no_background_request() -> None:
    for text in ("Write a title for my talk", "### Task list\n- one", "tags: a, b"):
        assert understand(BOTH, WEBUI, (user(text),)).conversation == "chat-1"
    assert understand(BOTH, WEBUI, (user("hi"), assistant("hello"), *TITLE)).conversation == "chat-1"
    assert understand(BOTH, {}, SAID) == Understood(None)
    assert understand({Preset.LIBRECHAT}, WEBUI, SAID) == Understood(None)
