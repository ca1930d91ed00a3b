"""A multica database for tests: the tables that an import reads, with the columns of a recent release."""

import uuid
from dataclasses import dataclass
from typing import Any

import asyncpg

SCHEMA = """
CREATE TABLE agent (id uuid PRIMARY KEY, workspace_id uuid NOT NULL, name text NOT NULL);
CREATE TABLE issue (id uuid PRIMARY KEY, title text NOT NULL);
CREATE TABLE agent_runtime (
    id uuid PRIMARY KEY, workspace_id uuid NOT NULL, daemon_id text, name text NOT NULL,
    provider text NOT NULL, profile_id uuid
);
CREATE TABLE chat_session (
    id uuid PRIMARY KEY, workspace_id uuid NOT NULL, agent_id uuid NOT NULL, title text NOT NULL DEFAULT '',
    session_id text, work_dir text, runtime_id uuid, created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE chat_message (
    id uuid PRIMARY KEY, chat_session_id uuid NOT NULL, role text NOT NULL, content text NOT NULL,
    task_id uuid, failure_reason text, message_kind text NOT NULL DEFAULT 'message',
    channel_context_revision int,
    created_at timestamptz NOT NULL
);
CREATE TABLE agent_task_queue (
    id uuid PRIMARY KEY, agent_id uuid NOT NULL, issue_id uuid, chat_session_id uuid, runtime_id uuid,
    status text NOT NULL, session_id text, work_dir text, failure_reason text, retired_session_id text,
    result jsonb, context jsonb, created_at timestamptz NOT NULL, dispatched_at timestamptz,
    started_at timestamptz, completed_at timestamptz
);
"""


def new_id() -> str:
    return str(uuid.uuid4())


@dataclass(slots=True)
class Multica:
    """Rows get times in the order in which they are added."""

    connection: Any
    workspace: str
    clock: int = 0

    async def insert(self, table: str, **values: Any) -> str:
        id: str = values.setdefault("id", new_id())
        names, numbers = ", ".join(values), ", ".join(f"${n}" for n in range(1, len(values) + 1))
        await self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({numbers})", *values.values())
        return id

    async def moment(self) -> Any:
        self.clock += 1
        return await self.connection.fetchval("SELECT to_timestamp($1::bigint)", 1_700_000_000 + self.clock)

    async def agent(self, name: str, **values: Any) -> str:
        return await self.insert("agent", workspace_id=self.workspace, name=name, **values)

    async def runtime(self, name: str, provider: str = "claude", **values: Any) -> str:
        values.setdefault("daemon_id", f"daemon-of-{name}")
        return await self.insert(
            "agent_runtime", workspace_id=self.workspace, name=name, provider=provider, **values
        )

    async def chat(self, agent: str, **values: Any) -> str:
        return await self.insert("chat_session", workspace_id=self.workspace, agent_id=agent, **values)

    async def say(self, chat: str, role: str, content: str, **values: Any) -> str:
        at = await self.moment()
        return await self.insert(
            "chat_message", chat_session_id=chat, role=role, content=content, created_at=at, **values
        )

    async def task(self, agent: str, runtime: str | None, status: str = "completed", **values: Any) -> str:
        at = await self.moment()
        done = at if status in ("completed", "failed", "cancelled") else None
        return await self.insert(
            "agent_task_queue",
            agent_id=agent,
            runtime_id=runtime,
            status=status,
            created_at=at,
            completed_at=done,
            **values,
        )

    async def exchange(
        self, chat: str, agent: str, runtime: str, said: str, session: str, **values: Any
    ) -> str:
        """A question, its task, and the reply."""
        await self.say(chat, "user", said)
        task = await self.task(agent, runtime, chat_session_id=chat, session_id=session, **values)
        await self.say(chat, "assistant", f"reply to {said}", task_id=task)
        return task


async def make_multica(dsn: str) -> Multica:
    connection = await asyncpg.connect(dsn)
    # Ids are given as text.
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str, format="text")
    await connection.execute(SCHEMA)
    return Multica(connection, new_id())
