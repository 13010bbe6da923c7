# SPDX-License-Identifier: Apache-2.0
"""Images without end: memory, descriptors and threads of the dispatcher stay what they were, and a worker that grows
is replaced without a trace in the stream.

prepd_soak.py [IMAGES]    the quick form streams 6,000; the long form 200,000 and more, and as many with libvips alone
"""

import json
import os
import struct
import subprocess
import sys
import time
import zlib

import numpy

from deaths import larger_pictures
from faults import trap
from prepd_flow import BIN, LIMIT_S, SANITIZED, Daemon, Folder, check, digest, main, run, wait_for, workers_below

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

IMAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
LONG = IMAGES >= 50000
EARLY = 10 if LONG else 2  # after this part of the run, nothing new begins
MIB = 1 << 20


def figures(pid):
    """(resident bytes, threads, descriptors)"""
    with open(f"/proc/{pid}/status") as f:
        said = dict(line.split(":", 1) for line in f)
    return (int(said["VmRSS"].split()[0]) * 1024, int(said["Threads"]),
            len(os.listdir(f"/proc/{pid}/fd")))


def of_all(daemon):
    """Of the dispatcher, and of its workers the most."""
    return figures(daemon), tuple(map(max, *map(figures, workers_below(daemon))))


def png(width, height, rng):
    ramp = numpy.add.outer(numpy.arange(height), numpy.arange(3 * width)) // 4 + rng.integers(0, 8, (height, 3 * width))
    lines = numpy.zeros((height, 1 + 3 * width), numpy.uint8)  # each line begins with its filter, none
    lines[:, 1:] = ramp % 256
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks)


def mixed(folder):
    """synth makes all pictures JPEGs with sides of 60 to 100 pixels. Every 16th becomes one of COCO's sizes, every
    4th a PNG, which libvips reads, every 32nd one of 640 x 480."""
    larger_pictures(folder)
    rng = numpy.random.default_rng(1)
    for k, image in enumerate(folder.train_images()):
        if k % 4 == 2:
            size = (640, 480) if k % 32 == 2 else rng.integers(60, 101, 2)
            with open(image, "wb") as x:
                x.write(png(*map(int, size), rng))


def flat(*options):
    with Folder(images=256) as f:
        mixed(f)
        streamed(f, options)


def streamed(f, options):
    """Streams at least this many images, counted as they come in the rows that a consumer has received."""
    images, early, began = 0, None, time.monotonic()
    with Daemon(f.config, *options) as d:
        wait_for(lambda: os.path.exists(f.file("d.sock")), "the daemon")
        for row in client.connect("ipc://" + f.file("d.sock"), timeout=float(LIMIT_S)):
            images += len(row["grid_thw"])
            if early is None and images >= IMAGES // EARLY:
                early, early_images = of_all(d.p.pid), images
            if images >= IMAGES:
                break
        late = of_all(d.p.pid)
        said = json.loads(run("status", "-c", f.config, "--json"))
        check(said["train"]["quarantined_count"] == 0, f"not all were decoded: {said['train']}")
        check(said["workers_replaced"] == 0, "workers were replaced, which hides how much they grew")
    check(images >= IMAGES, f"only {images} images came")
    print(f"{images} images in {time.monotonic() - began:.0f} s; figures after {early_images} of them and at the end")
    for who, a, b in zip(("dispatcher", "workers at most"), early, late):
        print(f"{who}: {a[0] / MIB:.1f} -> {b[0] / MIB:.1f} MiB, threads {a[1]} -> {b[1]}, "
              f"descriptors {a[2]} -> {b[2]}")
        check(b[1] <= a[1] and b[2] <= a[2] + 2, f"{who}: threads or descriptors grow")
    check(SANITIZED or late[0][0] < early[0][0] + 8 * MIB, "the dispatcher grows")
    check(SANITIZED or late[1][0] < early[1][0] + 32 * MIB, "a worker grows")


def flat_with_libvips_alone():
    """Plain JPEGs too."""
    if LONG:
        flat("--image.decoder", "vips")


def digest_watched(folder, steps, *options, every_s=0.02):
    """The digest, and for each worker seen the most bytes it had resident."""
    p = subprocess.Popen([BIN, "digest", "-c", folder.config, "--steps", str(steps), *options],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen = {}
    while p.poll() is None:
        for worker in workers_below(p.pid):
            try:
                seen[worker] = max(seen.get(worker, 0), figures(worker)[0])
            except (OSError, ValueError, KeyError):
                pass  # the worker has just ended
        time.sleep(every_s)
    out, err = p.communicate()
    check(p.returncode == 0, err)
    return out.strip().splitlines()[-1], seen


def recycled():
    """Every worker is over the limit at once, and each is replaced again and again."""
    steps = max(10, IMAGES // 1000)
    with Folder(images=256) as f:
        quiet = digest(f.config, "--steps", str(steps))
        same, seen = digest_watched(f, steps, "--prepd.worker_bytes", str(64 * MIB), every_s=1 if LONG else 0.02)
        check(same == quiet, "recycling changed the stream")
        check(len(seen) > 4, f"only {len(seen)} workers were seen: none was recycled")
        print(f"{len(seen)} workers seen")


def a_decoder_that_leaks():
    """256 KiB a picture: with a limit a worker is at most a row over it, and the rows are those of workers that
    grow."""
    steps, limit, row = 12, 64 * MIB, 24 * MIB
    if SANITIZED:
        return
    with trap(), Folder(images=256) as f:
        for image in f.train_images():
            with open(image, "ab") as x:
                x.write(b"POISON:leak")
        quiet, grown = digest_watched(f, steps)
        same, kept = digest_watched(f, steps, "--prepd.worker_bytes", str(2 * limit))
        print(f"without a limit {len(grown)} workers of {max(grown.values()) / MIB:.0f} MiB at most; with {limit // MIB} MiB "
              f"{len(kept)} of {max(kept.values()) / MIB:.0f}")
        check(same == quiet, "recycling changed the stream")
        check(max(grown.values()) > limit + 2 * row, "nothing leaks")
        check(max(kept.values()) < limit + row, "a worker went on over its limit")


main(flat, flat_with_libvips_alone, recycled, a_decoder_that_leaks)
