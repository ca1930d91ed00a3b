"""How much one request, one rule or one tool call may hold.

Every limit is a count that can be checked before the expensive work starts. The byte
limits of requests are settings; these are not, because raising one would let a single
request hold the event loop for everybody. docs/guarantees.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.errors import InvalidRequest

#: Rules of one session or one agent file: allow, ask and deny together.
RULES = 200
RULE_CHARACTERS = 400
#: Of one argument of a tool call that a rule looks at. A longer one is not matched against the rule:
#: a deny rule denies it, an ask rule asks, an allow rule does not allow it.
JUDGED_CHARACTERS = 32_768
JUDGED_ITEMS = 1_000


def check_rules(rules: Mapping[str, Sequence[Any] | None]) -> None:
    """Of one session: lists of rules by what they do."""
    count = sum(len(listed or ()) for listed in rules.values())
    if count > RULES:
        raise InvalidRequest(
            f"permissions hold {count:,} rules; the limit is {RULES:,}. Use globs to need fewer",
            param="permissions",
        )
    for kind, listed in rules.items():
        for number, rule in enumerate(listed or ()):
            if isinstance(rule, str) and len(rule) > RULE_CHARACTERS:
                raise InvalidRequest(
                    f"permissions.{kind}[{number}] has {len(rule):,} characters; "
                    f"the limit is {RULE_CHARACTERS:,}. Use a shorter rule",
                    param=f"permissions.{kind}[{number}]",
                )
