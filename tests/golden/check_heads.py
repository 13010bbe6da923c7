#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks tied heads: what the trainer makes of each combination of config.json and a stored lm_head.weight (heads.json).

    TESSERA_BIN=build/bin tests/golden/check_heads.py

It is compared with what versions of the reference make of it. A stored head is used as by 5.24.0, which never drops one.
If none is stored, the head is tied if 4.57.3 or 5.24.0 ties it, and the folder is refused by name if both would begin
with random values. Without any weights it is tied as by 5.24.0, also in what that version writes of the same file. What is loaded is exported bit for bit and its config.json byte for byte, except where 4.57.3 would
drop the head: there each tie_word_embeddings becomes false, with which it would not. Prints a line for each model type.
Exit code 77 (skipped): numpy is missing.
"""
import json
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "flow"))
from hf_files import expect, read, same, trainer, works, write  # noqa: E402

CASES = os.path.join(HERE, "cases")
FOLDERS = {"qwen3_vl_moe": "moe", "qwen3_vl": "dense", "qwen3_moe": "text"}
SAYS = {"true": True, "false": False}


def make_folder(at, name, top, inner, kind):
    os.mkdir(at)
    with open(os.path.join(CASES, name, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    for place, says in ((config, top), (config.get("text_config", {}), inner)):
        place.pop("tie_word_embeddings", None)
        if says in SAYS:
            place["tie_word_embeddings"] = SAYS[says]
    with open(os.path.join(at, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
    tensors = read(os.path.join(CASES, name, "model.safetensors"))
    other = tensors.pop("lm_head.weight")
    embedding = next(t for n, t in tensors.items() if n.endswith("embed_tokens.weight"))
    if kind == "config":
        return
    if kind != "none":
        tensors["lm_head.weight"] = embedding if kind == "equal" else other
    write(os.path.join(at, "model.safetensors"), tensors)


def check_export(at, dropped_by_4, what):
    """Exports, and checks that the head is still the same when the export is read."""
    works("export", "--model", at, "--out", at + "-out")
    before, after = (read(os.path.join(p, "model.safetensors")) for p in (at, at + "-out"))
    expect(list(before) == list(after) and all(same(t, after[n]) for n, t in before.items()), f"{what}: tensors differ")
    with open(at + "/config.json", encoding="utf-8") as f, open(at + "-out/config.json", encoding="utf-8") as g:
        source, written = f.read(), g.read()
    wanted = source.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false') if dropped_by_4 else source
    expect(written == wanted, f"{what}: config.json\n{written}")


def check_kind(model_type, four, five, root):
    tied = refused = 0
    saved = {key.partition(" ")[2]: five.pop(key) for key in list(five) if key.startswith("saved ")}
    expect(all(five[f"{was} config"] == five[f"{now} config"] for was, now in saved.items()), f"{model_type}: {saved}")
    for number, (key, theirs) in enumerate(five.items()):
        top, inner, kind = key.split()
        what, at = f"{model_type}: {key}", os.path.join(root, f"{model_type}-{number}")
        make_folder(at, FOLDERS[model_type], top, inner, kind)
        wanted = "tied" if kind == "none" and four[key] == "tied" else theirs
        code, out, err = trainer("inspect", at)
        if wanted == "random" and kind != "config":
            expect(code == 65 and "lm_head.weight" in err and "missing" in err, f"{what}: {code} {out} {err}")
            refused += 1
            continue
        expect(code == 0, f"{what}: {err}")
        is_tied = "tied embeddings" in out.splitlines()[0]
        expect(is_tied == (wanted == "tied"), f"{what}: {'tied' if is_tied else 'untied'}, the reference: {theirs}")
        tied += is_tied
        if kind != "config":
            check_export(at, not is_tied and four[key] == "tied", what)
        shutil.rmtree(at)
    print(f"{model_type}: {len(five)} combinations, {tied} tied, {refused} refused")


def main():
    with open(os.path.join(HERE, "heads.json"), encoding="utf-8") as f:
        kept = json.load(f)
    with tempfile.TemporaryDirectory() as root:
        for model_type in FOLDERS:
            check_kind(model_type, kept["4.57.3"][model_type], kept["5.24.0"][model_type], root)


main()
