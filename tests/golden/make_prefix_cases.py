#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden cases of rows with prefixes, with the reference running each sample alone.

It needs the environment of make_cases.py, and runs by hand after it, since that script empties the folders:

    VENV/bin/python tests/golden/make_prefix_cases.py --out tests/golden/cases [--seed 1]

For each flavour below it loads OUT/FLAVOUR and writes OUT/FLAVOUR/prefix/: batch.safetensors, a row of trees (proto/row/batch.h,
doc_prefix), and sketch.safetensors: the loss, own_rounding, and for each gradient two sketches (sketch.py), which are small where
the gradient itself would be large: of the float32 run and of the float64 run. All are of sum / targets over the samples one by
one, with eager attention and without auxiliary loss."""

import argparse
import os
import shutil

import numpy as np
import torch
from safetensors.numpy import save_file

import flavours
import make_cases
import prefix_trees
import sketch

FLAVOURS = ("moe", "text")
SMALL = [[3, ("image", 2, 4), 2], [2, ("video", 2, 2, 2), 3], [9]]  # prefixes; each case has all that its model takes


def draw_case(model, flavour, routers, draw):
    """(trees, what run_case gives of their samples) of a row in which rounding decides nothing."""
    while True:
        trees = [prefix_trees.draw_tree(draw, flavour, parts, int(draw.integers(2, 6)))
                 for parts in (SMALL if flavour.visual else SMALL[-1:] * 2)]
        trees.append(prefix_trees.draw_tree(draw, flavour, [4], 1))
        samples = [s for t in trees for s in t.samples]
        try:
            return trees, make_cases.run_case(model, flavour, routers, samples, 0)
        except make_cases.TooClose as reason:
            routers.take()
            print(f"{flavour.name}: {reason}, drawn again")


def write_case(folder, name, seed):
    flavour = flavours.open_flavour(name, flavours.KEPT[name])
    model = flavour.model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
    routers = make_cases.Routers(model)
    trees, (loss, _, _, grads) = draw_case(model, flavour, routers, np.random.default_rng(seed))
    samples = [s for t in trees for s in t.samples]
    row, _ = prefix_trees.pack(trees, lambda s: make_cases.positions_of(model, flavour, s))
    exact = make_cases.exact_gradients(model, flavour, routers, samples, 0)
    rounding = make_cases.own_rounding(grads, exact)
    out = {"loss": loss.detach().numpy(), "own_rounding": np.array(rounding, np.float32)}
    for parameter in grads:
        out["grad." + parameter] = np.stack([sketch.sketch_of(parameter, g[parameter].numpy()) for g in (grads, exact)])
    where = os.path.join(folder, "prefix")
    shutil.rmtree(where, ignore_errors=True)
    os.makedirs(where)
    save_file(row, os.path.join(where, "batch.safetensors"))
    save_file(out, os.path.join(where, "sketch.safetensors"))
    print(f"{where}: T {len(row['input_ids'])} instead of {sum(len(s.ids) for s in samples)}, loss {loss.item():.6f}, "
          f"own rounding {rounding:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for name in FLAVOURS:
        write_case(os.path.join(args.out, name), name, args.seed)


if __name__ == "__main__":
    main()
