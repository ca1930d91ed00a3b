"""Decides what a command finds in its environment.

Not the server's: that holds keys. A few harmless variables, what the toolset's file says,
and which call this is. A file may name a variable of the server's; its value is then a
secret like any other, and is taken out of every text that is kept.
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
        """What every command gets. With the key, it can ask others to do a thing only once."""
        return self.harmless() | {
            "LASTGOOD_TOOL_KEY": use.key,
            "LASTGOOD_ATTEMPT": str(use.attempt_number),
        }

    def filled(self, values: Mapping[str, Any], trusted: bool) -> tuple[dict[str, str], int]:
        """A file's variables with their placeholders filled, and the length of the longest secret in them.

        Only for trusted files: others could send our keys away.
        """
        plain = {str(name): str(value) for name, value in values.items()}
        if not trusted:
            return plain, 0
        longest = 0
        harmless = self.harmless()

        def fill(found: re.Match[str]) -> str:
            nonlocal longest
            name = found[1] or found[2]
            if name in harmless:
                return harmless[name]
            value = self.secrets.get(name)
            if value is None:
                raise ToolFailed(
                    f"the toolset uses the environment variable {name}, which is not set on the server"
                )
            longest = max(longest, len(value))
            return value

        return {name: _PLACEHOLDER.sub(fill, value) for name, value in plain.items()}, longest
