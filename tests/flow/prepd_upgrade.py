# SPDX-License-Identifier: Apache-2.0
"""A fleet in which prepd is replaced by another build: workers one by one, and the daemon under its consumers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from faults import OTHER_JPEG
from prepd_flow import BIN, LIMIT_S, Daemon, Folder, check, free_ports, main
from prepd_site import Site

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

OTHER = "0123456789abcdef" * 2


def build_of(program):
    """The build id of a program."""
    out = subprocess.run([program, "fingerprint"], capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
    return dict(line.split() for line in out.splitlines())["build"]


def other_build(f):
    """A copy of prepd in the folder that calls itself another build, and has another name for an option that workers do not
    read, as if it were of later sources."""
    os.makedirs(f.file("other/bin"), exist_ok=True)
    shutil.copytree(os.path.join(os.path.dirname(os.path.dirname(BIN)), "lib/tessera"), f.file("other/lib/tessera"))
    with open(BIN, "rb") as x:
        program = x.read()
    ours = build_of(BIN).encode()
    check(program.count(ours) == 1, f"the build id is in the program {program.count(ours)} times")
    with open(f.file("other/bin/prepd"), "wb") as x:
        x.write(program.replace(ours, OTHER.encode()).replace(b"prepd.solo_deaths\0", b"prepd.solo_trials\0"))
    os.chmod(f.file("other/bin/prepd"), 0o755)
    reference = subprocess.run([f.file("other/bin/prepd"), "--reference"], capture_output=True, text=True, check=True).stdout
    check("prepd.solo_trials" in reference and "`prepd.solo_deaths`" not in reference, "the option has its name still")
    check(build_of(f.file("other/bin/prepd")) == OTHER, "the copy does not call itself another build")
    return f.file("other/bin/prepd")


def workers_one_by_one():
    """Each is ended in the middle of its work and replaced by one of the other build. No row is lost or changed, and
    the daemon shows who is of which build."""
    with Folder() as f, Site(f) as site:
        other, ours = other_build(f), build_of(BIN)
        old = [site.worker() for _ in range(3)]
        site.joined(3)
        quiet = site.stream(96)
        got = []

        def consume():
            while len(upgraded) < 3:
                got.append(site.stream(96))

        upgraded = []
        thread = threading.Thread(target=consume)
        thread.start()
        for p in old:
            time.sleep(0.3)
            p.send_signal(signal.SIGTERM)
            check(p.wait(LIMIT_S) == 0, "a worker does not leave")
            site.worker(program=other)
            site.joined(3)
            upgraded.append(p)
        thread.join(LIMIT_S)
        check(got and all(rows == quiet for rows in got), "the upgrade changed the stream")
        check(site.stream(96) == quiet, "the other build gives another stream")
        check([w["build"] for w in site.remote()] == [OTHER] * 3, site.status()["workers"])
        check(not site.status()["train"]["quarantined"] and ours != OTHER, "samples are in quarantine")


def a_build_that_makes_other_rows_is_refused():
    with Folder() as f, Site(f) as site:
        other = other_build(f)
        odd = site.worker(program=other, **OTHER_JPEG)
        check(odd.wait(LIMIT_S) == 69, "it is taken")
        check("decodes pictures differently" in odd.stderr.read().decode(), "it is not told why")
        check(not site.remote(), site.status()["workers"])


def the_daemon_under_its_consumers():
    """The next daemon, of another build, goes on at the cursor with the same rows; workers of the build before stay."""
    with Folder(**{"prepd.workers": -1}) as f:
        other, port = other_build(f), free_ports()
        end = f"tcp://127.0.0.1:{port}"
        with Daemon(f.config, "--prepd.endpoint", end, "--prepd.workers", "1"):
            whole = [(r["number"], r["pixels"].tobytes(), r["input_ids"].tobytes()) for r, _ in
                     zip(client.connect(end, timeout=LIMIT_S), range(40))]
        words = [BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}", "--data-root", f.file("data")]
        worker = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        got, cursor, pauses = [], None, 0
        daemon = Daemon(f.config, "--prepd.endpoint", end, program=BIN)
        try:
            while len(got) < 40:
                try:
                    for row in client.connect(end, timeout=10, cursor=cursor, credit_bytes=1 << 20):
                        got.append((row["number"], row["pixels"].tobytes(), row["input_ids"].tobytes()))
                        cursor = json.loads(row["cursor"])
                        if len(got) == 15 and not pauses:
                            daemon.stop()
                            daemon.log.close()
                            daemon = Daemon(f.config, "--prepd.endpoint", end, program=other)
                        if len(got) == 40:
                            break
                except (ConnectionError, client.Refused, TimeoutError):
                    pauses += 1
                    check(worker.poll() is None and pauses < 100, daemon.said())
                    time.sleep(0.2)
            check(pauses, "the consumer noticed no end of the first daemon")
            check(got == whole, "the upgrade changed the stream")
        finally:
            daemon.__exit__()
            worker.kill()
            worker.wait()


main(workers_one_by_one, a_build_that_makes_other_rows_is_refused, the_daemon_under_its_consumers)
