"""Text of others as people may safely read it: what controls, reorders or hides text becomes an escape.

`harmless` is for prose: emoji and the joiners of Persian and Indic scripts stay as they are. `visible` is for
text that a person decides about: nothing in it is invisible, so that it cannot look like another text.
"""

from __future__ import annotations

import re

_STEERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 (ESC, CR, BEL, …), DEL and C1 (one-byte CSI, OSC, …)
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, embeddings, overrides, isolates
    "\u200b\u2028\u2029\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb"  # separators and invisible characters
    "\U000e0000-\U000e007f"  # tags: a second, invisible alphabet
)
#: Unicode's Default_Ignorable_Code_Point, the other format characters, and blanks that are no white space.
_IS_INVISIBLE = (
    "\xad\u034f\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200c\u200d\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0080-\U000e0fff"
    "\ud800-\udfff"  # half of a character, which no encoding has
)
#: Newline and tab are allowed.
CONTROLS = re.compile(f"[{_STEERS}]")
_CONTROLS_AND_INVISIBLE = re.compile(f"[{_STEERS}{_IS_INVISIBLE}]")


def harmless(text: str) -> str:
    """Each character is judged alone, so a sequence that is split over two streamed chunks is escaped too."""
    return CONTROLS.sub(_escaped, text)


def visible(text: str) -> str:
    return _CONTROLS_AND_INVISIBLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    """As in Python: two, four or eight digits, so it is clear where an escape ends."""
    code = ord(found[0])
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
