"""Finds the HTTP proxy for a URL, as the variables HTTP_PROXY, HTTPS_PROXY and NO_PROXY say, and TLS trust.

aiohttp's own `trust_env` also reads ~/.netrc, whose entry for the server would collide with our bearer token.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from lastgood.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Proxy:
    url: str  # without credentials
    auth: aiohttp.BasicAuth | None


def proxy_of(url: str) -> Proxy | None:
    """Returns None if requests to this URL go there directly."""
    parts = urlsplit(url)
    address = getproxies().get(parts.scheme)
    if not address or proxy_bypass(parts.hostname or ""):
        return None
    if "://" not in address:
        address = f"http://{address}"
    proxy = urlsplit(address)
    if proxy.scheme != "http" or not proxy.hostname:
        raise InvalidRequest(
            f"unsupported proxy in the variable {parts.scheme.upper()}_PROXY; use http://[USER:PASSWORD@]HOST:PORT"
        )
    auth = None
    if proxy.username is not None:
        auth = aiohttp.BasicAuth(unquote(proxy.username), unquote(proxy.password or ""))
    host = proxy.netloc.rpartition("@")[2]
    return Proxy(urlunsplit(("http", host, "", "", "")), auth)


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the system's authorities (SSL_CERT_FILE replaces them), and those of `ca_file` in addition."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"cannot read certificates from {ca_file}: {error}") from None
    return context
