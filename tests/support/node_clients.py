"""The protocols' official JavaScript clients, installed once for all tests, and scripts that use them."""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_FOLDER = _HERE.parent.parent / ".cache" / "doors"
_PACKAGES = ["@ag-ui/client@1.0.0", "ai@7.0.173", "openai@7.57.0"]


@functools.cache  # where npm hears nothing, it is waited for once, and not by each file of tests
def missing() -> str | None:
    """Return why there can be no such clients here; None if they are there, or have just been installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "these clients run in Node, which is missing: install Node 20 or later, with npm"
    if all((_FOLDER / "node_modules" / one.rpartition("@")[0]).is_dir() for one in _PACKAGES):
        return None
    # Installed beside, and then moved at once: several processes of a test run may want it.
    _FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="doors-", dir=_FOLDER.parent) as folder:
        command = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--no-save", *_PACKAGES]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        except subprocess.TimeoutExpired:
            return "the clients cannot be installed by npm: it has not ended in 300 seconds"
        if done.returncode != 0:
            return f"the clients cannot be installed by npm: {done.stderr[-500:]}"
        with contextlib.suppress(OSError):  # another process was quicker
            os.rename(folder, _FOLDER)
        Path(folder).mkdir(exist_ok=True)
    return None


async def run_client(script: str, tmp_path: Path, **given: Any) -> Any:
    """Run a script as a module beside the clients; return the JSON that it prints last."""
    path = tmp_path / "client.mjs"
    path.write_text(script)
    (tmp_path / "node_modules").unlink(missing_ok=True)
    (tmp_path / "node_modules").symlink_to(_FOLDER / "node_modules")
    process = await asyncio.create_subprocess_exec(
        "node", str(path), json.dumps(given), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-4_000:]
    return json.loads(out.decode().strip().splitlines()[-1])
