"""Requests of one tenant that once held the event loop for everybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from lastgood.core.commit import link
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import assistant, encode, user
from lastgood.model.sessions import Head, Turn, TurnKind, Usage

AGENT = "builtin/scripted"


def deny_rules(count: int, length: int) -> dict[str, Any]:
    """Each fits all of a long line of the same letter but its end, and starts anew at every letter."""
    glob = "*" + "a?" * ((length - 20) // 2)
    return {"deny": [f"shell:cmd={glob}{number:04}*" for number in range(count)]}


def tiny_parts(megabytes: int) -> bytes:
    part = b'{"type":"text","text":"a"}'
    parts = b",".join([part] * (megabytes * 1_000_000 // (len(part) + 1)))
    return b'{"model":"%s","messages":[{"role":"user","content":[%s]}]}' % (AGENT.encode(), parts)


def unknown_fields(count: int) -> bytes:
    return orjson.dumps({"agent": AGENT, **{f"permission-{n:05}": n for n in range(count)}})


def document(turns: int, pairs: int, text: str) -> bytes:
    """An exported session with that many turns of so many questions and answers, hashed as a server does."""
    messages = (user("hello"), assistant(text)) * pairs
    body = encode(messages)
    plain_messages = [{"role": one.role.value, "content": one.content} for one in messages]
    base: Head | None = None
    listed: list[dict[str, Any]] = []
    for seq in range(1, turns + 1):
        turn = Turn(
            id=TurnId(f"turn_{seq}"),
            session=SessionId("s"),
            seq=seq,
            parent=base.turn if base else None,
            attempt=AttemptId(f"attempt_{seq}"),
            kind=TurnKind.RUN,
            hash=b"",
            agent_key=AGENT,
            agent_digest="sha256:0",
            model=AGENT,
            decision={},
            usage=Usage(1, 1),
            created_at=1.0,
            user="",
            inputs=1,
            body=body,
            messages=messages,
        )
        turn = replace(turn, hash=link(base, turn))
        base = turn.head
        listed.append(
            {
                "id": turn.id,
                "seq": seq,
                "parent": turn.parent,
                "attempt": turn.attempt,
                "kind": "run",
                "hash": turn.hash.hex(),
                "agent_key": AGENT,
                "agent_digest": turn.agent_digest,
                "model": AGENT,
                "decision": {},
                "usage": {"input_tokens": 1, "output_tokens": 1, "cost": 0.0},
                "created_at": 1.0,
                "inputs": 1,
                "messages": plain_messages,
            }
        )
    session = {"agent_key": AGENT, "title": "", "title_by": "nobody"}
    return orjson.dumps({"format": "lastgood.session", "version": 1, "session": session, "turns": listed})
