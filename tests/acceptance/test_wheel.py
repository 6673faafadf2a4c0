"""The wheel holds the library and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_the_library_its_types_and_its_licence(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    library = {str(path.relative_to(ROOT)) for path in (ROOT / "standfast").rglob("*.py")} | {"standfast/py.typed"}
    page = [path for folder in ("templates", "static") for path in (ROOT / "standfast" / "web" / folder).iterdir()]
    library |= {str(path.relative_to(ROOT)) for path in page}
    assert {name for name in names if ".dist-info/" not in name} == library
    assert {Path(name).name for name in names - library} == {
            "METADATA", "RECORD", "WHEEL", "LICENSE", "entry_points.txt"
        }  # fmt: skip
    needed = [line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert sorted(line.split("<")[0].split(">")[0] for line in needed if "extra" not in line) == [
        "click",
        "griffelib",
        "pydantic",
        "pydantic-core",
        "rich",
        "temporalio",
        "typing-extensions",
    ]
