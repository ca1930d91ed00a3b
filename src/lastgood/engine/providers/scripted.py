"""`builtin/scripted`: an offline model that follows the directives in the user's text.

Each line of the last user message that starts with `!` is a directive:

    !say TEXT               answer with TEXT
    !say-json "TEXT"        the same, as a JSON string: any character can be said
    !remember               answer with everything the user has said in this session
    !tool NAME {JSON}       call a tool, then go on
    !also NAME {JSON}       call this one in the same response as the tool before it
    !slow SECONDS           wait that long before every chunk
    !fail WHEN [N]          fail before, during or after streaming the last answer; with N only on the
                            first N attempts
    !think TEXT             think TEXT before the last answer
    !empty                  answer with nothing

Without a directive it repeats what was said. A word is a token: the limit of output
tokens cuts an answer after that many words, and a stop sequence before its first
occurrence. The same prompt always gives the same answer. Every prompt is given to
`log` before anything else happens: what the model saw can be judged from outside.

Where it stands in for a model that nobody configured, it says so in the first answer of a session,
unless the message has directives: their author knows that no model answers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lastgood.engine.providers.completion_builder import priced
from lastgood.engine.providers.model_references import why_offline
from lastgood.engine.providers.provider import Chunk, ChunkKind, ModelAnswer, ModelCall
from lastgood.errors import ModelError
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import Message, Reasoning, Role, ToolCall, as_json, assistant
from lastgood.model.sessions import Usage
from lastgood.time_slices import paced_map

PromptLog = Callable[[dict[str, Any]], None]

_DIRECTIVE = re.compile(r"!([a-z-]+)(?: (.*))?")
_VERBS = "!say, !say-json, !remember, !tool, !also, !slow, !fail, !think, !empty"
_WORDS = re.compile(r"\s*\S+\s*|\s+")


@dataclass(slots=True)
class _Script:
    says: str
    has_directives: bool = False
    thinks: str = ""
    calls: list[list[tuple[str, str]]] = field(default_factory=list)  # one list per response
    slow: float = 0.0
    fail: str | None = None
    fail_attempts: int | None = None


def _read(messages: Sequence[Message]) -> _Script:
    said = [message.content for message in messages if message.role is Role.USER]
    last = said[-1] if said else ""
    script = _Script(says="You said: " + _without_directives(last))
    for line in last.split("\n"):
        directive = _directive(line)
        if directive is None:
            continue
        script.has_directives = True
        verb, rest = directive[1], directive[2] or ""
        try:
            _apply(script, verb, rest.strip(), said)
        except ValueError as error:
            raise ModelError(f"scripted model: invalid directive !{verb} {rest}: {error}") from None
    return script


def _directive(line: str) -> re.Match[str] | None:
    """Few lines are one, and a text may have megabytes of others."""
    return _DIRECTIVE.fullmatch(line) if line.startswith("!") else None


def _without_directives(text: str) -> str:
    return "\n".join("" if _directive(line) else line for line in text.split("\n")).strip()


def _apply(script: _Script, verb: str, rest: str, said: list[str]) -> None:
    match verb:
        case "say":
            script.says = rest
        case "say-json":
            script.says = json.loads(rest)
        case "remember":
            plain = [_without_directives(text) for text in said]
            script.says = "I remember: " + " | ".join(text for text in plain if text)
        case "think":
            script.thinks = rest
        case "empty":
            script.says = ""
        case "tool":
            script.calls.append([_call(rest)])
        case "also":
            if not script.calls:
                raise ValueError("it needs a !tool line before it")
            script.calls[-1].append(_call(rest))
        case "slow":
            script.slow = max(_number(float, rest), 0.0)
        case "fail":
            when, _, attempts = rest.partition(" ")
            if when not in ("before", "during", "after"):
                raise ValueError("expected before, during or after")
            script.fail, script.fail_attempts = when, _number(int, attempts) if attempts else None
        case _:
            raise ModelError(f"scripted model: unknown directive !{verb}; use one of {_VERBS}")


_N = TypeVar("_N", int, float)


def _number(kind: Callable[[str], _N], text: str) -> _N:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected a number, not {text!r}") from None


def _call(rest: str) -> tuple[str, str]:
    name, _, arguments = rest.partition(" ")
    return name, arguments or "{}"


class Scripted:
    def __init__(self, log: PromptLog | None = None) -> None:
        self._log = log

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        if self._log is not None:
            prompt = await paced_map(as_json, call.messages)
            self._log({**call.about, "model": call.model.ref, "prompt": prompt})
        script = _read(call.messages)
        if _should_explain(script, call):
            script.says = f"{_notice(call.model)}\n\n{script.says}"
        message, cut_short = _limited(_response(script, call.messages), call)
        fails = None if message.tool_calls else _fails(script, call)
        if fails == "before":
            raise ModelError("scripted model: failed before the answer, as directed")
        if script.thinks and not message.tool_calls:
            message = replace(message, reasoning=Reasoning(call.model.ref, script.thinks))
            yield Chunk(script.thinks, ChunkKind.REASONING)
        words = _WORDS.findall(message.content)
        for number, word in enumerate(words):
            if script.slow:
                await asyncio.sleep(script.slow)
            if fails == "during" and number >= len(words) // 2:
                raise ModelError("scripted model: stream cut, as directed")
            yield Chunk(word)
        if fails is not None:
            raise ModelError("scripted model: failed after the answer, as directed")
        yield ModelAnswer(message, _usage(call, message), cut_short)


def _should_explain(script: _Script, call: ModelCall) -> bool:
    """Not in JSON and not in a title: programs read those."""
    is_text = call.output is None and call.options.response_format is None and "purpose" not in call.about
    is_first = all(message.role is not Role.ASSISTANT for message in call.messages)
    return why_offline(call.model) is not None and is_first and is_text and not script.has_directives


def _notice(model: ModelSpec) -> str:
    return (
        f"(Lastgood's offline scripted model answers, which only repeats what you say: {why_offline(model)}.)"
    )


def _fails(script: _Script, call: ModelCall) -> str | None:
    if script.fail_attempts is not None and call.about.get("number", 1) > script.fail_attempts:
        return None
    return script.fail


def _response(script: _Script, messages: Sequence[Message]) -> Message:
    """The next response of this turn: as many were given as there are assistant messages after the user's."""
    given = 0
    for message in reversed(messages):
        if message.role is Role.USER:
            break
        given += message.role is Role.ASSISTANT
    if given >= len(script.calls):
        return assistant(script.says)
    calls = (
        # Numbered from the start in each turn, as some providers do: ids repeat across turns.
        ToolCall(f"call-{given}-{number}", name, arguments)
        for number, (name, arguments) in enumerate(script.calls[given])
    )
    return assistant("", *calls)


def _limited(message: Message, call: ModelCall) -> tuple[Message, bool]:
    """What may be said of it, and whether the limit of output tokens has cut it short."""
    text = message.content
    ends = [at for stop in call.options.stop if (at := text.find(stop)) >= 0]
    text = text[: min(ends, default=None)]
    words, most = _WORDS.findall(text), call.model.max_tokens
    cut_short = most is not None and len(words) > most
    if cut_short:
        text = "".join(words[:most]).rstrip()
    return (message if text == message.content else replace(message, content=text)), cut_short


def _usage(call: ModelCall, answer: Message) -> Usage:
    said = sum(len(message.content) for message in call.messages) // 4 + 1
    return priced(call.model, said, _tokens(answer.content))


def _tokens(text: str) -> int:
    """At least one: also a response that only calls tools has cost something."""
    return max(len(_WORDS.findall(text)), 1)
