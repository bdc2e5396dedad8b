"""What a process does with its memory before it starts, and once it has started and before it answers."""

import ctypes
import gc
from contextlib import suppress

_LARGE = 4 << 20
"""Bytes. Tables and what they are made from are larger; what a batch of a thousand rows takes is about as large."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def keep_large_blocks_apart() -> None:
    """Have every large block of memory on pages of its own, which are given back when it is freed.

    By itself the C library raises its limit for that with every such block freed: a noise table then lies among what
    it was made from, in an arena that stays three times as large as the table.
    """
    with suppress(OSError, AttributeError):  # which only glibc has
        c_library = ctypes.CDLL(None)
        c_library.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        c_library.mallopt(_M_TRIM_THRESHOLD, 4 * _LARGE)  # or every batch would take its pages anew


def settle() -> None:
    """Freeze what is there now, and give the operating system back what starting took and no longer needs.

    A full collection over what start-up made was measured at over 100 ms, in which nobody is answered. Building a noise
    table leaves 7 MB of memory free, which the C library keeps unless it is told.
    """
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):  # which only glibc has
        ctypes.CDLL(None).malloc_trim(0)
