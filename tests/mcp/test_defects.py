"""Planted defects of the MCP client: the test that each one breaks must object to it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from lastgood.engine.mcp import mcp_toolset
from lastgood.engine.mcp.mcp_toolset import McpToolset
from lastgood.engine.mcp.server_connection import Connection
from lastgood.engine.mcp.server_spec import ServerSpec
from tests.mcp import test_replies, test_servers
from tests.mcp.conftest import Servers

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Story = Callable[[Servers, pytest.MonkeyPatch], Awaitable[None]]


@contextmanager
def _environment_leaks() -> Iterator[None]:
    with patch.object(ServerSpec, "environment", lambda self, environment: {**os.environ, "CANARY": "x"}):
        yield


@contextmanager
def _no_cap() -> Iterator[None]:
    with patch.object(McpToolset, "_take_place", lambda self, server: self._open.add(server)):
        yield


@contextmanager
def _place_taken_late() -> Iterator[None]:
    """Each of a burst looks before any of the others has started."""
    real = McpToolset._take_place

    def looks(self: McpToolset, server: Any) -> Any:
        found = real(self, server)
        self._open.discard(server)
        return found

    with patch.object(McpToolset, "_take_place", looks):
        yield


@contextmanager
def _changes_ignored() -> Iterator[None]:
    with patch.object(Connection, "_forget_tools", lambda self: None):
        yield


@contextmanager
def _restart_hidden() -> Iterator[None]:
    with patch.object(mcp_toolset, "restart_note", lambda *given: ""):
        yield


@contextmanager
def _any_error_is_a_death() -> Iterator[None]:
    def note(self: Connection, error: Exception) -> bool:
        self._broken = True
        return True

    with patch.object(Connection, "_note_loss", note):
        yield


def _without_patch(story: Callable[[Servers], Awaitable[None]]) -> Story:
    return lambda servers, monkeypatch: story(servers)


DEFECTS: dict[str, tuple[Callable[[], Any], Story]] = {
    "the server's environment leaks": (
        _environment_leaks,
        _without_patch(test_servers.test_I39_a_server_sees_nothing_of_our_environment),
    ),
    "no limit of processes": (
        _no_cap,
        test_servers.test_a_burst_starts_no_more_of_one_server_than_may_run,
    ),
    "a place is taken after the start": (
        _place_taken_late,
        test_servers.test_a_burst_starts_no_more_of_one_server_than_may_run,
    ),
    "changes of the list of tools are ignored": (
        _changes_ignored,
        _without_patch(test_replies.test_a_changed_list_of_tools_is_read_again),
    ),
    "a restart is not disclosed": (
        _restart_hidden,
        _without_patch(test_servers.test_a_server_that_dies_in_a_call_is_a_tool_error_and_starts_again),
    ),
    "an invalid reply restarts its server": (
        _any_error_is_a_death,
        lambda servers, monkeypatch: test_replies.test_a_reply_that_cannot_be_used_fails_its_call_at_once(
            servers, "bad-content", "sent an invalid result"
        ),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
async def test_a_planted_defect_is_caught(
    name: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, story = DEFECTS[name]
    with plant(), pytest.raises(AssertionError):
        await story(servers, monkeypatch)
