"""Stories about damage: what is not as it was stored reaches no model, and a check finds it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import apsw

from lastgood.flows.database_check import check_database
from lastgood.flows.submission import Submission
from lastgood.model.attempts import Ask
from lastgood.model.ids import TenantId
from lastgood.model.messages import user
from tests.faults.probes import Stage, probe


@asynccontextmanager
async def changed(stage: Stage, table: str, column: str, value: str, where: str) -> AsyncIterator[None]:
    """The checker judges what is stored in the end, so what was changed is put back."""

    async def write(sql: str, *values: object) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute(sql, values)

        await stage.store.db.write(work)

    sql = f"SELECT {column} FROM {table} WHERE {where}"
    ((before,),) = list(stage.store.db._reader.execute(sql))
    await write(f"UPDATE {table} SET {column} = {value} WHERE {where}")
    yield
    await write(f"UPDATE {table} SET {column} = ? WHERE {where}", before)


@probe
async def a_changed_turn_reaches_no_model(stage: Stage) -> None:
    """I6: a turn turned into a reset would hide what was said before it."""
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "hello", "tok1")
    await stage.world.ask(stage.node, session, "and again", "tok2")
    async with changed(stage, "turns", "kind", "'reset'", "seq = 2"):
        received = await stage.world.ask(stage.other, session, "and now", "tok3")
        assert (received.outcome, received.code) == ("failed", "history_damaged")
    assert len(stage.world.prompts) == 2
    assert (await stage.world.ask(stage.other, session, "and now", "tok4")).outcome == "committed"


@probe
async def a_check_covers_every_tenant(stage: Stage) -> None:
    """I6: what it does not look at, it must not call as committed."""
    for tenant in ("default", "another"):
        made = await stage.node.sessions.create(TenantId(tenant), "builtin/scripted")
        ask = Ask(TenantId(tenant), made.id, (user("hello"),))
        outcome = await (await stage.node.submitter.submit(Submission(ask))).outcome()
        assert outcome.turn is not None, outcome.error
        assert (await check_database(stage.store)).findings == []
        async with changed(stage, "turns", "inputs", "0", f"id = '{outcome.turn.id}'"):
            report = await check_database(stage.store)
            assert [finding.tenant for finding in report.findings] == [tenant], "damage was not reported"
