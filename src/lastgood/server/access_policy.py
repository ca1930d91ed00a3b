"""Who may use the server, from its settings: accepted hosts and origins, and the callers behind tokens."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from lastgood.errors import InvalidRequest, WrongUsage
from lastgood.flows.tokens import Tokens
from lastgood.flows.work.task_tokens import TaskTokens
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.tokens import Scope
from lastgood.settings import Settings
from lastgood.surfaces.http.access import host_of
from lastgood.surfaces.http.principal import Principal

FindCaller = Callable[[str], Awaitable[Principal | None]]

EVERYWHERE = ("0.0.0.0", "::")
#: What docker-agent's clients write where a socket has no host. No name of the DNS: a page in a browser that
#: reaches the socket through a proxy cannot have one of them.
_UNIX_HOSTS = frozenset({"agent", "unix", "_"})
_TOKEN = re.compile(r"[\x21-\x7e]{16,}")


def hosts_of(settings: Settings, host: str) -> frozenset[str]:
    hosts = {"localhost", "127.0.0.1", "[::1]"}
    if settings.listen.startswith("unix://"):
        hosts |= _UNIX_HOSTS
    for name in settings.allowed_host:
        found = host_of(name)
        if found is None:
            raise WrongUsage(f"--allowed-host must be a host name like agents.example.com, not {name!r}")
        hosts.add(found)
    if host not in EVERYWHERE:
        hosts.add(host_of(f"[{host}]" if ":" in host else host) or "")
    if settings.public_url:
        hosts.add(host_of(_public(settings.public_url)[1]) or "")
    return frozenset(hosts - {""})


def origins_of(settings: Settings) -> frozenset[str]:
    """Origins whose pages may send requests: those of the setting, and our own, whose Host a proxy may
    change."""
    for origin in settings.cors_origin:
        if re.fullmatch(r"https?://[^/?#@]+", origin) is None:
            raise WrongUsage(f"--cors-origin must be an origin like https://example.com, not {origin!r}")
    own = ["://".join(_public(settings.public_url))] if settings.public_url else []
    return frozenset([*settings.cors_origin, *own])


def _public(url: str) -> tuple[str, str]:
    """Its scheme, and its host with the port."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or host_of(parts.netloc) is None:
        raise WrongUsage(f"--public-url must be a URL like https://agents.example.com, not {url!r}")
    return parts.scheme, parts.netloc.lower()


async def caller_lookup(
    settings: Settings, tokens: Tokens, task_tokens: TaskTokens, host: str
) -> FindCaller | None:
    """Returns None if no token is required: on a loopback address, or with --insecure-no-auth."""
    fixed = _fixed_token(settings)
    if settings.insecure_no_auth and fixed is not None:
        raise WrongUsage("a token and --insecure-no-auth cannot be combined; remove one of them")
    if settings.proxy_user_header is not None and not settings.trusted_proxy:
        raise WrongUsage("--proxy-user-header needs --trusted-proxy: anybody could send that header")
    if settings.proxy_user_header is not None and any(map(_is_everybody, settings.trusted_proxy)):
        raise WrongUsage(
            "--proxy-user-header needs the address of the proxy in --trusted-proxy; with "
            f"{', '.join(settings.trusted_proxy)} anybody could send that header"
        )
    if settings.proxy_user_header is not None and settings.insecure_no_auth:
        raise WrongUsage("--proxy-user-header and --insecure-no-auth cannot be combined; remove one of them")
    if settings.insecure_no_auth:
        return None
    if fixed is None and settings.proxy_user_header is None and not await tokens.list():
        if not is_loopback(host):
            raise InvalidRequest(
                f"{host} is not a loopback address, and there is no token; create one with "
                "`lastgood tokens create --scope admin`, or use --token-file, --token-env or "
                "--insecure-no-auth"
            )
        return None

    async def find(given: str) -> Principal | None:
        if fixed is not None and hmac.compare_digest(given.encode(), fixed.encode()):
            return Principal(DEFAULT_TENANT, "the server's own token", frozenset({Scope.ADMIN}))
        if (grant := await task_tokens.check(given)) is not None:
            name, read = f"task {grant.task}", frozenset({Scope.READ})
            return Principal(grant.tenant, name, read, grant.user, task=grant.task, session=grant.session)
        token = await tokens.check(given)
        if token is None:
            return None
        return Principal(token.tenant, token.id, token.scopes, token.user, token.worker)

    return find


def _fixed_token(settings: Settings) -> str | None:
    if settings.token_env is not None and settings.token_file is not None:
        raise WrongUsage("--token-env and --token-file cannot be combined; remove one of them")
    if settings.token_env is not None:
        token, where = os.environ.get(settings.token_env, ""), f"the variable {settings.token_env}"
    elif settings.token_file is not None:
        where = f"the first line of {settings.token_file}"
        try:
            token = settings.token_file.read_text().partition("\n")[0]
        except OSError as error:
            raise InvalidRequest(
                f"cannot read --token-file {settings.token_file}: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            token = ""
    else:
        return None
    token = token.strip()
    if _TOKEN.fullmatch(token) is None:
        raise InvalidRequest(f"{where} must be a token of at least 16 visible ASCII characters")
    return token


def _is_everybody(proxy: str) -> bool:
    try:
        return proxy == "*" or ipaddress.ip_network(proxy).prefixlen == 0
    except ValueError:
        return False  # `unix`


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
