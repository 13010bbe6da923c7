#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden cases of the model with the reference implementation.

Needs PyPI, so it runs by hand; what it wrote is kept in cases/. In a temporary environment outside the tree:

    python3 -m venv VENV
    VENV/bin/pip install torch==2.6.0 transformers==4.57.3 safetensors==0.8.0 numpy==2.4.6
    VENV/bin/python tests/golden/make_cases.py --out tests/golden/cases

--seed S draws other weights and rows. --config FILE takes the config.json of any model of the family instead of the kept
flavours, and --draw N draws N of them. It writes:

    OUT/FLAVOUR/config.json, model.safetensors     a Hugging Face folder, float32
    OUT/FLAVOUR/CASE/batch.safetensors             one row, as proto/row/batch.h
    OUT/FLAVOUR/CASE/expected.safetensors          logits [T, V], loss, aux_loss, grad.NAME; aux_coef;
                                                   own_rounding, see below

The reference runs each document alone, because its packing does not keep documents apart, in float32, with eager
attention, in training mode, in which its expert loop is the plain top-k one. Loss and gradients are those of sum /
targets over the whole row, plus aux_coef * aux_loss unless aux_coef is 0. A second run in float64 gives own_rounding: how
far the reference's float32 gradients are from exact ones, as the worst relative error of a tensor. With --exact, and in
flavours.EXACT, the exact gradients are kept too: exact.safetensors, grad.NAME, float64.
"""

import argparse
import contextlib
import json
import os
import random
import shutil

import numpy as np
import torch
from safetensors.numpy import save_file

import cases_rows as rows
import flavours
from compare import ZERO

# The least difference in probability between the last chosen expert and the next one, so that rounding never decides.
MIN_GAP = 1e-5


def init_parameters(model, seed):
    """Draws values large enough that every gradient matters: matrices keep the scale of what passes through them, and
    norms and biases differ from 1 and 0."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        if name.endswith("norm.weight") or "norm" in name.split(".")[-2] and name.endswith("weight"):
            value = 1 + 0.2 * noise
        elif p.dim() == 1:
            value = 0.2 * noise
        elif "embed_tokens" in name or "pos_embed" in name:
            value = 0.5 * noise
        elif name.endswith(("gate_up_proj", "down_proj")):  # fused experts: [E, in, out]
            value = noise * p.shape[1] ** -0.5
        else:
            value = noise * (p.numel() / p.shape[0]) ** -0.5
        with torch.no_grad():
            p.copy_(value)


class Routers:
    """Collects the router logits of each MoE layer, one document after another."""

    def __init__(self, model):
        self.layers = {}
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(lambda m, i, out, at=name: self.keep(at, out))

    def keep(self, at, out):
        logits = out[0] if isinstance(out, tuple) else out  # the 5 series also returns weights and choices
        self.layers.setdefault(at, []).append(logits)

    def take(self):
        logits = tuple(torch.cat(parts) for parts in self.layers.values())
        self.layers.clear()
        return logits


class TooClose(Exception):
    """The last chosen expert and the next one are too close."""


def check_gap(logits, top_k):
    for layer in logits if top_k < logits[0].shape[-1] else ():
        p = layer.softmax(-1).sort(-1, descending=True).values
        gap = (p[:, top_k - 1] - p[:, top_k]).min().item()
        if gap < MIN_GAP:
            raise TooClose(f"experts {top_k} and {top_k + 1} of a token differ by {gap:.1e}")


def run_document(model, flavour, doc):
    ids = torch.from_numpy(doc.ids.astype(np.int64))[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    labels = torch.from_numpy(doc.labels.astype(np.int64))[None]
    if flavour.visual:
        inputs |= rows.reference_pixels(doc, next(model.parameters()).dtype)
    return model(**inputs, labels=labels if (doc.labels != -100).any() else None), inputs, labels


def positions_of(model, flavour, doc):
    if not flavour.visual:
        return np.tile(np.arange(len(doc.ids), dtype=np.int32), (3, 1))
    grids = rows.reference_pixels(doc)
    ids = torch.from_numpy(doc.ids.astype(np.int64))[None]
    position_ids, _ = model.model.get_rope_index(ids, grids.get("image_grid_thw"), grids.get("video_grid_thw"))
    return position_ids[:, 0].numpy().astype(np.int32)


def run_case(model, flavour, routers, documents, aux_coef):
    """(loss, aux, logits, gradients) of a row, document by document."""
    model.zero_grad(set_to_none=True)
    targets = sum(int((d.labels != -100).sum()) for d in documents)
    total, logits = 0, []
    for doc in documents:
        out, inputs, labels = run_document(model, flavour, doc)
        if out.loss is not None:
            total = total + out.loss * (int((doc.labels != -100).sum()) / targets)
        values = out.logits[0].detach()
        logits.append(values.to(torch.promote_types(values.dtype, torch.float32)).numpy())
    aux = torch.zeros((), dtype=total.dtype)
    router_logits = routers.take()
    if router_logits:
        text = flavour.text(model)
        check_gap(router_logits, text.num_experts_per_tok)
        aux = flavour.aux_function(router_logits, text.num_experts, text.num_experts_per_tok)
    narrow = next(model.parameters()).dtype == torch.bfloat16
    if aux_coef and router_logits and len(documents) == 1 and not narrow:  # the model's own sum must be the same
        own = model(**inputs, labels=labels, output_router_logits=True)
        routers.take()
        assert flavour.text(model).router_aux_loss_coef == aux_coef
        assert torch.allclose(own.aux_loss, aux) and torch.allclose(own.loss, total + aux_coef * aux)
    loss = total + aux_coef * aux
    loss.backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    return loss, aux, np.concatenate(logits), grads


@contextlib.contextmanager
def double_precision(model):
    """Runs the reference in float64, even where its code names float32."""
    names = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield model.double()
    finally:
        torch.float32, torch.float, torch.Tensor.float = names
        model.float()


def exact_gradients(model, flavour, routers, documents, aux_coef):
    with double_precision(model):
        return run_case(model, flavour, routers, documents, aux_coef)[3]


def own_rounding(grads, exact):
    nothing = ZERO * max(g.norm() for g in exact.values())
    return max(((grads[n].double() - g).norm() / g.norm()).item() for n, g in exact.items() if g.norm() > nothing)


def write_case(folder, flavour, model, routers, documents, result, aux_coef, keep_exact):
    loss, aux, logits, grads = result
    exact = exact_gradients(model, flavour, routers, documents, aux_coef)
    rounding = own_rounding(grads, exact)
    os.makedirs(folder)
    batch = rows.pack(documents, [positions_of(model, flavour, d) for d in documents])
    save_file(batch, os.path.join(folder, "batch.safetensors"))
    out = {"logits": logits, "loss": loss.detach().numpy(), "aux_loss": aux.detach().numpy()}
    out |= {"aux_coef": np.array(aux_coef, np.float64), "own_rounding": np.array(rounding, np.float32)}
    has_visual = any(d.items for d in documents)
    for name, g in grads.items():
        if has_visual or not name.startswith("model.visual."):  # without visuals they are zero
            out["grad." + name] = np.ascontiguousarray(g.numpy())
    save_file(out, os.path.join(folder, "expected.safetensors"))
    if keep_exact or f"{flavour.name}/{os.path.basename(folder)}" in flavours.EXACT:
        exact = {"grad." + n: np.ascontiguousarray(g.numpy()) for n, g in exact.items() if "grad." + n in out}
        save_file(exact, os.path.join(folder, "exact.safetensors"))
    print(f"{folder}: T {len(logits)}, loss {loss.item():.6f}, aux {aux.item():.6f}, own rounding {rounding:.1e}")


def write_flavour(name, config, seed, out, keep_exact):
    flavour = flavours.open_flavour(name, config)
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    model = flavour.model_class._from_config(flavour.config, attn_implementation="eager").float().train()
    init_parameters(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    routers = Routers(model)
    draw = np.random.default_rng(seed)
    for case, parts, aux_coef in flavours.cases_of(flavour):
        for _ in range(50):
            documents = [rows.draw_document(draw, p, flavour.special, flavour.vocab) for p in parts]
            try:
                result = run_case(model, flavour, routers, documents, aux_coef)
                break
            except TooClose as reason:
                print(f"{name}/{case}: {reason}, drawn again")
        else:
            raise SystemExit(f"{name}/{case}: 50 rows with experts too close to tell apart")
        write_case(os.path.join(folder, case), flavour, model, routers, documents, result, aux_coef, keep_exact)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="default: those of the kept cases")
    parser.add_argument("--config", help="config.json of the model; default: the kept flavours")
    parser.add_argument("--draw", type=int, default=0, help="instead: this many configs at random")
    parser.add_argument("--out", required=True)
    parser.add_argument("--exact", action="store_true", help="keep the float64 gradients of every case")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if args.config:
        with open(args.config, encoding="utf-8") as f:
            write_flavour("custom", json.load(f), args.seed or 1, args.out, args.exact)
    elif args.draw:
        rng = random.Random(args.seed or 1)
        for i in range(args.draw):
            write_flavour(f"drawn{i:03}", flavours.drawn(rng), rng.randint(1, 10**6), args.out, args.exact)
    else:
        for name, config in flavours.KEPT.items():
            write_flavour(name, config, args.seed or flavours.SEEDS.get(name, 1), args.out, args.exact)


if __name__ == "__main__":
    main()
