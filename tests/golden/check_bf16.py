#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `probe` in bf16 with the reference in bf16: each against the reference in float32.

    VENV/bin/python tests/golden/check_bf16.py --probe build/bin/trainer [--rows 4] [--only FLAVOUR] [--verbose]
    VENV/bin/python tests/golden/check_bf16.py --probe build/tests/probe_simt    where there is no GPU

It needs the environment of make_cases.py with transformers 4.57.3, and runs by hand. It takes the folders of the golden cases
with their weights rounded to bf16, and draws new rows. An error is |x - float32| / |float32| over a whole tensor of a row. For
each flavour a line gives the medians, over rows and tensors, of both errors and of their ratio, and the worst tensor by the
median of its ratios over rows. Two correct programs round in another order, and now and then one of them chooses another
expert, so single errors differ by chance, and medians must not: that of all may be at most 1.25. Of a tensor whose median
is above 3, a formula is wrong. Exit code 1: one of these is exceeded.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.numpy import save_file

import cases_rows as rows
import compare
import flavours
import make_cases

MEDIAN, WORST = 1.25, 3.0
GAP = 0.003  # of the probabilities of the last chosen expert and the next one; closer ones would be chosen by rounding too often
SHARE = 0.01  # tensors whose gradient is below this share of the largest one are mostly rounding


def tensors(result):
    loss, aux, logits, grads = result
    out = {"loss": np.array(loss.item(), np.float64), "logits": logits.astype(np.float64)}
    out.update({"grad." + n: g.double().numpy() for n, g in grads.items()})
    return out


def draw_row(model, flavour, routers, draw, parts, coef):
    """(documents, tensors in float32)"""
    make_cases.MIN_GAP = GAP
    for _ in range(300):
        documents = [rows.draw_document(draw, p, flavour.special, flavour.vocab) for p in parts]
        try:
            return documents, tensors(make_cases.run_case(model, flavour, routers, documents, coef))
        except make_cases.TooClose:
            routers.take()
    return None, None


def in_bf16(folder, flavour, documents, coef):
    model = flavour.model_class.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").train()
    make_cases.MIN_GAP = -1
    return tensors(make_cases.run_case(model, flavour, make_cases.Routers(model), documents, coef))


def ours(probe, folder, batch, coef):
    out = batch + ".out"
    subprocess.run([probe, "--model", folder, "--batch", batch, "--out", out, "--overwrite", "--aux", repr(coef),
                    "--backend", "cuda"], check=True, stdout=subprocess.DEVNULL)
    got = compare.read(out)
    got["loss"] = got["loss"] + coef * got.pop("aux_loss")
    return got


def rounded_folder(flavour, name, root):
    """The kept folder with its weights rounded to bf16, and the model of it in float32."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases", name)
    model = flavour.model_class.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").train()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16().float())
    folder = os.path.join(root, name)
    model.save_pretrained(folder)
    shutil.copy(os.path.join(source, "config.json"), folder)
    return folder, model


def squared(got, want):
    return {n: (float(np.sum((got[n] - w) ** 2)), float(np.sum(w**2))) for n, w in want.items() if n in got}


def check_flavour(probe, name, root, count, verbose):
    flavour = flavours.open_flavour(name, flavours.KEPT[name])
    folder, model = rounded_folder(flavour, name, root)
    routers, draw, taken = make_cases.Routers(model), np.random.default_rng(11), 0
    by_tensor, ratios, errors = {}, [], ([], [])
    for case, parts, coef in flavours.cases_of(flavour) * count:
        documents, want = draw_row(model, flavour, routers, draw, parts, coef)
        if documents is None:
            continue
        taken += 1
        batch = os.path.join(root, "batch.safetensors")
        save_file(rows.pack(documents, [make_cases.positions_of(model, flavour, d) for d in documents]), batch)
        pair = squared(ours(probe, folder, batch, coef), want), squared(in_bf16(folder, flavour, documents, coef), want)
        missing = [n for n in want if n not in pair[0] and want[n].any()]
        if missing:
            raise SystemExit(f"{name}/{case}: the trainer wrote no {missing[0]}")
        largest = max(size for n, (_, size) in pair[1].items() if n.startswith("grad."))
        for n in pair[0]:
            (mine, size), (theirs, _) = pair[0][n], pair[1][n]
            if n == "loss" or (n.startswith("grad.") and size < SHARE**2 * largest) or theirs == 0:
                continue
            ratios.append((mine / theirs) ** 0.5)
            for at, value in enumerate((mine, theirs)):
                errors[at].append((value / size) ** 0.5)
            by_tensor.setdefault(n, []).append(ratios[-1])
    together = {n: float(np.median(values)) for n, values in by_tensor.items()}
    worst = max(together, key=together.get)
    middle = float(np.median(ratios))
    print(f"| {name} | {taken} | {np.median(errors[0]):.4f} | {np.median(errors[1]):.4f} | {middle:.2f} | {together[worst]:.2f} "
          f"({worst}) |", flush=True)
    for n, ratio in sorted(together.items(), key=lambda x: -x[1]) if verbose else ():
        print(f"    {ratio:.2f} {n}")
    return middle > MEDIAN or together[worst] > WORST


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--rows", type=int, default=4, help="of each kind of row")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true", help="every tensor")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| flavour | rows | our error | the reference's | median ratio | worst ratio of a tensor |\n|---|---|---|---|---|---|")
    faults = 0
    for name in flavours.KEPT:
        if args.only in name and name != "head":
            with tempfile.TemporaryDirectory() as root:
                faults += check_flavour(args.probe, name, root, args.rows, args.verbose)
    print(f"{faults} faults; the median ratio may be {MEDIAN}, a tensor's {WORST}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
