"""The front door: which hosts and origins are let in, and whose token it is.

A browser on this machine can be made to send requests here by any page. So a Host that is
not ours is refused (a page that made its name point here), an Origin that is not ours is
refused (a page that simply asks; one that only shows a picture from here says no Origin, but its
browser says that it is of another site), and JSON is taken only as JSON (a form cannot send that).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lastgood.errors import Forbidden, UnsupportedMedia
from lastgood.surfaces.http.asgi import Reply, Request
from lastgood.surfaces.http.principal import ANYBODY, Principal

_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NETLOC = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://([^/?#@\\]+)")

#: What a page of another origin may read of an answer.
EXPOSED = (
    "x-conversation-id, x-session-id, x-turn-id, x-attempt-id, x-request-id, x-should-retry, "
    "idempotent-replayed, retry-after, x-next-cursor, etag"
)
#: What it may send.
ALLOWED = (
    "authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, "
    "x-conversation-id, x-conversation-mode, x-request-id, x-user-id, openai-organization, openai-project"
)
#: OpenAI's SDK in a browser sends a dozen of these.
_SDK = re.compile(r"x-stainless-[a-z-]+")


@dataclass(frozen=True, slots=True)
class AccessControl:
    """`hosts` without ports, as `host_of` writes them. `find_caller` is None where no token is asked for.

    `any_address`: a Host that is an address instead of a name is let in. No page can make
    an address point elsewhere, so this is as safe; where the server listens on all of its
    machine's addresses, it cannot name them.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    find_caller: Callable[[str], Awaitable[Principal | None]] | None
    any_address: bool = False

    def check(self, request: Request, *, is_probe: bool) -> None:
        if is_probe:
            return
        given = request.headers.get("host", "")
        host = host_of(given)
        if host is None or not (host in self.hosts or (self.any_address and _is_address(host))):
            raise Forbidden(f"Host {given!r} not allowed; add it with --allowed-host")
        origin = request.headers.get("origin")
        if origin is not None and not self._lets_in(origin, given):
            raise Forbidden(f"Origin {origin!r} not allowed; add it with --cors-origin")
        if origin is None and _is_from_elsewhere(request):
            raise Forbidden("Cross-site request not allowed; add the origin of the page with --cors-origin")
        if request.method in _CHANGES:
            _check_media_type(request)

    def _lets_in(self, origin: str, host: str) -> bool:
        """A page of ours has the Host in its Origin, port and all: another port is another server."""
        found = _ORIGIN.fullmatch(origin.lower())
        return origin in self.origins or (found is not None and found[1] == host.lower())

    async def caller(self, request: Request) -> Principal | None:
        if self.find_caller is None:
            return ANYBODY
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return None
        return await self.find_caller(token.strip())

    # -- other origins ---------------------------------------------------------------

    def preflight(self, request: Request) -> Reply | None:
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        if request.headers.get("origin") not in self.origins:
            raise Forbidden("Origin not allowed; add it with --cors-origin")
        asked = request.headers.get("access-control-request-headers", "").lower()
        more = [name for name in re.split(r"[ ,]+", asked) if _SDK.fullmatch(name)]
        return Reply(
            204,
            headers={
                "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
                "access-control-allow-headers": ", ".join([ALLOWED, *more]),
                "access-control-max-age": "600",
            },
        )

    def cors_headers(self, request: Request) -> dict[str, str]:
        if not self.origins:
            return {}
        origin = request.headers.get("origin")
        if origin is None or origin not in self.origins:
            return {"vary": "origin"}  # the same answer looks different to others
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED,
            "vary": "origin",
        }


def host_of(netloc: str) -> str | None:
    """Without its port, in one spelling; None: this is no host. An IPv6 address keeps its brackets."""
    found = _NETLOC.fullmatch(netloc.lower())
    if found is None:
        return None
    if found[1] is None:
        return found[2]
    try:
        return f"[{ipaddress.IPv6Address(found[1])}]"
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _is_from_elsewhere(request: Request) -> bool:
    """By a page of another site, and not by a person who followed a link there."""
    follows_link = request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"
    return request.headers.get("sec-fetch-site") == "cross-site" and not follows_link


def _check_media_type(request: Request) -> None:
    """Nothing is unpacked: what was packed small could be large beyond all limits."""
    length = request.headers.get("content-length", "0")
    how = request.headers.get("transfer-encoding", "").lower()
    if length == "0" and not how:
        return
    packed = request.headers.get("content-encoding", "identity").lower() != "identity"
    if packed or how not in ("", "chunked"):
        raise UnsupportedMedia(
            "Compressed request bodies are not supported; send the body without Content-Encoding"
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMedia()
