"""Makes the prompt of a command: what its file says, with what was typed after its name.

Knows the expressions that commands may have, and what they cannot be used for: `unknown_expressions` names
those that would be sent as they are written. Reads no environment; callers pass it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote, urlsplit

_TEXT = r"""(?:'[^']*'|"[^"]*")"""
#: `${env.NAME}`, `${args}`, `${args[0]}` and `${args.join(" ")}`, each with a default after `||`.
_EXPRESSION = re.compile(
    r"\$\{\s*(?:env\.(?P<name>[A-Za-z_]\w*)|args(?:\[(?P<index>\d{1,4})\]|\.join\((?P<between>"
    + _TEXT
    + r"?)\))?)\s*(?:\|\|\s*(?P<default>"
    + _TEXT
    + r")\s*)?\}"
)
_ARGUMENTS = re.compile(r"\$\{\s*args\b")
#: What docker-agent evaluates: tools that are called, and other expressions of the environment or arguments.
#: Possessive: a text of nothing but `${` is read once.
_EVALUATED = re.compile(r"\$\{[^}]*+\}?(?:\)\})?|(?<!\w)!\w++\([^)]*+\)?")
_USED = re.compile(r"\benv\.|\bargs\b|\w\(")
_WORD = re.compile(r"""(?:"[^"]*"?|'[^']*'?|[^\s"'])+""")
_QUOTES = re.compile(r"[\"']")
#: In the URL of a command: the session of the chat.
_SESSION = "{{session_id}}"
#: They would run in the page that shows them, or open a file of the user's machine.
NOT_PAGES = frozenset({"javascript", "data", "vbscript", "blob", "file"})


def command_prompt(instruction: str, typed: str, environment: Mapping[str, str]) -> str:
    """`typed`: the text after the command. An instruction that has no place for it gets it at its end."""
    if not instruction:
        return typed
    words = _words(typed)

    def value(found: re.Match[str]) -> str:
        return _value(found, words, environment) or _unquoted(found["default"] or "")

    prompt = _EXPRESSION.sub(value, instruction)
    if typed and not _ARGUMENTS.search(instruction):
        prompt = f"{prompt.rstrip()} {typed}"
    return prompt.strip()


def command_url(url: str, session: str) -> str:
    """Returns the URL that a command opens. `session` is "" before the first turn."""
    return url.replace(_SESSION, quote(session, safe=""))


def why_no_page(url: str) -> str | None:
    """Why a client must not show this URL as a page to open."""
    try:
        scheme = urlsplit(url.replace(_SESSION, "")).scheme
    except ValueError:
        scheme = ""
    if not scheme or scheme in NOT_PAGES:
        return "it needs a scheme such as https, and none of a script or a file"
    if not url.isascii() or any(not letter.isprintable() or letter == " " for letter in url):
        return "it has characters that are not part of URLs; percent-encode them"
    return None


def unknown_expressions(text: str) -> Iterator[str]:
    """Expressions that docker-agent evaluates and this module does not."""
    for found in _EVALUATED.finditer(_EXPRESSION.sub("", text)):
        if _USED.search(found[0]):
            yield found[0]


def uses_environment(text: str) -> bool:
    return any(found["name"] is not None for found in _EXPRESSION.finditer(text))


def _value(found: re.Match[str], words: Sequence[str], environment: Mapping[str, str]) -> str:
    if found["name"] is not None:
        return environment.get(found["name"], "")
    if found["index"] is not None:
        index = int(found["index"])
        return words[index] if index < len(words) else ""
    between = found["between"]
    # Without an argument, JavaScript joins with commas; a list in a text is joined the same way.
    return (" " if between is None else _unquoted(between) if between else ",").join(words)


def _words(typed: str) -> list[str]:
    """What is in quotes stays together."""
    return [_QUOTES.sub("", word) for word in _WORD.findall(typed)]


def _unquoted(text: str) -> str:
    return text[1:-1]
