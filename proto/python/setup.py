# SPDX-License-Identifier: Apache-2.0
"""Builds the package tessera for pip, from a checkout of the project: the C extension is compiled from the sources of proto and
common, which CMake compiles too. Without a compiler or without the headers of a library, the package is installed
without it, reads with numpy alone, and says so when it is used.

TESSERA_EXTENSION=1 demands the extension, 0 leaves it out. Debian's packages for it: gcc libc6-dev pkg-config libzmq3-dev
libzstd-dev libxxhash-dev libyajl-dev, and python3-dev for Debian's own Python."""
import atexit
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError, LinkError

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARIES = {"libzmq": "4.3.4", "libzstd": "1.5", "libxxhash": "0", "yajl": "2"}
WANTED = os.environ.get("TESSERA_EXTENSION", "")
NUMPY_READER = ["pyzmq", "zstandard", "xxhash"]


def said_by(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def compiler():
    return os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"


def compiles():
    """Whether the compiler makes something of a smallest file. Where it does not, the packages that the reader in numpy needs
    must be known before the build begins."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "one.c"), "w", encoding="utf-8") as f:
            f.write("#include <stdlib.h>\nint one(void) { return abs(-1); }\n")
        try:
            return subprocess.run([*shlex.split(compiler()), "-c", "one.c", "-o", "one.o"], cwd=folder, capture_output=True).returncode == 0
        except OSError:
            return False


def what_is_absent():
    """Why the extension cannot be built; "" if it can."""
    if WANTED == "0":
        return "TESSERA_EXTENSION=0 left it out"
    if sys.version_info < (3, 11):
        return f"Python {platform.python_version()} is older than 3.11, whose stable interface it needs"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "a Python without the interpreter's lock has no stable interface"
    if not os.path.exists(os.path.join(ROOT, "proto", "session", "client.c")):
        return f"the project's sources are not at {ROOT}: install from a checkout"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return "Python.h is absent (Debian: python3-dev)"
    if not compiles():
        return f"there is no C compiler that works ({compiler()}; Debian: gcc libc6-dev)"
    if not shutil.which("pkg-config"):
        return "pkg-config is absent"
    absent = [name for name, version in LIBRARIES.items()
              if subprocess.run(["pkg-config", "--exists", f"{name} >= {version}"]).returncode]
    return "" if not absent else ("these libraries have no headers here: " + " ".join(absent) +
                                  " (Debian: libzmq3-dev libzstd-dev libxxhash-dev libyajl-dev)")


class Build(build_ext):
    """Where the extension cannot be compiled, leaves it out with the reason."""

    def build_extension(self, ext):
        ext.sources = sources()  # not before, since a list of what a source archive holds may not name other folders
        try:
            super().build_extension(ext)
        except (CompileError, LinkError) as error:
            if WANTED == "1":
                raise
            leave_out(self, f"it could not be compiled: {error}")

    def get_outputs(self):
        return [name for name in super().get_outputs() if os.path.exists(name)]


class Files(build_py):
    def run(self):
        super().run()
        if ABSENT and not self.editable_mode:
            leave_out(self, ABSENT)


class Wheel(bdist_wheel):
    """Without the extension, a wheel for every machine."""

    def finalize_options(self):
        self.py_limited_api = "cp311" if not ABSENT else False
        super().finalize_options()


def sources():
    """All of proto and what it may need of common, as their CMakeLists.txt list it, and the extension's own. What is not needed
    after all is left out by the linker."""
    found = [os.path.join(HERE, "extension", name) for name in sorted(os.listdir(os.path.join(HERE, "extension"))) if name.endswith(".c")]
    for part in ("proto", "common"):
        with open(os.path.join(ROOT, part, "CMakeLists.txt"), encoding="utf-8") as f:
            names = re.search(rf"add_library\(tessera_{part} STATIC(.*?)\)", f.read(), re.S)[1].split()
        found += [os.path.join(ROOT, part, name) for name in names if not name.startswith(("conf/", "tokenizer/"))]
    return found


def leave_out(command, why):
    print(f"tessera: the C extension is left out, and rows are read with numpy, at a tenth of the speed: {why}", file=sys.stderr, flush=True)
    with open(os.path.join(command.build_lib, "tessera", "absent.txt"), "w", encoding="utf-8") as f:
        f.write(why + "\n")


# Nothing is written into the checkout.
SCRATCH = tempfile.mkdtemp(prefix="tessera-build")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
ABSENT = what_is_absent()
if ABSENT and WANTED == "1":
    sys.exit(f"tessera: TESSERA_EXTENSION=1, but {ABSENT}")
with open(os.path.join(HERE, "tessera", "__init__.py"), encoding="utf-8") as f:
    VERSION = re.search(r'__version__ = "([^"]+)"', f.read())[1]
extensions = []
if not ABSENT:
    extensions = [Extension("tessera._reader", ["extension/reader.c"], py_limited_api=True, include_dirs=[ROOT],
                            define_macros=[("_GNU_SOURCE", None), ("TESSERA_VERSION", f'"{VERSION}"'), ("Py_LIMITED_API", "0x030b0000")],
                            extra_compile_args=["-std=gnu11", "-O2", "-fno-strict-aliasing", "-fvisibility=hidden", "-ffunction-sections",
                                                "-fdata-sections", "-Wno-unused-result",
                                                *said_by("pkg-config", "--cflags", *LIBRARIES)],
                            extra_link_args=[*said_by("pkg-config", "--libs", *LIBRARIES), "-lm", "-lpthread", "-Wl,--gc-sections"])]
setup(version=VERSION, options={"build": {"build_base": SCRATCH}, "egg_info": {"egg_base": SCRATCH}}, ext_modules=extensions,
      cmdclass={"build_ext": Build, "build_py": Files, "bdist_wheel": Wheel},
      install_requires=["numpy>=1.22", *(NUMPY_READER if ABSENT else [])])
