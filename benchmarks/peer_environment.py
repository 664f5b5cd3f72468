"""Virtual environments for what is compared with, one for each.

A peer's packages are listed in benchmarks/peers/NAME.txt. They are installed
into .venv-peer-NAME beside .venv, the first time that a benchmark needs them
and again when the list has changed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable

from places import PEERS, ROOT


def python_of(name: str, on_top: bool = False) -> str:
    """The interpreter of a peer's environment, which is made if need be.

    Args:
      name: Which list of packages.
      on_top: Whether what is not in the list is taken from the environment of
        this process; nothing else is installed then.
    """
    packages = PEERS / f"{name}.txt"
    folder = ROOT / f".venv-peer-{name}"
    python = folder / "bin" / "python"
    installed = folder / ".installed"
    if not is_current(installed, packages):
        print(f"Installing {packages} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "-q", "-r", packages]
        if on_top:
            site = sysconfig.get_path("purelib", vars={"base": str(folder)})
            below = pathlib.Path(site) / "below.pth"
            below.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
            install.append("--no-deps")
        subprocess.run(install, check=True)
        installed.touch()
    return str(python)


def quiet(folder: pathlib.Path) -> dict[str, str]:
    """Variables with which a peer fetches, tells and keeps nothing.

    Args:
      folder: For what it would keep until later.
    """
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }


def left_out(compiled: Iterable[str]) -> dict[str, str]:
    """Of the sides that torch compiles those it cannot, and why."""
    if shutil.which(os.environ.get("CXX", "g++")):
        return {}
    return dict.fromkeys(compiled, "there is no C++ compiler")


def versions_of(python: str, *packages: str) -> dict[str, str]:
    """The versions of packages that an interpreter finds."""
    program = (
        "import sys, json; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    answer = subprocess.run(
        [python, "-c", program, *packages], check=True, capture_output=True
    )
    return json.loads(answer.stdout)


def is_current(installed: pathlib.Path, packages: pathlib.Path) -> bool:
    """Whether `installed` was touched after the list was last changed."""
    return (
        installed.exists()
        and installed.stat().st_mtime >= packages.stat().st_mtime
    )
