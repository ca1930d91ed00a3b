"""Planted defects of what is computed from a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest.mock import patch

from lastgood.core import speaker
from lastgood.model.messages import ToolCall
from tests.faults.defects import defect

#: The random runs append no such calls.
OF_COMPUTED_STATE = {"arguments of old calls are trusted to be readable"}


@defect("arguments of old calls are trusted to be readable")
def _() -> Iterator[None]:
    def text_in(call: ToolCall, name: str) -> str | None:
        value = json.loads(call.arguments).get(name)
        return value if isinstance(value, str) else None

    with patch.object(speaker, "text_in", text_in):
        yield
