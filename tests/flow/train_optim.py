# SPDX-License-Identifier: Apache-2.0
"""What is trained and how: frozen parts stay the same to the bit, groups have their rates, the schedule follows
epochs, weightings change the loss, and all of it resumes from a checkpoint."""

import json
import os
import re
import shutil
import struct

from formats import in_data, llava, load, options, write_lines
from prepd_flow import Daemon, Folder, check, main, run
from resume_flow import STREAM, bit_flipped, go, ledger, recorded, same
from train_flow import trainer


def tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    return {n: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]
            for n, t in head.items() if n != "__metadata__"}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def metrics(f, name):
    with open(f.file(name + "/metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def frozen_parts_stay():
    with Folder(**STREAM) as f:
        rows = recorded(f, 4)
        go(f, "base", **dict(rows, training__steps=1))
        base = dict(rows, model__path=f.file("base/checkpoint"), training__steps=3, optimizer__lr=0.01)
        said = go(f, "some", freeze__pattern="vision,experts,lm_head*",
                  optimizer__groups="merger lr=1e-4 decay=0; router lr=0", **base)
        table = re.findall(r"^(vision|merger|text|router|experts) +(\d+) +([0-9,]+)  (\S+) *(\S*)$", said,
                           re.MULTILINE)
        check(["merger", "0.0001", "0"] in [[r[0], r[3], r[4]] for r in table], said)
        check({r[0] for r in table if r[3] == "frozen"} == {"vision", "merger", "text", "experts"}, said)
        was = tensors(f.file("base/checkpoint/model.safetensors"))
        now = tensors(f.file("some/checkpoint/model.safetensors"))
        changed = {n for n in was if was[n] != now[n]}
        for name in was:
            still = (".experts." in name or "lm_head" in name or "mlp.gate." in name or
                     name.startswith("model.visual.") and "merger" not in name)
            check((name not in changed) == still or "norm" in name or "bias" in name,
                  f"{name} {'changed' if name in changed else 'did not change'}")
        state = tensors(f.file("some/checkpoint/step-3/training/rank-00000-of-00001.safetensors"))
        check(not any(".experts." in n for n in state if n.startswith("moment")), "there is state of frozen parameters")
        frozen = {n for n in was if n not in changed and "mlp.gate." not in n and "value/" + n not in state}
        checkpoints_have_what_is_trained(f, said, was, now, frozen)
        # Half of the run, then the rest: what is frozen stays frozen.
        half = dict(freeze__pattern="vision,experts,lm_head*",
                    optimizer__groups="merger lr=1e-4 decay=0; router lr=0", **base)
        go(f, "parts", **dict(half, training__steps=2))
        check("resuming from step 2" in go(f, "parts", **half, checkpoint__model="always"), "the run began again from the start")
        same(f, "some", "parts", 3)
        what_was_trained_before_stays(f, half)
        a_drawn_base(f, rows)
        full, less = metrics(f, "base"), metrics(f, "some")
        check(less[0]["tflops"] > 0 and full[0]["tflops"] > 0, "no FLOPs")
        said = go(f, "none", code=78, freeze__pattern="*", **base)
        check("nothing to train" in said, said)
        plan = trainer("plan", "-c", f.config, "--full")
        less = trainer("plan", "-c", f.config, "--full", "--freeze.pattern", "vision,text,experts")
        moments = [int(re.search(r"moments +(\d+) bytes", p)[1]) for p in (plan, less)]
        check(0 < moments[1] < moments[0] / 2, f"{moments}")


def checkpoints_have_what_is_trained(f, said, was, now, frozen):
    """A checkpoint has no byte of a frozen tensor, but its name and hash. The run leaves the whole model in the end, and
    export makes the same one of the checkpoint, if it has the same base."""
    top, base = f.file("some/checkpoint"), f.file("base/checkpoint")
    step = top + "/step-3"
    check("contain only trained parameters" in said and "trainer export --model " + top in said, said)
    check(os.listdir(step) == ["training"], os.listdir(step))
    with open(step + "/training/base.json", encoding="utf-8") as file:
        told = json.load(file)
    check(told["model"] == base and told["frozen"].keys() == frozen and len(frozen) > 9, f"{told['model']} {len(frozen)}")
    parts = b"".join(read(os.path.join(at, n)) for at, _, names in os.walk(step) for n in names)
    check(not any(was[n][:256] in parts for n in frozen if any(was[n]) and len(was[n]) >= 256), "bytes of a frozen tensor")
    trainer("export", "--model", step, "--out", f.file("whole"))
    check(tensors(f.file("whole/model.safetensors")) == now and all(now[n] == was[n] for n in frozen), "the exported model")
    files = {n for n in os.listdir(top) if not n.startswith(("step-", "."))} - {"base.json"}
    check(set(os.listdir(f.file("whole"))) == files, f"{files}")
    for verb in (["inspect", step], ["eval", "-c", f.config, "--model.path", step]):
        check("trainer export --model" in trainer(*verb, code=66), verb[0])

    name = sorted(frozen)[5]
    said = trainer("export", "--model", step, "--base", bit_flipped(f, "else", base, name), "--out", f.file("no"), code=78)
    check(name in said and not os.path.exists(f.file("no")), said)
    shutil.move(base, base + "-moved")
    said = trainer("export", "--model", step, "--out", f.file("no"), code=66)
    check("base.json" in said and base in said and "--base" in said, said)
    trainer("export", "--model", step, "--base", base + "-moved", "--out", f.file("moved"))
    check(tensors(f.file("moved/model.safetensors")) == now, "beside a base that was moved")
    shutil.move(base + "-moved", base)
    check("no such checkpoint" in trainer("export", "--model", base, "--base", base, "--out", f.file("no"), code=64), "--base")


def what_was_trained_before_stays(f, half):
    """The text model is frozen after two steps: its values differ from the source, and stay in the checkpoints."""
    go(f, "later", **dict(half, training__steps=2))
    said = go(f, "later", **dict(half, freeze__pattern="text,vision,experts,lm_head*"))
    check("have other values in the checkpoint" in said, said)
    go(f, "stays", **dict(half, training__steps=2), checkpoint__model="always")
    go(f, "stays", **dict(half, freeze__pattern="text,vision,experts,lm_head*"), checkpoint__model="always")
    check(os.listdir(f.file("later/checkpoint/step-3")) == ["training"], "a model in the checkpoint")
    same(f, "stays", "later", 3)
    trainer("export", "--model", f.file("later/checkpoint/step-3"), "--out", f.file("kept"))
    check(read(f.file("kept/model.safetensors")) == read(f.file("stays/checkpoint/step-3/model.safetensors")), "kept values")


def a_drawn_base(f, rows):
    """Frozen values that were drawn are drawn again; the trained ones are of BF16 masters and moments in 8 bits."""
    few = {"freeze__pattern": "text,vision", "training__master": "bf16", "optimizer__states": "int8"}
    go(f, "drawn", **dict(rows, training__steps=1), **few)
    step = f.file("drawn/checkpoint/step-1")
    check(os.listdir(step) == ["training"], os.listdir(step))
    trainer("export", "--model", step, "--out", f.file("again"))
    check(read(f.file("again/model.safetensors")) == read(f.file("drawn/checkpoint/model.safetensors")), "drawn again")
    # All of it is trained: a checkpoint without the model names what the model is made like.
    go(f, "all", **dict(rows, training__steps=1), checkpoint__model="end")
    trainer("export", "--model", f.file("all/checkpoint/step-1"), "--out", f.file("all-again"))
    check(read(f.file("all-again/model.safetensors")) == read(f.file("base/checkpoint/step-1/model.safetensors")), "all trained")


def schedules_follow_epochs():
    ends = {"training.epochs": "1", "training.steps": "0"}
    with Folder(images=160, **STREAM, **ends) as f, Daemon(f.config):
        go(f, "run", training__epochs=1, training__steps=0, lr_scheduler__decay_type="linear",
           lr_scheduler__warmup_steps=2)
        rates = [m["lr"] for m in metrics(f, "run")]
        check(len(rates) == len(ledger(f, "run")) and rates[0] < rates[1] and rates[-1] < 1e-9 and
              all(a > b for a, b in zip(rates[1:], rates[2:])), f"{rates}")


def weightings():
    """Two documents in one row, with unequal numbers of targets."""
    with Folder(**STREAM) as f:
        picture, question, answer = load(f)[0]
        path = write_lines(in_data(f, "two.jsonl"), [
            llava(picture, question, answer), llava(picture, question, " ".join([answer] * 9))])
        run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"),
            *options(data__format="conversations", data__path=path))
        loss = {}
        for kind in ("token", "sample", "sqrt_length"):
            go(f, kind, loss__weighting=kind, feed__replay=f.file("rows.rec"), training__steps=1)
            loss[kind] = ledger(f, kind)[1]["loss"]
        low, middle, high = sorted(loss.values())
        check(low < middle < high and middle == loss["sqrt_length"], f"{loss}")


main(frozen_parts_stay, schedules_follow_epochs, weightings)
