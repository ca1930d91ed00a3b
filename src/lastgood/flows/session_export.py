"""A session as a document, and back.

The document carries every committed turn as it was hashed. Importing verifies the whole chain
before anything is written, then gives every turn a new id and links the chain again: the
session may come back to a server that still has the original.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson

from lastgood.core.commit import damage_of, link
from lastgood.core.input_checks import check_message, check_metadata, check_text, check_title
from lastgood.core.limits import check_import, check_rules
from lastgood.core.quotas import QuotaUsage
from lastgood.core.session_rules import KINDS, Layers, modes_of, narrowest, permissions_of
from lastgood.core.tool_permissions import is_above, narrowing
from lastgood.errors import HistoryDamaged, InvalidRequest
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.session_reader import FullSession, SessionReader
from lastgood.flows.sessions import Sessions
from lastgood.model.agents import Permissions, Safety
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Image, Message, as_json, encode, from_json
from lastgood.model.rules import RuleLayer, Setter
from lastgood.model.sessions import EncodedTurn, Head, NewSession, Session, TitleBy, Turn, TurnKind, Usage
from lastgood.time_slices import paced, paced_map

FORMAT = "lastgood.session"
VERSION = 1

_LONGEST_NAME = 4096
_PIECE_BYTES = 64 * 1024
_END_OF_TIME = 253_402_300_799  # in the year 9999, where dates end


async def document_pieces(reader: SessionReader, session: Session) -> AsyncGenerator[bytes, None]:
    """The JSON document of a session, piece by piece and in bounded memory.

    A damaged history is exported up to the damage, which the document names in `damage`; so it can be
    imported again. Any other error is raised in the middle: what was sent until then is no JSON document.
    """
    # The turns are those of the head's chain. What edits have replaced stays here, and the document says so.
    left = {"branches_not_exported": await reader.count_branches(session)}
    yield opened(_head_of_document(session) | left, "turns")
    end = b"]}"
    separator = b""
    async with aclosing(reader.stream(session)) as turns:
        async for turn in turns:
            if isinstance(turn, HistoryDamaged):
                end = b'],"damage":' + orjson.dumps(turn.message) + b"}"
                break
            # A body is stored as it is exported: the JSON array of its messages.
            front = separator + opened(_turn_as_json(turn), "messages", bracket=b"")
            separator = b","
            for piece in _sliced(front, turn.body, b"}"):
                yield piece
    yield end


def opened(plain: dict[str, Any], last: str, bracket: bytes = b"[") -> bytes:
    """A JSON object that ends where the value of its `last` key begins."""
    return orjson.dumps(plain)[:-1] + b"," + orjson.dumps(last) + b":" + bracket


def _sliced(front: bytes, body: bytes, end: bytes) -> Iterator[bytes]:
    """Pieces that a socket takes one by one, so that a slow client holds back a large turn."""
    if len(body) <= _PIECE_BYTES:
        yield front + body + end
        return
    yield front
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]
    yield end


def as_evidence(whole: FullSession) -> dict[str, Any]:
    """With every stored turn, damaged or not, for repair."""
    damage = whole.chain.damage
    turns = []
    for turn in whole.turns:
        plain = _turn_as_json(turn) | {"messages": [as_json(message) for message in turn.messages]}
        turns.append(plain | ({"damage": turn.damage} if turn.damage else {}))
    return _head_of_document(whole.session) | {"turns": turns, "damage": damage.message if damage else None}


def _head_of_document(session: Session) -> dict[str, Any]:
    permissions = permissions_of(session.rules)
    return {
        "format": FORMAT,
        "version": VERSION,
        "session": {
            "id": session.id,
            "title": session.title,
            "title_by": session.title_by.value,
            "agent_key": session.agent_key,
            "model": session.model,
            "working_dir": session.working_dir,
            "permissions": rules_as_json(permissions) if permissions else None,
            "safety": [mode.value for mode in modes_of(session.rules)],
            "starred": session.starred,
            "metadata": session.metadata,
            "created_at": session.created_at,
            "updated_at": session.updated_at,
        },
    }


def rules_as_json(rules: Permissions) -> dict[str, list[str]]:
    return {"allow": list(rules.allow), "ask": list(rules.ask), "deny": list(rules.deny)}


def _turn_as_json(turn: EncodedTurn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "seq": turn.seq,
        "parent": turn.parent,
        "attempt": turn.attempt,
        "kind": turn.kind.value,
        "hash": turn.hash.hex(),
        "agent_key": turn.agent_key,
        "agent_digest": turn.agent_digest,
        "model": turn.model,
        "decision": turn.decision,
        "usage": {
            "input_tokens": turn.usage.input_tokens,
            "output_tokens": turn.usage.output_tokens,
            "cost": turn.usage.cost,
        },
        "user": turn.user,
        "created_at": turn.created_at,
        "inputs": turn.inputs,
    }


class SessionImport:
    """A document is validated like a request: its author can compute hashes, too."""

    def __init__(self, deps: Dependencies, sessions: Sessions) -> None:
        self._deps = deps
        self._ceiling = sessions.ceiling

    async def take(self, tenant: TenantId, document: Mapping[str, Any], importer: Setter) -> Session:
        """A new session with the document's turns. InvalidRequest: it is not whole, or not ours.

        The document's rules become the importer's: its author could write any scope into it.
        """
        if document.get("format") != FORMAT:
            raise InvalidRequest(f"Not an exported session: `format` must be {FORMAT!r}")
        if document.get("version") != VERSION:
            raise InvalidRequest(f"Unsupported export version; this server reads version {VERSION}")
        id = self._deps.ids.session()
        try:
            check_import(document["turns"])
            turns = await paced_map(lambda plain: _turn_of(plain, id), document["turns"])
            new = self._new_session(id, tenant, document["session"], importer)
            broken = await paced(_damaged(turns))
        except InvalidRequest:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"Exported session cannot be read: {repr(error)[:200]}") from None
        if broken is not None:
            raise InvalidRequest(
                f"turn {broken.seq} ({broken.id}) does not match its hash; nothing was imported"
            )
        adds = QuotaUsage(1, sum(len(turn.body) for turn in turns))
        await self._deps.quotas.check(tenant, importer.token, adds)
        new = replace(new, created_by=importer.token, owner=importer.user, stored_bytes=adds.bytes)
        session = await self._deps.store.import_session(new, await paced(self._relinked(turns)))
        self._deps.quotas.add(tenant, importer.token, adds)
        return session

    def _new_session(
        self, id: SessionId, tenant: TenantId, plain: Mapping[str, Any], importer: Setter
    ) -> NewSession:
        return NewSession(
            id=id,
            tenant=tenant,
            agent_key=_text(plain["agent_key"], "the agent"),
            title=check_title(plain["title"]) if plain["title"] else "",
            title_by=TitleBy(plain["title_by"]),
            model=None if plain.get("model") is None else _text(plain["model"], "the model"),
            # Its working directory belongs to another server, so it is not imported.
            rules=self._rules(plain, importer),
            metadata=check_metadata(dict(plain.get("metadata") or {})),
        )

    def _rules(self, plain: Mapping[str, Any], importer: Setter) -> Layers:
        # A mode above our own would give it nothing, and only look as if it did.
        modes = [mode for mode in _modes(plain.get("safety")) if not is_above(mode, self._ceiling)]
        rules = narrowing(rules_of(plain.get("permissions") or {}))
        layers = [RuleLayer(importer.scope, importer.token, rules)] if rules != Permissions() else []
        # Two of them: strict and restricted hold together, and no single mode is as narrow as both.
        layers += [RuleLayer(importer.scope, importer.token, safety=mode) for mode in narrowest(modes)]
        return tuple(layers)

    def _relinked(self, turns: Sequence[Turn]) -> Generator[None, None, list[Turn]]:
        linked: list[Turn] = []
        base: Head | None = None
        for turn in turns:
            id = self._deps.ids.turn()
            linked.append(_moved(turn, id, base))
            base = linked[-1].head
            yield
        return linked


def _damaged(turns: Sequence[Turn]) -> Generator[None, None, Turn | None]:
    """The first turn that is not as it was committed; None: all are."""
    base: Head | None = None
    for turn in turns:
        if damage_of(base, turn) is not None:
            return turn
        base = turn.head
        yield
    return None


def _moved(turn: Turn, id: TurnId, base: Head | None) -> Turn:
    moved = replace(
        turn,
        id=id,
        parent=base.turn if base else None,
        decision=turn.decision | {"imported_from": turn.id},
    )
    return replace(moved, hash=link(base, moved))


def rules_of(plain: Mapping[str, Any]) -> Permissions:
    check_rules({kind: plain.get(kind) for kind in ("allow", "ask", "deny")})
    return Permissions(
        **{kind: tuple(_text(rule, "a rule") for rule in plain.get(kind) or ()) for kind in KINDS}
    )


def _modes(value: Any) -> list[Safety]:
    if value is not None and not isinstance(value, list):
        raise InvalidRequest("`safety` of an exported session must be a list of safety modes")
    return [Safety(mode) for mode in value or ()]


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise InvalidRequest(f"{what} must be a string of at most {_LONGEST_NAME} characters")
    check_text(value, what)
    return value


def _count(value: Any, what: str, most: int = 2**31) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidRequest(f"{what} must be an integer from 0 to {most}")
    return value


def _amount(value: Any, what: str, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidRequest(f"{what} must be a number from 0 to {most:.0f}")
    return float(value)


def _message_of(plain: Any, what: str) -> Message:
    message = from_json(plain)
    check_message(message, what)
    for part in message.parts:
        if isinstance(part, Image) and part.detail not in (None, "auto", "low", "high"):
            raise InvalidRequest(f"An image of {what} has an unknown `detail`")
    if message.reasoning is not None:
        for text in (message.reasoning.model, message.reasoning.text, message.reasoning.opaque):
            if not isinstance(text, str):
                raise InvalidRequest(f"The reasoning of {what} must be a string")
            check_text(text, f"the reasoning of {what}")
    return message


def _turn_of(plain: Mapping[str, Any], session: SessionId) -> Turn:
    seq = _count(plain["seq"], "the number of a turn")
    messages = tuple(_message_of(message, f"a message of turn {seq}") for message in plain["messages"])
    usage, decision = plain["usage"], dict(plain["decision"])
    _count(decision.get("left_out", 0), f"what was left out in turn {seq}")
    inputs = _count(plain["inputs"], f"the inputs of turn {seq}", len(messages))
    return Turn(
        id=TurnId(_text(plain["id"], "a turn's id")),
        session=session,
        seq=seq,
        parent=plain["parent"],
        attempt=AttemptId(_text(plain["attempt"], "an attempt's id")),
        kind=TurnKind(plain["kind"]),
        hash=bytes.fromhex(plain["hash"]),
        agent_key=_text(plain["agent_key"], "an agent"),
        agent_digest=_text(plain["agent_digest"], "a digest"),
        model=_text(plain["model"], "a model"),
        decision=decision,
        usage=Usage(
            _count(usage["input_tokens"], f"the tokens of turn {seq}"),
            _count(usage["output_tokens"], f"the tokens of turn {seq}"),
            _amount(usage["cost"], f"the cost of turn {seq}", 1e9),
        ),
        created_at=_amount(plain["created_at"], f"the time of turn {seq}", _END_OF_TIME),
        user=_text(plain.get("user", ""), "a user"),
        inputs=inputs,
        body=encode(messages),
        messages=messages,
    )
