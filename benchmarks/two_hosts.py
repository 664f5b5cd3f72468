"""Two hosts on one machine: network namespaces with a cable between them.

A process in one of them has network devices, addresses and ports of its own,
and reaches the other through the cable alone, as a host does. For that it takes
Linux, root and `ip` (Debian: iproute2).
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence


class Unavailable(Exception):
    """Hosts cannot be made here, for a reason that people can read."""


@dataclasses.dataclass(frozen=True)
class Host:
    """One of them.

    Attributes:
      name: Of its namespace.
      address: At which the other one reaches it.
    """

    name: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """A command line that runs `words` there."""
        return ["ip", "netns", "exec", self.name, *words]


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Makes them; they go when the block ends.

    Raises:
      Unavailable: They cannot be made.
    """
    if shutil.which("ip") is None:
        raise Unavailable("there is no program `ip` (Debian: iproute2)")
    if os.geteuid() != 0:
        raise Unavailable("network namespaces take root")
    first, second = hosts = tuple(
        Host(f"bert-tf-{os.getpid()}-{number}", f"10.77.0.{number}")
        for number in (1, 2)
    )
    with contextlib.ExitStack() as stack:
        for host in hosts:
            _ip("netns", "add", host.name)
            stack.callback(_ip, "netns", "delete", host.name)
        cable = ("name", "eth0", "netns")
        _ip(
            *("link", "add", *cable, first.name),
            *("type", "veth", "peer", *cable, second.name),
        )
        for host in hosts:
            inside = ("-netns", host.name)
            _ip(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip(*inside, "link", "set", device, "up")
        yield first, second


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"`ip {' '.join(words)}` says: {done.stderr.strip()}")
