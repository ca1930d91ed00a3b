"""A server and a chromium for all tests of a worker; a page of its own for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.install import AXE, FOLDER, chromium
from tests.e2e.api import Api
from tests.e2e.server import LiveServer

expect.set_options(timeout=20_000)  # a busy machine is slow

SHOTS = FOLDER / "screenshots"
TOKEN = "a-token-for-the-browser-alone"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def skip_or_fail(why: str) -> NoReturn:
    """In continuous integration a suite that was skipped would look like one that passed."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = chromium()
    if found is None:
        skip_or_fail("chromium is missing; `make test-browser` installs it, as root")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield started
        started.close()


def write_agents(folder: Path) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    shelly = {
        "model": "builtin/scripted",
        "description": "Runs commands, after asking",
        "toolsets": [{"type": "shell"}, {"type": "think"}],
    }
    (folder / "shelly.yaml").write_text(yaml.safe_dump({"agents": {"root": shelly}}))
    asker = {"model": "builtin/scripted", "description": "Asks people", "toolsets": [{"type": "user_prompt"}]}
    (folder / "asker.yaml").write_text(yaml.safe_dump({"agents": {"root": asker}}))
    later = {"model": "builtin/scripted", "description": "Has a warning"}
    model = {"provider": "openai", "model": "x", "provider_opts": {"unknown": 1}}
    (folder / "later.yaml").write_text(yaml.safe_dump({"agents": {"root": later}, "models": {"m": model}}))
    return "builtin/scripted", *(str(folder / f"{name}.yaml") for name in ("shelly", "asker", "later"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """No token is needed, as on a laptop."""
    folder = tmp_path_factory.mktemp("console")
    with LiveServer(folder, *write_agents(folder), options=("--safety", "balanced")) as started:
        yield started


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Asks for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    options = ("--token-env", "CONSOLE_TOKEN")
    with LiveServer(folder, options=options, env={"CONSOLE_TOKEN": TOKEN}, api_key=TOKEN) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 860})
    made.set_default_timeout(20_000)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Judged at its end: no script failed, and no policy was violated."""
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if _is_violation(said.text) else None)
    yield opened
    assert problems == []


def _is_violation(text: str) -> bool:
    return "Content Security Policy" in text or "Refused to" in text


def shoot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def serious(page: Page) -> list[str]:
    """What axe-core finds that keeps somebody from using the page."""
    if not AXE.exists():
        skip_or_fail("axe-core is missing; `make test-browser` installs it with npm")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
