#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs videos through prepd and compares them with the reference's own processor (make_videos.py):

    tests/golden/check_videos.py --prepd build/bin/prepd [--videos F]

The grid, the text with all of its times and every byte of the patches must be equal. The videos are the seeds of the
video fuzzer and the clips of the shared data, which are skipped without it. Exit code 77 (skipped): a Python package is
missing.
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
    import zstandard  # noqa: F401  client.py needs them
    import zmq  # noqa: F401
except ImportError as missing:
    if __name__ == "__main__":
        print(f"skipped: {missing}")
        sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
SEEDS = os.path.join(HERE, "..", "fuzz", "seeds", "video")
PUBLISHED = {"fps": 2, "min_frames": 4, "max_frames": 768, "min_pixels": 4096, "max_pixels": 25165824}
SETTINGS = {"published": {}, "few": {"max_frames": 5}, "slow": {"fps": 0.7, "min_frames": 3},
            "small": {"max_pixels": 300000}, "large": {"min_pixels": 3000000, "max_frames": 7}}
QUESTION = "What happens?"


def sha(patches):
    return hashlib.sha256(patches.tobytes()).hexdigest()[:16]


def find(name):
    """The file of a video, or None."""
    shared = os.environ.get("TESSERA_SHARED", os.path.join(HERE, "..", "..", "..", "shared"))
    path = os.path.join(shared, "data", "video", name[7:]) if name.startswith("shared/") else os.path.join(SEEDS, name)
    return path if os.path.exists(path) else None


def limit(model, min_frames, min_pixels, max_pixels):
    """Puts these limits into the model's own file."""
    path = os.path.join(model, "video_preprocessor_config.json")
    with open(path) as f:
        config = json.load(f)
    config["min_frames"] = min_frames
    config["size"] = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
    with open(path, "w") as f:
        json.dump(config, f)


def samples(prepd, root, model, paths, settings):
    """{path: (grid, text, hash of the patches)} by prepd, a clip in a row."""
    sys.path.insert(0, os.path.join(HERE, "..", "..", "proto", "python"))
    from tessera import client
    with open(os.path.join(root, "v.jsonl"), "w") as f:
        for path in paths:
            os.symlink(os.path.abspath(path), os.path.join(root, os.path.basename(path)))
            f.write(json.dumps({"video": os.path.basename(path), "question": QUESTION, "answer": "x"}) + "\n")
    with open(os.path.join(root, "c.yaml"), "w") as f:
        f.write(f"model: {{path: {model}}}\ndata: {{format: video, path: v.jsonl, pack: false, shuffle: false}}\n"
                "training: {seq_len: 65536, global_batch_size: 1, epochs: 1}\nprepd: {workers: 2}\n")
    out = os.path.join(root, "rows")
    settings = dict(PUBLISHED, **settings)
    limit(model, settings.pop("min_frames"), settings.pop("min_pixels"), settings["max_pixels"])
    words = [w for k, v in settings.items() for w in (f"--video.{k}", str(v))]
    subprocess.run([prepd, "record", "-c", os.path.join(root, "c.yaml"), "--steps", str(len(paths)), "--out", out,
                    "--overwrite", *words], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(model, "tokenizer.json")) as f:
        t = json.load(f)
    names = {i: s for s, i in t["model"]["vocab"].items()}
    names.update({a["id"]: a["content"] for a in t["added_tokens"]})
    made = {}
    for row in client.replay(out):
        text = "".join(names[int(i)] for i in row["input_ids"]).replace("\u0120", " ").replace("\u010a", "\n")
        made[paths[int(row["doc_sample_id"][0])]] = {
            "grid": row["grid_thw"][0].tolist(), "patches": sha(row["pixels_video"]),
            "text": sha(np.frombuffer(text.split("user\n", 1)[1].split(QUESTION)[0].encode(), np.uint8))}
    return made


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--prepd", default="build/bin/prepd")
    args.add_argument("--videos", default=os.path.join(HERE, "videos.jsonl"))
    args = args.parse_args()
    with open(args.videos) as f:
        wanted = [json.loads(line) for line in f]
    there = [w for w in wanted if find(w["video"])]
    with tempfile.TemporaryDirectory(prefix="golden") as root:
        subprocess.run([args.prepd, "synth", "--out", os.path.join(root, "synth"), "--images", "4", "--seed", "1"],
                       check=True, stdout=subprocess.DEVNULL)
        for which, settings in SETTINGS.items():
            mine = [w for w in there if w["settings"] == which]
            folder = os.path.join(root, which)
            os.mkdir(folder)
            made = samples(args.prepd, folder, os.path.join(root, "synth", "model"),
                           [find(w["video"]) for w in mine], settings)
            for w in mine:
                for key, value in made[find(w["video"])].items():
                    if w[key] != value:
                        sys.exit(f"{w['video']}, {which}: {key} {value}, the reference has {w[key]}")
    print(f"{len(there)} equal to the byte, {len(wanted) - len(there)} skipped (no shared data)")


if __name__ == "__main__":
    main()
