# SPDX-License-Identifier: Apache-2.0
"""A disk, a mount or a machine in trouble while files are read is not the files' fault. A failure that passes changes
no row, one that stays is judged as a crash, and the next start looks at the files again."""

import errno
import os
import shutil
import struct
import sys

from faults import ALWAYS, sanitized, trouble
from formats import fingerprint, in_data, options, picture, stream_of, write_tar
from prepd_flow import Folder, check, digest, listed, main, run
from prepd_video import data_set

def small(**more):
    return Folder(images=48, **{"prepd.sample_timeout": 2, "training.epochs": 1, "prepd.workers": 2, **more})


def forget_index(f):
    shutil.rmtree(in_data(f, ".tessera"), ignore_errors=True)


def what_passes_changes_nothing():
    """While the index is built and while rows are made, some calls fail and then all succeed."""
    with small() as f:
        want = digest(f.config, "--steps", "8")
        for fresh in (True, False):
            for call, error in (("open", errno.EMFILE), ("open", errno.ESTALE), ("pread", errno.EIO), ("pread", errno.ETIMEDOUT), ("pread", 0)):
                if fresh:
                    forget_index(f)
                with trouble(f, call, error, "COCO_train2014", 9) as left:
                    got = digest(f.config, "--steps", "8")
                    check(left() <= 0, f"{call} never failed")
                check(got == want, f"{call}, {errno.errorcode.get(error, 'early end')}, index {'built' if fresh else 'kept'}: other rows")
        check("0 bad" in run("check", "-c", f.config), "a good sample is in quarantine")


def an_early_end_is_read_again():
    """A read of no bytes before the end of a file, in the daemon and its workers, of each kind of file."""
    with small() as f:
        _, _, clips = data_set(f, 2)
        members = [m for k, name in enumerate(clips) for m in
                   ((f"{k}{os.path.splitext(name)[1]}", picture(f, name)), (f"{k}.txt", f"clip {k}"))]
        texts = in_data(f, "texts.jsonl")
        with open(texts, "w") as x:
            x.writelines(f'{{"text": "line {k}"}}\n' for k in range(400))
        tar = options(data__format="webdataset", data__path=write_tar(in_data(f, "v.tar"), members))
        words = options(data__format="text", data__path=texts)
        for args, call, part in (((), "read", "questions.json"), ((), "pread", "tokenizer.json"),
                                 (words, "pread", "texts.jsonl"), (tar, "pread", "v.tar")):
            want = digest(f.config, "--steps", "4", *args)
            for times in (1, 4):
                forget_index(f)
                with trouble(f, call, 0, part, times, verb="") as left:
                    check(digest(f.config, "--steps", "4", *args) == want, f"{part}: other rows")
                    check(left() <= 0, f"{part}: no {call} gave nothing")


def what_stays_is_judged_and_looked_at_again():
    """A picture that can never be read is reported only after deaths, whenever that is; once it can be read, it is
    used."""
    with small() as f:
        bad = f.train_images()[3]
        wanted = sorted(f.questions_of(bad))
        for fresh in (True, False):
            if fresh:
                forget_index(f)
            with trouble(f, "pread", errno.EIO, os.path.basename(bad), ALWAYS):
                found = listed(run("check", "-c", f.config, code=65))
            check(sorted(found) == wanted, f"check lists {sorted(found)}, not readable are {wanted}")
            check(all("Input/output error" in c for c in found.values()), found)
            check(all(("ends its worker" in c) != fresh for c in found.values()), f"not judged: {found}")
            check("0 bad" in run("check", "-c", f.config), "not looked at again")


def a_start_without_memory_condemns_nothing():
    """A header after 60 kB of others is read through a mapping, for which the process has no memory."""
    with small() as f:
        image = f.train_images()[3]
        with open(image, "rb") as x:
            data = x.read()
        with open(image, "wb") as x:
            x.write(data[:2] + b"\xff\xfe" + struct.pack(">H", 60002) + bytes(60000) + data[2:])
        with trouble(f, "mmap", errno.ENOMEM, os.path.basename(image), 2) as left:
            check("0 bad" in run("check", "-c", f.config), "no memory is the picture's fault")
            check(left() <= 0, "the mapping never failed")


def videos_in_tars():
    """What cannot be read is the tar, at whichever of its videos."""
    with small() as f:
        path, _, clips = data_set(f, 3)
        members = [m for k, name in enumerate(clips) for m in
                   ((f"{k}{os.path.splitext(name)[1]}", picture(f, name)), (f"{k}.txt", f"clip {k}"))]
        args = options(data__format="webdataset", data__path=write_tar(in_data(f, "v.tar"), members))
        want = [fingerprint(r) for r in stream_of(f, args)]
        for fresh in (True, False):
            if fresh:
                forget_index(f)
            with trouble(f, "pread", errno.EIO, "v.tar", 12) as left:
                check([fingerprint(r) for r in stream_of(f, args)] == want, "the rows differ")
                check(left() <= 0, "no read failed")
        forget_index(f)
        with trouble(f, "pread", errno.EIO, "v.tar", ALWAYS):
            found = listed(run("check", "-c", f.config, *args, code=65))
        check(len(found) == 3 and all(c.startswith("v.tar: byte") for c in found.values()), found)


if sanitized():
    sys.exit(77)
main(what_passes_changes_nothing, an_early_end_is_read_again, what_stays_is_judged_and_looked_at_again, a_start_without_memory_condemns_nothing,
     videos_in_tars)
