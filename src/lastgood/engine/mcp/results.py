"""What an MCP tool returned, as the text that a model reads.

Images and other binary content are saved below the session's working directory, and the text names the file.
Without a working directory the text says what was left out. Of a text that is too long, the beginning and the
end are kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from lastgood.engine.tools.cancellation import StopSignal
from lastgood.engine.tools.rooted_files import Root, write_under
from lastgood.engine.tools.tool import ToolFailed

FOLDER = "mcp-files"
#: Of one file. What is larger is not kept.
MAX_FILE_BYTES = 8 * 1024 * 1024
#: The model is shown less. The journal keeps this much, and secrets are searched in it.
MOST_CHARACTERS = 1_000_000
#: A text is cut between words, so that no secret is cut in two.
_LONGEST_WORD = 8192


def text_of(result: Any, working_dir: Path | None, scrub: Callable[[str], str] = str) -> str:
    """`result` is a CallToolResult. Raises ToolFailed if the tool reports an error. `scrub` removes secrets
    before a long text is cut."""
    pieces = [_block(block, working_dir) for block in result.content]
    text = "\n".join(piece for piece in pieces if piece)
    if not text and result.structured_content is not None:
        text = orjson.dumps(result.structured_content).decode()
    text = _cut(scrub(text))
    if result.is_error:
        raise ToolFailed(text or "the MCP tool reported an error without a text")
    return text or "<no output>"


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    head, tail = MOST_CHARACTERS * 2 // 3, len(text) - MOST_CHARACTERS // 3
    before = max(text.rfind(space, head - _LONGEST_WORD, head) for space in " \n")
    head = head if before < 0 else before
    after = [at for space in " \n" if (at := text.find(space, tail, tail + _LONGEST_WORD)) >= 0]
    tail = min(after, default=tail)
    return f"{text[:head]}\n[… {tail - head:,} characters omitted …]\n{text[tail:]}"


def _block(block: Any, working_dir: Path | None) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return _file(block.type, block.mime_type, block.data, working_dir)
        case "resource_link":
            about = f": {block.description}" if block.description else ""
            return f"[link to resource {block.name} at {block.uri}{about}]"
        case "resource":
            return _resource(block.resource, working_dir)
        case other:
            return f"[content of type {other!r}, which Lastgood cannot show]"


def _resource(resource: Any, working_dir: Path | None) -> str:
    if (text := getattr(resource, "text", None)) is not None:
        return f"[resource {resource.uri}]\n{text}"
    kind = resource.mime_type or "application/octet-stream"
    return _file(f"resource {resource.uri}", kind, resource.blob, working_dir)


def _file(what: str, mime_type: str, data: str, working_dir: Path | None) -> str:
    about = f"{what} of type {mime_type}"
    if len(data) > MAX_FILE_BYTES * 4 // 3 + 4:
        return f"[{about}, larger than {MAX_FILE_BYTES:,} bytes: not kept]"
    try:
        body = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{about}, which is not valid base64]"
    if working_dir is None:
        return f"[{about}, {len(body):,} bytes: not kept, because this session has no working directory]"
    ending = mimetypes.guess_extension(mime_type.partition(";")[0].strip()) or ".bin"
    name = f"{hashlib.sha256(body).hexdigest()[:16]}{ending}"
    try:
        # Named by its content: the same image again is the same file.
        write_under(Root(working_dir), f"{FOLDER}/{name}", body, StopSignal())
    except ToolFailed as error:
        return f"[{about}, {len(body):,} bytes: could not be saved: {error}]"
    return f"[{about}, {len(body):,} bytes, saved as {FOLDER}/{name}]"
