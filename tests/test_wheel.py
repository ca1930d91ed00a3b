"""The wheel, as `pip install .` and `uv tool install .` build it: all that the server reads is in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "lastgood"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_carries_every_file_of_the_package(wheel: Path) -> None:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {str(path.relative_to(PACKAGE.parent)) for path in files}
    assert {Path(name).suffix for name in wanted} >= {".py", ".sql", ".html", ".css", ".js"}
    carried = set(zipfile.ZipFile(wheel).namelist())
    assert wanted - carried == set()
    assert not [name for name in carried if name.startswith(("tests", "docs"))]


@pytest.mark.slow
def test_a_server_from_the_wheel_shows_the_console(wheel: Path, tmp_path: Path) -> None:
    """Without the checkout: the wheel is found before it."""
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    env = os.environ | {"PYTHONPATH": str(unpacked), "LASTGOOD_DATA_DIR": str(tmp_path / "data")}
    line = [sys.executable, "-m", "lastgood", "serve", "builtin/scripted", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(line, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
            assert address is not None
            page = urllib.request.urlopen(f"{address[0]}/", timeout=60).read().decode()
            assert "builtin/scripted" in page
            assets = re.findall(r'(?:src|href)="(/[^"]*\.(?:css|js)[^"]*)"', page)
            assert assets
            for asset in assets:
                assert urllib.request.urlopen(address[0] + asset, timeout=60).read()
        finally:
            server.terminate()
