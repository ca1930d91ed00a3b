"""Names the account that a CLI is logged in with, so that a switch makes another runtime.

A native session may hold what only its own account can read again: encrypted reasoning, for example. The ids
that a CLI keeps beside its login are read, never a key or a token: a renewed key is the same account.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from lastgood.worker.runtimes.runtime_kinds import RuntimeChoice

#: With one of these the CLI does not use its login.
_CLAUDE_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")


def account_of(choice: RuntimeChoice, environment: Mapping[str, str]) -> str | None:
    """What the owner has named; otherwise a hash of the login's ids. None: unknown."""
    if choice.account is not None:
        return choice.account
    match choice.kind:
        case "claude":
            ids = _claude(environment)
        case "codex":
            ids = _codex(environment)
        case _:
            return None
    if not ids:
        return None
    return f"login-{hashlib.sha256('/'.join((choice.kind, *ids)).encode()).hexdigest()[:16]}"


def _claude(environment: Mapping[str, str]) -> tuple[str, ...]:
    if any(environment.get(name) for name in _CLAUDE_KEYS):
        return ()
    folder = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME", "")
    return _texts(_object(Path(folder, ".claude.json")), "oauthAccount", "accountUuid", "organizationUuid")


def _codex(environment: Mapping[str, str]) -> tuple[str, ...]:
    folder = environment.get("CODEX_HOME") or Path(environment.get("HOME", ""), ".codex")
    plain = _object(Path(folder, "auth.json"))
    return () if plain.get("OPENAI_API_KEY") else _texts(plain, "tokens", "account_id")


def _object(file: Path) -> dict[str, Any]:
    """Returns an empty value if the file is missing, or if the CLI is writing it."""
    try:
        plain = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _texts(plain: Mapping[str, Any], table: str, *names: str) -> tuple[str, ...]:
    inner = plain.get(table)
    if not isinstance(inner, dict):
        return ()
    return tuple(found for name in names if isinstance(found := inner.get(name), str) and found)
