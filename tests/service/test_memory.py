"""What a process holds after large blocks of memory were used and freed."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from service import memory

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024

if sys.argv[1] == "apart":
    memory.keep_large_blocks_apart()
before = resident()
first = bytearray(b"x") * (30 << 20)
del first  # by itself the C library now keeps blocks of up to this size among the small ones, and for the process
second = bytearray(b"x") * (20 << 20)
del second
print(resident() - before)
"""


def held(how):
    program = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(program, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_large_block_that_was_freed_is_the_systems_again():
    assert held("apart") < 2 << 20
    assert held("as it comes") > 10 << 20  # or the test says nothing
