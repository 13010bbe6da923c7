# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that cpack makes of this build: which files they hold, what they depend on, what their scripts do
without systemd. operator_walk.py installs them."""

import glob
import os
import re
import shutil
import sys

from debian_packages import BUILD, SOURCE, Packages, said_by
from prepd_flow import check, main

TRAINER = os.path.exists(os.path.join(BUILD, "bin/trainer"))
PYTHON = "usr/lib/python3/dist-packages/tessera/"
EXTENSION = os.path.exists(os.path.join(BUILD, "python/tessera/_reader.abi3.so"))
NEVER = ("gcc", "clang", "g++", "libc6-dev", "cmake", "-dev")  # what no package may depend on


def holds(p, package, wanted, beside=()):
    """The package holds these files and no others except its copyright and those in the folders `beside`."""
    there = {n for n in p.names(package) if not n.startswith("DEBIAN/")}
    wanted = {*wanted, f"usr/share/doc/{package}/copyright"}
    check(wanted <= there, f"{package} lacks {wanted - there}")
    more = {n for n in there - wanted if not n.startswith(tuple(beside))}
    check(not more, f"{package} also has {more}")


def each_file_is_in_one_package():
    with Packages() as p:
        modules = {os.path.basename(m) for m in glob.glob(os.path.join(BUILD, "lib/tessera/*.so"))}
        check(set(p.debs) == {"tessera-common", "tessera-prepd", "python3-tessera", *(["tessera-trainer"] if TRAINER else [])}, p.debs)
        holds(p, "tessera-common", ["usr/share/tessera/configs/smoke.yaml", "usr/share/doc/tessera/prepd/operating.md", "usr/share/doc/tessera/deploy/README.md"],
              beside=("usr/share/tessera/", "usr/share/doc/tessera/"))
        units = "usr/lib/systemd/system/"
        holds(p, "tessera-prepd", ["usr/bin/prepd", "usr/bin/prepd-run", "usr/share/man/man1/prepd.1", "etc/tessera/prepd.yaml",
                                   "etc/tessera/worker.env", units + "prepd.service", units + "prepd-worker@.service",
                                   units + "prep.slice", *("usr/lib/tessera/" + m for m in modules if "prepd" in m)])
        if TRAINER:
            holds(p, "tessera-trainer", ["usr/bin/trainer", "usr/share/man/man1/trainer.1", units + "trainer@.service",
                                         *("usr/lib/tessera/" + m for m in modules if "prepd" not in m)])
        holds(p, "python3-tessera", [PYTHON + name for name in ("client.py", "row_stream.py", "_reader.pyi", "py.typed",
                                                                 *(["_reader.abi3.so"] if EXTENSION else []))], beside=(PYTHON,))
        conffiles_and_dependencies(p)
        programs_run_from_there(p)
        nothing_of_the_build_is_named(p)
        scripts_cope_without_systemd(p)


def conffiles_and_dependencies(p):
    with open(p.file("tessera-prepd/DEBIAN/conffiles")) as f:
        check({line.strip().lstrip("/") for line in f} == {n for n in p.names("tessera-prepd") if n.startswith("etc/")}, "conffiles")
    version = p.control("tessera-common", "Version")
    check(p.control("tessera-common", "Architecture") == "all" and not p.control("tessera-common", "Depends"), "common")
    for package, needs, never in (("tessera-prepd", ("libvips", "libavcodec", "libzmq5", "passwd"), ("blas", "mpi")),
                                  ("tessera-trainer", ("libopenblas0", "libzmq5"), ("vips", "avcodec", "prepd")),
                                  ("python3-tessera", ("python3", "python3-numpy", "python3-zmq", "python3-zstandard", *(["libzmq5"] if EXTENSION else [])),
                                   ("vips", "blas", "prepd", "trainer"))):
        if package not in p.debs:
            continue
        depends = p.control(package, "Depends")
        names = re.findall(r"(?:^|[,|]) *([a-z0-9.+-]+)", depends)
        check((f"tessera-common (= {version})" in depends) == (package != "python3-tessera"), depends)
        check(all(any(n.startswith(x) for n in names) for x in needs), f"{package}: {depends}")
        check(not any(x in n for n in names for x in never), f"{package}: {depends}")
        check(not any(n in NEVER or n.endswith("-dev") for n in names), f"{package}: {depends}")


def programs_run_from_there(p):
    """The programs find their modules, and the units start them there."""
    with open(p.file("tessera-prepd/usr/lib/systemd/system/prepd.service")) as f:
        unit = f.read()
    check("ExecStart=/usr/bin/prepd serve" in unit and "@prefix@" not in unit, unit)
    made = p.file("made")
    said_by(p.file("tessera-prepd/usr/bin/prepd"), "synth", "--out", made, "--images", "8", "--seed", "1", "--sizes", "small")
    said = said_by(p.file("tessera-prepd/usr/bin/prepd"), "check", "--data.path", made, "--model.path", made + "/model",
                   "--training.seq_len", "512", "--prepd.cache_dir", p.file("cache"))
    check("0 bad" in said, said)
    at = said_by("/usr/bin/python3", "-B", "-c", "import tessera.row_readers as r; print(r.__file__, bool(r._reader))",
                 env=dict(os.environ, PYTHONPATH=p.file("python3-tessera", os.path.dirname(PYTHON.rstrip("/")))))
    check(at == f"{p.file('python3-tessera', PYTHON)}row_readers.py {EXTENSION}\n", at)
    if TRAINER:
        said_by(p.file("tessera-trainer/usr/bin/trainer"), "plan", "--model.path", made + "/model", "--training.seq_len", "512")


def nothing_of_the_build_is_named(p):
    for package in p.debs:
        for name in p.names(package):
            if os.path.islink(p.file(package, name)):
                check(not os.readlink(p.file(package, name)).startswith("/"), f"{name} is an absolute link")
                continue
            with open(p.file(package, name), "rb") as f:
                text = f.read()
            for folder in (BUILD, SOURCE):
                check(folder.encode() not in text, f"{package}: {name} names {folder}")
            check(b".debug_info" not in text, f"{package}: {name} is not stripped")


def scripts_cope_without_systemd(p):
    """Each script of a package succeeds where systemd does not run, with the words that dpkg gives it. Those that make
    users or delete folders are run by the walk alone."""
    if os.path.isdir("/run/systemd/system"):
        print("skipped: systemd runs here")
        return
    for package, script, words in (("tessera-prepd", "prerm", "remove"), ("tessera-prepd", "postrm", "remove"),
                                   ("tessera-trainer", "postinst", "configure"), ("tessera-trainer", "prerm", "remove"),
                                   ("tessera-trainer", "postrm", "purge")):
        if package in p.debs:
            said = said_by("/bin/sh", p.file(package, "DEBIAN", script), words)
            check(not said, f"{package} {script}: {said}")


missing = [tool for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file") if not shutil.which(tool)]
if missing:
    print(f"skipped: no {', '.join(missing)}")
    sys.exit(77)
main(each_file_is_in_one_package)
