"""Commands to copy. Whatever an address or a key contains stays one argument of the shell, and one string."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

_HELLO = "Hello"


def _curl(url: str, body: Mapping[str, Any], *, with_token: bool, headers: tuple[str, ...] = ()) -> str:
    token = ['-H "Authorization: Bearer $LASTGOOD_TOKEN"'] if with_token else []
    named = [f"-H {shlex.quote(one)}" for one in ("Content-Type: application/json", *headers)]
    data = f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    return " \\\n  ".join([f"curl {shlex.quote(url)}", *token, *named, data])


def curl(base_url: str, model: str, with_token: bool) -> str:
    """A chat completion."""
    body = {"model": model, "messages": [{"role": "user", "content": _HELLO}]}
    return _curl(
        f"{base_url}/v1/chat/completions", body, with_token=with_token, headers=("X-Conversation-Id: demo",)
    )


def turn(base_url: str, session: str, with_token: bool) -> str:
    """A turn of this session."""
    body = {"messages": [{"content": _HELLO}], "wait": True}
    return _curl(f"{base_url}/api/sessions/{session}/turns", body, with_token=with_token)


def sdk(base_url: str, model: str, with_token: bool) -> str:
    """A chat completion with the OpenAI SDK for Python."""
    key = 'os.environ["LASTGOOD_TOKEN"]' if with_token else '"none"'
    imports = "import os\n\nfrom openai import OpenAI" if with_token else "from openai import OpenAI"
    return f"""{imports}

client = OpenAI(
    base_url={json.dumps(f"{base_url}/v1")},
    api_key={key},
)
answer = client.chat.completions.create(
    model={json.dumps(model)},
    messages=[{{"role": "user", "content": "{_HELLO}"}}],
    extra_headers={{"X-Conversation-Id": "demo"}},
)
print(answer.choices[0].message.content)"""


#: As templates call them.
SNIPPETS = SimpleNamespace(curl=curl, turn=turn, sdk=sdk)
