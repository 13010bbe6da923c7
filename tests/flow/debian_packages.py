# SPDX-License-Identifier: Apache-2.0
"""The Debian packages of this build, made by cpack in a temporary folder."""

import glob
import os
import shutil
import subprocess
import tempfile

from prepd_flow import BIN, check

SOURCE = os.path.abspath(os.environ.get("TESSERA_SOURCE", "."))
BUILD = os.path.dirname(os.path.dirname(os.path.abspath(BIN)))


def said_by(*args, code=0, **options):
    p = subprocess.run(args, capture_output=True, text=True, **options)
    check(p.returncode == code, f"{args}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout


class Packages:
    """The packages in a temporary folder, each unpacked below its own name, with its control files in DEBIAN."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="packages")
        said_by("cpack", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", self.path)
        shutil.rmtree(self.file("_CPack_Packages"))
        self.debs = {os.path.basename(p).split("_")[0]: p for p in glob.glob(self.file("*.deb"))}
        for name, deb in self.debs.items():
            said_by("dpkg-deb", "-R", deb, self.file(name))
        return self

    def file(self, *name):
        return os.path.join(self.path, *name)

    def names(self, package):
        """Files and links of the package, by their paths."""
        return {os.path.relpath(os.path.join(at, name), self.file(package)) for at, folders, names in os.walk(self.file(package))
                for name in names + [f for f in folders if os.path.islink(os.path.join(at, f))]}

    def control(self, package, field):
        return said_by("dpkg-deb", "-f", self.debs[package], field).strip()

    def __exit__(self, *_):
        shutil.rmtree(self.path)
