"""The account of a CLI: its login's ids, never its keys, and a switch is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lastgood.worker.accounts import account_of
from lastgood.worker.registration import OfferedRuntime, RegistrationRequest
from lastgood.worker.runtimes.runtime_kinds import RuntimeChoice, kind_named
from lastgood.worker.worker_identity import WorkerIdentity


def log_in(home: Path, kind: str, account: str, secret: str = "secret") -> None:
    """What the CLI of this kind keeps of a login."""
    if kind == "claude":
        file, plain = home / ".claude.json", {"oauthAccount": {"accountUuid": account}, "userID": secret}
    else:
        file, plain = home / ".codex" / "auth.json", _codex_login(account, secret)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(plain))


def _codex_login(account: str, secret: str) -> dict[str, Any]:
    tokens = {"account_id": account, "access_token": secret, "refresh_token": secret}
    return {"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": secret}


@pytest.mark.parametrize("kind", ["claude", "codex"])
def test_an_account_is_known_by_its_ids_and_not_by_its_secrets(tmp_path: Path, kind: str) -> None:
    choice, environment = RuntimeChoice("a", kind, None), {"HOME": str(tmp_path)}
    assert account_of(choice, environment) is None
    log_in(tmp_path, kind, "me")
    mine = account_of(choice, environment)
    log_in(tmp_path, kind, "me", secret="renewed")
    assert account_of(choice, environment) == mine
    log_in(tmp_path, kind, "somebody else")
    assert mine != account_of(choice, environment) is not None
    assert mine is not None
    assert "me" not in mine


def test_a_key_in_the_environment_is_no_login(tmp_path: Path) -> None:
    log_in(tmp_path, "claude", "me")
    environment = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": "k"}
    assert account_of(RuntimeChoice("a", "claude", None), environment) is None
    assert account_of(RuntimeChoice("a", "claude", None, "named"), environment) == "named"


@pytest.mark.parametrize("text", ["", "[]", '{"oauthAccount": 3}', '{"oauthAccount": {"accountUuid": []}}'])
def test_a_file_that_is_being_written_is_no_other_account(tmp_path: Path, text: str) -> None:
    (tmp_path / ".claude.json").write_text(text)
    assert account_of(RuntimeChoice("a", "claude", None), {"HOME": str(tmp_path)}) is None


@pytest.mark.anyio
async def test_a_switch_needs_another_registration_and_a_logout_does_not(tmp_path: Path) -> None:
    offered = OfferedRuntime(RuntimeChoice("a", "codex", None), kind_named("codex", None, {}), "1")
    identity = WorkerIdentity("w", "i")
    registration = RegistrationRequest(identity, "laptop", (offered,), {"HOME": str(tmp_path)})
    assert (await registration.body())["runtimes"][0]["account"] == ""
    log_in(tmp_path, "codex", "me")
    assert await registration.is_outdated()
    mine = (await registration.body())["runtimes"][0]["account"]
    assert not await registration.is_outdated()
    (tmp_path / ".codex" / "auth.json").unlink()
    assert not await registration.is_outdated()
    log_in(tmp_path, "codex", "somebody else")
    assert await registration.is_outdated()
    assert (await registration.body())["runtimes"][0]["account"] not in ("", mine)
