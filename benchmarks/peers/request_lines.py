"""How a benchmark and its sides talk: by lines of JSON, a request and a reply.

A side begins, once it is ready, with the versions of its packages. Each line
that it is then sent is a request, which it answers by a line. It ends with its
input.

Nothing but the standard library: it runs in every environment.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any


def serve(
    reply: Callable[[Any], dict[str, Any]], packages: Iterable[str]
) -> None:
    """Replies to what comes on standard input.

    Args:
      reply: From a request to the reply, to which `request_cpu_seconds` is
        added: what the whole of it took, of all threads.
      packages: Those whose versions matter.
    """
    # Libraries may print, too: they get the file of the errors.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        versions = {name: importlib.metadata.version(name) for name in packages}
        _say(output, {"versions": versions})
        for line in sys.stdin:
            start = time.process_time()
            answer = reply(json.loads(line))
            answer["request_cpu_seconds"] = time.process_time() - start
            _say(output, answer)


def _say(output, what: dict[str, Any]) -> None:
    output.write(json.dumps(what) + "\n")
    output.flush()
