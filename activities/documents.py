"""Reads documents from one folder, and publishes them to another, which a web server may serve.

`STANDFAST_DOCUMENTS` is the authors' folder, `STANDFAST_SITE` the readers'.
"""

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from activities.settings import required
from standfast import Happened, NotHappened, TerminalError, tool

LARGEST = 256 * 1024


class Document(BaseModel):
    """A document in its author's version."""

    path: str
    text: str


class Published(BaseModel):
    """A published document."""

    path: str
    characters: int


@tool(safe_to_retry=True)
async def read_document(path: str) -> Document:
    """Read a document.

    Args:
        path: relative to the documents folder.
    """
    source = _below(required("STANDFAST_DOCUMENTS", "./documents"), path)
    try:
        text = await asyncio.to_thread(source.read_text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TerminalError(f"{path} cannot be read: {error}") from error
    if len(text) > LARGEST:
        raise TerminalError(f"{path} has {len(text):,} characters, more than {LARGEST:,}")
    return Document(path=path, text=text)


async def is_published(path: str, text: str) -> Happened | NotHappened:
    """Check whether readers see exactly this text."""
    target = _below(required("STANDFAST_SITE", "./site"), path)
    if target.is_file() and target.read_text("utf-8") == text:
        return Happened(Published(path=path, characters=len(text)))
    return NotHappened()


@tool(verify=is_published)
async def publish_document(path: str, text: str) -> Published:
    """Publish a document. Readers see either the old text or the new text, never a mixture.

    Args:
        path: relative to the site folder.
    """
    target = _below(required("STANDFAST_SITE", "./site"), path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(text, "utf-8")
    draft.replace(target)
    return Published(path=path, characters=len(text))


def _below(folder: str, path: str) -> Path:
    """Resolve a path inside a folder; refuse one that leads outside."""
    root = Path(folder).resolve()
    found = (root / path.lstrip("/")).resolve()
    if root not in found.parents:
        raise TerminalError(f"{path!r} leads outside {folder}")
    return found
