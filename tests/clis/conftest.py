from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clis.harness import RealCli
from tests.clis.install import path_of
from tests.clis.model_server import ModelServer


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def real_cli(name: str, folder: Path, model: ModelServer) -> RealCli:
    if not path_of(name).exists():
        pytest.skip(f"{name} is NOT INSTALLED: run `make test-clis` where npm can install packages")
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    return RealCli(name, home, work, model)


@pytest.fixture(params=["claude", "codex", "goose"])
def cli(request: pytest.FixtureRequest, tmp_path: Path, model: ModelServer) -> RealCli:
    return real_cli(request.param, tmp_path, model)


@pytest.fixture
def claude(tmp_path: Path, model: ModelServer) -> RealCli:
    return real_cli("claude", tmp_path, model)


@pytest.fixture
def codex(tmp_path: Path, model: ModelServer) -> RealCli:
    return real_cli("codex", tmp_path, model)


@pytest.fixture
def goose(tmp_path: Path, model: ModelServer) -> RealCli:
    return real_cli("goose", tmp_path, model)
