"""Reads documents from a folder, and publishes them to another one, which a web server may serve.

`STANDFAST_DOCUMENTS` is where they are written, `STANDFAST_SITE` where readers find them.
"""

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from activities.settings import required
from standfast import Happened, NotHappened, TerminalError, tool

LARGEST = 256 * 1024


class Document(BaseModel):
    """A document as it was written."""

    path: str
    text: str


class Published(BaseModel):
    """Where readers find it."""

    path: str
    characters: int


@tool(safe_to_retry=True)
async def read_document(path: str) -> Document:
    """Read a document.

    Args:
        path: below the folder of documents.
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
    """Look whether readers see just this text."""
    target = _below(required("STANDFAST_SITE", "./site"), path)
    if target.is_file() and target.read_text("utf-8") == text:
        return Happened(Published(path=path, characters=len(text)))
    return NotHappened()


@tool(verify=is_published)
async def publish_document(path: str, text: str) -> Published:
    """Publish a document. Readers see the old text or the new one, never a half.

    Args:
        path: below the site.
    """
    target = _below(required("STANDFAST_SITE", "./site"), path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(text, "utf-8")
    draft.replace(target)
    return Published(path=path, characters=len(text))


def _below(folder: str, path: str) -> Path:
    """Return a path below a folder, and refuse one that leads out of it."""
    root = Path(folder).resolve()
    found = (root / path.lstrip("/")).resolve()
    if root not in found.parents:
        raise TerminalError(f"{path!r} leads out of {folder}")
    return found
