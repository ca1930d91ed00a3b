"""`open_url`: asks the user to open a page that the agent's file names.

There is no browser on a server. The client shows the address, and the user says whether it was opened. A
variable in the address is meant to be seen: it is filled in when the tool is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from lastgood.core.command_prompts import NOT_PAGES
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.tool import NeedsInput, Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.model.answers import AnswerAction


def open_url_toolset(spec: ToolsetSpec, environment: Environment) -> Sequence[Tool]:
    template = str(spec.options.get("url") or "")
    name = str(spec.options.get("name") or "open_url")

    async def run(use: ToolUse) -> str:
        filled, _ = environment.filled({"url": template}, spec.trusted)
        url = filled["url"]
        _check(url)
        if use.answer is None or not use.answer.is_about_input:
            raise NeedsInput(f"The agent asks you to open {url}", url=url, title="Open a page")
        if use.answer.action is not AnswerAction.ACCEPT:
            raise ToolFailed(f"the user did not open {url}")
        return f"The user opened {url}."

    return [
        Tool(
            name,
            f"Asks the user to open {template} in a browser, and waits for the answer.",
            {"type": "object", "properties": {}, "required": []},
            run,
            on_unknown=OnUnknown.REPEAT,
            effect=Effect.SAFE,
        )
    ]


def _check(url: str) -> None:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if not scheme or scheme in NOT_PAGES or "$" in url or any(letter <= " " for letter in url):
        raise ToolFailed(
            f"{url!r} cannot be opened: it must be an address with a scheme such as https, and a file from a "
            "URL gets no variables; change it in the agent file"
        )
