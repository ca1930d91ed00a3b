"""Decides which model a request is for, by the examples of an agent file.

A request is compared with every example by the words they share; rare words count more. The same request
always gives the same model, on every node. No word in common with any example: no route.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from lastgood.model.agents import ModelRoute

_WORD = re.compile(r"\w+")
#: Words that say nothing about what is wanted.
# fmt: off
_EMPTY_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "doe", "for", "from", "give",
    "have", "how", "i", "in", "is", "it", "me", "my", "of", "on", "or", "please", "that", "the",
    "there", "this", "to", "want", "was", "we", "what", "when", "where", "which", "who", "why", "will",
    "with", "would", "you", "your",
})
# fmt: on
#: Of a request. What follows rarely changes what it is about, and comparing it costs time.
_MOST_CHARACTERS = 4000


def route(request: str, routes: Sequence[ModelRoute]) -> str | None:
    """The model of the example that is most like the request; of two alike, the first. None: none is."""
    examples = [(one.model, _words(example)) for one in routes for example in one.examples]
    spread = Counter(word for _, words in examples for word in words)
    asked = _words(request[:_MOST_CHARACTERS])
    best, chosen = 0.0, None
    for model, words in examples:
        # Every shared word counts, a rare one more; long examples do not win by their length.
        shared = sum(1 / spread[word] for word in asked & words)
        score = shared / math.sqrt(len(words)) if words else 0.0
        if score > best:
            best, chosen = score, model
    return chosen


def _words(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in _WORD.findall(text.lower())) - _EMPTY_WORDS


def _stem(word: str) -> str:
    """So that "proofs" is like "proof"."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
