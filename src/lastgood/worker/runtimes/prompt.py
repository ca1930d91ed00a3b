"""Writes the prompt that a CLI gets: what was said before, what the model must know, and the new message.

Earlier messages are quoted line by line, so that no text in them can pass for the new message or for a note
of ours. A job without them is its prompt and nothing else, unless that looks like a command of the CLI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lastgood.worker.job import Job, Said

#: Of one prompt; the server bounds a transcript, too, by turns.
QUOTED_CHARACTERS = 400_000

_REPLAY = (
    "Below is the conversation so far, quoted with '> '. It took place before this session, perhaps with "
    "another agent on another machine. It has been answered already: use it as context."
)
_CATCH_UP = (
    "Below is what was said since you last saw this conversation, quoted with '> '. Another agent took part. "
    "It has been answered already: use it as context."
)
_NEW = "Here is the new message:"


def prompt_of(job: Job, *, with_instruction: bool = False) -> str:
    """`with_instruction`: for a CLI that has no other place for it. A resumed session has seen it before."""
    parts = [*_context(job, with_instruction)]
    return "\n\n".join((*parts, _NEW, job.prompt)) if parts else as_message(job.prompt)


def as_message(text: str) -> str:
    """Keeps a CLI from taking a message for one of its commands: `/clear` makes it forget everything."""
    return f"{_NEW}\n\n{text}" if text.lstrip().startswith("/") else text


def _context(job: Job, with_instruction: bool) -> Iterator[str]:
    if with_instruction and job.instruction and job.native_session is None:
        yield f"Instructions for this whole conversation:\n{job.instruction}"
    said, intro = (job.catch_up, _CATCH_UP) if job.native_session else (job.transcript, _REPLAY)
    if said:
        yield intro
        yield from _quoted(said)
    if job.disclosures:
        yield "\n".join(("Note:", *(f"- {fact}" for fact in job.disclosures)))


def _quoted(said: Sequence[Said]) -> Iterator[str]:
    """The newest messages that fit, oldest first. The newest is never left out, only cut."""
    kept: list[str] = []
    room = QUOTED_CHARACTERS
    for message in reversed(said):
        text = message.content
        if len(text) > room:
            if kept:
                break
            text = _cut(text, room)
        kept.append(f"{message.role.capitalize()}:\n{_quote(text)}")
        room -= len(text)
    if left_out := len(said) - len(kept):
        yield f"({left_out} earlier messages are left out here: the conversation is too long.)"
    yield from reversed(kept)


def _cut(text: str, limit: int) -> str:
    half = limit // 2
    return f"{text[:half]}\n(... {len(text) - 2 * half:,} characters are left out here ...)\n{text[-half:]}"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines()) or "> "
