# SPDX-License-Identifier: Apache-2.0
"""A folder that holds nothing but a Debian base system, in which commands run as on a machine of their own: by chroot, with
/proc and /dev, the network of this machine and no systemd. Needs root, debootstrap and a Debian mirror."""

import os
import shutil
import subprocess
from shlex import quote

RUN_IN = """set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
%s
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
"""
TOOLS = ("debootstrap", "unshare", "chroot")


def lacking():
    """Why there can be no such root here, or None."""
    if os.geteuid() != 0:
        return "only root can make a bare root"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    return f"no {', '.join(missing)}" if missing else None


class Root:
    def __init__(self, path):
        self.path = path

    @classmethod
    def made(cls, path, suite, base=None):
        """A new root at path. base: a root that is copied, or made first if it is not there."""
        if base and os.path.isdir(base):
            subprocess.run(["cp", "-a", base, path], check=True)
            return cls(path)
        subprocess.run(["debootstrap", "--variant=minbase", suite, base or path, "http://deb.debian.org/debian"], check=True,
                       stdout=subprocess.DEVNULL)
        with open(os.path.join(base or path, "usr/sbin/policy-rc.d"), "w") as f:
            f.write("#!/bin/sh\nexit 101\n")  # packages start no services
        os.chmod(os.path.join(base or path, "usr/sbin/policy-rc.d"), 0o755)
        return cls.made(path, suite, base) if base else cls(path)

    def file(self, name):
        return os.path.join(self.path, name.lstrip("/"))

    def words(self, *args, binds=()):
        """The command line that runs args in the root. The process becomes the command, so signals reach it. binds: pairs of
        a file or folder of this machine and where it is seen in the root."""
        mounts = []
        for here, there in binds:
            make = "mkdir -p" if os.path.isdir(here) else "touch"
            mounts.append(f"{make} {quote(self.file(there))}; mount --bind {quote(here)} {quote(self.file(there))}")
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", RUN_IN % "\n".join(mounts), "sh", self.path, *args]

    def run(self, *args, code=0, limit_s=7200, binds=()):
        """Runs a command there and returns all that it printed."""
        p = subprocess.run(self.words(*args, binds=binds), capture_output=True, text=True, errors="replace", timeout=limit_s)
        if p.returncode != code:
            raise AssertionError(f"{args}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
        return p.stdout + p.stderr

    def apt(self, *args):
        return self.run("apt-get", "-y", "-qq", "--no-install-recommends", *args)

    def files(self):
        """Every file and folder of the root by its path."""
        found = set()
        for folder, names, files in os.walk(self.path):
            at = os.path.relpath(folder, self.path)
            found |= {os.path.normpath(os.path.join("/", at, name)) for name in names + files}
        return found
