#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that PEFT opens the adapters that `trainer train` leaves, and that with their base they equal the merged model.

    VENV/bin/python tests/golden/check_adapter.py --bin build/bin [--only NAME]

It needs the environment of make_cases.py and `peft`, and runs by hand, once with transformers 4.57.3 and once with 5.23.
Small models are trained for some steps with adapters on attention, router and experts, written for either version
(`lora.adapter_for`). They have the usual shapes, or experts whose down or gate_up matrices are square, with adapters on
these alone or on both, or dense layers among the others, or no vision tower. PeftModel.from_pretrained opens each adapter
onto its base:

- An adapter for this version gives, on new rows of flavours.py, the loss of `probe` on the merged folder, and
  merge_and_unload() gives the merged weights, both within 1e-6 (relative; for a tensor, to its largest value).
- The same holds for adapters whose rows have lengths (`lora.dora`), against what `trainer export --merge` makes of them.
- An adapter for the other version is refused by PEFT, or opens and is the same within 1e-6. None may open and compute
  something else.
"""

import argparse
import json
import os
import shutil
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bin", default="build/bin")
parser.add_argument("--only", default="", help="models whose name contains this")
args = parser.parse_args()
HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["TESSERA_BIN"] = os.path.abspath(args.bin)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "flow"))

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import check_export  # noqa: E402
import flavours  # noqa: E402
from prepd_flow import Folder, run  # noqa: E402
from train_flow import options, train, trainer  # noqa: E402

FIVE = check_export.FIVE
READERS = ("transformers4", "transformers5")
TOLERANCE = 1e-6
EXPERTS = "gate_up_proj,down_proj"
ATTENTION = "q_proj,k_proj,v_proj,o_proj"
LENGTHS = "attention, lengths"  # with lora.dora
# name: (members of text_config that are changed, targets of the adapters)
MODELS = {
    "usual": ({}, f"{ATTENTION},gate,{EXPERTS}"),
    "router": ({}, "gate"),
    "attention": ({}, ATTENTION),
    LENGTHS: ({}, ATTENTION),
    "dense between": ({"mlp_only_layers": [1], "num_experts": 1, "num_experts_per_tok": 1},
                      f"q_proj,gate_proj,up_proj,{EXPERTS}"),
    "square down, both": ({"moe_intermediate_size": 128}, EXPERTS),
    "square down, alone": ({"moe_intermediate_size": 128}, "down_proj"),
    "square gate_up, alone": ({"moe_intermediate_size": 64}, "gate_up_proj"),
    "text-only": ({"model_type": "qwen3_moe"}, f"{ATTENTION},gate,{EXPERTS}"),
    "text-only, gate_up alone": ({"model_type": "qwen3_moe"}, "gate_up_proj"),
    "text-only, square": ({"model_type": "qwen3_moe", "moe_intermediate_size": 128}, "down_proj"),
}
ROWS = ("text", "mixed", "packed")


def config_of(f, changed):
    with open(f.file("data/model/config.json"), encoding="utf-8") as file:
        config = json.load(file)
    text = config["text_config"]
    text.update(changed)
    if "model_type" not in changed:
        return config
    text["rope_scaling"] = None
    return {"architectures": ["Qwen3MoeForCausalLM"], **text}


def base_of(f, name, config, **feed):
    """A folder with float32 weights."""
    shutil.copytree(f.file("data/model"), f.file(name))
    with open(f.file(name + "/config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    train(f, name + "-first", model__path=f.file(name), training__steps=1, optimizer__lr=0, checkpoint__enable="true",
          **feed)
    # The 5 series tells the layout by the shape of each tensor, so it would read square tensors of the published layout
    # as its own.
    layout = ["--layout", "v5"] if FIVE and name.startswith("square") else []
    trainer("export", "--model", f.file(name + "-first/checkpoint"), "--out", f.file(name + "-base"), "--dtype", "f32",
            *layout)
    return f.file(name + "-base")


def open_adapter(flavour, base, step):
    model, problems = check_export.load(flavour, base)
    if problems:
        raise SystemExit(f"{base}: {problems}")
    return peft.PeftModel.from_pretrained(model, os.path.join(step, "adapter"), is_trainable=True)


def worst_weight(model, merged, flavour):
    """The parameter that differs most from the one that this version loads from the merged folder."""
    wanted = check_export.load(flavour, merged)[0].state_dict()
    got = model.state_dict()
    if got.keys() != wanted.keys():
        raise SystemExit(f"merged: names {sorted(got.keys() ^ wanted.keys())[:3]}")
    return max(((got[n] - w).abs().max() / w.abs().max().clamp(min=1e-30)).item() for n, w in wanted.items())


def check_own(flavour, base, step, whole):
    model = open_adapter(flavour, base, step)
    pairs = check_export.losses(trainer_path(), whole, flavour, model.get_base_model(), seed=5)
    loss = max(abs(a - b) / abs(a) for a, b in pairs.values())
    plain = check_export.load(flavour, base)[0].state_dict()
    merged = model.merge_and_unload()
    moved = sum(not torch.equal(plain[n], v) for n, v in merged.state_dict().items())
    weight = worst_weight(merged, whole, flavour)
    ok = loss <= TOLERANCE and weight <= TOLERANCE and moved > 0
    return ok, f"loss {loss:.1e} ({len(pairs)} rows), weights {weight:.1e}, {moved} changed"


def check_reader(flavour, base, step, whole, own):
    try:
        ok, said = check_own(flavour, base, step, whole)
        return ok, said if own else "opens too: " + said
    except (RuntimeError, ValueError) as e:
        return not own, f"refused: {type(e).__name__}: {' '.join(str(e).split())[:90]}"


def trainer_path():
    return os.path.join(os.environ["TESSERA_BIN"], "trainer")


def check_model(f, name, feeds):
    changed, targets = MODELS[name]
    config = config_of(f, changed)
    feed = feeds["model_type" in changed]
    slug = name.replace(" ", "-").replace(",", "")
    base = base_of(f, slug, config, **feed)
    with open(os.path.join(base, "config.json"), encoding="utf-8") as file:
        flavour = flavours.open_flavour(slug, json.load(file))
    plain = check_export.ask_as_five_wants(flavour) if FIVE else check_export.rows.reference_pixels
    faults = 0
    for number, reader in enumerate(READERS):
        run_name = f"{slug}-{reader}"
        train(f, run_name, model__path=base, training__steps=3, optimizer__lr=0.02, lora__rank=4, lora__alpha=12,
              lora__targets=targets, lora__adapter_for=reader, checkpoint__enable="true", **feed,
              **({"lora__dora": "true"} if name == LENGTHS else {"checkpoint__model": "always"}))
        step = whole = f.file(run_name + "/checkpoint/step-3")
        if name == LENGTHS:
            whole = f.file(run_name + "-merged")
            trainer("export", "--merge", "--model", step, "--out", whole)
        ok, said = check_reader(flavour, base, step, whole, number == FIVE)
        faults += not ok
        print(f"| {name} | {reader} | {said} |" + ("" if ok else " FAULT"), flush=True)
    check_export.rows.reference_pixels = plain
    return faults


def feeds_of(f):
    """Recorded rows for models with pictures, and of plain text."""
    run("record", "-c", f.config, "--steps", "6", "--out", f.file("rows.rec"))
    with open(f.file("lines.jsonl"), "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": f"{i} is the number of line {i} " * 40}) + "\n" for i in range(40))
    text = {"data.format": "text", "data.path": f.file("lines.jsonl"), "training.epochs": 1}
    run("record", "-c", f.config, "--steps", "4", "--out", f.file("text.rec"), *options(text))
    batch = {"training__global_batch_size": 2}
    return {False: {"feed__replay": f.file("rows.rec"), **batch},
            True: {"feed__replay": f.file("text.rec"), **batch, **{k.replace(".", "__"): v for k, v in text.items()}}}


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    print("| model | lora.adapter_for | what PEFT makes of it |\n|---|---|---|")
    everything = flavours.cases_of
    flavours.cases_of = lambda flavour: [c for c in everything(flavour) if c[0] in ROWS]
    with Folder(**{"training.seq_len": 256, "training.global_batch_size": 2}) as f:
        feeds = feeds_of(f)
        faults = sum(check_model(f, name, feeds) for name in MODELS if args.only in name)
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
