"""The project has one name. An earlier one belongs to another package, and appears nowhere."""

import base64
import re
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.errors import StandfastError
from standfast.extras import MissingExtraError, distribution_in, install

ROOT = Path(__file__).parents[2]
EARLIER = b"tsafdloh"[::-1]
BASE64 = re.compile(rb"[A-Za-z0-9+/]{12,}={0,2}")


def texts_of(content: bytes) -> list[bytes]:
    """Return a file's content, and what payloads in it say."""
    payloads = [match[0] for match in BASE64.finditer(content)]
    return [content, *(base64.b64decode(payload) for payload in payloads if len(payload) % 4 == 0)]


def test_the_earlier_name_stands_nowhere_but_in_the_changelog() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a clone")
    names = [name for name in listed.stdout.decode().split("\0") if name and name != "CHANGELOG.md"]
    assert len(names) > 100
    assert [name for name in names if EARLIER in name.lower().encode()] == []
    files = [(name, ROOT / name) for name in names if (ROOT / name).is_file()]
    assert [name for name, path in files if any(EARLIER in text.lower() for text in texts_of(path.read_bytes()))] == []


def test_what_to_install_is_said_by_the_name_under_which_the_package_was_installed(tmp_path: Path) -> None:
    assert install("mcp") == "pip install 'standfast[mcp]'"
    fork = tmp_path / "our_fork-1.0.dist-info"
    fork.mkdir()
    (fork / "METADATA").write_text("Metadata-Version: 2.1\nName: our-fork\nVersion: 1.0\n")
    (fork / "RECORD").write_text("standfast/extras.py,sha256=x,1\n")
    assert distribution_in(tmp_path) == "our-fork"


def test_a_missing_extra_is_told_as_one_line_with_the_command_that_installs_it() -> None:
    code = "import sys; sys.modules['jinja2'] = None\nimport standfast.web"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(
        "MissingExtraError: The page needs jinja2: pip install 'standfast[web]'"
    )
    assert issubclass(MissingExtraError, StandfastError)  # which commands show without a traceback
