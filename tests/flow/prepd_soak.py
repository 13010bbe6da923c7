"""Images without end: memory, descriptors and threads of the dispatcher stay what they were, and a
worker that grows is replaced without a trace in the stream.

prepd_soak.py [IMAGES]    the quick form streams 6,000; the long form 200,000 and more"""

import os
import subprocess
import sys
import time

from prepd_flow import BIN, Folder, check, children, digest, main, wait_for, workers_below

IMAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
PER_ROW = 19  # documents of one picture in a row of this folder, about
G = 4
EARLY = 2 if IMAGES < 50000 else 10  # the share of the run by which everything has begun
MIB = 1 << 20
SANITIZED = "asan" in os.environ.get("TESSERA_BIN", "")


def figures(pid):
    """(resident bytes, threads, descriptors)"""
    with open(f"/proc/{pid}/status") as f:
        said = dict(line.split(":", 1) for line in f)
    return (int(said["VmRSS"].split()[0]) * 1024, int(said["Threads"]),
            len(os.listdir(f"/proc/{pid}/fd")))


def digest_watched(folder, steps, *options):
    """The digest; figures of dispatcher and workers early and at the end; workers seen."""
    p = subprocess.Popen([BIN, "digest", "-c", folder.config, "--steps", str(steps), *options],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: workers_below(p.pid), "workers", 30)
    daemon, seen, samples, begun = children(p.pid)[0], set(), [], time.monotonic()
    while p.poll() is None:
        try:
            workers = workers_below(daemon)
            now = figures(daemon), max(figures(w) for w in workers)
            seen.update(workers)
            samples.append(now)
        except (OSError, ValueError, KeyError):
            pass  # it ends, or a worker has just been replaced
        time.sleep(0.05 if IMAGES < 50000 else 1.0)
    out, err = p.communicate()
    check(p.returncode == 0, err)
    seconds = time.monotonic() - begun
    return out.strip().splitlines()[-1], samples[len(samples) // EARLY], samples[-1], seen, seconds


def flat():
    steps = IMAGES // (PER_ROW * G)
    with Folder(images=256) as f:
        _, early, late, _, seconds = digest_watched(f, steps)
        for who, a, b in zip(("dispatcher", "worker"), early, late):
            print(f"{who}: {a[0] / MIB:.1f} -> {b[0] / MIB:.1f} MiB, threads {a[1]} -> {b[1]}, "
                  f"descriptors {a[2]} -> {b[2]}")
            check(b[1] <= a[1] and b[2] <= a[2] + 2, f"{who}: threads or descriptors grow")
        check(SANITIZED or late[0][0] < early[0][0] + 8 * MIB, "the dispatcher grows")
        check(SANITIZED or late[1][0] < early[1][0] + 32 * MIB, "a worker grows")
        print(f"about {steps * G * PER_ROW} images in {seconds:.0f} s")


def recycled():
    """Every worker is over the limit at once: each is replaced again and again."""
    steps = str(max(10, IMAGES // 1000))
    with Folder(images=256) as f:
        quiet = digest(f.config, "--steps", steps)
        same, _, _, seen, _ = digest_watched(f, steps, "--prepd.recycle_bytes", "1048576")
        check(same == quiet, "recycling changed the stream")
        check(len(seen) > 4, f"only {len(seen)} workers were seen: none was recycled")
        print(f"{len(seen)} workers seen")


main(flat, recycled)
