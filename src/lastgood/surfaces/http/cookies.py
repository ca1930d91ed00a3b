"""The cookies of the console: the token of a login, and the secret that its forms repeat.

Cookies are shared by all ports of a host, so each name ends with the port: two servers on one machine do
not log each other out.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from http.cookies import CookieError, SimpleCookie

from lastgood.surfaces.http.asgi import Request

#: How long a login lasts in a browser that stays open. The token may end earlier.
LOGIN_SECONDS = 12 * 3600

_PORT = re.compile(r".*:([0-9]{1,5})")


def cookie_of(request: Request, kind: str) -> str | None:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(_name(request, kind))
    except CookieError:
        return None
    return found.value or None if found is not None else None


def set_cookie(
    request: Request, kind: str, value: str, *, seconds: int | None, secure: bool
) -> dict[str, str]:
    """The header that sets it; `seconds=None`: until the browser is closed, 0: not any more."""
    age = "" if seconds is None else f"; Max-Age={seconds}"
    more = "; Secure" if secure else ""
    return {"set-cookie": f"{_name(request, kind)}={value}; Path=/; HttpOnly; SameSite=Strict{age}{more}"}


def login_of(request: Request) -> str | None:
    """The token; None if nobody has logged in."""
    value = cookie_of(request, "login")
    if value is None:
        return None
    try:
        return urlsafe_b64decode(value.encode()).decode()
    except (ValueError, binascii.Error):
        return None


def login_value(token: str) -> str:
    """A token may have characters that end a cookie."""
    return urlsafe_b64encode(token.encode()).decode()


def _name(request: Request, kind: str) -> str:
    port = _PORT.fullmatch(request.headers.get("host", ""))
    return f"lastgood_{kind}_{port[1]}" if port else f"lastgood_{kind}"
