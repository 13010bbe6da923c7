# SPDX-License-Identifier: Apache-2.0
"""A picture that takes memory without end, or whose header claims an absurd number of pixels, costs only itself, and
its worker stays within its limit."""

import contextlib
import json
import os
import resource
import struct
import sys
import threading
import time
import zlib

from faults import sanitized, trap
from prepd_flow import Daemon, Folder, check, main, run, wait_for, workers_below

SOURCE = os.environ.get("TESSERA_SOURCE", ".")
SHARED = os.environ.get("TESSERA_SHARED", os.path.join(SOURCE, "..", "shared"))
sys.path.insert(0, os.path.join(SOURCE, "proto", "python"))
from tessera import client  # noqa: E402

MIB = 1 << 20
BASE = 64 * MIB  # of a worker that has decoded nothing large: program, libraries, tokenizer and rows
RESERVED = 64 * MIB  # address space that the C library reserved before the limit was set, and may still use
SIDE = 13377  # its square is just under image.input_pixels


@contextlib.contextmanager
def watched():
    """{worker: the most bytes it had resident}, as far as a look every few milliseconds shows."""
    most, over = {}, threading.Event()

    def look():
        while not over.wait(0.005):
            for pid in workers_below(os.getpid()):
                with contextlib.suppress(OSError, StopIteration), open(f"/proc/{pid}/status") as f:
                    most[pid] = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def zlib_of(byte, n):
    """A zlib stream of n times one byte, made of one piece again and again."""
    def deflated(size, end):
        c = zlib.compressobj(9, zlib.DEFLATED, -15)
        return c.compress(byte * size) + c.flush(end)
    a, b = (1 + n * byte[0]) % 65521, (n + byte[0] * (n * (n + 1) // 2)) % 65521  # Adler-32
    return (b"\x78\xda" + deflated(MIB, zlib.Z_FULL_FLUSH) * (n // MIB) + deflated(n % MIB, zlib.Z_FINISH) +
            struct.pack(">HH", b, a))


def black_png(width, height):
    """A whole PNG with one bit a pixel."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib_of(b"\0", height * (1 + (width + 7) // 8))) + chunk(b"IEND", b""))


def text_png(size, times=1):
    """A PNG with texts before few pixels."""
    png = black_png(8, 8)
    text = b"zTXtComment\0\0" + zlib_of(b"x", size)
    at = 8 + 25  # the signature and IHDR
    return png[:at] + (struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))) * times + png[at:]


def grey_jpeg(width, height):
    """A progressive JPEG of three full planes and one scan, three bits a block. libjpeg has to keep all
    coefficients."""
    def segment(mark, data):
        return bytes([0xFF, mark]) + struct.pack(">H", len(data) + 2) + data
    blocks = -(-width // 8) * -(-height // 8) * 3
    frame = struct.pack(">BHHB", 8, height, width, 3) + b"".join(bytes([c, 0x11, 0]) for c in (1, 2, 3))
    return (b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC2, frame) +
            segment(0xC4, b"\0\1" + bytes(15) + b"\0") + segment(0xDA, b"\3\1\0\2\0\3\0\0\0\0") +
            bytes((blocks + 7) // 8) + b"\xff\xd9")


def replace(image, data):
    with open(image, "wb") as f:
        f.write(data)


def first_of_each(f, n):
    """Pictures and the first question of each, the first n of the data set."""
    return [(image, f.questions_of(image)[0]) for image in f.train_images() if f.questions_of(image)][:n]


def epoch(f):
    """({sample: its cause}, samples served) of one epoch."""
    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
    ids = [int(i) for r in client.connect("ipc://" + f.file("d.sock"), timeout=100.0) for i in r["doc_sample_id"]]
    said = json.loads(run("status", "-c", f.config, "--json"))["train"]
    check(sorted(ids) == list(range(said["samples"])), "not every sample came once")
    return {q["id"]: q["cause"] for q in said["quarantined"]}, len(ids)


def a_sample_that_wants_all_memory():
    """A library that grows until it gets no more, and a whole picture that needs 512 MiB, with a limit of a quarter
    of that."""
    limit = 128 * MIB
    with trap(), Folder(**{"prepd.worker_bytes": limit, "training.epochs": 1, "prepd.solo_deaths": 1}) as f:
        (_, _), (grows, _), (large, _) = first_of_each(f, 3)
        with open(grows, "ab") as x:
            x.write(b"POISON:grow")
        replace(large, black_png(SIDE, SIDE))
        with watched() as most, Daemon(f.config) as d:
            causes, n = epoch(f)
            said = d.said()
        wanted = f.questions_of(grows) + f.questions_of(large)
        check(sorted(causes) == sorted(wanted), f"quarantined {causes}, wanted {wanted}\n{said}")
        for i in f.questions_of(grows):
            check("no memory to decode" in causes[i], f"{i}: {causes[i]}")
        for i in f.questions_of(large):
            check("no memory for a block of" in causes[i], f"{i}: {causes[i]}")
        print(f"{n} samples, {len(causes)} quarantined; {len(most)} workers of {max(most.values()) / MIB:.0f} MiB at most, "
              f"{limit / MIB:.0f} allowed for pictures")
        check(max(most.values()) < BASE + RESERVED + limit, "a worker passed its limit")


def odd(*names):
    """{name: its bytes} of the shared odd pictures."""
    folder = os.path.join(SHARED, "data", "odd")
    if not os.path.isdir(folder):
        print("skipped: no shared data")
        return {}
    found = {}
    for name in names:
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = f.read()
    return found


def cpu_seconds():
    """Of all commands so far, and of the daemons and workers below them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bombs_are_refused_by_their_headers():
    """Each under a hundred names; the cost of one is the time to index them less the time with the index there."""
    bombs = {"png of 65,536 x 65,536": black_png(65536, 65536), "png of 30,000 x 30,000": black_png(30000, 30000),
             "progressive jpeg of 20,000 x 20,000": grey_jpeg(20000, 20000), "png with a text of 1 MiB and a byte": text_png(MIB + 1),
             "png with 100 texts of 7 MiB": text_png(7 * MIB, 100),
             **odd("65536-uint32-limit.png", "png_decompression_dos.png")}
    with Folder(**{"prepd.workers": 1}) as f:
        _, *rest = f.train_images()
        n = sum(len(f.questions_of(image)) for image in rest)
        for what, data in bombs.items():
            replace(rest[0], data)
            for image in rest[1:]:
                os.remove(image)
                os.link(rest[0], image)
            took = []
            with watched() as most:
                for _ in range(2):
                    before = cpu_seconds()
                    check(f"refused: {n}\n" in run("plan", "-c", f.config), f"{what}: not all are refused")
                    took.append(cpu_seconds() - before)
            each_ms = (took[0] - took[1]) / len(rest) * 1e3
            print(f"{what}: {len(data) / MIB:.1f} MiB, refused in {each_ms:.1f} ms of CPU, worker {max(most.values()) / MIB:.0f} "
                  "MiB at most")
            check(max(most.values()) < BASE, "a bomb was inflated")
            check(each_ms < 40, "too long for a header")  # 20 ms are the goal; the machine may be busy


def the_most_expensive_picture_that_is_accepted():
    """It has two bytes of coefficients and one of colour for each of three planes."""
    with Folder(**{"training.epochs": 1, "prepd.workers": 1}) as f:
        (_, _), (image, i) = first_of_each(f, 2)
        replace(image, grey_jpeg(SIDE, SIDE))
        with watched() as most:
            began = time.monotonic()
            run("digest", "-c", f.config, "--steps", "1", "--data.limit", str(i + 1))
        print(f"progressive jpeg of {SIDE} x {SIDE}: {time.monotonic() - began:.1f} s with all else, worker "
              f"{max(most.values()) / MIB:.0f} MiB at most")
        check(max(most.values()) < BASE + 9.5 * SIDE * SIDE, "more than the picture is kept")  # libjpeg-turbo 3 keeps some rows more


def large_pictures_share_a_row():
    """The memory that one took is there for the next: each of them fits into the limit alone."""
    side = 6000
    limit = 9 * side * side + 64 * MIB
    with Folder(**{"prepd.worker_bytes": limit, "training.epochs": 1}) as f:
        taken = first_of_each(f, 4)
        for image, _ in taken[:-1]:
            replace(image, grey_jpeg(side, side))
        with Daemon(f.config, "--data.limit", str(taken[-1][1])) as d:
            causes, _ = epoch(f)
            check(not causes and "worker gone" not in d.said(), f"{causes}\n{d.said()}")


if sanitized():
    sys.exit(77)
main(a_sample_that_wants_all_memory, bombs_are_refused_by_their_headers, the_most_expensive_picture_that_is_accepted,
     large_pictures_share_a_row)
