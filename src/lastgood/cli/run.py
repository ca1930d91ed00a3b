"""`lastgood run`: a turn or a chat in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import base64
import mimetypes
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lastgood.agents.sources import DirectorySource, Single, parse
from lastgood.cli.approval_prompt import terminal_prompt
from lastgood.cli.backend import Backend, check_place
from lastgood.cli.chat import Chat, Interrupts
from lastgood.cli.commands import SlashCommands
from lastgood.cli.local import LocalBackend, open_here
from lastgood.cli.output import one_line, print_line, remark
from lastgood.cli.parser import SESSION_ID, CommandParser, add_server, add_settings, configure_command
from lastgood.cli.render import JsonScreen, TextScreen
from lastgood.cli.repl import chat
from lastgood.cli.startup import settings_of
from lastgood.core.agent_identity import Missing, resolve
from lastgood.core.input_checks import check_text
from lastgood.errors import InvalidRequest, LastgoodError, TooLarge, WrongUsage
from lastgood.flows.dependencies import FlowLimits
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import After
from lastgood.model.ids import TurnId
from lastgood.model.messages import File, Image, Part, user, user_parts
from lastgood.outside.env_file import read_env_file
from lastgood.ports.engine import Engine
from lastgood.settings import Settings


def configure(parser: CommandParser) -> None:
    parser.example = "lastgood run default"
    parser.add_argument(
        "agent",
        metavar="AGENT",
        help="agent file, URL, name from lastgood.toml, or a built-in agent: default, coder, "
        "builtin/scripted (offline); with --server: the agent's name on that server",
    )
    parser.add_argument(
        "message",
        metavar="MESSAGE",
        nargs="*",
        default=[],  # without a default, argparse reports it as missing together with AGENT
        help="message to send; - reads it from standard input",
    )
    parser.add_argument(
        "--session", metavar="ID", help=f"continue this session: {SESSION_ID}; default: a new session"
    )
    parser.add_argument(
        "--after",
        metavar="TURN",
        help="replace the turns after this one (`start`: all turns) with this message; the replaced turns "
        "are kept as a branch",
    )
    parser.add_argument(
        "--model", metavar="PROVIDER/MODEL", help="use this model for this turn and every later one"
    )
    parser.add_argument(
        "--agent", metavar="NAME", dest="member", help="talk to this agent of the file's team"
    )
    parser.add_argument(
        "--attach",
        metavar="FILE",
        action="append",
        default=[],
        help="attach an image or a file; repeatable",
    )
    parser.add_argument(
        "--working-dir",
        metavar="DIR",
        type=os.path.abspath,
        help="run the tools of a new session in this directory; default: a new directory per session",
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key: sending the same message to the same session with the same key again "
        "replays the stored answer",
    )
    add_server(parser)
    add_settings(parser, "safety", "env_file", "pull_interval")
    configure_command(
        parser,
        run,
        json="print one JSON object per line: every event, then the result of the turn",
        details="Without MESSAGE, opens a chat on a terminal: Ctrl-C cancels the turn, Ctrl-D ends the chat, "
        "/help lists its commands. If standard input is a pipe or a file, reads the message from it instead.",
    )


def run(args: argparse.Namespace) -> int:
    text = _message(args.message)
    if text is None and (args.key is not None or args.attach):
        raise WrongUsage("--key and --attach need a MESSAGE, as an argument or on standard input")
    if args.after is not None and (text is None or args.session is None):
        raise WrongUsage("--after needs --session and a MESSAGE")
    check_place(args)
    return asyncio.run(_run(args, text, [_attachment(path) for path in args.attach]))


async def _run(args: argparse.Namespace, text: str | None, attached: Sequence[Part]) -> int:
    with Interrupts() as interrupts:
        if args.server is None:
            return await _here(args, text, attached, interrupts)
        return await _there(args, text, attached, interrupts)


async def _here(
    args: argparse.Namespace, text: str | None, attached: Sequence[Part], interrupts: Interrupts
) -> int:
    settings = settings_of(args)
    source = _source(args.agent, settings)
    async with open_here(settings, [source]) as app:
        key = _member(source.key, args)
        agent, _ = await app.turns.resolve(key)
        for warning in agent.warnings:
            remark(f"warning: {one_line(warning)}")
        why = None if args.model else _why_offline(app.deps.engine, agent)
        if why is not None:
            # The first answer of a session says why by itself.
            why = "" if text is not None and args.session is None else f": {why}"
            remark(f"the offline scripted model answers, which only repeats what you say{why}")
        if text is None and agent.toolsets and args.session is None:
            new = f"a new directory in {settings.work_dirs}; --working-dir names another"
            remark(f"tools work in {one_line(args.working_dir or new)}")
        commands = SlashCommands(source.key, agent, _environment(settings))
        place = LocalBackend(app, args.working_dir)
        talk = await _begin(place, key, _model_of(app.deps.engine, agent), args, interrupts, text)
        return await _talk(talk, args, text, attached, agent.welcome_message, commands)


async def _there(
    args: argparse.Namespace, text: str | None, attached: Sequence[Part], interrupts: Interrupts
) -> int:
    from lastgood.cli.remote import open_there  # an HTTP client only where it is used

    async with open_there(args) as place:
        agent = await interrupts.unless_asked(place.agent(args.agent))
        for warning in agent.warnings:
            remark(f"warning: {one_line(warning)}")
        talk = await _begin(place, _member(agent.key, args), agent.model, args, interrupts, text)
        return await _talk(talk, args, text, attached, agent.welcome_message, None)


def _environment(settings: Settings) -> Mapping[str, str]:
    """What commands find under `${env.NAME}`."""
    return {**(read_env_file(settings.env_file) if settings.env_file else {}), **os.environ}


def _why_offline(engine: Engine, agent: AgentSpec) -> str | None:
    from lastgood.engine.agent_loop import AgentLoop  # `--help` needs no engine

    return engine.why_offline(agent) if isinstance(engine, AgentLoop) else None


def _model_of(engine: Engine, agent: AgentSpec) -> str:
    from lastgood.engine.agent_loop import AgentLoop

    try:
        return engine.first_model(agent) if isinstance(engine, AgentLoop) else agent.model
    except LastgoodError:  # it has no provider or no key, as the first turn will say
        return agent.model


def _member(key: str, args: argparse.Namespace) -> str:
    return f"{key}/{args.member}" if args.member else key


async def _begin(
    place: Backend,
    key: str,
    model: str,
    args: argparse.Namespace,
    interrupts: Interrupts,
    text: str | None,
) -> Chat:
    known = None
    if args.session is not None:
        session = await interrupts.unless_asked(place.find(args.session))
        if isinstance(resolve(session.agent_key, [key]), Missing):
            own = one_line(session.agent_key) or "no agent"
            remark(f"the agent of this session was {own}; {one_line(key)} answers from now on")
        known = session.id
    screen = JsonScreen() if args.json else TextScreen(_how_to_retry(args, text))
    person = terminal_prompt(interrupts) if sys.stdin.isatty() and not args.json else None
    return Chat(place, key, model, args.model, known, screen, interrupts, person=person, goes_on=text is None)


def _how_to_retry(args: argparse.Namespace, text: str | None) -> str:
    if text is None:
        return "/retry sends the message again"
    return "" if args.session else "Continue with --session {session}"


async def _talk(
    talk: Chat,
    args: argparse.Namespace,
    text: str | None,
    attached: Sequence[Part],
    welcome: str,
    commands: SlashCommands | None,
) -> int:
    if text is None:
        code = await chat(talk, settings_of(args).data_dir, welcome, commands)
    else:
        if commands is not None and (found := commands.find(talk, text)) is not None:
            if page := commands.page(talk, found):
                print_line(page)
                return 0
            text = commands.begin(talk, found)
            if not text:
                raise WrongUsage(f"/{found.command.name} switches the agent only; add a message to send")
        message = user_parts(text, *attached) if attached else user(text)
        before = await talk.answer_waiting()
        if before is not None and (before.status == "waiting" or talk.interrupts.asked.is_set()):
            return 1
        ended = await talk.say(message, args.key, _after(args.after))
        code = 0 if ended.is_good else 1
        if not ended.is_good and ended.status != "waiting":
            return code  # its error is the only line, and names the session
    if args.session is None and talk.session is not None and not args.json:
        again = f"lastgood run {args.agent}{_where(args)} --session {talk.session}"
        remark(f"session {talk.session}; continue with: {again}")
    return code


def _where(args: argparse.Namespace) -> str:
    """The options that say where the session is; without them, the same command would not find it."""
    given = {name: getattr(args, name.replace("-", "_"), None) for name in ("server", "data-dir", "database")}
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in given.items() if value)


def _after(text: str | None) -> After | None:
    if text is None:
        return None
    check_text(text, "--after")
    return After(None if text == "start" else TurnId(text))


def _source(reference: str, settings: Settings) -> Single:
    source = parse(reference, settings.aliases)
    if isinstance(source, DirectorySource):
        raise InvalidRequest(f"{reference} is a directory; name one of its agent files")
    return source


# -- what is said --------------------------------------------------------------------


def _message(words: list[str]) -> str | None:
    """What to say; None: ask for it, line by line."""
    if words == ["-"] or (not words and not sys.stdin.isatty()):
        return _standard_input()
    return " ".join(words) if words else None


def _standard_input() -> str:
    most = FlowLimits().input_bytes
    body = sys.stdin.buffer.read(most + 1)
    if len(body) > most:
        raise TooLarge(f"standard input is larger than {most} bytes, the limit for a message")
    try:
        return body.decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"standard input is not UTF-8 text (byte {error.start + 1}); convert it to UTF-8"
        ) from None


def _attachment(path: str) -> Part:
    most = FlowLimits().input_bytes
    try:
        with Path(path).open("rb") as file:
            body = file.read(most + 1)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from None
    if len(body) > most:
        raise TooLarge(f"{path} is larger than {most} bytes, the limit for a message")
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    data = f"data:{kind};base64,{base64.b64encode(body).decode()}"
    return Image(data) if kind.startswith("image/") else File(Path(path).name, data)
