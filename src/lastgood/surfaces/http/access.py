"""Access control: allowed hosts and origins, and the principal of a bearer token.

Any web page can make a browser on this machine send requests here. So unknown Host headers are
rejected (DNS rebinding), unknown Origins are rejected (cross-site requests; those without an Origin,
such as images, are recognised by Sec-Fetch-Site), and bodies must be application/json (a form
cannot send that). Forms are accepted by pages of the console alone, and only from pages of this server;
those of the login and the logout also from programs, because their fields hold all that they need.

A token comes as a bearer token, or in the cookie that the console's login sets. The cookie counts only in
requests of our own pages: SameSite lets it through from every port and subdomain of the same site. So does
the user that a trusted proxy names in a header. A ticket in the address opens an event stream.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from lastgood.errors import Forbidden, UnsupportedMedia
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.tickets import StreamTicket
from lastgood.model.tokens import Scope
from lastgood.surfaces.http.asgi import JSON, Reply, Request, segments
from lastgood.surfaces.http.cookies import login_of
from lastgood.surfaces.http.principal import ANYBODY, Principal

#: What a form of a page sends.
FORM = "application/x-www-form-urlencoded"

_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NETLOC = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://([^/?#@\\]+)")

#: Response headers that pages of other origins may read.
EXPOSED = (
    "x-conversation-id, x-session-id, x-turn-id, x-attempt-id, x-task-id, x-request-id, x-should-retry, "
    "idempotent-replayed, retry-after, x-next-cursor, etag"
)
#: Request headers that they may send.
ALLOWED = (
    "authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, "
    "x-conversation-id, x-conversation-mode, x-request-id, x-user-id, openai-organization, openai-project"
)
#: OpenAI's SDK in a browser sends a dozen of these.
_SDK = re.compile(r"x-stainless-[a-z-]+")


#: Of the name that a proxy gives.
LONGEST_USER = 255


class Tickets(Protocol):
    async def open(self, plain: str) -> StreamTicket | None: ...

    async def holds(self, ticket: StreamTicket) -> bool: ...


@dataclass(frozen=True, slots=True)
class AccessControl:
    """`hosts` without ports, as `host_of` writes them. `find_caller` is None if no token is required.

    `any_address`: IP addresses are allowed as Host, for servers that listen on all interfaces and cannot
    list their addresses. That is as safe: DNS rebinding needs a name.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    find_caller: Callable[[str], Awaitable[Principal | None]] | None
    any_address: bool = False
    tickets: Tickets | None = None
    proxy_user_header: str | None = None  # in lower case

    def check(
        self, request: Request, *, is_probe: bool, takes_form: bool = False, takes_programs: bool = False
    ) -> None:
        if is_probe:
            return
        given = request.headers.get("host", "")
        host = host_of(given)
        if host is None or not (host in self.hosts or (self.any_address and _is_address(host))):
            raise Forbidden(f"Host {given!r} not allowed; add it with --allowed-host")
        origin = request.headers.get("origin")
        if origin is not None and not self._allows_origin(origin, given):
            raise Forbidden(f"Origin {origin!r} not allowed; add it with --cors-origin")
        if origin is None and _is_cross_site(request):
            raise Forbidden("Cross-site request not allowed; add the origin of the page with --cors-origin")
        if request.method in _CHANGES:
            _check_media_type(request, FORM if takes_form else JSON)
            is_welcome = takes_programs and is_program(request)
            if takes_form and not is_welcome and not self.is_own_page(request):
                raise Forbidden("Forms are accepted from the pages of this server only; open the page again")

    def _allows_origin(self, origin: str, host: str) -> bool:
        """Our own pages have the Host, with its port, as their Origin: another port is another server."""
        found = _ORIGIN.fullmatch(origin.lower())
        return origin in self.origins or (found is not None and found[1] == host.lower())

    async def caller(self, request: Request) -> Principal | None:
        if self.find_caller is None:
            return ANYBODY
        if "authorization" in request.headers:
            token = _bearer(request)
        elif (ticket := _ticket(request)) is not None and self.tickets is not None:
            return await self._of_ticket(request, ticket, self.tickets)
        elif (user := self._proxy_user(request)) is not None:
            return proxy_principal(user)
        else:
            token = self._login(request)
        return await self.find_caller(token) if token else None

    def has_token(self, request: Request) -> bool:
        named = "authorization" in request.headers or _ticket(request) is not None
        return named or self._login(request) is not None

    async def _of_ticket(self, request: Request, plain: str, tickets: Tickets) -> Principal | None:
        """Once a stream is open, the token behind its ticket must last, not the ticket."""
        if request.ticket is not None:
            found = request.ticket if await tickets.holds(request.ticket) else None
        else:
            found = request.ticket = await tickets.open(plain)
        if found is None or found.session != segments(request.raw_path)[2]:
            return None
        return Principal(found.tenant, found.token, frozenset({Scope.READ}), found.user)

    def _proxy_user(self, request: Request) -> str | None:
        """The user that a trusted proxy names. Like a cookie, it counts in requests of our own pages only:
        a browser sends it with whatever another page makes it send."""
        if self.proxy_user_header is None or not request.is_from_proxy or not self.is_own_page(request):
            return None
        user = request.headers.get(self.proxy_user_header, "").strip()
        is_one = self.proxy_user_header not in request.repeated
        return user if user and is_one and user.isprintable() and len(user) <= LONGEST_USER else None

    def _login(self, request: Request) -> str | None:
        return login_of(request) if self.is_own_page(request) else None

    def is_own_page(self, request: Request) -> bool:
        """Sent by a page of this server, or by a person who typed or followed an address. Browsers that do
        not say where a request comes from send the Origin with everything that changes something."""
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin" or (site == "none" and request.method not in _CHANGES)
        origin = request.headers.get("origin")
        if origin is None:
            return request.method not in _CHANGES
        found = _ORIGIN.fullmatch(origin.lower())
        return found is not None and found[1] == request.headers.get("host", "").lower()

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
            return {"vary": "origin"}  # caches must not mix responses for different origins
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED,
            "vary": "origin",
        }


def proxy_principal(user: str) -> Principal:
    """What users behind a proxy may do: everything but administration."""
    return Principal(DEFAULT_TENANT, f"proxy user {user}", frozenset({Scope.SESSION, Scope.APPROVE}), user)


def _ticket(request: Request) -> str | None:
    """Only in the address of an event stream."""
    path = segments(request.raw_path)
    is_stream = len(path) == 4 and path[:2] == ("api", "sessions") and path[3] == "events"
    if not is_stream or request.method != "GET":
        return None
    return request.query.get("ticket")


def host_of(netloc: str) -> str | None:
    """Returns the host without its port, normalized; None if it is not a host. IPv6 keeps its brackets."""
    found = _NETLOC.fullmatch(netloc.lower())
    if found is None:
        return None
    if found[1] is None:
        return found[2]
    try:
        return f"[{ipaddress.IPv6Address(found[1])}]"
    except ValueError:
        return None


def is_program(request: Request) -> bool:
    """Not a browser: those say where a request that changes something comes from."""
    return "origin" not in request.headers and "sec-fetch-site" not in request.headers


def _is_address(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _is_cross_site(request: Request) -> bool:
    """Sent by a page of another site, unless a person followed a link there."""
    follows_link = request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"
    return request.headers.get("sec-fetch-site") == "cross-site" and not follows_link


def _bearer(request: Request) -> str | None:
    kind, _, token = request.headers["authorization"].partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _check_media_type(request: Request, wanted: str) -> None:
    """Compressed bodies are rejected: a small one could expand beyond every limit."""
    length = request.headers.get("content-length", "0")
    how = request.headers.get("transfer-encoding", "").lower()
    if length == "0" and not how:
        return
    is_compressed = request.headers.get("content-encoding", "identity").lower() != "identity"
    if is_compressed or how not in ("", "chunked"):
        raise UnsupportedMedia(
            "Compressed request bodies are not supported; send the body without Content-Encoding"
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != wanted:
        raise UnsupportedMedia() if wanted == JSON else UnsupportedMedia(f"Content-Type must be {wanted}")
