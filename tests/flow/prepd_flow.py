# SPDX-License-Identifier: Apache-2.0
"""What the flow tests of prepd share: a synthetic data set, commands, a daemon, processes."""

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

BIN = os.path.join(os.environ.get("TESSERA_BIN", "build/bin"), "prepd")
SOURCE = os.environ.get("TESSERA_SOURCE", ".")
SANITIZED = "asan" in os.environ.get("TESSERA_BIN", "")  # a sanitizer uses its own memory and handles signals
LIMIT_S = int(os.environ.get("TESSERA_LIMIT_S", "600"))  # for one command or wait; only what hangs reaches it
BUSY_S = 60  # what takes a moment takes no longer where there is no core for it


class Folder:
    """A temporary folder with a data set in it, which is removed at the end."""

    def __init__(self, images=128, seed=1, **options):
        self.path = tempfile.mkdtemp(prefix="flow")
        run("synth", "--out", self.file("data"), "--images", str(images), "--seed", str(seed))
        self.config = self.file("config.yaml")
        lines = {"model.path": self.file("data/model"), "data.path": self.file("data"),
                 "training.seq_len": 512, "training.global_batch_size": 4, "prepd.workers": 2,
                 "prepd.endpoint": "ipc://" + self.file("d.sock")}
        self.options = {**lines, **options}
        self.write_options()

    def write_options(self, **more):
        """The configuration again, with these options changed (prepd__workers=3)."""
        self.options.update({key.replace("__", "."): value for key, value in more.items()})
        with open(self.config, "w") as f:
            sections = {}
            for key, value in self.options.items():
                section, name = key.split(".", 1)
                sections.setdefault(section, []).append((name, value))
            for section, rows in sections.items():
                f.write(section + ":\n")
                for name, value in rows:
                    f.write(f"  {name}: {value}\n")

    def file(self, name):
        return os.path.join(self.path, name)

    def without_workers(self):
        """Words by which a daemon on ipc starts no worker, not even one that decides: it leaves all to a trusted key, whose
        machine never comes."""
        keys = self.file("keys")
        if not os.path.exists(keys):
            run("keygen", "--out", keys)
            run("keygen", "--out", keys, "--client", "crew", "--roles", "trusted")
        return ["--prepd.workers", "-1", "--prepd.keys", keys]

    def train_images(self):
        folder = self.file("data/images/train2014")
        if not os.path.isdir(folder):
            folder = next(d for d, _, files in os.walk(self.file("data"))
                          if any("train2014" in f and f.endswith(".jpg") for f in files))
        return sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".jpg"))

    def questions_of(self, image):
        """Positions in the data set of the questions about this picture."""
        with open(self.file("data/v2_OpenEnded_mscoco_train2014_questions.json")) as f:
            questions = json.load(f)["questions"]
        number = int(os.path.basename(image).rsplit("_", 1)[1].split(".")[0])
        return [i for i, q in enumerate(questions) if q["image_id"] == number]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)


UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def open_to_others(f):
    """Gives the folder to the user of UNPRIVILEGED; returns False, and prints why, if that user cannot reach it."""
    subprocess.run(["chown", "-R", "65534:65534", f.path], check=True)
    above = os.path.dirname(f.path)  # tests/run makes this folder, which only root may enter
    os.chmod(above, os.stat(above).st_mode | 0o011)
    # A shell lists it, because setpriv still has root's rights when it looks for a program.
    if subprocess.run([*UNPRIVILEGED, "sh", "-c", 'ls "$0"', f.path], capture_output=True).returncode == 0:
        return True
    print(f"skipped: {above}, where temporary files go, lies where only root may enter")
    return False


def unprivileged(f):
    """What to put before a command line of prepd so that a user without rights runs it, who owns the folder from now
    on; None, with the reason printed, if that is not possible. The programs are copied into the folder, since the
    build may be where only root can enter; a shell without rights starts the copy."""
    if os.geteuid() != 0:
        print("skipped: only root can become another user")
        return None
    here, there = os.path.dirname(os.path.dirname(os.path.abspath(BIN))), f.file("programs")
    shutil.copytree(os.path.join(here, "lib/tessera"), os.path.join(there, "lib/tessera"), ignore=lambda _, names: [
        n for n in names if not n.startswith("libprepd_")])
    os.mkdir(os.path.join(there, "bin"))
    copy = shutil.copy(BIN, os.path.join(there, "bin"))
    leaks = shutil.copy(os.path.join(SOURCE, "tests/lsan.supp"), there)  # a sanitizer ends a program that cannot read this file
    if not open_to_others(f):
        return None
    return [*UNPRIVILEGED, "env", f"LSAN_OPTIONS=suppressions={leaks}:print_suppressions=0",
            "sh", "-c", f'exec {shlex.quote(copy)} "$@"']


def busy(verb, p):
    """Whether a daemon did not answer this question in time."""
    return verb in ("status", "scale") and p.returncode == 69 and "no daemon answered within" in p.stderr


def run(*args, code=0, by=()):
    """Runs prepd by a command that becomes it, and returns stdout. Any other exit code fails the test with all that
    was said."""
    end = time.monotonic() + BUSY_S
    while True:
        p = subprocess.run([*by, BIN, *args], capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
        if code != 0 or not busy(args[0], p) or time.monotonic() > end:
            break
    check(p.returncode == code,
          f"prepd {' '.join(args)}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout if code == 0 else p.stdout + p.stderr


def listed(out):
    """The lines of check as {number: cause}."""
    rows = [line.split("\t") for line in out.splitlines() if line.count("\t") == 3]
    return {int(r[0]): r[3] for r in rows}


def digest(config, *args):
    last = run("digest", "-c", config, *args).strip().splitlines()[-1]
    check(len(last) == 32 and all(c in "0123456789abcdef" for c in last), f"no digest: {last!r}")
    return last


def check(ok, message):
    if not ok:
        raise AssertionError(message)


def free_ports():
    """The first of three consecutive ports that are free now, from those that the kernel never assigns by itself."""
    while True:
        first = random.SystemRandom().randrange(10000, 32000)
        try:
            for port in range(first, first + 3):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(c) for c in f.read().split()]
    except OSError:
        return []


def below(pid):
    return [p for child in children(pid) for p in (child, *below(child))]


def kill_below(pid):
    for p in below(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(p, signal.SIGKILL)


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().decode().split("\0")
    except OSError:
        return []


def workers_below(pid):
    """Worker processes anywhere below pid. A process below a worker does not count although it has its name: it is a
    sanitizer that looks for leaks."""
    found = []
    for child in children(pid):
        words = command_line(child)
        if "worker" in words[1:2]:
            found.append(child)
        if "worker" not in words[1:2] or "--parent" not in words:
            found += workers_below(child)
    return found


def state_of(pid):
    """The letter of its state, as ps shows it."""
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def gone(pid):
    """True once the process has ended (a zombie only waits for its parent)."""
    try:
        return state_of(pid) == "Z"
    except OSError:
        return True


def text_of(path):
    """What a process has written there so far: nothing, while there is no such file."""
    try:
        with open(path) as f:
            return f.read()
    except FileNotFoundError:
        return ""


def wait_for(what, message, limit_s=LIMIT_S, every_s=0.02):
    """Asks until it is so. Where asking takes long, because it starts a process on a busy machine or under a sanitizer,
    it asks less often: otherwise it takes the processor from what it waits for."""
    end = time.monotonic() + limit_s
    asked = time.monotonic()
    while not what():
        now = time.monotonic()
        check(now < end, f"not within {limit_s} s: {message}")
        time.sleep(max(every_s, min(2 * (now - asked), 0.1)))
        asked = time.monotonic()


class Daemon:
    """prepd serve, until stop() or the end of the block."""

    def __init__(self, config, *args, inside=None, by=(), program=BIN):
        """inside: a network namespace. by: a command that replaces itself by the daemon, as ip netns exec does."""
        self.log = tempfile.TemporaryFile("w+")
        where = ["ip", "netns", "exec", inside] if inside else by
        self.p = subprocess.Popen([*where, program, "serve", "-c", config, *args], stderr=self.log)

    def said(self):
        # Not read(), which would move the offset at which the daemon writes.
        log = self.log.fileno()
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    def stop(self, sig=signal.SIGTERM, limit_s=60):
        self.p.send_signal(sig)
        try:
            return self.p.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.p.kill()
            raise AssertionError(f"the daemon did not stop in {limit_s} s\n{self.said()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.stop()
        self.log.close()


def scale(f, d, workers):
    """Changes the number of local workers in the file of a daemon that takes no command for that: on loopback, without
    keys."""
    f.write_options(prepd__workers=workers or -1)
    times = d.said().count("reloaded options=")
    d.p.send_signal(signal.SIGHUP)
    wait_for(lambda: d.said().count("reloaded options=") > times, f"{workers} workers wanted: {d.said()}")


class Proxy:
    """Stands before a port of this machine as ssh -L and docker-proxy do: it accepts whether or not anything listens
    behind it, and then closes."""

    def __init__(self, behind):
        self.behind, self.open, self.closed, self.ends = behind, True, 0, []
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self):
        while self.open:
            peer, _ = self.door.accept()
            try:
                daemon = socket.create_connection(("127.0.0.1", self.behind))
            except OSError:
                self.closed += 1
                peer.close()
                continue
            self.ends += [peer, daemon]
            for one, other in ((peer, daemon), (daemon, peer)):
                self.threads.append(threading.Thread(target=self.pump, args=(one, other)))
                self.threads[-1].start()

    @staticmethod
    def cut(*ends):
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def pump(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        self.cut(one, other)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open = False
        socket.create_connection(("127.0.0.1", self.port)).close()
        self.threads[0].join()
        self.cut(*self.ends)
        for thread in self.threads[1:]:
            thread.join()
        for end in (self.door, *self.ends):
            end.close()


def seed():
    value = int(os.environ.get("TESSERA_SEED", "1"))
    print(f"TESSERA_SEED={value}")
    return random.Random(value)


def main(*tests):
    """Runs the cases: those alone that TESSERA_FLOW_ONLY names, or all but those of TESSERA_FLOW_WITHOUT."""
    named = {way: os.environ.get("TESSERA_FLOW_" + way, "").split() for way in ("ONLY", "WITHOUT")}
    with open(sys.argv[0]) as f:
        source = f.read()
    for name in named["ONLY"] + named["WITHOUT"]:
        check(f"def {name}(" in source, f"{sys.argv[0]} has no case {name}")
    for test in tests:
        if (named["ONLY"] and test.__name__ not in named["ONLY"]) or test.__name__ in named["WITHOUT"]:
            continue
        start = time.monotonic()
        try:
            test()
        except BaseException:
            kill_below(os.getpid())  # ends daemons and trainers that the failed case has left
            raise
        print(f"ok {test.__name__} ({time.monotonic() - start:.1f} s)")
        sys.stdout.flush()
