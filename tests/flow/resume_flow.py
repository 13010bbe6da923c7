# SPDX-License-Identifier: Apache-2.0
"""What the tests of checkpoints share: runs that keep every step, their ledgers and values."""

import ctypes
import json
import os
import shutil
import struct
import subprocess

from prepd_flow import check, run
from train_flow import LIMIT_S, SHORT, TRAINER, options, settings

STREAM = {"training.seq_len": 256, "training.global_batch_size": 2}
KEPT = {"checkpoint.enable": "true", "checkpoint.interval": 1, "metrics.ledger_ids": "true",
        "training.threads": 1, "lr_scheduler.decay_type": "constant"}


def command(f, name, **changed):
    values = dict(SHORT, **KEPT, **{"job.dump_folder": f.file(name), "training.global_batch_size": 2,
                                    "checkpoint.memory_folder": f.file("memory")})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    return [TRAINER, "train", "-c", f.config, *options(values)]


def go(f, name, *words, code=0, **changed):
    p = subprocess.run([*command(f, name, **changed), *words], capture_output=True, text=True,
                       timeout=LIMIT_S, env=settings(words))
    check(p.returncode == code, f"{name}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def ledger(f, name):
    """The last line of every step, whole lines only."""
    steps = {}
    with open(f.file(name + "/ledger.jsonl")) as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            steps[entry["step"]] = entry
    return steps


def values(f, name, step):
    at = f.file(f"{name}/checkpoint/step-{step}/")
    with open(at + "training/rank-00000-of-00001.safetensors", "rb") as file:
        state = file.read()
    for model in at + "model.safetensors", at + "adapter/adapter_model.safetensors", f.file(name + "/checkpoint/model.safetensors"):
        if os.path.exists(model):
            with open(model, "rb") as file:
                return state, file.read()
    check(False, f"{name}: no model in step-{step}, and none beside it")


def one_line_a_step(f, name, file="ledger.jsonl"):
    with open(f.file(f"{name}/{file}")) as lines:
        steps = [json.loads(line)["step"] for line in lines]
    check(steps == list(range(1, len(steps) + 1)), f"{name}/{file} has a line of steps {steps}")


def same(f, one, other, step):
    one_line_a_step(f, other)
    check(ledger(f, one) == ledger(f, other), f"{one} and {other}: the ledgers differ")
    check(values(f, one, step) == values(f, other, step), f"{one} and {other}: values or moments differ")


def recorded(f, steps=8):
    run("record", "-c", f.config, "--steps", str(steps), "--overwrite", "--out", f.file("rows.rec"))
    return {"feed__replay": f.file("rows.rec"), "training__steps": steps}


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3(data):
    """XXH3-128 as 32 hex digits."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = Digest
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    digest = library.XXH3_128bits(data, len(data))
    return f"{digest.high:016x}{digest.low:016x}"


def resealed(folder, change):
    """A checkpoint whose state was changed by someone who knows how one is sealed (seal.c)."""
    with open(folder + "/training/state.json") as file:
        state = json.load(file)
    change(state)
    text = json.dumps(state).encode()
    with open(folder + "/training/state.json", "wb") as file:
        file.write(text)
    with open(folder + "/training/manifest.json") as file:
        manifest = json.load(file)
    seal = b""
    for entry in manifest["files"]:
        if entry["name"] == "training/state.json":
            entry.update(bytes=len(text), digest=xxh3(text))
        seal += entry["name"].encode() + b"\0" + struct.pack("<Q", entry["bytes"]) + entry["digest"].encode()
    with open(folder + "/training/manifest.json", "w") as file:
        json.dump(dict(manifest, seal=xxh3(seal)), file)


def header(file):
    size = struct.unpack("<Q", file.read(8))[0]
    return 8 + size, json.loads(file.read(size))


def bit_flipped(f, name, model, tensor):
    """A copy of a model, without its checkpoints, in which one bit of a tensor's last element differs."""
    folder = f.file(name)
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("step-*"))
    with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
        start, tensors = header(file)
        at = start + tensors[tensor]["data_offsets"][1] - 2
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return folder


def spoiled(f, name, tensor, at):
    """A copy of the model in which an element of a tensor is NaN."""
    folder = f.file(name)
    shutil.copytree(f.file("model/checkpoint"), folder, ignore=shutil.ignore_patterns("step-*"))
    with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
        start, tensors = header(file)
        t = tensors[tensor]
        width = {"BF16": 2, "F32": 4}[t["dtype"]]
        file.seek(start + t["data_offsets"][0] + at * width)
        file.write(struct.pack("<f", float("nan"))[4 - width:])
    return folder
