# SPDX-License-Identifier: Apache-2.0
"""A daemon on tcp whose workers are elsewhere, with a copy of its data."""

import json
import os
import shutil
import subprocess
import sys

from prepd_flow import BIN, Daemon, free_ports, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

# AddressSanitizer's handler of SIGSEGV does not say whether the signal was sent by another process; ours does.
OWN_SEGV = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0"


class Site:
    """A daemon on tcp, with keys and an index, and workers with a copy of the images. It starts its own workers only
    while something waits for a decider; none at all if the workers' key is trusted."""

    def __init__(self, folder, trusted=False):
        self.folder, self.workers = folder, []
        self.port = free_ports()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.keys, self.root = folder.file("keys"), folder.file("copy")
        self.crew = self.keys + "/crew" if trusted else self.keys  # the workers'
        run("keygen", "--out", self.keys)
        if trusted:
            run("keygen", "--out", self.keys, "--client", "crew", "--roles", "trusted")
        folder.write_options(prepd__keys=self.keys, prepd__workers=-1)
        shutil.copytree(folder.file("data"), self.root, ignore=shutil.ignore_patterns(".tessera"))
        self.start()

    def start(self):
        run("plan", "-c", self.folder.config, "--prepd.workers", "2")  # makes the index
        self.daemon = Daemon(self.folder.config, "--prepd.endpoint", self.endpoint)
        wait_for(self.answers, "the daemon answers")
        wait_for(lambda: self.status()["train"]["state"] == "ready", "the index is read")

    def again(self):
        self.daemon.__exit__()
        self.start()

    def command(self, *words):
        return run(*words, "--connect", self.endpoint, "--keys", self.keys)

    def status(self):
        return json.loads(self.command("status", "--json"))

    def answers(self):
        p = subprocess.run([BIN, "status", "--connect", self.endpoint, "--keys", self.keys], capture_output=True)
        return p.returncode == 0

    def worker(self, *args, root=None, program=BIN, **environment):
        p = subprocess.Popen([program, "worker", "--connect", f"tcp://127.0.0.1:{self.port + 1}", "--keys", self.crew,
                              "--data-root", root or self.root, *args], stderr=subprocess.PIPE,
                             env={**os.environ, "ASAN_OPTIONS": OWN_SEGV, **environment})
        self.workers.append(p)
        return p

    def remote(self):
        """The workers that the daemon did not start."""
        return [w for w in self.status()["workers"] if not w["local"]]

    def joined(self, n):
        wait_for(lambda: len(self.remote()) == n, f"{n} workers")

    def stream(self, rows=48, stream="train"):
        """Numbers and bytes of the first rows."""
        out = []
        rows_in = client.connect(self.endpoint, stream=stream, timeout=60.0, keys=self.keys)
        for row in rows_in:
            out.append((row["number"], row["pixels"].tobytes(), row["input_ids"].tobytes()))
            if len(out) == rows:
                break
        rows_in.close()
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.workers:
            if p.poll() is None:
                p.kill()
            p.wait()
            p.stderr.close()
        self.daemon.__exit__()
