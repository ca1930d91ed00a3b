"""The routes of the console, as data. Each page is also served as `.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.model.tokens import Scope
from lastgood.surfaces.console.actions import SessionActions
from lastgood.surfaces.console.agents import AgentPages
from lastgood.surfaces.console.approvals import ApprovalPages
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.forms import MOST_BYTES, Action, handler
from lastgood.surfaces.console.home import HomePage
from lastgood.surfaces.console.login import FindCaller, LoginHandlers
from lastgood.surfaces.console.pages import Pages, View
from lastgood.surfaces.console.reference_page import Describe, ReferencePage
from lastgood.surfaces.console.session_list import SessionListPage
from lastgood.surfaces.console.session_page import SessionPages
from lastgood.surfaces.console.turn_pages import TurnPages
from lastgood.surfaces.console.usage_page import UsagePage
from lastgood.surfaces.console.work import WorkPages
from lastgood.surfaces.http.app import Route
from lastgood.surfaces.http.asgi import Handler

_ONE = "/sessions/{session}"


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the rows of the table below have in common."""

    pages: Pages

    def view(self, path: str, view: View, summary: str) -> list[Route]:
        """A path that ends in a parameter takes the suffix as part of it."""
        paths = [path] if path.endswith("}") else [path, "/home.json" if path == "/" else f"{path}.json"]
        return [self.page("GET", one, self.pages.handler(view), Scope.READ, summary) for one in paths]

    def act(self, path: str, action: Action, summary: str, scope: Scope = Scope.SESSION) -> Route:
        return self.page("POST", path, handler(self.pages, action), scope, summary)

    def page(
        self,
        method: str,
        path: str,
        handler: Handler,
        scope: Scope | None,
        summary: str,
        *,
        takes_programs: bool = False,
    ) -> Route:
        return Route(
            method,
            path,
            handler,
            scope,
            summary,
            limit_bytes=MOST_BYTES,
            is_page=True,
            takes_programs=takes_programs,
            errors=self.pages.errors,
        )


def console_routes(
    pages: Pages, flows: ConsoleFlows, find_caller: FindCaller | None, describe: Describe
) -> Sequence[Route]:
    """`describe` returns the OpenAPI description of everything that is served."""
    rows = _Rows(pages)
    view, act, page = rows.view, rows.act, rows.page
    login = LoginHandlers(pages, find_caller)
    session, turns, actions = SessionPages(flows, pages.gate), TurnPages(flows), SessionActions(flows)
    approvals, work = ApprovalPages(flows), WorkPages(flows)
    return [
        page("GET", "/login", login.show, None, "Show the login"),
        page("POST", "/login", login.login, None, "Log in with a token", takes_programs=True),
        page("POST", "/logout", login.logout, None, "Log out", takes_programs=True),
        page("GET", "/static/{file}", pages.static, None, "Get a style sheet, script or icon"),
        *view("/", HomePage(flows, pages.gate).show, "Show the home page"),
        act("/chat", actions.chat, "Start a session with a message"),
        *view("/sessions", SessionListPage(flows, pages.gate).show, "Show the sessions"),
        *view(_ONE, session.show, "Show a session"),
        *view(f"{_ONE}/attempts/{{attempt}}", turns.attempt, "Show an attempt"),
        *view(f"{_ONE}/turns/{{turn}}", turns.turn, "Show the timeline of a turn"),
        *view(f"{_ONE}/turns/{{turn}}/prompt", turns.prompt, "Show what the model saw"),
        *view(f"{_ONE}/pointers", turns.pointers, "Show the native sessions"),
        act(f"{_ONE}/send", actions.send, "Send a message"),
        act(f"{_ONE}/cancel", actions.cancel, "Cancel the running turn"),
        act(f"{_ONE}/attempts/{{attempt}}/retry", actions.retry, "Retry a failed turn"),
        act(f"{_ONE}/queue/{{entry}}/drop", actions.drop, "Delete a queue entry"),
        act(f"{_ONE}/queue/{{entry}}/retry", actions.requeue, "Retry a parked queue entry"),
        act(f"{_ONE}/fork", actions.fork, "Fork the session"),
        act(f"{_ONE}/reset", actions.reset, "Reset the session"),
        act(f"{_ONE}/star", actions.star, "Star the session"),
        act(f"{_ONE}/rename", actions.rename, "Rename the session"),
        act(f"{_ONE}/delete", actions.delete, "Delete the session"),
        *view("/approvals", approvals.list, "Show the questions that wait for a person"),
        page("GET", "/approvals/count.json", pages.count, Scope.READ, "Count the questions that wait"),
        *view(f"{_ONE}/approval", approvals.show, "Show the questions of a session"),
        act(f"{_ONE}/approval", approvals.decide, "Answer a question", Scope.APPROVE),
        *view("/work", work.show, "Show tasks and runtimes"),
        *view("/work/tasks/{task}", work.task, "Show a task"),
        act("/work/tasks/{task}/cancel", work.cancel, "Cancel a task"),
        act("/work/tasks/{task}/rerun", work.rerun, "Run a task again"),
        act("/work/tasks/{task}/continue", work.continue_held, "Continue a held task"),
        *view("/agents", AgentPages(flows).list, "Show the agents"),
        *view("/usage", UsagePage(flows).show, "Show usage and cost"),
        *view("/reference", ReferencePage(describe).show, "Show the API reference"),
    ]
