"""Pages: one plain value is rendered as HTML, or sent as JSON where the address ends in `.json`.

Knows no session and no agent. Every page has the same strict policy: no inline script or style, nothing
from elsewhere, no frame around it. Jinja2 is imported by the first page.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lastgood import __version__
from lastgood.errors import LastgoodError, NotFound, Unauthorized
from lastgood.flows.attention import NO_QUESTIONS, QuestionCount
from lastgood.model.ids import TenantId
from lastgood.model.tokens import Scope
from lastgood.surfaces.console.snippets import SNIPPETS
from lastgood.surfaces.console.text_format import FILTERS
from lastgood.surfaces.http.asgi import Reply, Request, Response, json_reply
from lastgood.surfaces.http.cookies import cookie_of, login_of, set_cookie
from lastgood.surfaces.http.error_responses import PLAIN_ERRORS, ErrorDialect, status_of
from lastgood.surfaces.http.json_schema import ERROR
from lastgood.surfaces.http.session_gate import SessionGate

if TYPE_CHECKING:
    from jinja2 import Environment

HTML = "text/html; charset=utf-8"
_HERE = Path(__file__).parent
_STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
#: `same-origin`: with `no-referrer`, browsers would send forms with the Origin `null`.
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


#: What one person may see must not be kept for the next one at the same browser.
_PRIVATE = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class Page:
    """`data` is the page as JSON has it. `more` is for the template alone."""

    template: str
    title: str
    data: Mapping[str, Any]
    status: int = 200
    more: Mapping[str, Any] = field(default_factory=dict)


View = Callable[[Request], Awaitable[Page]]


@dataclass(frozen=True)
class Pages:
    """`only`: the surfaces that are served. Without the session API, pages cannot follow its events and read
    themselves again instead. `count_questions`: of those that wait for a person, for a tenant and a user."""

    gate: SessionGate
    public_url: str | None
    asks_for_token: bool
    only: Container[str]
    count_questions: Callable[[TenantId, str], Awaitable[QuestionCount]]

    @property
    def secure(self) -> bool:
        """People reach the server over HTTPS, so cookies need it."""
        return (self.public_url or "").startswith("https://")

    def handler(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            is_json = self._without_suffix(request)
            if "session" in request.path:
                await self.gate.conceal(request)
            page = await view(request)
            if is_json:
                return json_reply(page.data, page.status, _PRIVATE)
            return self.html(request, page, await self._waiting(request))

        return handle

    async def count(self, request: Request) -> Response:
        """How many questions wait for a person: the navigation of every page shows it."""
        count = await self._waiting(request)
        return json_reply({"waiting": count.number, "is_more": count.is_more}, 200, _PRIVATE)

    async def _waiting(self, request: Request) -> QuestionCount:
        return await self.count_questions(request.caller.tenant, request.caller.user)

    def _without_suffix(self, request: Request) -> bool:
        """Before anything reads the path: an id with a suffix is nobody's."""
        if not request.raw_path.endswith(".json"):
            return False
        request.path = {name: value.removesuffix(".json") for name, value in request.path.items()}
        return True

    def html(self, request: Request, page: Page, waiting: QuestionCount = NO_QUESTIONS) -> Reply:
        secret = cookie_of(request, "form")
        made = secret or secrets.token_urlsafe(24)
        text = self._templates.get_template(page.template).render(
            title=page.title,
            may={scope.value: request.caller.may(scope) for scope in Scope},
            caller=request.caller,
            question_count=waiting,
            form_token=made,
            is_logged_in=login_of(request) is not None,
            asks_for_token=self.asks_for_token,
            only=self.only,
            version=__version__,
            path=request.raw_path,
            base_url=self.base_url(request),
            assets=self._assets,
            key=secrets.token_urlsafe(12),
            **page.data,
            **page.more,
        )
        cookie = {} if secret else set_cookie(request, "form", made, seconds=None, secure=self.secure)
        return Reply(page.status, text.encode(), {**_HEADERS, **cookie}, HTML)

    def base_url(self, request: Request) -> str:
        return self.public_url or f"http://{request.headers.get('host', '')}"

    # -- errors --------------------------------------------------------------------------

    @property
    def errors(self) -> ErrorDialect:
        return ErrorDialect(self._error, PLAIN_ERRORS.last_frame, ERROR)

    def _error(self, error: LastgoodError, request: Request) -> Reply:
        """Scripts of our pages and readers of `.json` get what the session API would say."""
        if wants_json(request) or request.raw_path.endswith(".json"):
            return PLAIN_ERRORS.reply(error, request)
        if isinstance(error, Unauthorized):
            return self._to_login(request)
        data = {"message": error.message, "code": error.code, "request_id": request.id}
        status = status_of(error)
        title = {404: "Not found", 403: "Not allowed"}.get(status, "Not possible")
        return self.html(request, Page("error.html", title, data, status))

    def _to_login(self, request: Request) -> Reply:
        """Browsers do not send the cookie with a link that was followed from elsewhere, such as an approval
        in a chat. Our own page goes there once more, and then they do."""
        site = request.headers.get("sec-fetch-site")
        if request.method == "GET" and site in ("cross-site", "same-site"):
            return self.html(request, Page("again.html", "Lastgood", {"address": address(request)}))
        more = "" if request.method != "GET" or request.raw_path == "/" else f"?next={_quoted(request)}"
        return redirect(f"/login{more}")

    # -- files ---------------------------------------------------------------------------

    async def static(self, request: Request) -> Response:
        name = request.path["file"]
        if name not in _STATIC:
            raise NotFound("No such file")
        body, digest = self._files[name]
        kept = "public, max-age=31536000, immutable" if request.query.get("v") == digest else "no-cache"
        return Reply(200, body, {"cache-control": kept}, _STATIC[name])

    @cached_property
    def _files(self) -> dict[str, tuple[bytes, str]]:
        read = {name: (_HERE / "static" / name).read_bytes() for name in _STATIC}
        return {name: (body, hashlib.sha256(body).hexdigest()[:12]) for name, body in read.items()}

    @cached_property
    def _assets(self) -> dict[str, str]:
        """Addresses that change with the content: browsers keep the files."""
        names = {"style": "console.css", "script": "console.js", "icon": "icon.svg"}
        return {kind: f"/static/{name}?v={self._files[name][1]}" for kind, name in names.items()}

    @cached_property
    def _templates(self) -> Environment:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(FILTERS)
        environment.globals["snippets"] = SNIPPETS
        return environment


def wants_json(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("application/json")


def redirect(where: str, cookie: Mapping[str, str] | None = None) -> Reply:
    """303: the next request is a GET, so a reload sends nothing twice."""
    return Reply(303, b"", {"location": where, "cache-control": "no-store", **(cookie or {})}, HTML)


def address(request: Request) -> str:
    return request.raw_path + (f"?{request.query_string}" if request.query_string else "")


def _quoted(request: Request) -> str:
    return quote(address(request), safe="")
