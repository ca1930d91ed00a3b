"""Login with a token, and logout. The token is kept in a cookie that scripts cannot read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lastgood.surfaces.console.forms import answer, read_form
from lastgood.surfaces.console.pages import Page, Pages, redirect
from lastgood.surfaces.http.asgi import Request, Response
from lastgood.surfaces.http.cookies import LOGIN_SECONDS, login_value, set_cookie
from lastgood.surfaces.http.principal import Principal

FindCaller = Callable[[str], Awaitable[Principal | None]]


class LoginHandlers:
    """`find_caller` is None if no token is required."""

    def __init__(self, pages: Pages, find_caller: FindCaller | None) -> None:
        self._pages = pages
        self._find_caller = find_caller

    async def show(self, request: Request) -> Response:
        if self._find_caller is None:
            return redirect("/")
        return self._pages.html(request, self._page(request.query.get("next", "/"), "", 200))

    async def login(self, request: Request) -> Response:
        fields = await read_form(request, takes_programs=True)
        token, where = fields.get("token", "").strip(), _local(fields.get("next", "/"))
        if self._find_caller is None:
            return redirect("/")
        caller = await self._find_caller(token) if token and token.isascii() else None
        if caller is None or caller.task is not None:
            problem = "Unknown, expired or revoked token; use another one"
            return self._pages.html(request, self._page(where, problem, 401))
        cookie = set_cookie(
            request, "login", login_value(token), seconds=LOGIN_SECONDS, secure=self._pages.secure
        )
        return redirect(where, cookie)

    async def logout(self, request: Request) -> Response:
        await read_form(request, takes_programs=True)
        gone = set_cookie(request, "login", "", seconds=0, secure=self._pages.secure)
        return answer(request, "/login" if self._find_caller is not None else "/", gone)

    def _page(self, where: str, problem: str, status: int) -> Page:
        return Page("login.html", "Log in", {"next": _local(where), "problem": problem}, status)


def _local(where: str) -> str:
    """Returns a path of this server; anything else could redirect a person to a foreign login page."""
    is_ours = where.startswith("/") and not where.startswith(("//", "/\\")) and where.isprintable()
    return where if is_ours and "\\" not in where else "/"
