"""Who may use a runtime, and on which one a session runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lastgood.core.runtime_access import may_chat, may_remove, may_see, may_share, may_use
from lastgood.core.runtime_choice import (
    AmbiguousRuntime,
    IsLocal,
    NoRuntime,
    OnRuntime,
    choose_runtime,
    is_offline,
)
from lastgood.model.ids import TenantId
from lastgood.model.runtimes import AgentBinding, Runtime, RuntimeIdentity


def runtime(id: str = "rt_a", provider: str = "claude", **fields: Any) -> Runtime:
    known: dict[str, Any] = {
        "name": f"name of {id}",
        "profile": "",
        "owner": "ann",
        "shared_with": (),
        "cli_version": "1",
        "steerable": False,
        "status": "",
        "seen_seconds_ago": 1.0,
        "created_at": 0.0,
        "removed_at": None,
    }
    return Runtime(RuntimeIdentity(id, "laptop", provider), TenantId("t"), **known | fields)


BOUND = AgentBinding(TenantId("t"), "coder", "rt_bound")


@pytest.mark.parametrize(
    ("shared_with", "user", "uses", "shares"),
    [
        ((), "ann", True, True),
        ((), "bob", False, False),
        ((), "", False, False),
        (("bob",), "bob", True, False),
        (("bob",), "cat", False, False),
        (("*",), "cat", True, False),
    ],
)
def test_a_runtime_is_its_owners_and_those_it_is_shared_with(
    shared_with: tuple[str, ...], user: str, uses: bool, shares: bool
) -> None:
    found = runtime(shared_with=shared_with)
    assert may_use(found, user) is uses
    assert may_share(found, user) is shares
    assert may_see(found, user, is_admin=False) is uses
    assert may_remove(found, user, is_admin=False) is shares


def test_an_admin_sees_and_removes_but_does_not_use() -> None:
    assert may_see(runtime(), "root", is_admin=True)
    assert may_remove(runtime(), "root", is_admin=True)
    assert not may_use(runtime(), "root")


def test_without_tokens_everybody_is_the_same_user() -> None:
    assert may_use(runtime(owner=""), "")


def test_chat_reaches_only_what_is_published() -> None:
    assert not may_chat(None)
    assert not may_chat(BOUND)
    assert may_chat(replace(BOUND, published=True))


A, B, CODEX = runtime("rt_a"), runtime("rt_b"), runtime("rt_c", "codex")


@pytest.mark.parametrize(
    ("wanted", "pinned", "binding", "harness", "usable", "expected"),
    [
        ("rt_w", "rt_p", BOUND, "codex", (A,), OnRuntime("rt_w", "the request names this runtime")),
        (None, "rt_p", BOUND, "codex", (A,), OnRuntime("rt_p", "the session is bound to this runtime")),
        (None, None, BOUND, "codex", (A,), OnRuntime("rt_bound", "the agent is bound to this runtime")),
        (None, None, None, None, (A, B), IsLocal()),
        (None, None, None, "codex", (), NoRuntime("codex")),
        (None, None, None, "codex", (A, B), NoRuntime("codex")),
        (None, None, None, "claude-code", (A, B, CODEX), AmbiguousRuntime("claude", (A, B))),
    ],
)
def test_the_nearest_setting_decides_without_guessing(
    wanted: Any, pinned: Any, binding: Any, harness: Any, usable: Any, expected: Any
) -> None:
    chosen = choose_runtime(wanted=wanted, pinned=pinned, binding=binding, harness=harness, usable=usable)
    assert chosen == expected
    assert chosen.reason


def test_the_only_runtime_of_a_harness_is_used() -> None:
    chosen = choose_runtime(wanted=None, pinned=None, binding=None, harness="codex", usable=(A, CODEX))
    assert isinstance(chosen, OnRuntime)
    assert (chosen.runtime, "only runtime" in chosen.reason) == ("rt_c", True)


@pytest.mark.parametrize(
    ("harness", "provider"),
    [("claude-code", "claude"), ("claude", "claude"), ("codex", "codex"), ("opencode", "opencode")],
)
def test_a_harness_names_the_provider_of_a_runtime(harness: str, provider: str) -> None:
    usable = (runtime("rt_1", provider), runtime("rt_2", "another"))
    chosen = choose_runtime(wanted=None, pinned=None, binding=None, harness=harness, usable=usable)
    assert isinstance(chosen, OnRuntime)
    assert chosen.runtime == "rt_1"


def test_an_ambiguous_choice_names_the_candidates() -> None:
    assert "name of rt_a (rt_a), name of rt_b (rt_b)" in AmbiguousRuntime("claude", (A, B)).reason


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"seen_seconds_ago": 150.0}, False),
        ({"seen_seconds_ago": 150.1}, True),
        ({"removed_at": 1.0}, True),
    ],
)
def test_a_runtime_is_offline_after_150_seconds(fields: dict[str, Any], expected: bool) -> None:
    assert is_offline(runtime(**fields)) is expected
