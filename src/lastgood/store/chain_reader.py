"""Reads the turns of a chain page by page, on either database.

No cursor stays open between two pages: on SQLite it would hold every other reader at its own
moment. Turns never change, so pages that are read one after the other fit together. A chain whose turns
are missing, or are deleted meanwhile, ends before its head: its reader compares.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from lastgood.model.ids import TenantId, TurnId
from lastgood.model.sessions import EncodedTurn
from lastgood.store.rows import Row, to_encoded_turn

#: A page holds turns until their bodies reach this size, so at most this and one turn more.
PAGE_BYTES = 256 * 1024
PAGE_TURNS = 200

ReadRows = Callable[[str, Mapping[str, Any]], Awaitable[list[Row]]]


async def stream_chain(
    rows: ReadRows, tenant: TenantId, head: TurnId, after_seq: int
) -> AsyncGenerator[EncodedTurn, None]:
    last = after_seq
    for segment, session, upto in await rows("segments_of_chain", {"tenant": tenant, "head": head}):
        while last < upto:
            page = await rows(
                "read_segment_page",
                {
                    "tenant": tenant,
                    "segment": segment,
                    "session": session,
                    "after": last,
                    "upto": upto,
                    "turns": PAGE_TURNS,
                    "bytes": PAGE_BYTES,
                },
            )
            if not page:
                return
            for row in page:
                turn = to_encoded_turn(row)
                last = max(turn.seq, last + 1)  # a damaged number must not lead back
                yield turn
