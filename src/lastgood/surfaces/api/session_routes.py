"""The routes that create, read, fork, export and delete sessions, as data."""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.model.tokens import Scope
from lastgood.surfaces.api import request_parameters as params
from lastgood.surfaces.api import response_schemas as shapes
from lastgood.surfaces.api.resources import ATTEMPT, SESSION, TURN
from lastgood.surfaces.api.route_rows import ONE, json_of, reads, takes
from lastgood.surfaces.api.schemas import AppendBody, CreateBody, ForkBody, IdsBody, SummaryBody, TokensBody
from lastgood.surfaces.api.sessions import SessionHandlers
from lastgood.surfaces.http.app import Route
from lastgood.surfaces.http.json_schema import schema_of


def life_routes(life: SessionHandlers) -> Sequence[Route]:
    one = json_of(SESSION.schema)
    return [
        takes("POST", "/api/sessions", life.create, "Create a session", CreateBody, one, may_be_empty=True),
        reads(
            "/api/sessions",
            life.list,
            "List sessions, newest first",
            json_of(shapes.SESSIONS),
            query=params.FILTERS,
        ),
        reads(
            ONE,
            life.read,
            "Get a session with its messages",
            one,
            query=shapes.WITH_MESSAGES,
            takes_task_token=True,
        ),
        reads(
            f"{ONE}/turns",
            life.turns,
            "List committed turns",
            json_of(shapes.TURNS),
            query=params.PAGE,
            takes_task_token=True,
        ),
        reads(f"{ONE}/turns/{{turn}}", life.turn, "Get a turn", json_of(TURN.schema), takes_task_token=True),
        reads(
            f"{ONE}/turns/{{turn}}/prompt", life.prompt, "Get the prompt of a turn", json_of(shapes.PROMPT)
        ),
        reads(f"{ONE}/attempts", life.attempts, "List attempts", json_of(shapes.ATTEMPTS), query=params.PAGE),
        reads(
            f"{ONE}/attempts/{{attempt}}",
            life.attempt,
            "Get an attempt with its steps",
            json_of(ATTEMPT.schema),
        ),
        takes("POST", f"{ONE}/fork", life.fork, "Fork a session", ForkBody, one, may_be_empty=True),
        takes(
            "POST",
            f"{ONE}/reset",
            life.reset,
            "Reset a session: later prompts start after this point",
            None,
            one,
            headers=params.ASKS,
        ),
        takes(
            "POST",
            f"{ONE}/messages",
            life.append,
            "Append messages without a model call",
            AppendBody,
            json_of(TURN.schema, 201),
            headers=params.ASKS,
        ),
    ]


def document_routes(life: SessionHandlers, import_bytes: int) -> Sequence[Route]:
    """Whole sessions: exported, imported and deleted."""
    return [
        reads(f"{ONE}/export", life.export, "Export a session", json_of(shapes.DOCUMENT)),
        takes(
            "POST",
            "/api/sessions/import",
            life.take_in,
            "Import a session",
            None,
            json_of(SESSION.schema, 201),
            limit_bytes=import_bytes,
        ),
        takes("DELETE", ONE, life.delete, "Cancel and delete a session", None, json_of(shapes.DELETED)),
        takes(
            "POST",
            "/api/sessions/batch/delete",
            life.delete_many,
            "Delete sessions",
            IdsBody,
            json_of(shapes.BATCH_DELETED),
        ),
        Route(
            "POST",
            "/api/sessions/batch/export",
            life.export_many,
            Scope.READ,
            "Export sessions",
            takes=schema_of(IdsBody),
            gives=json_of(shapes.BATCH_EXPORTED),
        ),
    ]


def docker_agent_routes(life: SessionHandlers) -> Sequence[Route]:
    """Routes of docker-agent's clients beyond those above."""
    return [
        reads(f"{ONE}/status", life.status, "Get the status of a session", json_of(shapes.BRIEF)),
        reads(f"{ONE}/snapshot", life.read, "Get a snapshot of a session", json_of(SESSION.schema)),
        reads(
            f"{ONE}/recovery",
            life.recovery,
            "Get a session with its failed attempts and damage",
            json_of(shapes.DOCUMENT),
        ),
        reads(f"{ONE}/models", life.models, "List the models of the agent", json_of(shapes.SESSION_MODELS)),
        takes(
            "PATCH",
            f"{ONE}/tokens",
            life.count_tokens,
            "Return token counts; the server counts, so the body is ignored",
            TokensBody,
            json_of(shapes.TOKENS),
        ),
        takes(
            "POST",
            f"{ONE}/summaries",
            life.summarize,
            "Replace earlier messages in prompts with a summary",
            SummaryBody,
            json_of(TURN.schema, 201),
            headers=params.ASKS,
        ),
    ]
