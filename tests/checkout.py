"""Where the project lies that is tested."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
