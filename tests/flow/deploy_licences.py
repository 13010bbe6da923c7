# SPDX-License-Identifier: Apache-2.0
"""deploy/licences.md names every library that the programs and their modules link or load, and every GPL library that these
bring in; and every part has the version of CMakeLists.txt."""

import glob
import os
import re
import shutil
import subprocess
import sys

from prepd_flow import BIN, check, main

SOURCE = os.path.abspath(os.environ.get("TESSERA_SOURCE", "."))
BUILD = os.path.dirname(os.path.dirname(os.path.abspath(BIN)))


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


PAGE = read(os.path.join(SOURCE, "deploy/licences.md"))


def names_in(text):
    """The libraries in the first column of the tables of a text."""
    return {name for line in text.splitlines() if line.startswith("| `") for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def stem(soname):
    return re.sub(r"\.so(\.[0-9.]*)?$", "", soname)


def binaries():
    return [p for p in [BIN, os.path.join(os.path.dirname(BIN), "trainer"), *sorted(glob.glob(os.path.join(BUILD, "lib/tessera/*.so")))]
            if os.path.exists(p)]


def needed(path):
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return {stem(n) for n in re.findall(r"NEEDED.*\[(.+)\]", said)}


def loaded():
    """The names of libraries in our sources that are opened when a program runs."""
    found = set()
    for room in ("common", "proto", "prepd", "trainer"):
        for path in glob.glob(os.path.join(SOURCE, room, "**/*.c"), recursive=True):
            text = read(path)
            if "dlopen(" in text:
                found |= {n for n in re.findall(r'"(lib[a-zA-Z0-9_-]+)\.so', text) if not n.startswith(("libprepd_", "libtessera_"))}
    return found


def every_library_stands_on_the_page():
    direct, brought = PAGE.split("## GPL libraries that these bring in")
    listed = names_in(direct)
    linked = {name: [os.path.basename(b) for b in binaries() if name in needed(b)] for b in binaries() for name in needed(b)}
    sanitizers = {n for n in linked if re.match("lib(asan|ubsan|tsan)", n)}
    missing = {n: linked[n] for n in linked if n not in listed and n not in sanitizers}
    check(not missing, f"linked and not on deploy/licences.md: {missing}")
    check(len(loaded()) >= 4 and loaded() <= listed, f"loaded and not on deploy/licences.md: {loaded() - listed}")
    # what only a build with CUDA has, or another linker
    elsewhere = {"libstdc++", "libgcc_s", "libcuda", "libcudart", "ld-linux-x86-64", "libmpi"}
    unused = listed - set(linked) - loaded() - elsewhere
    check(not unused or not os.path.exists(os.path.join(os.path.dirname(BIN), "trainer")), f"on the page, but nothing uses it: {unused}")
    print(f"{len(linked)} libraries are linked and {len(loaded())} loaded by {len(binaries())} binaries; all are on the page")
    check(names_in(brought.split("## What this means")[0]), "the page lists no library that is brought in")


def packages_of(paths):
    """{path: package}. A path may be known to dpkg with or without /usr, or by the file that it is a link to."""
    spelled = {name: path for path in paths for name in (path, path.removeprefix("/usr"), os.path.realpath(path))}
    said = subprocess.run(["dpkg", "-S", *spelled], capture_output=True, text=True).stdout
    return {spelled[path]: package for package, path in re.findall(r"^([^:\s,]+)[^ ]*: (/\S+)$", said, re.M) if path in spelled}


def terms_of(package):
    """Of most files of the package, as Debian's copyright file has them; empty if that is not written for programs."""
    page = f"/usr/share/doc/{package}/copyright"
    found = re.search(r"^Files:\s*\*.*?^License:\s*(.*?)$", read(page), re.M | re.S) if os.path.exists(page) else None
    return found.group(1).strip() if found else ""


def gpl_libraries_that_are_brought_in_stand_there_too():
    if not shutil.which("dpkg") or not os.path.exists("/etc/debian_version"):
        print("skipped: not Debian")
        return
    section = PAGE.split("## GPL libraries that these bring in")[1].split("## What this means")[0]
    listed = names_in(section)
    innocent = set(re.findall(r"`(lib\w+)`", section)) - listed
    brought = {}
    for binary in binaries():
        said = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
        brought.update(re.findall(r"^\s*(\S+) => (/\S+)", said, re.M))
    check(len(brought) > 20, brought)
    packages = packages_of(brought.values())
    check(len(packages) > 20, packages)
    terms = {stem(name): terms_of(packages.get(path, "")) for name, path in brought.items()}
    gpl = {name: t for name, t in terms.items() if t.startswith("GPL")}
    missing = {n: t for n, t in gpl.items() if n not in listed | innocent}
    check(not missing, f"under the GPL and not on deploy/licences.md: {missing}")
    said = subprocess.run(["ldd", os.path.join(os.path.dirname(BIN), "trainer")], capture_output=True, text=True).stdout
    check(not any(name + "." in said for name in listed), f"the trainer links a library under the GPL: {said}")


def all_have_one_version():
    version = re.search(r"^project\(tessera VERSION ([0-9.]+)", read(os.path.join(SOURCE, "CMakeLists.txt")), re.M).group(1)
    check(f"## {version}" in read(os.path.join(SOURCE, "deploy/CHANGELOG.md")), f"deploy/CHANGELOG.md has no entry for {version}")
    said = subprocess.run([BIN, "--version"], capture_output=True, text=True).stdout
    check(version in said, f"prepd --version says {said!r}")
    wheel = read(os.path.join(SOURCE, "proto/python/tessera/__init__.py"))  # which is installed without CMakeLists.txt
    check(f'__version__ = "{version}"' in wheel, "the Python package has another version than CMakeLists.txt")


if not shutil.which("readelf"):
    print("skipped: no readelf")
    sys.exit(77)
main(every_library_stands_on_the_page, gpl_libraries_that_are_brought_in_stand_there_too, all_have_one_version)
