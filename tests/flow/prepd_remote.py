"""Workers that are not the daemon's children: over tcp, with a data root of their own, that die,
miss files, or decode differently."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from prepd_flow import BIN, Daemon, Folder, check, main, run, seed, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto"))
import client  # noqa: E402


def free_ports():
    """The first of three neighbouring ports that are free now."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            first = s.getsockname()[1]
        try:
            for port in range(first, first + 3):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


class Site:
    """A daemon on tcp without local workers, and workers with a copy of the images."""

    def __init__(self, folder):
        self.folder, self.workers = folder, []
        self.port = free_ports()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.root = folder.file("copy")
        shutil.copytree(folder.file("data"), self.root, ignore=shutil.ignore_patterns(".tessera"))
        self.daemon = Daemon(folder.config, "--prepd.endpoint", self.endpoint)
        wait_for(self.answers, "the daemon answers", 60)
        wait_for(lambda: self.status()["train"]["state"] == "ready", "the index is built", 60)
        run("scale", "0", "--connect", self.endpoint)
        wait_for(lambda: not self.status()["workers"], "local workers have left")

    def status(self):
        return json.loads(run("status", "--connect", self.endpoint, "--json"))

    def answers(self):
        p = subprocess.run([BIN, "status", "--connect", self.endpoint], capture_output=True)
        return p.returncode == 0

    def worker(self, root=None, **environment):
        p = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{self.port + 1}",
                              "--data-root", root or self.root], stderr=subprocess.PIPE,
                             env={**os.environ, **environment})
        self.workers.append(p)
        return p

    def joined(self, n):
        wait_for(lambda: len(self.status()["workers"]) == n, f"{n} workers", 30)

    def stream(self, rows=48):
        """Numbers and bytes of the first rows."""
        out = []
        rows_in = client.connect(self.endpoint, timeout=60.0)
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


def mixed_and_killed():
    rng = seed()
    with Folder() as f, Site(f) as site:
        site.worker()
        site.joined(1)
        quiet = site.stream()
        site.worker()
        site.worker()
        run("scale", "1", "--connect", site.endpoint)
        site.joined(4)
        check(site.stream() == quiet, "local and remote workers give different rows")

        def kill_two():
            for p in site.workers[:2]:
                time.sleep(rng.uniform(0.02, 0.1))
                p.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill_two)
        killer.start()
        check(site.stream() == quiet, "the death of a remote worker changed the stream")
        killer.join()
        site.joined(2)


def one_that_misses_files_is_dismissed():
    with Folder() as f, Site(f) as site:
        good = site.worker()
        site.joined(1)
        quiet = site.stream()
        shutil.rmtree(f.file("copy2"), ignore_errors=True)
        os.mkdir(f.file("copy2"))
        blind = site.worker(f.file("copy2"))
        site.joined(2)
        check(site.stream() == quiet, "files that one worker misses changed the stream")
        wait_for(lambda: blind.poll() is not None, "the blind worker is dismissed")
        check(not site.status()["train"]["quarantined"], "samples were blamed")
        check(good.poll() is None, "the good one left too")


def another_decoder_is_refused():
    build = os.path.dirname(os.path.dirname(BIN))
    with Folder() as f, Site(f) as site:
        odd = site.worker(
            POISON_FINGERPRINT="1",
            TESSERA_REAL_IMAGE_MODULE=os.path.join(build, "lib/libprepd_image.so"),
            TESSERA_IMAGE_MODULE=os.path.join(build, "tests/libpoison_module.so"))
        check(odd.wait(30) == 78, "a worker with another decoder was taken")
        check(b"differ" in odd.stderr.read(), "no reason given")
        site.worker()
        site.joined(1)
        check(len(site.stream(4)) == 4, "the daemon suffered")


def it_waits_for_the_daemon_to_come_back():
    with Folder() as f, Site(f) as site:
        p = site.worker()
        site.joined(1)
        quiet = site.stream(8)
        site.daemon.stop(signal.SIGKILL)
        site.daemon = Daemon(f.config, "--prepd.endpoint", site.endpoint)
        wait_for(site.answers, "the daemon is back", 30)
        run("scale", "0", "--connect", site.endpoint)
        site.joined(1)
        check(p.poll() is None and site.stream(8) == quiet, "the worker did not come back")


main(mixed_and_killed, one_that_misses_files_is_dismissed, another_decoder_is_refused,
     it_waits_for_the_daemon_to_come_back)
