"""What Open WebUI sends to an OpenAI-compatible server: recorded from version 0.12.4 and trimmed.

Every request carries its chat id. A message about a file begins like an errand, and comes without its
sources the next time.
"""

from __future__ import annotations

CHAT = "af5541a5-9a1e-4a6c-bebc-662ce190dc0e"
CHAT_ID = "x-openwebui-chat-id"
USER_HEADERS = {
    "x-openwebui-auth-type": "jwt",
    "x-openwebui-user-name": "User",
    "x-openwebui-user-id": "4cc350b5-8bda-4995-9874-ba346c84cd88",
    "x-openwebui-user-email": "admin@localhost",
    "x-openwebui-user-role": "admin",
}
HEADERS = USER_HEADERS | {CHAT_ID: CHAT}

#: Ids of what it does not keep (the second: in older versions), and of what it tells anew each time.
NOT_KEPT = ("temporary:AaNGFkkjgK7khuabAAAF", "local:AaNGFkkjgK7khuabAAAF", "channel:8261ec48")


def _task(what: str, output: str, said: str = "USER: hello one\nASSISTANT: Hello.") -> str:
    return (
        f"### Task:\n{what}\n### Guidelines:\n- Be short.\n### Output:\n{output}\n"
        f"### Chat History:\n<chat_history>\n{said}\n</chat_history>"
    )


TITLE = _task("Generate a concise title summarizing the chat history.", '{ "title": "…" }')

#: Its errands: a system message or none, and the only thing that is said.
BACKGROUND_REQUESTS: dict[str, tuple[str, str]] = {
    "title": ("", TITLE),
    "tags": ("", _task("Generate 1-3 broad tags categorizing the main themes.", '{ "tags": ["…"] }')),
    "follow-ups": ("", _task("Predict 3-5 useful messages this user might send.", '{ "follow_ups": [] }')),
    "search queries": ("", _task("Analyze the chat history.", '{ "queries": [] }', "USER: hello") + "\n"),
    "image prompt": ("", _task("Generate a detailed prompt for am image.", '{ "prompt": "…" }')),
    "autocompletion": (
        "",
        "### Task:\nYou are an autocompletion system. Continue the text in `<text>`.\n---\n### Context:\n"
        "<chat_history>\nUSER: hi\n</chat_history>\n<type>general</type>  \n<text>hello wor</text>  \n"
        "#### Output:\n",
    ),
    "compaction": (
        "",
        "### Task:\nSummarize the conversation history that will be compacted out of the active chat context."
        "\n\n### Messages Being Compacted:\nUSER: hi\n\n### Recent Messages Kept In Context:\nUSER: hello",
    ),
    "emoji": (
        "",
        "Your task is to reflect the speaker's likely facial expression through a fitting emoji.\n\n"
        "Message: ```I am happy```",
    ),
    "merging of answers": (
        "",
        "You have been provided with a set of responses from various models to the latest user query: "
        '"hi"\n\nResponses from models: """a""" """b"""',
    ),
    "choice of tools": (
        'Available Tools: [{"name":"tell_the_hour"}]\n\nYour task is to choose and return the correct '
        "tool(s) from the list of available tools based on the query.",
        'History:\nUSER: """hello"""\nASSISTANT: """Hello."""\nQuery: what time is it?',
    ),
    "memory": (
        "You are Open WebUI's private memory reviewer. Return only valid JSON.",
        "Review the completed conversation turn and decide whether long-term memory should change.",
    ),
}


def with_sources(words: str, *sources: str) -> str:
    """What a person says while there is a file in the chat, or after a search; only this once."""
    context = "\n".join(
        f'<source id="{number}" name="notes.txt" resource-type="file">{text}</source>'
        for number, text in enumerate(sources, 1)
    )
    return (
        "### Task:\nRespond to the user query using the provided context, incorporating inline citations "
        "**only when the <source> tag includes an explicit id attribute**.\n\n### Guidelines:\n- Do not use "
        "XML tags in your response.\n\n### Output:\nProvide a clear and direct response.\n\n"
        f"<context>\n{context}\n</context>\n\n{words}"
    )


def attached(words: str) -> str:
    """The message that a file was attached to; so each time."""
    return (
        '<attached_files>\n<file type="file" id="229a6319" url="229a6319" content_type="text/plain" '
        f'name="notes.txt"/>\n</attached_files>\n\n{words}'
    )
