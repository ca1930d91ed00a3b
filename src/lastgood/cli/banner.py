"""What `lastgood serve` prints at its start: agents and what is wrong with them, addresses and access."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from lastgood.cli.listener import Listener
from lastgood.cli.output import announce, one_line
from lastgood.errors import LastgoodError
from lastgood.model.agents import AUTO
from lastgood.server.server import Server
from lastgood.settings import Settings

_NAME_WIDTH = 22


async def greet(server: Server, settings: Settings, main: Listener, metrics: Listener | None) -> None:
    for line in await warn_of_agents(server):
        announce(f"warning: {one_line(line)}")
    agents = ", ".join(await loaded_agents(server))
    if not server.agents.served():
        announce("warning: no agents: the directory contains no agent file (*.yaml, *.yml)")
    announce(f"Lastgood serves {one_line(agents) or 'no agents'} on {main.place}")
    for line in await offline_agents(server):
        announce(f"  {one_line(line)}", indent=4)
    for name, value in _facts(server, settings, main, metrics):
        announce(f"  {name:{_NAME_WIDTH}}  {value}", indent=_NAME_WIDTH + 4)


def _facts(
    server: Server, settings: Settings, main: Listener, metrics: Listener | None
) -> Iterator[tuple[str, str]]:
    def url(path: str) -> str:
        return f"{settings.public_url}{path}" if settings.public_url else main.url(path)

    if "console" in settings.only:
        signs_in = server.asks_for_token and settings.proxy_user_header is None
        yield "console", url("/") + (" (sign in with a token)" if signs_in else "")
    if "chat" in settings.only:
        yield "OpenAI-compatible API", url("/v1")
    if "api" in settings.only:
        yield "session API", url("/api")
    yield "API description", url("/openapi.json")
    if metrics is not None:
        yield "metrics", metrics.url("/metrics")
    yield "database", _without_credentials(settings.database)
    if server.asks_for_token:
        how = "send `Authorization: Bearer <token>`; create one with `lastgood tokens create`"
        yield "authentication", f"on: every request needs a token; {how}"
    else:
        how = "run `lastgood tokens create --scope admin` and restart; then every request needs a token"
        yield (
            "authentication",
            f"off: anyone who can reach this address has full access; to turn it on, {how}",
        )


def _without_credentials(database: str) -> str:
    scheme, slashes, rest = database.partition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


async def loaded_agents(server: Server) -> list[str]:
    """The keys of the agents that can be loaded."""
    keys = []
    for key in server.agents.served():
        with suppress(LastgoodError):
            await server.agents.load(key)
            keys.append(key)
    return keys


async def warn_of_agents(server: Server) -> list[str]:
    """What is wrong with the agents that are served, one line each."""
    lines = []
    for key in server.agents.served():
        try:
            agent = await server.agents.load(key)
        except LastgoodError as error:
            lines.append(f"{key} is not served: {error.message}")
            continue
        no_answer = server.engine.why_no_answer(agent)
        found = (agent.stale, no_answer, *agent.warnings)
        lines += [f"{key}: {warning}" for warning in found if warning]
    return lines


async def offline_agents(server: Server) -> list[str]:
    """Agents that wanted any model and found no key: people should know whom they talk to."""
    lines = []
    for key in server.agents.served():
        with suppress(LastgoodError):
            agent = await server.agents.load(key)
            if (why := server.engine.why_offline(agent)) is not None:
                lines.append(f"{key} uses the offline scripted model, which only repeats what you say: {why}")
            elif agent.model == AUTO and server.engine.any_model.provider == "ollama":
                lines.append(f"no API key is set: {key} uses {server.engine.any_model.ref}")
    return lines
