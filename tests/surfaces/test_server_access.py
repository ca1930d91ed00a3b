"""Whether a server may open at all (I37): off loopback, only with a token, or where somebody insists."""

from dataclasses import replace
from pathlib import Path

import pytest

from lastgood.agents.sources import parse
from lastgood.errors import InvalidRequest, WrongUsage
from lastgood.flows.tokens import Tokens
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.server import open_server
from lastgood.settings import Settings
from lastgood.store.database_url import open_store
from lastgood.wiring import SystemClock
from tests.surfaces.asgi import ask

pytestmark = pytest.mark.anyio

SOURCES = [parse("builtin/scripted", {})]
TOKEN = "0123456789abcdef"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, f"sqlite:///{tmp_path / 'lastgood.db'}")


async def status(settings: Settings, host: str, token: str | None = None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with open_server(settings, SOURCES, host) as server:
        return (await ask(server.app, "GET", "/v1/models", headers)).status


async def make_token(settings: Settings) -> str:
    store = await open_store(settings.database)
    _, plain = await Tokens(store, SystemClock()).create("x", DEFAULT_TENANT, ["chat"])
    await store.close()
    return plain


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com"])
async def test_off_loopback_without_a_token_it_does_not_open(settings: Settings, host: str) -> None:
    with pytest.raises(InvalidRequest, match="--insecure-no-auth"):
        await status(settings, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_on_loopback_no_token_is_needed(settings: Settings, host: str) -> None:
    assert await status(settings, host) == 200


@pytest.mark.parametrize("proxies", [(), ("*",), ("10.0.0.1", "0.0.0.0/0"), ("::/0",)])
async def test_users_are_not_taken_from_a_header_that_anybody_can_send(
    settings: Settings, proxies: tuple[str, ...]
) -> None:
    named = replace(settings, proxy_user_header="X-Remote-User", trusted_proxy=proxies)
    with pytest.raises(WrongUsage, match="anybody could send that header"):
        await status(named, "0.0.0.0")
    for proxy in ("10.0.0.1", "10.0.0.0/8", "unix"):
        assert await status(replace(named, trusted_proxy=(proxy,)), "0.0.0.0") == 401


async def test_an_explicit_opt_out_serves_without_a_token(settings: Settings) -> None:
    await make_token(settings)
    assert await status(replace(settings, insecure_no_auth=True), "0.0.0.0") == 200


async def test_one_token_in_the_database_is_enough_to_ask_everybody_for_one(settings: Settings) -> None:
    token = await make_token(settings)
    for host in ("0.0.0.0", "127.0.0.1"):
        assert await status(settings, host) == 401
        assert await status(settings, host, token) == 200


async def test_a_token_from_a_file_or_a_variable_is_accepted(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}  \na second line\n")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    for one in (replace(settings, token_file=file), replace(settings, token_env="MY_TOKEN")):
        assert await status(one, "0.0.0.0") == 401
        assert await status(one, "0.0.0.0", TOKEN) == 200
        assert await status(one, "0.0.0.0", TOKEN + "\xe4") == 401


@pytest.mark.parametrize(
    "content", [b"", b"\n0123456789abcdef", b"short", b"0123456789 abcdef", b"\xff" * 20]
)
async def test_a_file_without_a_good_token_is_refused(
    settings: Settings, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match="at least 16"):
        await status(replace(settings, token_file=file), "127.0.0.1")


async def test_what_contradicts_itself_is_refused(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    for both in (
        replace(settings, token_file=file, token_env="MY_TOKEN"),
        replace(settings, token_file=file, insecure_no_auth=True),
        replace(settings, token_file=tmp_path / "nowhere"),
    ):
        with pytest.raises(InvalidRequest, match=r"cannot be combined|cannot read"):
            await status(both, "127.0.0.1")
