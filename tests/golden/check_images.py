#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs each picture of pictures.py through prepd and compares its patches with those of the reference (make_images.py):

    tests/golden/check_images.py --prepd build/bin/prepd [--patches F] [--only TEXT] [--distance] [--newer]

The pictures become a small VQAv2 folder with a question each. `prepd serve` streams its samples, which are what `prepd
sample` writes, once for each resampler and each row of LIMITS. The grid, the number of image tokens and every byte of the
patches must be equal. What the reference refuses must be refused, and other formats by name. Pictures of the shared data
are skipped without it. Then the generated pictures are compared with transformers 5.23 and Pillow 13
(make_images_newer.py), with the options that follow those; with --newer, only these. --distance prints instead how far
image.resampler vips is from torch. Exit code 77 (skipped): numpy, zmq or zstandard is missing.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import zmq  # noqa: F401  client.py needs it
    import zstandard  # noqa: F401

    import pictures
except ImportError as missing:
    if __name__ == "__main__":
        print(f"skipped: {missing}")
        sys.exit(77)
    pass  # make_images.py imports only LIMITS and sha, which need none of them

# image.min_pixels, image.max_pixels; None: preprocessor_config.json as published
SHARED_LIMITS = ("published", "small")
NEWER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "patches_newer.jsonl")
NEWER_LIMITS = ("published", "small")
LIMITS = {"published": None, "small": (4096, 65536), "large": (600000, 2000000), "narrow": (50000, 50000)}


def sha(patches):
    return hashlib.sha256(patches.tobytes()).hexdigest()[:16]


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f)


def write_folder(root, found):
    """Writes a VQAv2 folder in which question k is on picture k."""
    os.makedirs(os.path.join(root, "images"))
    images, questions, annotations = [], [], []
    for k, (name, data) in enumerate(found.items()):
        file = f"{k:04}_" + name.replace("/", "_")
        with open(os.path.join(root, "images", file), "wb") as f:
            f.write(data)
        images.append({"id": k, "file_name": file})
        questions.append({"image_id": k, "question_id": k, "question": "What is this?"})
        answers = [{"answer": "noise", "answer_confidence": "yes", "answer_id": i} for i in range(1, 11)]
        annotations.append({"image_id": k, "question_id": k, "multiple_choice_answer": "noise", "answers": answers,
                            "question_type": "what is", "answer_type": "other"})
    write_json(os.path.join(root, "images.json"), images)
    write_json(os.path.join(root, "v2_OpenEnded_mscoco_train2014_questions.json"), {"questions": questions})
    write_json(os.path.join(root, "v2_mscoco_train2014_annotations.json"), {"annotations": annotations})


class Prepd:
    """A temporary folder with the pictures and a model, whose samples a daemon streams."""

    def __init__(self, prepd, found):
        self.prepd, self.found, self.transparency = prepd, list(found), "4.57"
        self.folder = tempfile.TemporaryDirectory(prefix="golden")
        self.root = self.folder.name
        self.model = os.path.join(self.root, "synth", "model")
        self.config = os.path.join(self.root, "config.yaml")
        self.end = "ipc://" + os.path.join(self.root, "d.sock")
        subprocess.run([prepd, "synth", "--out", os.path.join(self.root, "synth"), "--images", "4", "--seed", "1"],
                       check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(self.model, "config.json")) as f:
            self.pad = json.load(f)["image_token_id"]
        processor = os.path.join(self.model, "preprocessor_config.json")
        with open(processor) as f:
            config = json.load(f)
        config["size"] = {"shortest_edge": 65536, "longest_edge": 16777216}
        write_json(processor, config)
        write_folder(os.path.join(self.root, "data"), found)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def write_config(self, resampler, limits):
        image = {"resampler": resampler, "transparency": self.transparency}
        if limits:
            image.update(min_pixels=limits[0], max_pixels=limits[1])
        write_json(self.config, {  # JSON is YAML
            "model": {"path": self.model}, "data": {"path": os.path.join(self.root, "data"), "quarantine_limit": 100},
            "prepd": {"endpoint": self.end, "workers": 1}, "image": image,
            "training": {"seq_len": 17000, "global_batch_size": 1}})

    def samples(self, resampler, limits):
        """(name, row or None, cause) for each picture."""
        self.write_config(resampler, limits)
        with open(os.path.join(self.root, "log"), "w") as log:
            daemon = subprocess.Popen([self.prepd, "serve", "-c", self.config], stderr=log)
        try:
            for name, row in zip(self.found, client.connect(self.end, stream="sample"), strict=True):
                bad = json.loads(row["quarantine"] or "[]")
                yield name, (None if bad else row), (bad[0]["cause"] if bad else "")
        finally:
            daemon.terminate()
            daemon.wait(timeout=60)


def read_kept(path):
    """{picture: its lines}"""
    kept = {}
    with open(path) as f:
        for line in f:
            row = json.loads(line)
            kept.setdefault(row["picture"], []).append(row)
    return kept


def verdict(row, cause, want, resampler, pad):
    """(column of the table, what to print)"""
    if "other_format" in want:
        good = row is None and "only JPEG, PNG and WebP are read" in cause
        return ("other format" if good else "differ"), cause or "a sample was made"
    if "refused" in want:
        return ("refused by both" if row is None else "accepted by us only"), cause or want["refused"]
    if row is None:
        return "refused by us only", cause
    if [int(x) for x in row["grid_thw"][0]] != [1, *want["grid"]]:
        return "differ", f"grid {row['grid_thw'][0]}, reference {want['grid']}"
    if int((row["input_ids"] == pad).sum()) != want["grid"][0] * want["grid"][1] // 4:
        return "differ", "number of image tokens"
    return ("equal", "") if sha(row["pixels"]) == want[resampler] else ("differ", "pixels")


COLUMNS = ("equal", "refused by both", "other format", "refused by us only", "accepted by us only", "differ")

# Known differences that are no faults (comparisons.md says why). Refused by us only: damaged files that the reference
# decodes all the same, and lossless JPEG, which Debian's libjpeg-turbo does not read. Accepted by us only: damage that
# does not touch the pixels.
KNOWN = dict.fromkeys(("no_end.png", "half_end.png", "length_only.png", "no_adler.png", "bad_sum_IDAT.png",
                       "critical_chunk.png", "lossless.jpg", "lossless_grey.jpg"), "refused by us only")
KNOWN |= dict.fromkeys(("bad_sum_text.png", *(f"bad_sum_{chunk}.png" for chunk in (
    "tRNS", "gAMA", "pHYs", "zTXt", "iTXt", "tIME", "eXIf", "prVt")),
    "exif_garbage.png", "exif_magic.png", "exif_fortytwo.png"), "accepted by us only")


def compare(p, kept, group, all_limits):
    faults = 0
    for limits in all_limits:
        for resampler in ("torch", "pillow"):
            counts, notes = dict.fromkeys(COLUMNS, 0), []
            for name, row, cause in p.samples(resampler, LIMITS[limits]):
                want = next(r for r in kept[name] if r.get("limits", limits) == limits)
                column, words = verdict(row, cause, want, resampler, p.pad)
                counts[column] += 1
                if column in COLUMNS[3:] and KNOWN.get(name) != column:
                    notes.append(f"{name}: {column}: {words}")
            print(f"| {group} | {limits} | {resampler} | " + " | ".join(str(counts[c]) for c in COLUMNS) + " |")
            for note in notes:
                faults += 1
                print("  " + note)
    return faults


# Pillow 13 reads another orientation from these two damaged EXIF blocks; ours is that of 11.3.
NEWER_KNOWN = {f"exif_{kind}.{end}" for kind in ("bad_neighbour", "twice") for end in ("png", "jpg")}


def newer(prepd, generated, only):
    """Compares with transformers 5.23 and Pillow 13, with both of its processors."""
    kept = read_kept(NEWER)
    names = [n for n in kept if only in n and n not in NEWER_KNOWN]
    faults = 0
    with Prepd(prepd, {n: generated[n] for n in names}) as p:
        p.transparency = "5.23"
        for limits in NEWER_LIMITS:
            for resampler in ("torch", "pillow13"):
                counts = dict.fromkeys(COLUMNS, 0)
                for name, row, cause in p.samples(resampler, LIMITS[limits]):
                    want = next((r for r in kept[name] if r["limits"] == limits), None)
                    column, words = verdict(row, cause, want, resampler, p.pad) if want else ("equal", "")
                    counts[column] += 1
                    if column in COLUMNS[3:] and KNOWN.get(name) != column:
                        faults += 1
                        print(f"  {name}: {column}: {words}")
                print(f"| 5.23 and Pillow 13 | {limits} | {resampler} | " + " | ".join(str(counts[c]) for c in COLUMNS) + " |")
    return faults, len(names)


def by_hand(p, kept):
    """Checks that `prepd sample` gives one of them as the stream does."""
    index, name = next((i, n) for i, n in enumerate(p.found) if "grid" in kept[n][0])
    out = os.path.join(p.root, "one.safetensors")
    p.write_config("pillow", LIMITS["published"])
    subprocess.run([p.prepd, "sample", "-c", p.config, "--index", str(index), "--out", out, "--overwrite"], check=True,
                   stdout=subprocess.DEVNULL)
    with open(out, "rb") as f:
        row, _ = client.tensors(f.read())
    column, words = verdict(dict(row, quarantine=""), "", kept[name][0], "pillow", p.pad)
    if column != "equal":
        print(f"prepd sample: {name}: {column}: {words}")
    return column != "equal"


def direction(size, grid):
    """How resizing changes the size of a picture."""
    to = [16 * n for n in grid]
    if to == size:
        return "as it is"
    return "enlarged" if any(b > a for a, b in zip(size, to)) else "shrunk"


def distance(p, kept, group, all_limits):
    """Prints how far vips is from torch, which equals the reference."""
    for limits in all_limits:
        torch = {name: row["pixels"] for name, row, _ in p.samples("torch", LIMITS[limits]) if row}
        apart = {}
        for name, row, _ in p.samples("vips", LIMITS[limits]):
            want = next((r for r in kept[name] if r.get("limits") == limits), None)
            if row and want and "size" in want:
                d = np.abs(row["pixels"].astype(np.int16) - torch[name])
                apart.setdefault(direction(want["size"], want["grid"]), []).append(d)
        for which, found in sorted(apart.items()):
            means = [d.mean() for d in found]
            every = np.concatenate([d.ravel() for d in found])
            print(f"| {group} | {limits} | {which} | {len(found)} | {100 * np.mean(every > 0):.1f} % "
                  f"| {100 * np.mean(every > 8):.1f} % | {np.mean(means):.2f} | {max(means):.2f} | {every.max()} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepd", required=True)
    parser.add_argument("--patches", default=os.path.join(pictures.HERE, "patches.jsonl"))
    parser.add_argument("--only", default="", help="pictures whose name holds this")
    parser.add_argument("--distance", action="store_true")
    parser.add_argument("--newer", action="store_true")
    args = parser.parse_args()
    data = os.path.join(os.environ.get("TESSERA_SHARED", os.path.join(pictures.HERE, "../../../shared")), "data")
    kept = read_kept(args.patches)
    generated = {**pictures.generated(), **{k: pictures.drawn_one(k) for k in kept if k.startswith("drawn_")}}
    groups = {"generated": (generated, tuple(LIMITS)), "shared": (pictures.shared(data), SHARED_LIMITS)}
    lost = [k for k in kept if "/" not in k and k not in groups["generated"][0]]
    if lost:
        sys.exit(f"kept lines of pictures that nobody makes: {lost}")
    if args.distance:
        print("| pictures | limits | resized | number | bytes that differ | by more than 8 | mean of pictures "
              "| worst picture | largest |\n|---|---|---|---|---|---|---|---|---|")
    else:
        print("| pictures | limits | resampler | " + " | ".join(COLUMNS) + " |\n|---|---|---|" + "---|" * len(COLUMNS))
    faults = seen = 0
    for group, (found, limits) in () if args.newer else groups.items():
        found = {k: v for k, v in found.items() if args.only in k and k in kept}
        seen += len(found)
        if not found:
            continue
        with Prepd(os.path.abspath(args.prepd), found) as p:
            if args.distance:
                distance(p, kept, group, limits)
            else:
                faults += compare(p, kept, group, limits)
                faults += by_hand(p, kept)
    if not args.distance:
        more, n = newer(os.path.abspath(args.prepd), generated, args.only)
        faults, seen = faults + more, seen + n
    absent = sum("/" in k and k not in groups["shared"][0] for k in kept)
    print(f"{seen} pictures, {absent} of the shared data not here, {faults} faults")
    return 1 if faults or not seen else 0


if __name__ == "__main__":
    sys.path.insert(0, os.path.join(pictures.HERE, "..", "..", "proto", "python"))
    from tessera import client

    sys.exit(main())
