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
from tests.flows.house import House
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
async def house(backend: Backend, where: Path | str) -> AsyncIterator[House]:
    """Judged at its end: whatever a test was about, the checker finds no broken invariant."""
    house = House(backend, where, World(backend.store))
    house.world.on_prompt = house.saw
    yield house
    await house.close()
    assert await check(house.world, settled=False) == []


@pytest.fixture
def world(house: House) -> World:
    return house.world


@pytest.fixture
async def node(house: House) -> Lastgood:
    return await house.node()
