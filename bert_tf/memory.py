"""Keeps the memory of a training small, on Linux with glibc.

Elsewhere these functions do nothing.
"""

import contextlib
import ctypes
import os
import re
import sys

# Of malloc.h and sys/mman.h.
_M_ARENA_MAX = -8
_MADV_DONTNEED = 4

# The start of a block of /proc/self/smaps about a read-only private mapping of
# a file: first and last address, permissions, offset, device, inode.
_READ_ONLY_FILE = re.compile(
    r"([0-9a-f]+)-([0-9a-f]+) r-.p \w+ \w+:\w+ [1-9]\d* "
)


def limit_heaps() -> None:
    """Makes all threads allocate from one heap, unless the user set a number.

    By default glibc has up to 8 heaps for each core. The memory of a tensor
    then returns to the heap of the thread that made it, where other threads
    cannot use it.
    """
    libc = _glibc()
    if libc and "MALLOC_ARENA_MAX" not in os.environ:
        libc.mallopt(_M_ARENA_MAX, 1)


def release() -> None:
    """Returns memory that is not in use to the system.

    This is free memory within the heap, and pages of program files, which the
    system maps again if they are used again: half of what an import of
    TensorFlow occupies is symbol tables and code that runs once.
    """
    libc = _glibc()
    if libc is None:
        return
    libc.malloc_trim(0)
    with contextlib.suppress(OSError):
        for start, end in _unchanged_files():
            libc.madvise(
                ctypes.c_void_p(start),
                ctypes.c_size_t(end - start),
                _MADV_DONTNEED,
            )


def _glibc() -> ctypes.CDLL | None:
    """Returns the C library if it is glibc."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def _unchanged_files() -> list[tuple[int, int]]:
    """Returns the addresses of mapped files that are as on the disk.

    The loader has changed others, for example to relocate addresses in them.
    """
    found, block = [], None
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if re.match(r"[0-9a-f]+-", line):
                block = _READ_ONLY_FILE.match(line)
            elif block and re.match(r"Anonymous: +0 kB", line):
                found.append((int(block[1], 16), int(block[2], 16)))
    return found
