"""Virtual environments for what is compared with, one for each.

A peer's packages are listed in benchmarks/peers/NAME.txt. They are installed
into .venv-peer-NAME beside .venv, the first time that a benchmark needs them
and again when the list has changed.
"""

import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"


def python_of(name: str) -> str:
    """The interpreter of a peer's environment, which is made if need be."""
    packages = PEERS / f"{name}.txt"
    folder = ROOT / f".venv-peer-{name}"
    python = folder / "bin" / "python"
    installed = folder / ".installed"
    if not is_current(installed, packages):
        print(f"Installing {packages} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "-r", packages], check=True
        )
        installed.touch()
    return str(python)


def is_current(installed: pathlib.Path, packages: pathlib.Path) -> bool:
    """Whether `installed` was touched after the list was last changed."""
    return (
        installed.exists()
        and installed.stat().st_mtime >= packages.stat().st_mtime
    )
