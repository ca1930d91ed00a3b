import pytest

from tests.postgres import postgres_server as postgres_server


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
