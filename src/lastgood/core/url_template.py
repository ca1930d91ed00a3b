"""Decides the URL of a call from an endpoint with `${NAME}` in it.

Values are encoded, so that none of them changes anything but its own place. The host is the file's: a name in
it is refused when the file is read, and when a variable holds the host. `.` and `..` cannot be encoded: a
path that has them is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

#: `${name}` or `${encodeURIComponent(name)}`, which says what is done anyway. A long row of spaces
#: is read once.
_NAME = re.compile(r"\$\{\s*+(?:encodeURIComponent\(\s*+)?([A-Za-z_][\w-]*+)\s*+(?:\)\s*+)?\}")
_ENVIRONMENT = re.compile(r"\$\{env\.[A-Za-z_]\w*\}")


def names_in(template: str) -> frozenset[str]:
    return frozenset(_NAME.findall(template))


def environment_in(template: str) -> tuple[str, ...]:
    """The placeholders `${env.NAME}`, as they are written."""
    return tuple(dict.fromkeys(_ENVIRONMENT.findall(template)))


def why_not_an_endpoint(template: str) -> str | None:
    try:
        plain = _ENVIRONMENT.sub("x", template)
        parts = urlsplit(plain)
    except ValueError:
        return "it is not a valid URL"
    if parts.scheme not in ("http", "https") or not parts.netloc:
        # One variable may hold the whole beginning of the URL.
        return None if _ENVIRONMENT.match(template) else "it must begin with https:// or http:// and a host"
    return "an argument cannot be a part of its host" if "$" in parts.netloc else None


def filled(template: str, arguments: Mapping[str, Any]) -> str:
    """What is not given is empty. ValueError: a value would lead to another host or path."""
    url = _NAME.sub(lambda found: encoded(arguments.get(found[1])), template)
    if urlsplit(url)[:2] != urlsplit(_NAME.sub("", template))[:2]:
        raise ValueError("an argument cannot be a part of the host")
    path, query, rest = url.partition("?")
    return f"{without_dots(path)}{query}{rest}"


def encoded(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return quote(text, safe="")


def without_dots(path: str) -> str:
    """The path. ValueError: a part of it is `.` or `..`, which would lead elsewhere."""
    if any(unquote(part) in (".", "..") for part in path.split("/")):
        raise ValueError("a part of the path is '.' or '..', which would be another path")
    return path
