# SPDX-License-Identifier: Apache-2.0
"""VQAv2 as it is downloaded: zip files, read without unpacking, give the same rows as the folder."""

import json
import os
import zipfile

from formats import options
from prepd_flow import Folder, check, digest, main, run


def pack(path, members, how):
    with zipfile.ZipFile(path, "w", how) as z:
        for name, source in members:
            z.write(source, name)
    return path


def official(f, out, pictures=zipfile.ZIP_STORED, how=zipfile.ZIP_DEFLATED):
    """The archives under their official names, beside each other."""
    os.makedirs(out, exist_ok=True)
    for kind, name in (("Questions", "v2_OpenEnded_mscoco_train2014_questions.json"),
                       ("Annotations", "v2_mscoco_train2014_annotations.json")):
        pack(os.path.join(out, f"v2_{kind}_Train_mscoco.zip"), [(name, f.file("data/" + name))], how)
    pack(os.path.join(out, "train2014.zip"),
         [("train2014/" + os.path.basename(p), p) for p in f.train_images()], pictures)
    return options(data__path=out)


def same_rows_without_unpacking():
    with Folder(images=64) as f:
        args = official(f, f.file("zips"))
        wanted = digest(f.config, "--steps", "6")
        check(digest(f.config, "--steps", "6", *args) == wanted, "the rows differ")
        check(digest(f.config, "--steps", "6", *args, "--prepd.workers", "3") == wanted, "3 workers")
        said = run("check", "-c", f.config, *args, "--hash")
        check(" 0 bad" in said and "hash\t-" not in said, said)
        check(sorted(n for n in os.listdir(f.file("zips")) if n != ".tessera") ==
              ["train2014.zip", "v2_Annotations_Train_mscoco.zip", "v2_Questions_Train_mscoco.zip"], "unpacked")


def the_cache_is_used_only_if_it_is_whole():
    """What is kept for the next start says where each picture lies; with two of them exchanged there would be other
    pictures under the same names."""
    with Folder(images=24) as f:
        for name in ("v2_OpenEnded_mscoco_train2014_questions.json", "v2_mscoco_train2014_annotations.json"):
            with open(f.file("data/" + name), "a") as x:
                x.write(" " * (6 << 20))  # small sets get no cache
        args = official(f, f.file("zips"), how=zipfile.ZIP_STORED)
        wanted = digest(f.config, "--steps", "2", *args)
        folder = f.file("zips/.tessera")
        kept = [os.path.join(folder, n) for n in os.listdir(folder) if n.startswith("vqav2-")]
        check(len(kept) == 1, f"kept: {kept}")
        with open(kept[0], "r+b") as x:
            data = bytearray(x.read())
            head = 8 + int.from_bytes(data[:8], "little")
            first, last = (head + at for at in json.loads(data[8:head])["places"]["data_offsets"])
            check(last - first == 16 * len(f.train_images()), "an offset and a size of each picture")
            data[first:last] = data[first + 16:last] + data[first:first + 16]
            x.seek(0)
            x.write(data)
        check(digest(f.config, "--steps", "2", *args) == wanted, "pictures were mixed up")


def count_another(path, n):
    """The number of members that the end of the directory gives twice: of this disk, and of all disks."""
    with open(path, "r+b") as x:
        x.seek(-22 + 8, os.SEEK_END)
        x.write(n.to_bytes(2, "little") * 2)


def what_cannot_be_read_is_named():
    with Folder(images=16) as f:
        args = official(f, f.file("twice"))
        os.link(f.file("twice/v2_Questions_Train_mscoco.zip"), f.file("twice/v1_Questions_Train_mscoco.zip"))
        said = run("check", "-c", f.config, *args, code=78)
        check("v1_Questions" in said and "v2_Questions" in said and "keep only one of them here" in said, said)
        args, name = official(f, f.file("both")), f.file("both/v2_Questions_Train_mscoco.zip")
        with zipfile.ZipFile(name, "a") as z:
            inside = z.namelist()[0]
            z.writestr("__MACOSX/._" + os.path.basename(inside), b"of macOS")
        run("check", "-c", f.config, *args)
        with zipfile.ZipFile(name, "a") as z:
            z.writestr(inside.replace("v2_", "v1_"), z.read(inside))
        said = run("check", "-c", f.config, *args, code=78)
        check("another member of it" in said and "v2_Questions" in said, said)
        args = official(f, f.file("counted"))
        count_another(f.file("counted/train2014.zip"), 3)
        said = run("check", "-c", f.config, *args, code=65)
        check(f"{len(f.train_images())} members and should have 3" in said, f"members that are not counted: {said}")
        said = run("check", "-c", f.config, *official(f, f.file("deflated"), zipfile.ZIP_DEFLATED), code=65)
        check("is deflated, not stored, in train2014.zip" in said, said)
        args = official(f, f.file("lost"))
        pack(f.file("lost/train2014.zip"), [("train2014/" + os.path.basename(p), p) for p in f.train_images()[1:]],
             zipfile.ZIP_STORED)
        check("is not in train2014.zip" in run("check", "-c", f.config, *args, code=65), "a lost picture")
        for name, words in (("train2014.zip", "no end record"), ("v2_Questions_Train_mscoco.zip", "no end record")):
            args = official(f, f.file("cut"))
            path = f.file("cut/" + name)
            os.truncate(path, os.path.getsize(path) - 30)
            said = run("check", "-c", f.config, *args, code=65)
            check(words in said and name in said, said)


if __name__ == "__main__":
    main(same_rows_without_unpacking, the_cache_is_used_only_if_it_is_whole, what_cannot_be_read_is_named)
