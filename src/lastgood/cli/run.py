"""`lastgood run`: a turn or a chat in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import base64
import mimetypes
import sys
from pathlib import Path

from lastgood.agents.sources import DirectorySource, Single, parse
from lastgood.cli.chat import chat
from lastgood.cli.opening import session_of, settings_of
from lastgood.cli.output import complain, remark
from lastgood.cli.screens import JsonLines, Text
from lastgood.cli.talk import Interrupts, Talk, is_good
from lastgood.core.identity import Missing, resolve
from lastgood.errors import InvalidRequest, TooLarge
from lastgood.flows.parts import Limits
from lastgood.model.messages import File, Image, Message, Part, user, user_parts
from lastgood.settings import Settings
from lastgood.wiring import open_lastgood


def run(args: argparse.Namespace) -> int:
    text = _message(args.message)
    if text is None and (args.key is not None or args.attach):
        complain("--key and --attach belong to one message; give MESSAGE, or pipe it in")
        return 2
    return asyncio.run(_run(args, text))


async def _run(args: argparse.Namespace, text: str | None) -> int:
    message = None if text is None else _with_attachments(text, args.attach)
    settings = settings_of(args)
    source = _source(args.agent, settings)
    with Interrupts() as interrupts:
        async with open_lastgood(settings, [source]) as app:
            key = f"{source.key}/{args.member}" if args.member else source.key
            agent, _ = await app.turns.resolve(key)
            for warning in agent.warnings:
                remark(f"warning: {warning}")
            session = await session_of(app.sessions, args.session) if args.session is not None else None
            screen = JsonLines() if args.json else Text()
            known = session.id if session else None
            if session is not None and isinstance(resolve(session.agent_key, [key]), Missing):
                remark(f"this session belongs to {session.agent_key}; {key} answers now")
            talk = Talk(app, key, args.model, args.working_dir, known, screen, interrupts)
            if message is None:
                code = await chat(talk, agent)
            else:
                code = 0 if is_good(await talk.say(message, args.key)) else 1
            if session is None and talk.session is not None and not args.json:
                again = f"lastgood run {args.agent} --session {talk.session} …"
                remark(f"session {talk.session}; go on with: {again}")
            return code


def _source(reference: str, settings: Settings) -> Single:
    source = parse(reference, settings.aliases)
    if isinstance(source, DirectorySource):
        raise InvalidRequest(f"{reference} is a folder; name one of the agent files in it")
    return source


# -- what is said --------------------------------------------------------------------


def _message(words: list[str]) -> str | None:
    """What to say; None: ask for it, line by line."""
    if words == ["-"] or (not words and not sys.stdin.isatty()):
        return _standard_input()
    return " ".join(words) if words else None


def _standard_input() -> str:
    most = Limits().input_bytes
    body = sys.stdin.buffer.read(most + 1)
    if len(body) > most:
        raise TooLarge(f"standard input has more than {most} bytes, and no message may; send less")
    try:
        return body.decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"standard input is not UTF-8 text (byte {error.start + 1}); convert it and send it again"
        ) from None


def _with_attachments(text: str, paths: list[str]) -> Message:
    return user_parts(text, *map(_attachment, paths)) if paths else user(text)


def _attachment(path: str) -> Part:
    most = Limits().input_bytes
    try:
        with Path(path).open("rb") as file:
            body = file.read(most + 1)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from None
    if len(body) > most:
        raise TooLarge(f"{path} has more than {most} bytes, and no message may; send less")
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    data = f"data:{kind};base64,{base64.b64encode(body).decode()}"
    return Image(data) if kind.startswith("image/") else File(Path(path).name, data)
