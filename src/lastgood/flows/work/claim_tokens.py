"""The two secrets of a claim, each made from the one before it, and what the database keeps.

    claim token (the worker)  → SHA-256 →  task token (the CLI)  → SHA-256 →  stored

The task token can neither report nor reveal the claim token; the database reveals neither. Both end with the
claim: they name one row.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

_TASK_TOKEN = re.compile(r"lgt_[A-Za-z0-9_-]{43}")


def new_claim_token() -> str:
    return f"lgc_{secrets.token_urlsafe(32)}"


def task_token_of(claim_token: str) -> str:
    return "lgt_" + base64.urlsafe_b64encode(_digest(claim_token)).rstrip(b"=").decode()


def is_task_token(plain: str) -> bool:
    return _TASK_TOKEN.fullmatch(plain) is not None


def stored_form(claim_token: str) -> bytes:
    return stored_form_of_task_token(task_token_of(claim_token))


def stored_form_of_task_token(task_token: str) -> bytes:
    """Random, so a plain hash is enough."""
    return _digest(task_token)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
