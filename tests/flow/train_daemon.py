# SPDX-License-Identifier: Apache-2.0
"""How a run treats a daemon that disappears, alone and as two ranks: with one that comes back the run continues after
the last row, and one that does not costs no step that was done.

train_daemon.py [KILLS]    the quick form kills the daemon 4 times, the long one as often as asked, with 0.1 to 5 s
until it is restarted; figures are printed"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

from faults import OTHER_JPEG
from prepd_flow import LIMIT_S, Daemon, Folder, Proxy, check, free_ports, main, seed, wait_for
from resume_flow import STREAM, command, ledger
from train_flow import TRAINER, has_mpi, options

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
STEPS, AWAY_S = (24, 0.8) if KILLS <= 4 else (8 * KILLS, 5.0)
MPI = has_mpi()
LAYOUTS = {"one rank": {}, "two ranks": {"nproc": 2, "training.backend": "cpu"},
           "two that share rows": {"nproc": 2, "training.backend": "cpu", "parallelism.context_parallel_degree": 2}}
FEW = {"prepd__ahead_bytes": 1048576, "checkpoint__interval": 0}  # few rows under way, and no checkpoints before the end


def start(f, name, layout, **changed):
    words = command(f, name, **changed) + options(LAYOUTS[layout])
    with open(f.file(name + ".said"), "w") as said:
        return subprocess.Popen(words, stdout=said, stderr=said)


def said(f, name):
    with open(f.file(name + ".said")) as file:
        return file.read()


def steps_done(f, name):
    return max(ledger(f, name), default=0) if os.path.exists(f.file(name + "/ledger.jsonl")) else 0


def after(f, name, p, steps):
    wait_for(lambda: p.poll() is not None or steps_done(f, name) >= steps, f"step {steps}: {said(f, name)}")
    check(p.poll() is None, f"ended before step {steps}: {said(f, name)}")


def ended(f, name, p, *codes):
    try:
        code = p.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        p.kill()
        raise AssertionError(f"it hangs: {said(f, name)}") from None
    check(code in codes, f"exit code {code}: {said(f, name)}")


def files(f, name, step):
    """Everything in a checkpoint that is the same in two equal runs."""
    at, found = f.file(f"{name}/checkpoint/step-{step}"), {}
    for folder, _, names in os.walk(at):
        for file in names:
            if file.endswith(".safetensors"):
                with open(os.path.join(folder, file), "rb") as data:
                    found[os.path.relpath(os.path.join(folder, file), at)] = data.read()
    check(found, f"nothing in {at}")
    return found


def same(f, one, other, step):
    check(ledger(f, one) == ledger(f, other), f"{one} and {other}: the ledgers differ")
    check(files(f, one, step) == files(f, other, step), f"{one} and {other}: values or moments differ")


def over(test, *layouts):
    for layout in layouts:
        if MPI or layout == "one rank":
            test(layout)
        else:
            print(f"skipped: {layout}: Open MPI was not found when this was built")


def comes_back(layout):
    rng, waits = seed(), []
    with Folder(**STREAM) as f:
        run = dict(FEW, training__steps=STEPS)
        with Daemon(f.config):
            ended(f, "quiet", start(f, "quiet", layout, **run), 0)
        daemon = Daemon(f.config)
        p = start(f, "killed", layout, **run)
        for i in range(KILLS):
            after(f, "killed", p, STEPS * i // (2 * KILLS) + 1)
            time.sleep(rng.uniform(0, 0.2))
            # One daemon in four is told to stop; the others are killed.
            daemon.stop() if i % 4 == 3 else (daemon.p.kill(), daemon.p.wait())
            waits.append(rng.uniform(0.1, AWAY_S))
            time.sleep(waits[-1])
            daemon = Daemon(f.config)
        ended(f, "killed", p, 0)
        daemon.stop()
        same(f, "quiet", "killed", STEPS)
        back = said(f, "killed").count("is back after")
        check(back >= KILLS // 2, f"{back} times: {said(f, 'killed')}")
        print(f"{layout}, {STEPS} steps: the daemon was killed {KILLS} times and away {sum(waits):.1f} s; it was "
              f"waited for {back} times")


def the_run_goes_on_with_a_daemon_that_comes_back():
    over(comes_back, "one rank", "two ranks")


def a_daemon_that_had_planned_all_epochs_comes_back():
    """It knew how many rows there are, and the next one does not yet."""
    with Folder(**dict(STREAM, **{"training.epochs": 3})) as f:
        daemon = Daemon(f.config)
        whole = client.connect("ipc://" + f.file("d.sock"), timeout=60.0)
        check(len(list(whole)) > 0, "no rows")  # read to the end, so that all epochs are planned
        whole.close()
        for n in range(5):  # a run that already has all its rows does not need the daemon any more, so it is tried again
            p = start(f, f"run-{n}", "one rank", **dict(FEW, training__steps=STEPS, training__epochs=3))
            after(f, f"run-{n}", p, 1)
            daemon.p.kill()
            daemon.p.wait()
            daemon = Daemon(f.config)
            ended(f, f"run-{n}", p, 0)
            if "is back after" in said(f, f"run-{n}"):
                break
        daemon.stop()
        check("is back after" in said(f, f"run-{n}"), said(f, f"run-{n}"))


def is_gone(layout):
    with Folder(**STREAM) as f:
        run = dict(FEW, training__steps=400, prepd__reconnect_timeout=1.5)
        daemon = Daemon(f.config)
        p = start(f, "gone", layout, **run)
        after(f, "gone", p, 3)
        daemon.p.kill()
        daemon.p.wait()
        ended(f, "gone", p, 69)
        at, words = steps_done(f, "gone"), said(f, "gone")
        check(at < 400 and f"the run ends after step {at}" in words, words)
        check(f"all {at} steps are kept in" in words and "same command again" in words, words)
        check("prepd.reconnect_timeout" in words and "waiting for it" in words, words)
        check(os.path.isdir(f.file(f"gone/checkpoint/step-{at}")), words)
        with Daemon(f.config):
            run["training__steps"] = at + 2
            ended(f, "quiet", start(f, "quiet", layout, **run), 0)
            ended(f, "gone", start(f, "gone", layout, **run), 0)
        check(f"resuming from step {at}" in said(f, "gone"), said(f, "gone"))
        same(f, "quiet", "gone", at + 2)


def a_daemon_that_is_gone_costs_no_step():
    over(is_gone, "one rank", "two ranks")


def stopped_while_it_waits(layout):
    with Folder(**STREAM) as f:
        daemon = Daemon(f.config)
        p = start(f, "stopped", layout, **FEW, training__steps=400)
        after(f, "stopped", p, 3)
        daemon.p.kill()
        daemon.p.wait()
        wait_for(lambda: "waiting for it" in said(f, "stopped"), "the trainer notices that the daemon has gone")
        at = -1
        while at != steps_done(f, "stopped"):  # until the rows that had arrived are used up
            at = steps_done(f, "stopped")
            time.sleep(2)
        p.send_signal(signal.SIGTERM)
        ended(f, "stopped", p, 0)
        at, words = steps_done(f, "stopped"), said(f, "stopped")
        check(f"stopping after step {at} as asked" in words, words)
        check(os.path.isdir(f.file(f"stopped/checkpoint/step-{at}")), words)


def a_run_that_waits_for_its_daemon_can_be_stopped():
    over(stopped_while_it_waits, "two ranks", "two that share rows")


def refused_by_name(f, name, p, why="training.seed"):
    ended(f, name, p, 78)
    at, words = steps_done(f, name), said(f, name)
    last = words.strip().splitlines()[-1]
    check(why in last and f"all {at} steps are kept" in last, words)


def a_daemon_with_another_stream_is_refused():
    """A daemon with another seed takes the place of the old one: it is refused by the option's name, and nothing is
    lost."""
    with Folder(**STREAM) as f:
        daemon = Daemon(f.config)
        p = start(f, "run", "one rank", **FEW, training__steps=400)
        after(f, "run", p, 3)
        daemon.p.kill()
        daemon.p.wait()
        with Daemon(f.config, "--training.seed", "9"):
            refused_by_name(f, "run", p)


def a_daemon_with_other_pixels_is_refused():
    """The same options, data and index, but another libjpeg: the daemon refuses the cursor, and the step is saved."""
    with Folder(**STREAM) as f:
        daemon = Daemon(f.config)
        p = start(f, "run", "one rank", **FEW, training__steps=400)
        after(f, "run", p, 3)
        daemon.p.kill()
        daemon.p.wait()
        os.environ.update(OTHER_JPEG)
        try:
            daemon = Daemon(f.config)
        finally:
            del os.environ["LD_PRELOAD"]
        with daemon:
            refused_by_name(f, "run", p, "fingerprint of images")
            at = steps_done(f, "run")
            p = start(f, "run", "one rank", **FEW, training__steps=400)
            ended(f, "run", p, 78)
            check("data.generation" in said(f, "run"), said(f, "run"))
        with Daemon(f.config):
            p = start(f, "run", "one rank", **FEW, training__steps=at + 2)
            ended(f, "run", p, 0)


def a_daemon_for_each_rank():
    """Two daemons, each of which serves one rank and refuses the other, train what one daemon trains. A list that leaves
    a rank out is refused before anything else."""
    with Folder(**STREAM) as f:
        ends = ["ipc://" + f.file(f"node{rank}") for rank in range(2)]
        lists = [",".join(f"{rank}={ends[at]}" for rank, at in order) for order in (((0, 0), (1, 1)), ((0, 1), (1, 0)))]
        p = start(f, "left out", "one rank", prepd__rank_endpoints=f"1-7={ends[0]}")
        ended(f, "left out", p, 78)
        check("prepd.rank_endpoints names no daemon for rank 0" in said(f, "left out"), said(f, "left out"))
        if not MPI:
            print("skipped: two ranks: Open MPI was not found when this was built")
            return
        run = dict(FEW, training__steps=STEPS // 4)
        with Daemon(f.config):
            ended(f, "one", start(f, "one", "two ranks", **run), 0)
        with Daemon(f.config, "--prepd.endpoint", ends[0], "--prepd.ranks", "0"), \
                Daemon(f.config, "--prepd.endpoint", ends[1], "--prepd.ranks", "1"):
            ended(f, "each", start(f, "each", "two ranks", **run, prepd__rank_endpoints=lists[0]), 0)
            ended(f, "crossed", start(f, "crossed", "two ranks", **run, prepd__rank_endpoints=lists[1]), 78)
        same(f, "one", "each", STEPS // 4)
        check("serves the ranks" in said(f, "crossed") and "(prepd.ranks)" in said(f, "crossed"), said(f, "crossed"))


def too_many_bad_samples_end_the_run():
    """The daemon's message reaches the trainer, which ends with its exit code. The run does not continue with a
    daemon that was restarted and has counted nothing yet."""
    with Folder(images=800, **dict(STREAM, **{"image.max_pixels": 4096})) as f:
        for image in f.train_images()[::12]:
            os.truncate(image, os.path.getsize(image) * 2 // 3)
        with Daemon(f.config) as daemon:
            p = start(f, "bad", "one rank", **FEW, training__steps=400)
            wait_for(lambda: daemon.p.poll() is not None or p.poll() is not None, "the end of the daemon")
            check(daemon.p.wait(LIMIT_S) == 65, f"exit code {daemon.p.returncode}: {daemon.said()}{said(f, 'bad')}")
        with Daemon(f.config):
            ended(f, "bad", p, 65)
        words = said(f, "bad")
        check("data.quarantine_limit" in words and "one of them is sample" in words, words)
        check("is back after" not in words and 0 < steps_done(f, "bad") < 400, words)


class Between:
    """Stands between trainer and daemon, and can become deaf to the trainer: rows still come, but what the trainer
    sends back stays here, until cut() ends the connection."""

    def __init__(self, f):
        self.to, self.pair, self.open = f.file("d.sock"), None, True
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(f.file("between.sock"))
        self.door.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            trainer, _ = self.door.accept()
            daemon = socket.socket(socket.AF_UNIX)
            if not self.open or daemon.connect_ex(self.to):
                trainer.close()
                daemon.close()
                if not self.open:
                    return
                continue
            self.pair, self.deaf = (trainer, daemon), False
            back = threading.Thread(target=self.pump, args=(trainer, daemon))
            back.start()
            self.pump(daemon, trainer)
            self.deaf = False
            self.end(trainer)
            back.join()
            trainer.close()
            daemon.close()

    def pump(self, one, other):
        try:
            while data := one.recv(1 << 16):
                other.sendall(data)
        except OSError:
            pass
        if not self.deaf:
            self.end(other)

    @staticmethod
    def end(connection):
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # the connection has ended already
            pass

    def turn_deaf(self):
        self.deaf = True
        self.pair[0].shutdown(socket.SHUT_RD)

    def cut(self):
        self.end(self.pair[1])

    def close(self, f):
        self.open = False
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(f.file("between.sock"))
        self.thread.join()
        self.door.close()


def credit_of_a_lost_connection_is_not_a_breach():
    """Credit that the lost connection did not deliver reaches the next one, where the trainer is unknown. That looks
    like a daemon that is gone, whether it is the same one, one of the same stream or one of another. The trainer
    notices after the rows that it still has."""
    with Folder(**STREAM) as f:
        run = dict(FEW, prepd__ahead_bytes=4 << 20, training__steps=40)
        through = dict(run, prepd__endpoint="ipc://" + f.file("between.sock"))
        daemon, between = Daemon(f.config), None
        try:
            ended(f, "quiet", start(f, "quiet", "one rank", **run), 0)
            between = Between(f)
            for name, again in (("same", None), ("anew", []), ("other", ["--training.seed", "9"])):
                p = start(f, name, "one rank", **through)
                after(f, name, p, 3)
                between.turn_deaf()
                after(f, name, p, steps_done(f, name) + 2)
                if again is not None:
                    daemon.p.kill()
                    daemon.p.wait()
                    daemon = Daemon(f.config, *again)
                    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
                between.cut()
                if name == "other":
                    refused_by_name(f, name, p)
                    continue
                ended(f, name, p, 0)
                check("is back after" in said(f, name), said(f, name))
                same(f, "quiet", name, 40)
        finally:
            if between:
                between.close(f)
            daemon.stop()


def a_proxy_outlives_its_daemon():
    """It accepts and closes at once while the daemon behind it is gone, which is not a refusal."""
    with Folder(**STREAM) as f:
        port = free_ports()
        at = ("--prepd.endpoint", f"tcp://127.0.0.1:{port}")
        daemon = Daemon(f.config, *at)
        try:
            with Proxy(port) as proxy:
                run = dict(FEW, training__steps=STEPS, prepd__endpoint=f"tcp://127.0.0.1:{proxy.port}")
                ended(f, "quiet", start(f, "quiet", "one rank", **run), 0)
                p = start(f, "run", "one rank", **run)
                after(f, "run", p, 1)
                daemon.stop(signal.SIGKILL)
                wait_for(lambda: p.poll() is not None or proxy.closed >= 3, "the trainer asks again")
                check(proxy.closed >= 3, f"only {proxy.closed} came to a proxy without a daemon")
                daemon = Daemon(f.config, *at)
                ended(f, "run", p, 0)
                check("is back after" in said(f, "run"), said(f, "run"))
                same(f, "quiet", "run", STEPS)
        finally:
            daemon.stop()


main(the_run_goes_on_with_a_daemon_that_comes_back, a_daemon_that_is_gone_costs_no_step,
     a_run_that_waits_for_its_daemon_can_be_stopped, a_daemon_with_another_stream_is_refused,
     a_daemon_with_other_pixels_is_refused, a_daemon_for_each_rank, too_many_bad_samples_end_the_run,
     credit_of_a_lost_connection_is_not_a_breach, a_proxy_outlives_its_daemon,
     a_daemon_that_had_planned_all_epochs_comes_back)
