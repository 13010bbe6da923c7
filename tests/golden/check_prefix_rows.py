#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small models of transformers on rows with prefixes, by the masks of tessera/masks.py, and compares their gradients with
those of separate samples.

    VENV/bin/python tests/golden/check_prefix_rows.py [--prepd build/bin/prepd] [--rows 100] [--seed 1]

It needs the environment of make_cases.py. A row has four trees of pictures, clips and text; those of --prepd are an epoch of
its stream with data.group shared_prefix, and their samples those of the same data without groups. The reference runs every sample
alone, with its own mask and positions, and the row at once, with the row's positions and mask: a float 4-D mask in eager
attention, a bool one in sdpa and, for every tenth row, a block mask in flex_attention, whose function must be the 4-D mask.
A torch that has no backward pass of flex_attention on the CPU (2.6 has one, 2.15 has not) is said, and its loss alone is compared.
Loss and gradients (in float32, without auxiliary loss) must agree within 1e-5 of the norm of each parameter's gradient. Then
AdamW makes a step with the row's gradient, so every row meets other values, and in the end the loss must have fallen. Where
rounding makes a token choose another expert the two are different functions: such rows are counted, at most one in a hundred,
and drawn again.

Run by ctest as golden_prefix_rows if TESSERA_REFERENCE names the interpreter of that environment; otherwise it is skipped
(exit code 77)."""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("TESSERA_REFERENCE"):
    reference = os.environ.pop("TESSERA_REFERENCE")
    os.execv(reference, [reference, "-B", *sys.argv])
try:
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: no {missing.name}; TESSERA_REFERENCE names an interpreter that has torch and transformers")
    sys.exit(77)

import numpy as np  # noqa: E402

sys.path.insert(0, os.path.join(HERE, "..", "..", "proto", "python"))
import cases_rows as rows  # noqa: E402
import flavours  # noqa: E402
import make_cases  # noqa: E402
from tessera import masks  # noqa: E402
import prefix_trees  # noqa: E402
from compare import TOLERANCE, ZERO  # noqa: E402

FLEX_EVERY = 10  # rows: flex_attention is prepared anew for each, which takes a second


def gradients_of(model):
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return grads


def run_samples(model, flavour, routers, samples):
    """(loss, gradients, router logits of each sample and layer) of every sample alone."""
    targets = sum(int((s.labels != -100).sum()) for s in samples)
    loss, logits = 0, []
    for s in samples:
        out = make_cases.run_document(model, flavour, s)[0]
        loss = loss + out.loss * (int((s.labels != -100).sum()) / targets)
        logits.append(routers.take())
    loss.backward()
    return loss.item(), gradients_of(model), logits


def row_loss(model, flavour, row, items, mask):
    tensor = {k: torch.from_numpy(row[k].astype(np.int64))[None] for k in ("input_ids", "labels")}
    pixels = rows.reference_pixels(rows.Document(row["input_ids"], row["labels"], None, items)) if flavour.visual else {}
    # Qwen3-MoE has one position for a token, Qwen3-VL three.
    positions = torch.from_numpy(row["position_ids"].astype(np.int64))[:, None]
    return model(**tensor, position_ids=positions if flavour.visual else positions[0], attention_mask=mask, use_cache=False,
                 **pixels).loss


def run_row(model, flavour, routers, row, items, mask):
    """The same of the row at once; the router logits are of the row's tokens."""
    loss = row_loss(model, flavour, row, items, mask)
    loss.backward()
    return loss.item(), gradients_of(model), routers.take()


def run_forward(model, flavour, routers, row, items, mask):
    """The loss and the router logits of the row at once."""
    with torch.no_grad():
        return row_loss(model, flavour, row, items, mask).item(), routers.take()


def flips(samples, row, places, top_k):
    """How many tokens choose other experts in the row than in their sample."""
    n = 0
    for logits, place in zip(samples, places):
        for alone, packed in zip(logits, row):
            chosen = [x.topk(top_k, -1).indices.sort(-1).values for x in (alone, packed[place])]
            n += int((chosen[0] != chosen[1]).any(-1).sum())
    return n


def worst_of(want, got):
    """The largest relative error of a parameter's gradient, and whose it is."""
    nothing = ZERO * max(g.norm() for g in want.values())
    errors = {n: ((got[n] - g).norm() / g.norm().clamp_min(nothing)).item() for n, g in want.items() if max(g.norm(), got[n].norm()) > nothing}
    name = max(errors, key=errors.get)
    return errors[name], name


def attend_flexibly(module, query, key, value, attention_mask, scaling=None, is_causal=None, **_):
    """Attention as transformers calls it, by flex_attention as it is. The one that transformers has compiles it, which on CPUs
    leaves it without a backward pass. The vision tower's has no mask: a picture or a frame is a separate call."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    assert isinstance(attention_mask, BlockMask) or (attention_mask is None and not module.is_causal), attention_mask
    out = flex_attention(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
    return out.transpose(1, 2).contiguous(), None


@functools.cache
def flex_has_backward():
    """Whether this torch has a backward pass of flex_attention on the CPU."""
    from torch.nn.attention.flex_attention import flex_attention
    query = torch.zeros(1, 1, 16, 16, requires_grad=True)
    try:
        flex_attention(query, query, query)
    except NotImplementedError:
        return False
    return True


def block_mask_of(row, sees):
    """FlexAttention's mask of a row, whose function must be the 4-D mask."""
    from torch.nn.attention.flex_attention import create_block_mask, create_mask
    function, tokens = masks.mask_function(row), sees.shape[-1]
    assert torch.equal(create_mask(function, 1, 1, tokens, tokens, "cpu"), sees), "the function is another mask"
    return create_block_mask(function, None, None, tokens, tokens, device="cpu")


def drawn_rows(model, flavour, draw):
    """Yields without end: (samples, row, its items, for each sample where its tokens lie in the row)."""
    while True:
        trees = prefix_trees.draw_trees(draw, flavour, 4)
        row, places = prefix_trees.pack(trees, lambda s: make_cases.positions_of(model, flavour, s))
        yield [s for t in trees for s in t.samples], row, [i for t in trees for i in t.samples[0].items], places


def items_of(row):
    """The pictures of a row of prepd that has no clips, as rows.Document has them."""
    ends = np.cumsum(row["grid_thw"].prod(axis=1))
    return [(False, tuple(grid.tolist()), row["pixels"][end - grid.prod():end]) for grid, end in zip(row["grid_thw"], ends)]


def documents_of(row, special):
    """The documents of such a row."""
    ends, items = np.cumsum(row["grid_thw"].prod(axis=1) // 4), items_of(row)
    for begin, end in zip(row["cu_seqlens"], row["cu_seqlens"][1:]):
        ids, shown = row["input_ids"][begin:end], row["visual_row"][begin:end]
        own = np.unique(np.searchsorted(ends, shown[shown >= 0], "right"))
        yield rows.Document(ids, row["labels"][begin:end], ids == special["image"], [items[i] for i in own])


def record_rows(prepd, folder, group, steps):
    from tessera import client
    config, path = (os.path.join(folder, group + end) for end in (".yaml", ".rec"))
    with open(config, "w", encoding="utf-8") as f:
        f.write(f"model: {{path: data/model}}\ndata: {{format: vqav2, path: data, group: {group}}}\n"
                "training: {seq_len: 512, global_batch_size: 4, epochs: 1}\n")
    subprocess.run([prepd, "record", "-c", config, "--steps", str(steps), "--out", path], check=True, capture_output=True)
    return client.replay(path, prefixes=True)


def streamed_rows(prepd, folder, special):
    """The same of an epoch of prepd's with data.group shared_prefix. The samples are those of the epoch without groups."""
    sample = {}
    for row in record_rows(prepd, folder, "none", 3):
        sample.update(zip(row["doc_sample_id"].tolist(), documents_of(row, special)))
    seen = []
    for row in record_rows(prepd, folder, "shared_prefix", 2):
        borders, prefix = masks.documents(row)
        own = [np.arange(*borders[d:d + 2]) for d in range(len(prefix))]
        places = {d: np.concatenate([own[p], own[d]]) if p >= 0 else own[d] for d, p in enumerate(prefix) if row["doc_part"][d] >= 0}
        numbers = row["doc_sample_id"][list(places)].tolist()
        seen += numbers
        yield [sample[n] for n in numbers], row, items_of(row), list(places.values())
    assert sorted(seen) == sorted(sample), "the two epochs have other samples"


def check_model(name, flavour, model, source, n_rows):
    """Trains a model on n_rows of the source; prints a line, and returns the number of faults."""
    optimizer, routers = torch.optim.AdamW(model.parameters(), lr=3e-3), make_cases.Routers(model)
    heads = {m.head_dim for m in model.modules() if hasattr(m, "head_dim")}
    worst, redrawn, losses, saved = (0, ""), 0, [], []
    for samples, row, items, places in source:
        sees = masks.mask_4d(row, torch.bool)
        kinds = [("eager", masks.mask_4d(row, torch.float32)), ("sdpa", sees)]
        if len(losses) % FLEX_EVERY == 0 and all(n & (n - 1) == 0 for n in heads):  # flex_attention takes powers of two alone
            kinds.append(("attend_flexibly", block_mask_of(row, sees)))
        model.set_attn_implementation("eager")
        want_loss, want, alone = run_samples(model, flavour, routers, samples)
        results, changed = [], 0
        for kind, mask in kinds:
            model.set_attn_implementation(kind)
            trains = kind != "attend_flexibly" or flex_has_backward()
            if trains:
                loss, grads, packed = run_row(model, flavour, routers, row, items, mask)
            else:
                loss, packed = run_forward(model, flavour, routers, row, items, mask)
            changed += flips(alone, packed, places, flavour.text(model).num_experts_per_tok) if flavour.moe else 0
            results.append((abs(loss - want_loss) / abs(want_loss), f"loss, {kind}"))
            if trains:
                error, parameter = worst_of(want, grads)
                results.append((error, f"{parameter}, {kind}"))
        if changed:
            redrawn += 1
            continue
        worst = max(worst, *results)
        losses.append(want_loss)
        saved.append(len(row["input_ids"]) / sum(len(s.ids) for s in samples))
        for parameter, p in model.named_parameters():
            p.grad = grads[parameter]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if len(losses) == n_rows:
            break
    fifth = max(1, n_rows // 5)
    first, last = np.mean(losses[:fifth]), np.mean(losses[-fifth:])
    print(f"| {name} | {len(losses)} | {np.mean(saved):.2f} | {worst[0]:.1e} | {worst[1]} | {redrawn} | {first:.3f} to {last:.3f} |",
          flush=True)
    return sum((worst[0] > TOLERANCE, redrawn * 100 > max(n_rows, 100), not last < first, len(losses) + redrawn < n_rows))


def open_model(flavour, seed):
    torch.manual_seed(seed)
    model = flavour.model_class._from_config(flavour.config, attn_implementation="eager").float().train()
    make_cases.init_parameters(model, seed)
    return model


def check_drawn(name, n_rows, seed):
    flavour = flavours.open_flavour(name, flavours.KEPT[name])
    model = open_model(flavour, seed)
    return check_model(name, flavour, model, drawn_rows(model, flavour, np.random.default_rng(seed)), n_rows)


def check_stream(prepd, seed):
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data")
        subprocess.run([prepd, "synth", "--out", data, "--images", "128", "--seed", str(seed)], check=True, capture_output=True)
        with open(os.path.join(data, "model", "config.json"), encoding="utf-8") as f:
            flavour = flavours.open_flavour("stream", json.load(f))
        return check_model("stream", flavour, open_model(flavour, seed), streamed_rows(prepd, folder, flavour.special), 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100, help="of each model, of rows that are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prepd", help="build/bin/prepd: also a stream of it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.AttentionInterface.register("attend_flexibly", attend_flexibly)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, tolerance {TOLERANCE:g}")
    if not flex_has_backward():
        print("this torch has no backward pass of flex_attention on the CPU: of that, the loss alone is compared")
    print("| model | rows | tokens of those of separate samples | worst | of | redrawn | loss |\n|---|---|---|---|---|---|---|", flush=True)
    faults = check_stream(args.prepd, args.seed) if args.prepd else 0
    faults += sum(check_drawn(name, args.rows, args.seed) for name in ("moe", "odd", "text") if args.rows)
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
