# SPDX-License-Identifier: Apache-2.0
"""The Python package under several Pythons: pip installs it as its page says, and python_package.py tests what was installed, its
reader in numpy too, against the prepd of this machine.

    python3 -B tests/flow/python_versions.py [--certificates FILE] PYTHON.. SUITE[=BASE]..

PYTHON is the path of an interpreter here. SUITE is a Debian (bookworm, trixie, sid), whose own Python is tested in a bare root, as
root; BASE is a base system of it, which is made if it is not there. Below Python 3.11 the package reads with numpy alone.
--certificates: those of this machine, for pip in a root, if it reaches PyPI by its own certificate. Without a Python nothing is
done (exit code 77)."""

import argparse
import os
import re
import subprocess
import sys
import tempfile

from debian_root import Root, lacking
from prepd_flow import BIN, SOURCE, check

PACKAGES = ("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "pkg-config", "libzmq3-dev", "libzstd-dev", "libxxhash-dev",
            "libyajl-dev", "ca-certificates")
MOUNT = 'mount -t proc proc /host/proc && mount --rbind /dev /host/dev && exec "$@"'
PREPD = '#!/bin/sh\nexec chroot /host %s "$@"\n'  # seen from a root, this machine is at /host
SOURCE = os.path.abspath(SOURCE)


def run_here(*args, **_):
    p = subprocess.run(args, capture_output=True, text=True)
    check(p.returncode == 0, f"{args}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def tested(run, python, name, home, trust=(), around=(), binds=()):
    """Tests a Python in the folder `home`, whose bin has prepd. run(command) says what it printed; around: what comes before the
    command of the test."""
    run(python, "-m", "venv", home + "/venv")
    venv = home + "/venv/bin/python"
    version = run(venv, "-c", "import sys; print(*sys.version_info[:3], sep='.')").strip()
    native = tuple(map(int, version.split("."))) >= (3, 11)
    run("env", *trust, f"TESSERA_EXTENSION={int(native)}", venv, "-m", "pip", "install", "-q", os.path.join(SOURCE, "proto/python"),
        "pyzmq", "zstandard", "xxhash", binds=binds)
    packages = run(venv, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip()
    run("ln", "-s", packages, home + "/python")  # where python_package.py looks for what was built
    said = run(*around, "env", f"TESSERA_BIN={home}/bin", f"TESSERA_SOURCE={SOURCE}", venv, "-B",
               os.path.join(SOURCE, "tests/flow/python_package.py"), binds=[*binds, *([("/", "/host")] if around else [])])
    passed = len(re.findall(r"^ok ", said, re.M))
    check(passed >= 7 and ("skipped: the C extension" in said) == (not native), said)
    print(f"{name}: Python {version}, {'both readers' if native else 'the reader in numpy'}: {passed} tests passed", flush=True)


def of_a_debian(suite, base, certificates, folder):
    root = Root.made(os.path.join(folder, suite), suite, base)
    shared = os.path.join(folder, "shared-" + suite)  # seen by both machines under the same name
    os.mkdir(shared)
    root.apt("update")
    root.apt("install", *PACKAGES)
    os.makedirs(root.file("srv/bin"))
    with open(root.file("srv/bin/prepd"), "w") as f:
        f.write(PREPD % os.path.abspath(BIN))
    os.chmod(root.file("srv/bin/prepd"), 0o755)
    trusted = [certificates] if certificates else []
    tested(root.run, "python3", suite, "/srv", [f"PIP_CERT={c}" for c in trusted], ["sh", "-c", MOUNT, "sh", "env", f"TMPDIR={shared}"],
           [(SOURCE, SOURCE), (shared, shared), *((c, c) for c in trusted)])


def of_this_machine(python, folder):
    home = os.path.join(folder, "home" + python.replace("/", "-"))
    os.mkdir(home)
    os.symlink(os.path.dirname(os.path.abspath(BIN)), home + "/bin")
    tested(run_here, python, "here", home)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("pythons", nargs="*")
parser.add_argument("--certificates")
wanted = parser.parse_args()
suites = [name for name in wanted.pythons if not name.startswith("/")]
why = "each Python takes minutes and PyPI; naming some asks for them" if not wanted.pythons else lacking() if suites else None
if why:
    print(f"skipped: {why}")
    sys.exit(77)
with tempfile.TemporaryDirectory() as place:
    for each in wanted.pythons:
        if each in suites:
            name, _, kept = each.partition("=")
            of_a_debian(name, kept or None, wanted.certificates, place)
        else:
            of_this_machine(each, place)
