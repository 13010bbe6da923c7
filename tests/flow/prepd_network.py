# SPDX-License-Identifier: Apache-2.0
"""Workers on machines of their own: network namespaces, CURVE keys, links that are cut and restored, one worker that
is ten times slower, one without files, one with another decoder. The stream stays the same. Needs root and ip(8);
skipped without them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from faults import OTHER_JPEG
from prepd_flow import BIN, LIMIT_S, Daemon, Folder, check, main, run, wait_for, workers_below

if os.geteuid() != 0 or not shutil.which("ip") or subprocess.run(
        ["ip", "netns", "add", f"probe{os.getpid()}"], capture_output=True).returncode != 0:
    print("skipped: network namespaces need root and ip(8)")
    sys.exit(77)
subprocess.run(["ip", "netns", "del", f"probe{os.getpid()}"], check=True)

SOURCE = os.environ.get("TESSERA_SOURCE", ".")
BUILD = os.path.dirname(os.path.dirname(BIN))
MODULE = {"TESSERA_REAL_IMAGE_MODULE": os.path.join(BUILD, "lib/tessera/libprepd_image.so"),
          "TESSERA_IMAGE_MODULE": os.path.join(BUILD, "tests/libpoison_module.so")}
PORT = 5555
HOME = f"tcp://10.77.0.1:{PORT}"
CONSUMER = """
import hashlib, sys, time
sys.path.insert(0, sys.argv[1])
from tessera import client
h, ids, began = hashlib.sha256(), [], time.monotonic()
for row in client.connect(sys.argv[2], timeout=60.0, keys=sys.argv[3], credit_bytes=4 << 20):
    for name in ("input_ids", "labels", "pixels", "doc_sample_id"):
        h.update(row[name].tobytes())
    ids += list(row["doc_sample_id"])
print(h.hexdigest(), len(ids), len(set(ids)), time.monotonic() - began)
"""
# The same over a link that is cut: it says when it has three rows, goes on when it is told to, and connects again
# with its last cursor.
CUT_OFF = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
from tessera import client
h, ids, cursor, connections = hashlib.sha256(), [], None, 0
while connections == 0 or lost:
    lost = False
    connections += 1
    try:
        for row in client.connect(sys.argv[2], timeout=10.0, keys=sys.argv[3], credit_bytes=4 << 20, cursor=cursor):
            for name in ("input_ids", "labels", "pixels", "doc_sample_id"):
                h.update(row[name].tobytes())
            ids += list(row["doc_sample_id"])
            cursor = json.loads(row["cursor"])
            if connections == 1 and cursor["row"] == 3:
                print("three rows", flush=True)
                sys.stdin.readline()
    except client.Refused as told:
        if told.code != "ST_UNAVAILABLE":
            raise
        lost = True
    except TimeoutError:
        lost = True
print(h.hexdigest(), len(ids), len(set(ids)), connections)
"""


def ip(*args):
    p = subprocess.run(["ip", *args], capture_output=True, text=True)
    check(p.returncode == 0, f"ip {' '.join(args)}: {p.stderr}")


class Network:
    """A daemon's machine and n others, each with a cable, in namespaces that vanish at the end."""

    def __init__(self, folder, n):
        tag = f"t{os.getpid() % 100000}"
        self.folder, self.home, self.keys = folder, f"{tag}h", folder.file("keys")
        self.sites = [f"{tag}s{k}" for k in range(n)]
        self.workers = []
        run("keygen", "--out", self.keys)
        run("keygen", "--out", self.keys, "--client", "site", "--roles", "work")
        for name in (self.home, *self.sites):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.home, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.home, "addr", "add", "10.77.0.1/24", "dev", "bridge")
        ip("-n", self.home, "link", "set", "bridge", "up")
        for k, name in enumerate(self.sites):
            ip("-n", self.home, "link", "add", f"to{k}", "type", "veth", "peer", "name", "up0",
               "netns", name)
            ip("-n", self.home, "link", "set", f"to{k}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{10 + k}/24", "dev", "up0")
            ip("-n", name, "link", "set", "up0", "up")
        run("plan", "-c", folder.config)  # with an index no worker of the daemon's own has to stay
        self.daemon = Daemon(folder.config, "--prepd.endpoint", HOME, "--prepd.keys", self.keys,
                             inside=self.home)
        wait_for(lambda: self.status()["train"]["state"] == "ready", "the index is read")

    def at_home(self, *args):
        return run(*args, "--connect", HOME, "--keys", self.keys, by=["ip", "netns", "exec", self.home])

    def status(self):
        return json.loads(self.at_home("status", "--json"))

    def scale(self, n):
        self.at_home("scale", str(n))

    def remote(self):
        """The workers that the daemon did not start: it starts some while something waits for a decider."""
        return sum(not w["local"] for w in self.status()["workers"])

    def joined(self, n, limit_s=40):
        wait_for(lambda: self.remote() == n, f"{n} workers", limit_s)

    def epoch(self, where=None):
        p = subprocess.run(["ip", "netns", "exec", where or self.home, "/usr/bin/python3", "-c", CONSUMER,
                            os.path.join(SOURCE, "proto", "python"), HOME, self.keys], capture_output=True, text=True,
                           timeout=LIMIT_S)
        check(p.returncode == 0, p.stderr + self.daemon.said())
        digest, n, distinct, took_s = p.stdout.split()
        self.epoch_s = float(took_s)
        check(n == distinct and int(n) == self.status()["train"]["samples"], "not every sample came once")
        return digest

    def worker(self, k, *args, root=None, ship=False, **environment):
        """ship: it has no files and cannot see the daemon's."""
        images = self.folder.file("data/images")
        hide = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {images} && exec "$0" "$@"'] if ship else []
        files = [] if ship else ["--data-root", root or self.folder.file("data")]
        p = subprocess.Popen(["ip", "netns", "exec", self.sites[k], *hide, BIN, "worker", "--connect",
                              f"tcp://10.77.0.1:{PORT + 1}", "--keys", self.keys + "/site", *files, *args],
                             env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
        self.workers.append(p)
        return p

    def leases(self, supervisor):
        """The leases done by each of its workers that have joined."""
        pids = workers_below(supervisor.pid)
        return [w["leases"] for w in self.status()["workers"] if w["pid"] in pids]

    def cable(self, k, state):
        ip("-n", self.home, "link", "set", f"to{k}", state)

    @contextlib.contextmanager
    def cuts(self, *sites):
        """Their cables are pulled in turn, again and again."""
        stop = threading.Event()

        def cut():
            while not stop.is_set():
                for k in sites:
                    self.cable(k, "down")
                    stop.wait(4)  # longer than a lease waits for a silent worker
                    self.cable(k, "up")
                    stop.wait(1)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.workers:
            if p.poll() is None:
                p.send_signal(signal.SIGKILL)
            p.wait()
        self.daemon.__exit__()
        for name in (self.home, *self.sites):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def epochs_on_cut_links(net, quiet):
    """Two epochs, and more until a cut has met a lease on its way."""
    def met():
        said = net.status()
        return said["leases_lost"] + said["leases_taken"]
    before = met()

    def epoch_met():
        check(net.epoch() == quiet, "cut links changed the stream")
        return met() > before

    with net.cuts(0, 1):
        epoch_met()
        wait_for(epoch_met, "a lease is out on a cut link")


def beside_a_slow_one(net, quiet, fast):
    """How long an epoch takes without the slow worker and with it, and the rows by it and by the others; it stays.
    Its last rows are waited for, but if it made a third of all, the epoch would take three times as long. On a
    busy machine both are measured again."""
    for _ in range(3):
        check(net.epoch() == quiet, "remote workers give another stream")
        without, slow = net.epoch_s, net.worker(1, **MODULE, POISON_SLOW_MS="40")  # ten times slower than the others
        wait_for(lambda: sum(net.leases(slow)) > 0 or net.epoch() != quiet, "the slow worker's first row")  # noqa: B023
        before = sum(net.leases(slow)), sum(net.leases(fast))
        check(net.epoch() == quiet, "a slow worker gives another stream")
        rows = sum(net.leases(slow)) - before[0], sum(net.leases(fast)) - before[1]
        if net.epoch_s < 2 * without + 1 and 0 < rows[0] < rows[1]:
            return without, net.epoch_s, rows
        slow.terminate()
        net.joined(2)
    raise AssertionError(f"the slow worker holds the others up: an epoch in {net.epoch_s:.2f} s, in {without:.2f} s without it; "
                         f"{rows} rows by it and by the others")


def one_stream_over_a_bad_network():
    with Folder(images=256, **{"training.epochs": 1, "prepd.sample_timeout": 0.5,
                               "prepd.solo_deaths": 1}) as f, Network(f, 4) as net:
        quiet = net.epoch()  # by local workers
        net.scale(0)
        fast = net.worker(0, "--workers", "2", **MODULE, POISON_SLOW_MS="4")
        net.joined(2)
        check(net.epoch() == quiet, "remote workers give another stream")
        without, beside, rows = beside_a_slow_one(net, quiet, fast)
        epochs_on_cut_links(net, quiet)
        net.cable(0, "down")  # for longer than any keepalive lasts
        wait_for(lambda: net.remote() == 1, "the loss is noticed", 40)
        net.cable(0, "up")
        net.joined(3)
        os.mkdir(f.file("empty"))
        blind = net.worker(2, root=f.file("empty"))  # its files are not mounted
        odd = net.worker(3, **OTHER_JPEG)
        check(odd.wait(LIMIT_S) == 69, "another decoder was taken")
        wait_for(lambda: net.leases(blind) or blind.poll() is not None, "the one without files")
        check(net.epoch() == quiet, "a worker without files gives another stream")
        check(blind.wait(LIMIT_S) == 66, "the one without files was not dismissed")
        said = net.status()
        check(not said["train"]["quarantined"], f"samples were blamed: {said['train']}")
        print(f"{said['leases_lost']} leases lost, {said['lost_from_outside']} from outside; an epoch in {without:.2f} s without the slow "
              f"worker, in {beside:.2f} s with it, {rows[0]} rows of it by that one, {rows[1]} by the others")


def files_are_sent_over_a_bad_network():
    """Workers without any file, in namespaces of their own, with keys: data.ship."""
    with Folder(images=128, **{"training.epochs": 1, "prepd.sample_timeout": 0.5, "prepd.solo_deaths": 1,
                               "data.ship": "true"}) as f, Network(f, 2) as net:
        quiet = net.epoch()  # by local workers
        check(net.status()["shipped_bytes"] == 0, "local workers are sent files")
        net.scale(0)
        net.worker(0, "--workers", "2", ship=True, **MODULE, POISON_SLOW_MS="4")
        net.worker(1, ship=True, **MODULE, POISON_SLOW_MS="4")
        net.joined(3)
        check(net.epoch() == quiet, "workers that are sent files give another stream")
        once = net.status()["shipped_bytes"]
        check(once > 100000, f"only {once} bytes were sent")
        epochs_on_cut_links(net, quiet)
        said = net.status()
        check(not said["train"]["quarantined"], f"samples were blamed: {said['train']}")
        print(f"{once} bytes sent in a quiet epoch, {said['shipped_bytes'] - once} on cut links, "
              f"{said['leases_lost']} leases lost")


def compression_follows_the_link():
    with Folder(images=256, **{"training.epochs": 1}) as f, Network(f, 1) as net:
        quiet, before = net.epoch(), net.status()["leases_pressed"]
        for rate in (40, 10, 4):  # slower and slower, because a busy machine may make fewer rows than a fast link takes
            p = subprocess.run(["tc", "-n", net.home, "qdisc", "replace", "dev", "to0", "root", "tbf", "rate", f"{rate}mbit",
                                "burst", "64k", "latency", "100ms"], capture_output=True, text=True)
            check(p.returncode == 0, p.stderr)
            check(net.epoch(net.sites[0]) == quiet, "compressed rows are another stream")
            slow = net.status()["leases_pressed"] - before
            if slow > 0:
                break
        check(slow > 0, "nothing was compressed for a slow link")
        print(f"rows compressed: {before} at memory speed, {slow} at {rate} Mbit/s")


def a_consumer_that_is_cut_off():
    """Cut off in the middle of its session, it is forgotten by the daemon although nothing says that it is gone. It
    comes again with its cursor and has every row once."""
    with Folder(images=256, **{"training.epochs": 1}) as f, Network(f, 1) as net:
        quiet = net.epoch()
        p = subprocess.Popen(["ip", "netns", "exec", net.sites[0], "/usr/bin/python3", "-c", CUT_OFF, os.path.join(SOURCE, "proto", "python"),
                              HOME, net.keys], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            check(p.stdout.readline() == "three rows\n", "the consumer has no rows")
            check(len(net.status()["consumers"]) == 1, "the daemon does not know the consumer")
            net.cable(0, "down")
            wait_for(lambda: not net.status()["consumers"], "the consumer is forgotten", 60)
            net.cable(0, "up")
            said, _ = p.communicate("go on\n", timeout=LIMIT_S)
            digest, n, distinct, connections = said.split()
            check(p.returncode == 0 and connections == "2", f"exit {p.returncode}: {said}")
            check(digest == quiet and n == distinct, "the consumer got other rows")
        finally:
            p.kill()
            p.wait()


main(one_stream_over_a_bad_network, files_are_sent_over_a_bad_network, compression_follows_the_link,
     a_consumer_that_is_cut_off)
