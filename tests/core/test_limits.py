"""Is there too much of something?"""

import pytest

from lastgood.core.limits import RULE_CHARACTERS, RULES, check_rules
from lastgood.errors import InvalidRequest


def test_I40_the_rules_of_a_session_are_counted_together() -> None:
    check_rules({"allow": None, "ask": ["a"], "deny": ["b" * RULE_CHARACTERS] * (RULES - 1)})
    with pytest.raises(InvalidRequest, match=r"permissions hold 201 rules; the limit is 200\."):
        check_rules({"allow": None, "ask": ["a"], "deny": ["b"] * RULES})


def test_I40_a_rule_that_is_too_long_is_named_with_its_place_and_the_limit() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_rules({"deny": ["a", 7, "b" * (RULE_CHARACTERS + 1)]})
    assert refused.value.message == (
        "permissions.deny[2] has 401 characters; the limit is 400. Use a shorter rule"
    )
    assert refused.value.detail == {"param": "permissions.deny[2]"}
