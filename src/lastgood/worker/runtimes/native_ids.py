"""What a native session id of a CLI looks like."""

from __future__ import annotations

import uuid


def is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
