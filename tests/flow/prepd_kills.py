"""Workers are killed at random while the stream runs: not one row changes, nobody is blamed."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

from prepd_flow import BIN, Folder, check, digest, main, seed, wait_for, \
    workers_below

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
STEPS = str(max(200, KILLS + KILLS // 2))


def digest_under_fire(folder, sig, rng, *options):
    """The digest while workers get the signal; with how many."""
    cache = folder.file("data/.tessera")
    shutil.rmtree(cache)
    # AddressSanitizer's handler of SIGSEGV can not tell a sent one from a fault; ours can.
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0")
    p = subprocess.Popen([BIN, "digest", "-c", folder.config, "--steps", STEPS,
                          "--prepd.workers", "3", *options], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=env)
    kills = 0
    # From when the first have built the index: that workers can not even start is another test.
    wait_for(lambda: os.path.isdir(cache) and os.listdir(cache), "the index", 60)
    end = time.monotonic() + max(100, KILLS)
    while p.poll() is None and time.monotonic() < end:
        time.sleep(rng.uniform(0.005, 0.06))
        victims = workers_below(p.pid)
        if victims and kills < KILLS:
            try:
                victim = rng.choice(victims)
                hit = sig(victim) if callable(sig) else os.kill(victim, sig)
                kills += hit is not False
            except (ProcessLookupError, FileNotFoundError):
                pass
    out, err = p.communicate(timeout=60 + KILLS)
    check(p.returncode == 0, f"exit code {p.returncode}\n{err}")
    check("quarantined" not in err, f"a good sample was blamed:\n{err}")
    return out.strip().splitlines()[-1], kills


def stop(pid):
    os.kill(pid, signal.SIGSTOP)


def starve(pid):
    """From now on every allocation of this process fails."""
    with open(f"/proc/{pid}/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (now, now))


def has_begun(pid):
    """In its sandbox: before that, what looks like a crash is a worker that can not start."""
    with open(f"/proc/{pid}/status") as f:
        return "Seccomp:\t2" in f.read()


def deaths_of_every_kind():
    """SIGKILL, SIGSTOP, a sent SIGSEGV and no memory, in turn: one stream, nobody blamed."""
    rng = seed()
    # Those that are spared are not counted.
    kinds = [lambda pid: os.kill(pid, signal.SIGKILL), stop,
             lambda pid: has_begun(pid) and os.kill(pid, signal.SIGSEGV),
             lambda pid: has_begun(pid) and starve(pid)]
    with Folder() as f:
        quiet = digest(f.config, "--steps", STEPS)
        under_fire, kills = digest_under_fire(
            f, lambda pid: rng.choice(kinds)(pid), rng, "--prepd.sample_timeout", "5")
        check(under_fire == quiet, f"{kills} deaths changed the stream")
        print(f"{kills} deaths in {STEPS} steps")


def killed_from_outside():
    rng = seed()
    with Folder() as f:
        quiet = digest(f.config, "--steps", STEPS)
        under_fire, kills = digest_under_fire(f, signal.SIGKILL, rng)
        check(under_fire == quiet, f"{kills} kills changed the stream")
        check(kills >= min(KILLS, 15), f"only {kills} kills happened: the run was too short")
        print(f"{kills} kills")


def crash_signals_from_outside():
    """A SIGSEGV that was sent is no crash: at the strictest limit no sample is blamed."""
    rng = seed()
    with Folder() as f:
        quiet = digest(f.config, "--steps", STEPS)
        under_fire, kills = digest_under_fire(f, lambda pid: has_begun(pid) and os.kill(pid, signal.SIGSEGV), rng,
                                              "--prepd.solo_deaths", "1")
        check(kills >= min(KILLS, 15), f"only {kills} signals were sent: the run was too short")
        check(under_fire == quiet, f"{kills} signals changed the stream")
        print(f"{kills} signals")


main(deaths_of_every_kind, killed_from_outside, crash_signals_from_outside)
