# SPDX-License-Identifier: Apache-2.0
"""The cache of pictures: a second epoch finds them, any number of workers share them, and the rows are the same with
it, without it, with noise in it, and when it is deleted or truncated under the workers."""

import json
import os
import subprocess
import sys

from formats import options
from prepd_flow import Daemon, Folder, check, main, run, seed, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def stream(f, args, meanwhile=None, said=None, by=()):
    """Returns rows as bytes and what the daemon says of its cache; its log is appended to `said`."""
    rows = []
    with Daemon(f.config, *args, by=by) as d:
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
        for row in client.connect("ipc://" + f.file("d.sock"), timeout=60.0):
            rows.append((row["input_ids"].tobytes(), row["pixels"].tobytes()))
            if meanwhile:
                meanwhile(len(rows))
        check(d.p.poll() is None, d.said())
        wait_for(lambda: not any(w["busy"] for w in status(f)["workers"]), "workers are done")
        found = status(f)["cache"]
        about = run("status", "--connect", "ipc://" + f.file("d.sock"))
        if said is not None:
            said.append(d.said())
    return rows, found["hits"], found["misses"], about


def status(f):
    return json.loads(run("status", "--connect", "ipc://" + f.file("d.sock"), "--json"))


def cached(f, **more):
    return options(training__epochs=2, **{"cache__folder": f.file("cache"), "cache__bytes": 1 << 26, **more})


def cached_pictures_give_the_same_rows():
    with Folder(images=64) as f:
        want, hits, misses, _ = stream(f, options(training__epochs=2))
        check(hits == misses == 0, "there is a cache although none was asked for")
        got, hits, misses, said = stream(f, cached(f))
        check(got == want, "the cache changed the rows")
        check(hits > misses > 0, f"{hits} hits, {misses} misses in two epochs")
        check("pictures found" in said, said)
        got, hits, misses, _ = stream(f, cached(f, prepd__workers=1))
        check(got == want and misses == 0, f"a new daemon does not find what the last one kept: {misses} misses")
        got, _, misses, _ = stream(f, cached(f, image__resampler="pillow"))
        check(misses > 0 and got != want, "another resampler finds the same patches")


def damaged_deleted_or_cut_under_the_workers():
    rng = seed()
    with Folder(images=64) as f:
        path = f.file("cache/images.cache")
        want, *_ = stream(f, options(training__epochs=2))
        stream(f, cached(f))

        damaged = []

        def noise(n):
            try:
                x = open(path, "r+b")
            except FileNotFoundError:
                return  # a worker has found its head damaged and is making a new one
            with x:
                size = os.fstat(x.fileno()).st_size
                for _ in range(2000 if size else 0):
                    x.seek(rng.randrange(8192 if rng.random() < 0.1 else size))
                    x.write(rng.randbytes(8))
                damaged.append(n)

        def delete(n):
            if n == 5 and os.path.exists(path):
                os.unlink(path)

        def cut(n):
            if n == 7:
                os.truncate(path, rng.randrange(1 << 20))

        for what, name in ((noise, "noise"), (delete, "deleting it"), (cut, "cutting it")):
            got, hits, _, _ = stream(f, cached(f), what)
            check(got == want, f"{name} changed the rows")
            check(hits > 0, f"{name} ended all use of it")
        check(len(damaged) > 3, f"noise was written {len(damaged)} times")


def a_full_disk_costs_only_the_cache():
    """The disk is full from the beginning, which is reported, or has room only for the index and the head of the
    file. The rows are the same, and nothing is found in the cache."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        print("skipped: no file system can be mounted here")
        return
    with Folder(images=64) as f:
        disk = f.file("disk")
        os.mkdir(disk)
        want, *_ = stream(f, options(training__epochs=2))
        for left in (0, 24):  # KiB
            mount = (f"mount -t tmpfs -o size=256k none {disk} && head -c {(256 - left) << 10} /dev/zero >{disk}/full && "
                     'exec "$@"')
            said = []
            got, hits, _, _ = stream(f, cached(f, cache__folder=disk, prepd__cache_dir=disk), said=said,
                                     by=["unshare", "-m", "sh", "-c", mount, "sh"])
            check(got == want, f"{left} KiB left changed the rows")
            check(hits == 0, f"{hits} pictures found on a full disk")
            check(left or ("index not kept" in said[0] and "pictures are not cached" in said[0]), said[0])


def it_keeps_to_its_size():
    with Folder(images=256) as f:
        args = cached(f, cache__bytes=1 << 20)
        want, _, once, _ = stream(f, cached(f))
        got, _, misses, _ = stream(f, args)
        size = os.path.getsize(f.file("cache/images.cache"))
        check(got == want and size < (1 << 20) + (1 << 16), f"{size} bytes")
        check(misses > 1.5 * once, f"{misses} misses, {once} in a large one: nothing was written over")
        said = run("serve", "-c", f.config, *options(cache__folder="/proc/none"), "--prepd.workers", "1", code=73)
        check("cache.folder" in said, said)


def one_line_less(jpeg):
    """The same bytes but for the height in the header; None if a row of blocks would be left over."""
    at = jpeg.index(b"\xff\xc0") + 5
    height = int.from_bytes(jpeg[at:at + 2], "big")
    return None if height % 16 == 1 else jpeg[:at] + (height - 1).to_bytes(2, "big") + jpeg[at + 2:]


def a_changed_file_is_refused_as_without_it():
    """After it was indexed and cached, a picture is replaced by one that is cached for another file: of another size
    in pixels, with the same number of bytes and of patches."""
    with Folder(images=64) as f:
        one, other = f.train_images()[:2]
        with open(one, "rb") as x:
            less = one_line_less(x.read())
        with open(other, "wb") as x:
            x.write(less)
        stream(f, cached(f))
        was = os.stat(one)
        with open(one, "wb") as x:
            x.write(less)
        os.utime(one, ns=(was.st_atime_ns, was.st_mtime_ns))
        said = []
        want, *_ = stream(f, options(training__epochs=2), said=said)
        got, hits, misses, _ = stream(f, cached(f), said=said)
        for words in said:
            check(os.path.basename(one) in words and "the file changed; restart the daemon" in words, words)
        check(got == want, f"the cache served a file that changed: {hits} hits, {misses} misses")


main(cached_pictures_give_the_same_rows, damaged_deleted_or_cut_under_the_workers, a_full_disk_costs_only_the_cache,
     a_changed_file_is_refused_as_without_it, it_keeps_to_its_size)
