"""Files for libraries that read local ones alone."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from bert_tf import files


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """Where on this machine a file is, or, while the block runs, its copy.

    Raises:
      InputError: A remote file cannot be read.
    """
    if not files.is_remote(path):
        yield path
        return
    _, ending = os.path.splitext(path)
    with tempfile.NamedTemporaryFile(suffix=ending) as copy:
        with files.open_read(path) as remote:
            shutil.copyfileobj(remote, copy)
        copy.flush()
        yield copy.name
