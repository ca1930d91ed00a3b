"""The flows on both stores. `-k sqlite` and `-k postgres` choose one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lastgood.store.postgres import open_postgres
from lastgood.wiring import Lastgood
from tests.contract.conftest import Backend
from tests.contract.conftest import backend as backend
from tests.contract.conftest import postgres_database as postgres_database
from tests.contract.conftest import where as where
from tests.faults.checker import check
from tests.faults.world import World
from tests.flows.cluster import Cluster
from tests.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A fixture belongs to the folder that imports it, so this folder needs a template by another name."""
    name = "flows_template"
    postgres_server.create_database(name)

    async def migrate() -> None:
        await (await open_postgres(postgres_server.dsn(name))).close()

    asyncio.run(migrate())
    return name


@pytest.fixture
async def cluster(backend: Backend, where: Path | str) -> AsyncIterator[Cluster]:
    """Judged at its end: whatever a test was about, the checker finds no broken invariant."""
    cluster = Cluster(backend, where, World(backend.store))
    cluster.world.on_prompt = cluster.saw
    yield cluster
    await cluster.close()
    assert await check(cluster.world, settled=False) == []


@pytest.fixture
def world(cluster: Cluster) -> World:
    return cluster.world


@pytest.fixture
async def node(cluster: Cluster) -> Lastgood:
    return await cluster.node()
