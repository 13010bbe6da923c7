#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the reference loads what `trainer export` writes and computes the same loss.

    VENV/bin/python tests/golden/check_export.py --trainer build/bin/trainer [--cases DIR]

It needs the environment of make_cases.py and runs by hand. Each flavour is exported in each layout, as float32 and
bfloat16, as one file and as shards. The layouts that this version of the reference reads are loaded with
from_pretrained: no key may be missing, unexpected or mismatched, and every parameter must have the bits of the golden
folder, rounded to bfloat16 where asked. Then, for a new row of each case of flavours.py, the loss of the reference in
float32 and that of `probe` on the export may differ by at most 1e-5, as in compare.py. 4.57 reads only the
published layout. The 5 series also reads its own (v5), because it tells layouts by shapes. For layouts that are not
read, the reference takes the values of the golden folder, and their lines are in brackets.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

import cases_rows as rows
import flavours
import make_cases

TOLERANCE = 1e-5
HERE = os.path.dirname(os.path.abspath(__file__))
FIVE = int(transformers.__version__.split(".")[0]) >= 5


def positions_of(model, flavour, doc):
    if not FIVE or not flavour.visual:
        return make_cases.positions_of(model, flavour, doc)
    ids = torch.from_numpy(doc.ids.astype(np.int64))[None]
    extra = rows.reference_pixels(doc)
    grids = {k: extra.get(k) for k in ("image_grid_thw", "video_grid_thw")}
    position_ids, _ = model.model.get_rope_index(ids, token_types(flavour, doc), **grids)
    return position_ids[:, 0].numpy().astype(np.int32)


def token_types(flavour, doc):
    """What the processor of the 5 series adds to its output: 0 text, 1 image, 2 video."""
    types = (doc.ids == flavour.special["image"]) + 2 * (doc.ids == flavour.special["video"])
    return torch.from_numpy(types.astype(np.int64))[None]


def ask_as_five_wants(flavour):
    """Adds the token types that the 5 series needs beside the pixels."""
    plain = rows.reference_pixels

    def with_types(doc, dtype=torch.float32):
        return plain(doc, dtype) | {"mm_token_type_ids": token_types(flavour, doc)}

    rows.reference_pixels = with_types if flavour.visual else plain
    return plain


def export(trainer, folder, out, *options):
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([trainer, "export", "--model", folder, "--out", out, *options], check=True, stdout=subprocess.DEVNULL)
    return out


def load(flavour, folder):
    """The model in float32, whatever the file holds, and the keys that could not be placed."""
    model, info = flavour.model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return model.train(), {k: sorted(map(str, info[k])) for k in kinds if info.get(k)}


def differing(model, want, rounded):
    """Names of the parameters whose bits differ from the wanted ones."""
    got = model.state_dict()
    if got.keys() != want.keys():
        return sorted(got.keys() ^ want.keys())
    return [n for n, v in want.items() if not torch.equal(got[n], v.bfloat16().float() if rounded else v)]


def probe_beside(trainer):
    return os.path.join(os.path.dirname(os.path.abspath(trainer)), "../tests/probe")


def losses(trainer, folder, flavour, model, seed):
    """The loss of the reference and ours, for each case."""
    routers = make_cases.Routers(model)
    draw = np.random.default_rng(seed)
    out = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case, parts, aux_coef in flavours.cases_of(flavour):
            for _ in range(50):
                documents = [rows.draw_document(draw, p, flavour.special, flavour.vocab) for p in parts]
                try:
                    loss = make_cases.run_case(model, flavour, routers, documents, aux_coef)[0].item()
                    break
                except make_cases.TooClose:
                    routers.take()
            else:
                raise SystemExit(f"{case}: 50 rows with experts too close to tell apart")
            batch, got = os.path.join(scratch, "batch.safetensors"), os.path.join(scratch, "probe.safetensors")
            save_file(rows.pack(documents, [positions_of(model, flavour, d) for d in documents]), batch)
            command = [probe_beside(trainer), "--model", folder, "--batch", batch, "--out", got, "--overwrite", "--aux", repr(aux_coef)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            ours = load_file(got)
            out[case] = loss, ours["loss"].item() + aux_coef * ours["aux_loss"].item()
    return out


def check_saved(trainer, flavour, model, root):
    """The other direction: we read what save_pretrained of this version writes. Returns the number of faults, 0 or 1."""
    saved, back = os.path.join(root, "saved"), os.path.join(root, "back")
    model.save_pretrained(saved, max_shard_size="30KB")
    said = subprocess.run([trainer, "inspect", saved], capture_output=True, text=True, check=True).stdout
    kind = next((k for k in ("[E, in, out]", "[E, out, in]", "one matrix per expert") if k in said), "no experts")
    error = max(abs(a - b) / abs(a) for a, b in losses(trainer, saved, flavour, model, seed=11).values())
    export(trainer, saved, back)  # unchanged: the same files, names, shapes and bits
    files = sorted(n for n in os.listdir(saved) if n.endswith(".safetensors"))
    same = files == sorted(n for n in os.listdir(back) if n.endswith(".safetensors"))
    for file in files if same else []:
        a, b = load_file(os.path.join(saved, file)), load_file(os.path.join(back, file))
        same = same and a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)
    ok = same and error <= TOLERANCE
    print(f"    saved by the reference: {kind}, {len(files)} shards, loss {error:.1e}, " +
          ("comes back bit for bit" if same else "DIFFERS when exported") + ("" if ok else " FAULT"))
    return 0 if ok else 1


def check(trainer, name, folder, root):
    """Prints a line for each layout, dtype and cut, and returns the number of faults."""
    flavour = flavours.open_flavour(name, flavours.KEPT[name])
    every, readable = ["published"], ["published"]
    if not flavour.visual:
        every = readable = ["published", "per-expert"]  # which are the same
    elif flavour.moe:
        every = ["published", "v5"]
        readable += ["v5"] if FIVE else []
    golden, problems = load(flavour, folder)
    if problems:
        raise SystemExit(f"{name}: the golden folder itself: {problems}")
    want = {n: v.clone() for n, v in golden.state_dict().items()}
    faults = check_saved(trainer, flavour, golden, root)
    for layout in every:
        for dtype in ("f32", "bf16"):
            for cut, options in (("one file", ["--shard-bytes", "1000000000"]), ("shards", ["--shard-bytes", "30000"])):
                out = export(trainer, folder, os.path.join(root, "out"), "--layout", layout, "--dtype", dtype, *options)
                model, problems = load(flavour, out if layout in readable else folder)
                if layout not in readable and dtype == "bf16":
                    with torch.no_grad():  # only parameters; tables of angles stay in float32
                        [p.copy_(p.bfloat16().float()) for p in model.parameters()]
                bad = differing(model, want, dtype == "bf16")
                pairs = losses(trainer, out, flavour, model, seed=11)
                error = max(abs(a - b) / abs(a) for a, b in pairs.values())
                ok = not problems and not bad and error <= TOLERANCE
                faults += not ok
                first = next(iter(pairs.values()))
                print(
                    f"| {name} | {layout if layout in readable else '(' + layout + ')'} | {dtype} | {cut} | {len(want)} | {len(bad)} | {first[0]:.6f} | "
                    f"{first[1]:.6f} | {error:.1e} ({len(pairs)}) |" + ("" if ok else f" FAULT {problems} {bad[:3]}"),
                    flush=True,
                )
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--cases", default=os.path.join(HERE, "cases"))
    parser.add_argument("--only", default="", help="flavours whose name contains this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    print("| flavour | layout | dtype | cut | parameters | differ | reference's loss | ours | worst (cases) |")
    print("|---|---|---|---|---|---|---|---|---|")
    faults = 0
    for name in sorted(flavours.KEPT):
        if args.only in name:
            with tempfile.TemporaryDirectory() as root:
                plain = ask_as_five_wants(flavours.open_flavour(name, flavours.KEPT[name])) if FIVE else None
                faults += check(args.trainer, name, os.path.join(args.cases, name), root)
                rows.reference_pixels = plain or rows.reference_pixels
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
