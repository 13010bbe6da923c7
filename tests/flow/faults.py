# SPDX-License-Identifier: Apache-2.0
"""Calls that fail as on a machine in trouble (fault_shim.c), and pictures that kill the process that decodes them
(poison_module.c)."""

import contextlib
import os
import struct

from prepd_flow import BIN

BUILD = os.path.dirname(os.path.dirname(BIN))
SHIM = os.path.join(BUILD, "tests/libfault_shim.so")
ALWAYS = 1 << 30
# The environment of a worker whose libjpeg differs (other_jpeg.c).
OTHER_JPEG = {"LD_PRELOAD": os.path.join(BUILD, "tests/libother_jpeg.so")}


@contextlib.contextmanager
def trouble(f, call, error, path, times, verb="worker"):
    """The next `times` calls on files whose path contains `path` fail. Gives a function that returns how many are
    left and can set another number. verb "" means both the daemon and its workers."""
    left = f.file("left")

    def now(value=None):
        with open(left, "r+b") as x:
            if value is not None:
                x.write(struct.pack("i", value))
            x.seek(0)
            return struct.unpack("i", x.read())[0]
    with open(left, "wb") as x:
        x.write(struct.pack("i", times))
    given = {"LD_PRELOAD": SHIM, "FAULT_CALL": call, "FAULT_ERRNO": str(error), "FAULT_PATH": path, "FAULT_LEFT": left,
             "FAULT_VERB": verb}
    os.environ.update(given)
    try:
        yield now
    finally:
        for name in given:
            del os.environ[name]


@contextlib.contextmanager
def trap():
    """Workers do what the marks in their pictures say (poison_module.c)."""
    os.environ["TESSERA_REAL_IMAGE_MODULE"] = os.path.join(BUILD, "lib/tessera/libprepd_image.so")
    os.environ["TESSERA_IMAGE_MODULE"] = os.path.join(BUILD, "tests/libpoison_module.so")
    try:
        yield
    finally:
        del os.environ["TESSERA_IMAGE_MODULE"]


def sanitized():
    """The address sanitizer has to be loaded before the shim."""
    with open(BIN, "rb") as program:
        found = b"__asan_init" in program.read()
    if found:
        print("skipped: a program with the address sanitizer")
    return found
