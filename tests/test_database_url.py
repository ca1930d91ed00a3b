"""Which file a SQLite URL names."""

import os
from pathlib import Path

import pytest

from lastgood.store.database_url import open_store

pytestmark = pytest.mark.anyio


async def test_three_slashes_mean_the_current_directory_and_four_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, file in (("sqlite:///here.db", "here.db"), (f"sqlite:///{tmp_path}/there.db", "there.db")):
        await (await open_store(url)).close()
        assert file in os.listdir(tmp_path)
