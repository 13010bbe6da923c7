#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives each key of config.json that the reference reads another value, and compares its model with ours.

    VENV/bin/python tests/golden/check_config.py --probe build/tests/probe [--only TEXT]

It needs the environment of make_cases.py with transformers 4.57.3, and runs by hand. It takes the folders of the golden
cases and changes one member of config.json (null: none; a list of members: all of them). In training mode the reference
loads the folder and computes loss and gradients of a new row, and `probe` does the same. Ours must refuse the
folder or equal the reference within 1e-4 of each tensor's norm; another model would be off by 1e-2 or more. Anything
else is a fault, because a member that is not honoured must not be ignored.
"""

import argparse
import json
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
import compare
import flavours
import make_cases

HERE = os.path.dirname(os.path.abspath(__file__))
NEUTRAL = ("nothing", {})
TOLERANCE = 1e-4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 2.0}
SLIDES = ["sliding_attention", "sliding_attention", "full_attention"]
ROW = "a token of the row"  # stands for the id of one


def each(start, *pairs):
    """(name, changed members) for each of these members alone."""
    return [(f"{start}{key} {json.dumps(value)}", {key: value}) for key, value in pairs]


TEXT = [NEUTRAL] + each(
    "", ("attention_dropout", 0.5), ("attention_dropout", 0), ("attention_dropout", None), ("attention_bias", True),
    ("attention_bias", None), ("hidden_act", "gelu"), ("hidden_act", "swish"), ("partial_rotary_factor", 0.5),
    ("partial_rotary_factor", 1.0), ("sliding_window", 4), ("sliding_window", None), ("use_sliding_window", True),
    ("max_window_layers", 0), ("layer_types", SLIDES), ("layer_types", ["full_attention"] * 3), ("rms_norm_eps", 0.01),
    ("rope_theta", 100), ("head_dim", None), ("num_key_value_heads", None), ("max_position_embeddings", 8),
    ("initializer_range", 0.5), ("pad_token_id", ROW), ("use_cache", False), ("torch_dtype", "float16"),
    ("rope_scaling", None), ("is_decoder", True), ("add_cross_attention", True), ("chunk_size_feed_forward", 2),
    ("pruned_heads", {"0": [1]}), ("attn_implementation", "sdpa"), ("hidden_dropout", 0.5), ("dropout", 0.5),
    ("attention_probs_dropout_prob", 0.5), ("logit_scale", 2.0), ("final_logit_softcapping", 1.0),
    ("attn_logit_softcapping", 1.0), ("query_pre_attn_scalar", 4), ("rope_local_base_freq", 10.0),
    ("no_rope_layers", [0, 0, 0]), ("tie_encoder_decoder", True), ("problem_type", "regression"), ("vocab_size", 60)) + [
    ("use_sliding_window, sliding_window 4, max_window_layers 1",
     {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("layer_types, sliding_window 4", {"layer_types": SLIDES, "sliding_window": 4}),
    ("layer_types, use_sliding_window, sliding_window 4",
     {"layer_types": SLIDES, "sliding_window": 4, "use_sliding_window": True}),
]
MOE = each("", ("norm_topk_prob", False), ("num_experts_per_tok", 1), ("decoder_sparse_step", 1),
           ("mlp_only_layers", None), ("router_aux_loss_coef", 0.7), ("output_router_logits", True),
           ("router_jitter_noise", 0.5), ("shared_expert_intermediate_size", 8), ("num_shared_experts", 1),
           ("scoring_func", "sigmoid"), ("routed_scaling_factor", 2.5), ("n_group", 2), ("topk_group", 1))
ROPE = each("rope_scaling.", ("mrope_interleaved", False), ("mrope_section", [1, 1, 2]), ("rope_type", "linear"),
            ("type", "linear"), ("factor", 2.0), ("attention_factor", 2.0), ("partial_rotary_factor", 0.5),
            ("rope_theta", 100))
ROPES = [("rope_scaling yarn", YARN), ("rope_scaling linear", LINEAR), ("rope_scaling default", {"rope_type": "default"}),
         ("rope_scaling type linear", {"type": "linear", "factor": 2.0}),
         ("rope_scaling dynamic", {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8})]
VISION = each("vision ", ("hidden_act", "silu"), ("hidden_act", "gelu"), ("initializer_range", 0.5), ("norm_eps", 0.1),
              ("attention_dropout", 0.5), ("layer_norm_eps", 0.1), ("rms_norm_eps", 0.1), ("rope_theta", 100.0),
              ("rope_parameters", {"rope_theta": 100.0, "rope_type": "axial"}), ("tokens_per_second", 1),
              ("window_size", 32), ("fullatt_block_indexes", [0]), ("num_heads", 1), ("in_chans", 1), ("mlp_ratio", 2),
              ("qkv_bias", False), ("attention_bias", False), ("embed_dim", 4), ("use_cache", False), ("dropout", 0.5))
TOP = each("top ", ("attention_dropout", 0.5), ("hidden_act", "gelu"), ("pad_token_id", ROW), ("rms_norm_eps", 0.1),
           ("vision_start_token_id", 60), ("output_router_logits", True), ("rope_theta", 100), ("sliding_window", 4),
           ("vision_token_id", 5), ("ignore_index", 5), ("auto_map", {"AutoModel": "x.Y"}))


def changes_of(flavour):
    text = [(name, ["text_config"] if flavour.visual else [], c) for name, c in TEXT + (MOE if flavour.moe else [])]
    at = (["text_config"] if flavour.visual else []) + ["rope_scaling"]
    text += [(n, at, c) for n, c in (ROPE if flavour.visual else [])]
    text += [(n, at[:-1], {"rope_scaling": c}) for n, c in ([] if flavour.visual else ROPES)]
    text += [(n, at[:-1], {"rope_scaling": flavours.MROPE | c}) for n, c in (ROPES if flavour.visual else [])]
    if flavour.visual:
        text += [(n, ["vision_config"], c) for n, c in VISION] + [(n, [], c) for n, c in TOP]
    return text


def changed(config, place, members):
    out = json.loads(json.dumps(config))
    at = out
    for key in place:
        at = at[key]
    at.update(members)
    return out


def reference(flavour, folder, doc, batch):
    """Runs the reference. It also writes the row to batch, with the positions that this model gives it."""
    try:
        model = flavour.model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
        torch.manual_seed(1)
        loss, _, logits, grads = make_cases.run_case(model, flavour, make_cases.Routers(model), [doc], 0)
    except make_cases.TooClose:
        raise
    except Exception as e:  # it may refuse a config with any error
        return None, f"refused: {type(e).__name__}"
    save_file(rows.pack([doc], [make_cases.positions_of(model, flavour, doc)]), batch)
    out = {"loss": np.array(loss.item()), "logits": logits}
    out.update({"grad." + n: g.numpy() for n, g in grads.items()})
    return out, ""


def ours(probe, folder, batch, out, aux_coef):
    command = [probe, "--model", folder, "--batch", batch, "--out", out, "--overwrite", "--aux", repr(aux_coef)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, "refused: " + done.stderr.strip().split(": ", 2)[-1]
    got = compare.read(out)
    got["loss"] = got["loss"] + aux_coef * got["aux_loss"]
    return got, ""


def errors(a, b):
    a = {n: v for n, v in a.items() if n != "aux_loss"}
    a = {n: v for n, v in a.items() if n in b or np.any(v)}
    b = {n: v for n, v in b.items() if n in a or np.any(v)}
    found = compare.errors_of(a, b)
    return max((e if not isinstance(e, str) else np.inf for e in found.values()), default=0)


def check_flavour(probe, name, root, only):
    source = os.path.join(HERE, "cases", name)
    flavour = flavours.open_flavour(name, flavours.KEPT[name])
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    draw = np.random.default_rng(3)
    parts = [6, ("image", 4, 6), 9] if flavour.visual else [19]
    doc = rows.draw_document(draw, parts, flavour.special, flavour.vocab)
    folder, batch = os.path.join(root, "model"), os.path.join(root, "batch.safetensors")
    faults, plain = 0, None
    for what, place, members in changes_of(flavour):
        if only not in what and what != "nothing":
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        shutil.copy(os.path.join(source, "model.safetensors"), folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(changed(config, place, {k: int(doc.ids[2]) if v == ROW else v for k, v in members.items()}), f)
        theirs, said = reference(flavour, folder, doc, batch)
        plain = plain or theirs
        effect = said or ("same" if errors(theirs, plain) < 1e-6 else "another model")
        # Text-only classes add the auxiliary loss if the file says so; probe adds it if it is told to.
        aux = config["router_aux_loss_coef"] if "output_router_logits" in members and not flavour.visual else 0.0
        got, refused = ours(probe, folder, batch, os.path.join(root, "out.safetensors"), aux)
        fault = got is not None and theirs is not None and errors(got, theirs) > TOLERANCE
        verdict = refused or (f"off by {errors(got, theirs):.0e}" if theirs else "taken")
        faults += fault
        print(f"| {name} | {what} | {effect} | {verdict[:110]} |" + (" FAULT" if fault else ""), flush=True)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--flavour", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}")
    faults = 0
    for name in ("moe", "dense", "text"):
        if args.flavour in name:
            with tempfile.TemporaryDirectory() as root:
                faults += check_flavour(args.probe, name, root, args.only)
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
