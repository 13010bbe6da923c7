# SPDX-License-Identifier: Apache-2.0
"""What the tests of several ranks share: how ranks are started, on however few cores."""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../flow"))
from mpirun_env import MPIRUN_ENV  # noqa: E402

BIN = os.environ.get("TESSERA_BIN", "build/bin")
TESTS = os.environ.get("TESSERA_TESTS", "build/tests")
MPIRUN = os.environ.get("TESSERA_MPIRUN", "mpirun")
LIMIT_S = 1200  # of one run
ENV = dict(MPIRUN_ENV, OPENBLAS_NUM_THREADS="1")


def check(ok, what):
    if not ok:
        raise AssertionError(what)


def kill_session(leader):
    """Kills mpirun and every rank, which mpirun puts into their own process groups."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                session = int(f.read().rsplit(")", 1)[1].split()[3])
            if session == leader:
                os.kill(int(pid), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended


def run(*words, **more):
    p = subprocess.run([str(w) for w in words], env=dict(ENV, **more), stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    check(p.returncode == 0, f"{' '.join(map(str, words))}: {p.returncode}\n{p.stdout}")
    return p.stdout
