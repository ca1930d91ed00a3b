"""What a session takes over from the one it is derived from."""

from dataclasses import fields, replace

from lastgood.core.derivation import ORIGINS, FieldOrigin, derive
from lastgood.model.agents import Permissions, Safety
from lastgood.model.ids import SessionId
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import NewSession, ScopeKind, TaskScope
from lastgood.model.tokens import Scope
from tests.core import builders


def test_every_field_of_a_new_session_has_an_origin() -> None:
    assert list(ORIGINS) == [field.name for field in fields(NewSession)]


def test_rules_and_safety_are_always_inherited() -> None:
    rules = (
        RuleLayer(Scope.ADMIN, "tok_a", Permissions(deny=("shell",))),
        RuleLayer(Scope.SESSION, "tok_b", safety=Safety.STRICT),
    )
    source = builders.session(rules=rules, conversation="c", title="Old", metadata={"a": 1}, model="m")
    source = replace(
        source, owner="ann", scope=TaskScope(ScopeKind.ISSUE, "7"), runtime_id="r", runtime_pinned=True
    )
    derived = derive(source, SessionId("new"), "Old (2)", "tok_b", "bea")
    assert derived.rules == rules
    assert (derived.created_by, derived.stored_bytes) == ("tok_b", source.stored_bytes)
    assert (derived.id, derived.title, derived.conversation) == ("new", "Old (2)", None)
    assert (derived.owner, derived.scope, derived.runtime_id, derived.runtime_pinned) == (
        "bea",
        None,
        "r",
        False,
    )
    for field, origin in ORIGINS.items():
        if origin is FieldOrigin.INHERITED:
            assert getattr(derived, field) == getattr(source, field), field
