"""Decides the environment of a command.

Not the server's environment, which holds keys: a few harmless variables, those of the toolset, and the ids of
the call. A file may name a variable of the server; its value is then a secret like any other, and is redacted
from every stored text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastgood.engine.tools.tool import ToolFailed, ToolUse
from lastgood.outside.secrets import Secrets

_HARMLESS = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "USER", "LOGNAME", "TZ"})
_DEFAULTS = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb"}
#: What values of hooks and scripts may hold: a `$` alone is a `$` there.
_CANONICAL = re.compile(r"\$\{env\.([A-Za-z_]\w*)\}")
#: `${env.NAME}`, `${NAME}` or `$NAME`
_PLACEHOLDER = re.compile(r"\$(?:\{(?:env\.)?([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


@dataclass(frozen=True, slots=True)
class Environment:
    """`server` is the environment of the server; what is not harmless comes from `secrets`."""

    server: Mapping[str, str]
    secrets: Secrets

    def harmless(self) -> dict[str, str]:
        kept = {
            name: value for name, value in self.server.items() if name in _HARMLESS or name.startswith("LC_")
        }
        return _DEFAULTS | kept | {"TERM": "dumb"}

    def of(self, use: ToolUse) -> dict[str, str]:
        """The variables of every command. With the key, it can make requests to others idempotent."""
        return self.harmless() | {
            "LASTGOOD_TOOL_KEY": use.key,
            "LASTGOOD_ATTEMPT": str(use.attempt_number),
        }

    def of_hook(self, key: str, attempt_number: int) -> dict[str, str]:
        """As `of`: a hook may run again, too."""
        return self.harmless() | {"LASTGOOD_TOOL_KEY": key, "LASTGOOD_ATTEMPT": str(attempt_number)}

    def filled(
        self, values: Mapping[str, Any], trusted: bool, *, canonical: bool = False
    ) -> tuple[dict[str, str], int]:
        """A file's variables with their placeholders filled, and the length of the longest secret in them.

        Only for trusted files: others could send our keys away. `canonical`: only `${env.NAME}` is one.
        """
        plain = {str(name): str(value) for name, value in values.items()}
        if not trusted:
            return plain, 0
        longest = 0
        harmless = self.harmless()

        def fill(found: re.Match[str]) -> str:
            nonlocal longest
            name = found[found.lastindex or 1]
            if name in harmless:
                return harmless[name]
            value = self.secrets.get(name)
            if value is None:
                raise ToolFailed(
                    f"the toolset uses the environment variable {name}, which is not set on the server"
                )
            longest = max(longest, len(value))
            return value

        form = _CANONICAL if canonical else _PLACEHOLDER
        return {name: form.sub(fill, value) for name, value in plain.items()}, longest
