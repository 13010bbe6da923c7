# SPDX-License-Identifier: Apache-2.0
"""What the children of a daemon are started from, and how it knows them: by the ticket that each reads from its standard
input, and whatever lies where the daemon's own program and modules were."""

import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import zmq

from prepd_flow import BIN, LIMIT_S, Daemon, Folder, check, gone, main, run, wait_for, workers_below

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

TICKET = re.compile(rb"[0-9a-f]{32}")


def joined(f, n):
    """Waits for n workers and returns their process numbers."""
    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
    found = []

    def there():
        found[:] = [w["pid"] for w in json.loads(run("status", "-c", f.config, "--json"))["workers"] if w["local"]]
        return len(found) == n
    wait_for(there, f"{n} local workers")
    return found


def content(row):
    return hashlib.sha256(b"".join(row[name].tobytes() for name in ("input_ids", "labels", "position_ids", "pixels"))).hexdigest()


def started_by_hand(f, said):
    """What a worker says that is started as the daemon's children are, with `said` on its standard input: its first
    JOIN, or else its exit code and log."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind("ipc://" + f.file("join.sock"))
    words = [BIN, "worker", "--connect", "ipc://" + f.file("join.sock"), "--parent", str(os.getpid())]
    p = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(said)
    p.stdin.close()
    wait_for(lambda: p.poll() is not None or router.poll(20), "it joins or ends")
    found = (p.returncode, p.stderr.read().decode()) if p.poll() is not None else json.loads(router.recv_multipart()[2])
    if p.poll() is None:
        check(os.readlink(f"/proc/{p.pid}/fd/0") == "/dev/null", "its standard input is still the ticket's")
    p.kill()
    p.wait(60)
    p.stderr.close()
    context.destroy(0)
    return found


def a_child_reads_its_ticket():
    with Folder(images=48) as f:
        ticket = "0123456789abcdef" * 2
        check(started_by_hand(f, ticket.encode() + b"\n")["ticket"] == ticket, "another ticket")
        for wrong in (b"", ticket.encode(), b"x" * 32 + b"\n", ticket[:30].encode() + b"\n"):
            code, said = started_by_hand(f, wrong)
            check(code == 64 and "a ticket to its standard input; there is none" in said, f"{wrong}: {code}: {said}")


def a_ticket_shows_nowhere():
    """Not in the words or the environment of a process, nor in the status; and a worker that a user started has none."""
    with Folder(images=48) as f, Daemon(f.config) as d:
        for pid in (d.p.pid, *joined(f, 2)):
            for name in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{name}", "rb") as x:
                    check(not TICKET.search(x.read()), f"{name} of process {pid} of {d.p.pid}")
            with open(f"/proc/{pid}/comm") as x:
                check(x.read() == "prepd\n", "a process with another name")
        check("ticket" not in run("status", "-c", f.config, "--json"), "the status shows it")
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.bind("ipc://" + f.file("join.sock"))
        with subprocess.Popen([BIN, "worker", "--connect", "ipc://" + f.file("join.sock")], stderr=subprocess.DEVNULL) as p:
            said = {}
            while "build" not in said:
                said = json.loads(router.recv_multipart()[2])
            p.kill()
        check("ticket" not in said, f"a worker of a user has one: {said}")
        context.destroy(0)


def rows_of(f, n):
    rows = client.connect("ipc://" + f.file("d.sock"), timeout=60)
    got = [content(next(rows)) for _ in range(n)]
    rows.close()
    return got


def programs_of(f):
    """A copy of what is installed, and the words that run it in the place of the built one."""
    built = os.path.dirname(os.path.dirname(os.path.abspath(BIN)))
    there = f.file("installed")
    os.makedirs(there + "/bin")
    os.makedirs(there + "/lib/tessera")
    program = shutil.copy(BIN, there + "/bin/prepd")
    modules = [shutil.copy(path, there + "/lib/tessera") for path in glob.glob(built + "/lib/tessera/libprepd_*.so")]
    check(modules, "no modules")
    return program, modules, ["sh", "-c", f'shift; exec {program} "$@"', "sh"]


def whatever_is_installed_over_it():
    """Another program and other modules are put where the daemon's were, in place and by renaming, then nothing is
    there: its workers are replaced as before, and the rows are those of a quiet daemon."""
    with Folder(images=64) as f:
        program, modules, by = programs_of(f)
        with Daemon(f.config) as d:
            joined(f, 2)
            quiet = rows_of(f, 60)

        def other(path):
            with open(path + ".new", "w") as x:
                x.write("#!/bin/sh\nexit 1\n")
            os.chmod(path + ".new", 0o755)
            os.rename(path + ".new", path)

        def written_over(path):
            with open(path, "r+b") as x:  # as cp does: the file that is mapped changes
                x.write(b"\0" * os.fstat(x.fileno()).st_size)

        with Daemon(f.config, by=by) as d:
            before = joined(f, 2)
            rows = client.connect("ipc://" + f.file("d.sock"), timeout=60)
            got = [content(next(rows)) for _ in range(10)]
            for change in (lambda: [written_over(path) for path in modules], lambda: [other(path) for path in (program, *modules)],
                           lambda: [os.remove(path) for path in (program, *modules)]):
                change()
                for pid in before:
                    os.kill(pid, signal.SIGKILL)
                wait_for(lambda: all(gone(pid) for pid in before), "the killed workers are gone")  # noqa: B023
                got += [content(next(rows)) for _ in range(10)]
                before = joined(f, 2)
            got += [content(next(rows)) for _ in range(20)]
            rows.close()
            check(got == quiet, "the rows changed")
            check(d.p.poll() is None and "died at start" not in d.said() and "cannot be started" not in d.said(), d.said())
            check(len(workers_below(d.p.pid)) == 2, "two workers")


def another_decoder_is_installed_beneath_it():
    """Workers that are started then would make other rows. The daemon says what changed, the run waits, and once the
    earlier library is back the rows go on."""
    beneath = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(BIN))), "tests/libother_jpeg.so")
    with Folder(images=64) as f:
        with Daemon(f.config):
            joined(f, 2)
            quiet = rows_of(f, 40)
        with Daemon(f.config, by=["env", "LD_PRELOAD=" + f.file("library.so")]) as d:  # missing: it is ignored
            pids = joined(f, 2)
            rows = client.connect("ipc://" + f.file("d.sock"), timeout=LIMIT_S, credit_bytes=1)
            got = [content(next(rows)) for _ in range(10)]
            shutil.copy(beneath, f.file("library.so"))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: "the run waits" in d.said() or d.p.poll() is not None, "it says that it waits")
            check(d.p.poll() is None and "decodes pictures differently" in d.said(), d.said())
            os.remove(f.file("library.so"))
            got += [content(next(rows)) for _ in range(30)]
            rows.close()
            check(got == quiet, "the rows changed")
            check(d.said().count("the run waits") == 1 and d.p.poll() is None, d.said())


main(a_child_reads_its_ticket, a_ticket_shows_nowhere, whatever_is_installed_over_it,
     another_decoder_is_installed_beneath_it)
