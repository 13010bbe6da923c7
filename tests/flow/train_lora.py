"""LoRA: only adapters are trained, a run goes on bit for bit, and what it leaves opens twice: merged, and
as an adapter's folder, which with the model it stands beside is the merged one."""

import json
import os
import struct

import numpy

from prepd_flow import Folder, check, main
from resume_flow import STREAM, go, recorded, same
from train_flow import trainer

TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj"
RANK, ALPHA = 4, 12
KINDS = {"F32": (numpy.uint32, 0), "BF16": (numpy.uint16, 16)}


def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            kind, shift = KINDS[t["dtype"]]
            bits = numpy.frombuffer(data[slice(*t["data_offsets"])], kind).astype(numpy.uint32) << shift
            out[name] = bits.view(numpy.float32).astype(numpy.float64).reshape(t["shape"])
    return out


def delta(adapter, name, shape):
    """What the adapter's files add to a stored tensor, or None; as PEFT reads them."""
    module, scale = name.removesuffix(".weight"), ALPHA / RANK
    if len(shape) == 3:
        stem, last = module.rsplit(".", 1)
        module = stem + (".base_layer" if last == "gate_up_proj" else "")
    a, b = (adapter.get(f"base_model.model.{module}.lora_{x}.weight") for x in "AB")
    if a is None:
        return None
    if len(shape) == 2:
        return scale * b @ a
    a, b = a.reshape(shape[0], RANK, shape[1]), b.reshape(shape[2], RANK, shape[0])
    return scale * numpy.einsum("ore,eri->eio", b, a)


def adapter_and_model_are_the_merged_model():
    with Folder(**STREAM) as f:
        rows = recorded(f, 6)
        lora = {"lora__rank": RANK, "lora__alpha": ALPHA, "lora__targets": TARGETS, "optimizer__lr": 0.01}
        said = go(f, "run", **rows, **lora)
        check("frozen" in said and "parameters are trained" in said, said)
        go(f, "parts", **dict(rows, training__steps=3), **lora)
        check("going on from step 3" in go(f, "parts", **rows, **lora), "it began anew")
        same(f, "run", "parts", 6)

        step = f.file("run/checkpoint/step-6/")
        merged = tensors(step + "model.safetensors")
        adapter = tensors(step + "adapter/adapter_model.safetensors")
        state = tensors(step + "training/rank-00000-of-00001.safetensors")
        check({n.split("/")[1] for n in state if n.startswith("moment")} ==
              {n.split("/")[1] for n in state if "lora_" in n}, "moments of frozen values")
        changed = 0
        for name, value in merged.items():
            base = state["value/" + name].reshape(value.shape)
            more = delta(adapter, name, value.shape)
            wanted = base if more is None else base + more
            changed += more is not None and numpy.abs(more).max() > 0
            check(numpy.abs(value - wanted).max() <= numpy.abs(wanted).max() / 256, name)
        check(2 * changed == len(adapter) and changed == 6 * sum("q_proj" in n for n in merged), f"{changed}")
        with open(step + "adapter/adapter_config.json") as file:
            config = json.load(file)
        check(config["r"] == RANK and config["lora_alpha"] == ALPHA, config)
        check(len(config["target_modules"]) == changed * 4 // 6 and len(config["target_parameters"]) == changed // 3,
              config)
        trainer("inspect", f.file("run/checkpoint"))

        # It learns: the loss of the same rows falls, as slowly as adapters do.
        losses = [json.loads(line)["loss"] for line in open(f.file("run/ledger.jsonl"), encoding="utf-8")]
        check(losses[-1] < losses[0] - 0.02, losses)
        said = go(f, "other", code=78, **rows, **dict(lora, lora__targets="qkv"))
        check("lora.targets" in said and not os.path.exists(f.file("other/checkpoint/step-1")), said)


main(adapter_and_model_are_the_merged_model)
