"""Forms of the console's pages. Each repeats the secret of a cookie, which no other page can read.

The access check has already refused every form that does not come from a page of this server (Origin,
Sec-Fetch-Site); this is the second lock.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from lastgood.errors import Forbidden, InvalidRequest
from lastgood.surfaces.console.pages import Pages, redirect, wants_json
from lastgood.surfaces.http.access import is_program
from lastgood.surfaces.http.asgi import Reply, Request, Response, json_reply
from lastgood.surfaces.http.cookies import cookie_of

#: A message may be long. A tool may ask for many values.
MOST_BYTES = 8 * 1024 * 1024
_MOST_FIELDS = 500
_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")


@dataclass(frozen=True, slots=True)
class Done:
    """Where the browser goes next."""

    location: str


Action = Callable[[Request, Mapping[str, str]], Awaitable[Done]]


def handler(pages: Pages, action: Action) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if "session" in request.path:
            await pages.gate.conceal(request)
        done = await action(request, await read_form(request))
        return answer(request, done.location)

    return handle


def answer(request: Request, location: str, cookie: Mapping[str, str] | None = None) -> Reply:
    if wants_json(request):
        return json_reply({"location": location}, 200, cookie)
    return redirect(location, cookie)


async def read_form(request: Request, *, takes_programs: bool = False) -> dict[str, str]:
    """Of several fields with one name, the last. Forbidden: the form is not one of ours.

    `takes_programs`: the fields hold all that the request needs, and a program, which has no page, repeats
    no secret.
    """
    body = await request.body()
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        raise InvalidRequest("The form cannot be read; open the page again") from None
    fields = dict(pairs)
    if any("\0" in value for value in fields.values()):
        raise InvalidRequest("A field contains a NUL character; remove it")
    secret, given = cookie_of(request, "form"), fields.pop("form_token", "")
    is_ours = secret is not None and hmac.compare_digest(secret.encode(), given.encode())
    if not is_ours and not (takes_programs and is_program(request)):
        raise Forbidden("This form has expired; reload the page and send it again")
    # A form separates lines with CR LF; nobody typed the CR.
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def text_of(fields: Mapping[str, str], name: str) -> str:
    text = fields.get(name, "").strip()
    if not text:
        raise InvalidRequest(f"`{name}` is empty; write something", param=name)
    return text


def form_key(fields: Mapping[str, str]) -> str | None:
    """Returns the idempotency key of what a form does: sent twice, it happens once."""
    key = fields.get("key", "")
    if not key:
        return None
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest("`key` must be 8 to 64 letters, digits, - or _", param="key")
    return f"console-{key}"
