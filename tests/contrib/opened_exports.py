"""Small exports, opened once per process. Not a test."""

import functools

from bert_tf.contrib.exported import Exported, open_export
from tests.serving import small_exports


@functools.cache
def opened(kind: str) -> Exported:
    """Returns the export of one of `small_exports.KINDS`."""
    return open_export(str(small_exports.path_of(kind)))
