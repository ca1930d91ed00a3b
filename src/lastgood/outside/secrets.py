"""Keys, by name. Values are returned where they are used, and redacted from every stored text."""

from __future__ import annotations

from collections.abc import Mapping

#: Shorter values occur in texts by chance, and hiding them would hide the text.
_SHORTEST = 6


class Secrets:
    """Returned values are remembered, so that `scrub` can redact them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._handed_out: dict[str, str] = {}  # value to name

    def __repr__(self) -> str:
        return "Secrets(…)"

    def has(self, name: str) -> bool:
        return bool(self._values.get(name, "").strip())

    def get(self, name: str) -> str | None:
        value = self._values.get(name, "").strip()
        if not value:
            return None
        if len(value) >= _SHORTEST:
            self._handed_out[value] = name
        return value

    def plain(self, name: str) -> str | None:
        """A value that is no secret, such as the name of a model: it is not redacted from anything."""
        return self._values.get(name, "").strip() or None

    def scrub(self, text: str) -> str:
        """The text with every key that was handed out replaced by its name."""
        # The longest first: of a key that begins like another, nothing may stay.
        for value, name in sorted(self._handed_out.items(), key=lambda item: -len(item[0])):
            if value in text:
                text = text.replace(value, f"[{name}]")
        return text
