"""Limits the memory that training needs, on Linux with glibc.

Elsewhere these functions do nothing.
"""

import ctypes
import os
import sys

_M_ARENA_MAX = -8  # Of malloc.h.


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
    """Returns free memory within the heap to the system."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Returns the C library if it is glibc."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None
