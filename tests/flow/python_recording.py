# SPDX-License-Identifier: Apache-2.0
"""A recording read by the Python client: every hash is checked, and damage is named with its place."""

import os
import shutil
import subprocess
import sys

from prepd_flow import LIMIT_S, Folder, check, main, run

PYTHON = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python")
sys.path.insert(0, PYTHON)
from tessera import client, hashes  # noqa: E402

STEP = 4  # training.global_batch_size of the folder


def replay_checks_every_hash():
    """The reader in numpy on a file: what is damaged is named with its place; without any hash function nothing is read unless
    that is asked for."""
    with Folder() as f:
        path = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "1", "--out", path)
        with open(path, "rb") as x:
            whole = x.read()
        index, n = (int.from_bytes(whole[k:k + 8], "little") for k in (len(whole) - 32, len(whole) - 24))
        row = int.from_bytes(whole[index + 8 * (n - 1):index + 8 * n], "little")
        image = int.from_bytes(whole[-40:-32], "little")

        def told(data, *words, error=ValueError):
            with open(path, "wb") as x:
                x.write(data)
            try:
                list(client.replay(path))
                check(False, f"{words}: taken")
            except error as refused:
                check(str(refused).startswith(path + ": ") and all(w in str(refused) for w in words), f"{words}: {refused}")
        check(len(list(client.replay(path))) == n == STEP, "rows")
        for at, words in ((40, "the WELCOME does not match the hash in the head"), (row + 32 + 150, f"the row at byte {row} does not match"),
                          (row + 16, f"the row at byte {row} does not match"), (image + 40, f"the image at byte {image} does not match"),
                          (index, "the index does not match the hash in the tail"), (len(whole) - 33, "the index does not match"),
                          (len(whole) - 10, "the index does not match"), (len(whole) - 32, "cannot begin at byte"), (len(whole) - 1, "cut short"),
                          (0, "not a recording")):
            told(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:], words)
        for data, words in ((whole[:-1], "cut short"), (whole[:row], "cut short"), (whole[:60], "cut short"), (b"", "it is empty"),
                            (b'{"a": 1}' * 20, "not a recording")):
            told(data, words)
        found, hashes.xxh3_128 = hashes.xxh3_128, None
        try:
            told(whole, "neither python3-xxhash nor libxxhash", "--unchecked", error=ImportError)
            check(len(list(client.replay(path, unchecked=True))) == n, "not read although that was asked for")
        finally:
            hashes.xxh3_128 = found
        blind = f.file("blind/tessera")  # the program in a Python that finds neither
        shutil.copytree(os.path.join(PYTHON, "tessera"), blind)
        with open(os.path.join(PYTHON, "tessera", "hashes.py")) as x, open(os.path.join(blind, "hashes.py"), "w") as y:
            y.write(x.read().replace("from xxhash import", "from no_such_module import").replace("libxxhash.so.0", "no_such_library.so"))
        for words, code, said in (((), 69, "cannot be checked"), (("--unchecked",), 0, "")):
            p = subprocess.run(["/usr/bin/python3", "-B", blind, path, *words], capture_output=True, text=True, timeout=LIMIT_S)
            check(p.returncode == code and said in p.stderr and p.stdout.count("digest unchecked") == n * (code == 0), p.stdout + p.stderr)


if __name__ == "__main__":
    main(replay_checks_every_hash)
