#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks, bit for bit, what `trainer export` writes of the golden folders. Needs only numpy.

    TESSERA_BIN=build/bin tests/golden/check_round_trip.py

Each flavour is exported as float32 and bfloat16, as one file and as shards, in the published layout, that of the 5 series
and per expert (trainer/model/equations.md). Without options, names, shapes, dtypes, order, files and index must be those
of the folder that was read. With --layout, tensors must be the transposes that numpy makes, and a layout that a version of
the reference opens with other values (layouts.json) is refused. Prints a line for each flavour. Exit code 77 (skipped):
numpy is missing.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "flow"))
from hf_files import expect, files_of, fused, in_layout, np, read, same, trainer, works, write, write_shards  # noqa: E402

CASES = os.path.join(HERE, "cases")
PROBE = os.path.join(os.path.dirname(os.environ.get("TESSERA_BIN", "build/bin")), "tests/probe")
LAYOUTS = ["published", "v5", "per-expert"]


def probe_works(*args):
    done = subprocess.run([PROBE, *args], capture_output=True, text=True)
    expect(done.returncode == 0, f"probe {args}: {done.stderr}")


def refused_layouts(model_type):
    with open(os.path.join(HERE, "layouts.json"), encoding="utf-8") as f:
        versions = json.load(f).values()
    return {layout for kinds in versions for layout, outcome in kinds.get(model_type, {}).items() if outcome == "other"}


def check_refused(at, layout):
    code, _, err = trainer("export", "--model", at, "--out", at + "-no", "--layout", layout)
    expect(code == 64 and f"--layout {layout}" in err and "use published" in err, f"{at} to {layout}: {code} {err}")
    expect(not os.path.exists(at + "-no"), f"{at} to {layout}: something is written")


def as_bf16(tensors):
    """The upper halves of float32 values. Any bits are good enough here."""
    return {n: ("BF16", (np.ascontiguousarray(v).view("<u4") >> 16).astype("<u2")) for n, (_, v) in tensors.items()}


def check_same(before, after, what):
    (files, index), (new_files, new_index) = files_of(before), files_of(after)
    expect(list(files) == list(new_files), f"{what}: files {list(new_files)}")
    expect(index == new_index, f"{what}: the weight map differs")
    for file, tensors in files.items():
        expect(list(tensors) == list(new_files[file]), f"{what}: names or their order in {file}")
        for name, t in tensors.items():
            expect(same(t, new_files[file][name]), f"{what}: {name} differs")
    for name in ("config.json", "model.safetensors.index.json"):
        if os.path.exists(os.path.join(before, name)):
            with open(os.path.join(before, name), "rb") as a, open(os.path.join(after, name), "rb") as b:
                expect(a.read() == b.read(), f"{what}: {name} is not kept")


def check_tensors(folder, want, what):
    got = {n: t for part in files_of(folder)[0].values() for n, t in part.items()}
    expect(got.keys() == want.keys(), f"{what}: names {sorted(got.keys() ^ want.keys())[:4]}")
    for name, t in want.items():
        expect(same(t, got[name]), f"{what}: {name} differs")


def check_gradients(folder, at, layout):
    """Checks that gradients of a folder in another layout have the names and layout of its tensors and the same values."""
    def probe(model):
        probe_works("--model", model, "--batch", os.path.join(folder, "aux", "batch.safetensors"), "--out", at + ".out",
              "--overwrite", "--aux", "0.1")
        raw, grads = read(at + ".out", bare=True), {}
        for name, t in raw.items():
            if name.startswith("grad."):
                grads[name[5:]] = t
        return grads

    want = in_layout(fused(probe(folder)), layout)
    stored = {n for part in files_of(at)[0].values() for n in part}
    got = probe(at)
    expect(got.keys() == want.keys() == stored, f"{at}: gradients' names {sorted(got.keys() ^ stored)[:4]}")
    for name, t in want.items():
        expect(same(t, got[name]), f"{at}: the gradient of {name} differs")


def check_flavour(flavour, root):
    folder = os.path.join(CASES, flavour)
    stored = read(os.path.join(folder, "model.safetensors"))
    plain = fused(stored)
    moe = any(".experts." in n for n in plain)
    published = "per-expert" if ".experts.0." in " ".join(stored) else "published"
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        refused = refused_layouts(json.load(f)["model_type"])
    expect(len(refused - {"fused"}) == moe, f"{flavour}: refused layouts {refused}")
    runs = 0
    for dtype, values in (("f32", plain), ("bf16", as_bf16(plain))):
        for layout in LAYOUTS if moe else LAYOUTS[:1]:
            for shards in (1, 3):
                tensors = in_layout(values, layout)
                at = os.path.join(root, f"{flavour}-{dtype}-{layout}-{shards}")
                os.mkdir(at)
                shutil.copy(os.path.join(folder, "config.json"), at)
                if shards == 1:
                    write(os.path.join(at, "model.safetensors"), tensors)
                else:
                    write_shards(at, tensors, shards)
                works("export", "--model", at, "--out", at + "-same")
                check_same(at, at + "-same", at)
                for other in LAYOUTS if moe else []:
                    if other in refused:
                        check_refused(at, other)
                        continue
                    works("export", "--model", at, "--out", at + "-" + other, "--layout", other)
                    real = published if other == "published" else other
                    check_tensors(at + "-" + other, in_layout(values, real), f"{at} to {other}")
                    runs += 1
                runs += 1
    tied = "lm_head.weight" not in stored
    if tied:  # some writers store the embedding of a tied model twice
        at = os.path.join(root, flavour + "-head")
        os.mkdir(at)
        shutil.copy(os.path.join(folder, "config.json"), at)
        embedding = stored["model.language_model.embed_tokens.weight"]
        write_shards(at, stored | {"lm_head.weight": embedding}, 2)
        works("export", "--model", at, "--out", at + "-same")
        check_same(at, at + "-same", at)
    at = os.path.join(root, flavour + "-place")  # into its own folder, with other shards and another layout, and back
    shutil.copytree(folder, at, ignore=lambda _, names: [n for n in names if "." not in n])
    other = "published" if "v5" in refused else "v5"
    works("export", "--model", at, "--out", at, "--overwrite", "--shard-bytes", "20000", "--layout", other)
    expect("model.safetensors" not in os.listdir(at), f"{at}: the old file is left")
    works("export", "--model", at, "--out", at, "--overwrite", "--shard-bytes", "1000000000", "--layout", "published")
    expect(sorted(os.listdir(at)) == ["config.json", "model.safetensors"], f"{at}: {os.listdir(at)}")
    check_tensors(at, stored, at)
    at = os.path.join(root, flavour + "-cut")  # through another layout, dtype and shards, and back
    works("export", "--model", folder, "--out", at, "--layout", other, "--shard-bytes", "20000")
    files, index = files_of(at)
    expect(len(files) > 2 and set(index.values()) == set(files), f"{at}: shards and index")
    for tensors in files.values():
        size = sum(v.nbytes for _, v in tensors.values())
        expect(size <= 20000 or len(tensors) == 1, f"{at}: a shard of {size} bytes")
    works("export", "--model", at, "--out", at + "-back", "--layout", "published", "--shard-bytes", "1000000000")
    check_tensors(at + "-back", stored, at + "-back")
    if moe and os.path.exists(os.path.join(folder, "aux")):
        check_gradients(folder, at, published if other == "published" else other)
    works("export", "--model", folder, "--out", at + "-bf16", "--dtype", "bf16")
    works("export", "--model", at + "-bf16", "--out", at + "-f32", "--dtype", "f32")
    works("export", "--model", at + "-f32", "--out", at + "-bf16-again", "--dtype", "bf16")
    check_same(at + "-bf16", at + "-bf16-again", "bf16 through f32")
    for end, word, other in (("-bf16", "bfloat16", "float32"), ("-f32", "float32", "bfloat16")):
        with open(at + end + "/config.json", encoding="utf-8") as f:
            text = f.read()
        expect(f'"dtype": "{word}"' in text and other not in text, f"{flavour}: dtype in config.json")
    print(f"{flavour}: {len(stored)} tensors, {runs + 7 + tied} exports")


def main():
    with tempfile.TemporaryDirectory() as root:
        for flavour in sorted(os.listdir(CASES)):
            check_flavour(flavour, root)


main()
