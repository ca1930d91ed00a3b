"""Reads and changes text files, and refuses what is no text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lastgood.engine.tools.cancellation import StopSignal
from lastgood.engine.tools.rooted_files import Content, Root, read_under, write_under
from lastgood.engine.tools.tool import ToolFailed

#: A larger file is not edited: it would be read, changed and written as a whole.
EDIT_BYTES = 8 * 1024 * 1024
#: Lines are looked for in no more than this.
LINES_BYTES = 32 * 1024 * 1024
_LOOKED_AT = 8192


def read_text(root: Root, path: str, most_bytes: int) -> str:
    found = read_under(root, path, most_bytes)
    _refuse_binary(path, found)
    text = found.data.decode(errors="replace")
    if found.is_cut:
        text += f"\n[{path} has {found.size} bytes; only the first {len(found.data)} are shown]"
    return text


def read_lines(root: Root, path: str, first: int, most: int | None, most_bytes: int) -> str:
    """Some lines of a file, counted from 1."""
    found = read_under(root, path, LINES_BYTES)
    _refuse_binary(path, found)
    lines = found.data.decode(errors="replace").split("\n")
    if first > len(lines):
        raise ToolFailed(f"{path} has only {len(lines)} lines")
    last = len(lines) if most is None else min(first - 1 + most, len(lines))
    text = "\n".join(lines[first - 1 : last])
    if len(text) > most_bytes:
        text = f"{text[:most_bytes]}\n[only the first {most_bytes} characters are shown; ask for fewer lines]"
    if found.is_cut:
        text += f"\n[{path} has {found.size} bytes; lines were counted in the first {len(found.data)}]"
    elif last < len(lines):
        text += f"\n[lines {first} to {last} of {len(lines)}]"
    return text


def edit(root: Root, path: str, edits: Sequence[tuple[str, str]], stop: StopSignal) -> tuple[str, Path]:
    """All of them or none. Returns what was done, and where the file is."""
    found = read_under(root, path, EDIT_BYTES)
    if found.is_cut:
        raise ToolFailed(f"{path} has {found.size} bytes; files up to {EDIT_BYTES} can be edited")
    _refuse_binary(path, found)
    try:
        text = found.data.decode()
    except UnicodeDecodeError:
        raise ToolFailed(f"{path} is not UTF-8 text; editing it would damage it") from None
    changes = []
    for number, (old, new) in enumerate(edits, 1):
        if not old:
            raise ToolFailed(f"Edit {number} failed: oldText is empty; to write a whole file, use write_file")
        count = text.count(old)
        if count != 1:
            found_ = (
                "not found" if not count else f"found {count} times; add text around it until it is unique"
            )
            raise ToolFailed(f"Edit {number} failed: old text {found_}. Nothing was changed.")
        text = text.replace(old, new)
        changes.append(f"Edit {number}: Replaced {len(old)} characters")
    where = write_under(root, path, text.encode(), stop, expected=found.version)
    if len(changes) == 1:
        return "File edited successfully. " + changes[0].removeprefix("Edit 1: "), where
    return "File edited successfully. Changes:\n" + "\n".join(changes), where


def _refuse_binary(path: str, found: Content) -> None:
    if b"\x00" in found.data[:_LOOKED_AT]:
        raise ToolFailed(f"{path} is not a text file ({found.size} bytes); this tool reads and edits text")
