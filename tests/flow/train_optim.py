"""What is trained and how: frozen parts stay the same to the bit, groups have their rates, the schedule follows
epochs, weightings change the loss, and all of it resumes from a checkpoint."""

import json
import re
import struct

from formats import in_data, llava, load, options, write_lines
from prepd_flow import Daemon, Folder, check, main, run
from resume_flow import STREAM, go, ledger, recorded, same
from train_flow import trainer


def tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    return {n: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]
            for n, t in head.items() if n != "__metadata__"}


def metrics(f, name):
    with open(f.file(name + "/metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def frozen_parts_stay():
    with Folder(**STREAM) as f:
        rows = recorded(f, 4)
        go(f, "base", **dict(rows, training__steps=1))
        base = dict(rows, model__path=f.file("base/checkpoint"), training__steps=3, optimizer__lr=0.01)
        said = go(f, "some", freeze__vision="true", freeze__experts="true", freeze__pattern="lm_head*",
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
        # Half of the run, then the rest: what is frozen stays frozen.
        half = dict(freeze__vision="true", freeze__experts="true", freeze__pattern="lm_head*",
                    optimizer__groups="merger lr=1e-4 decay=0; router lr=0", **base)
        go(f, "parts", **dict(half, training__steps=2))
        check("going on from step 2" in go(f, "parts", **half), "the run began again from the start")
        same(f, "some", "parts", 3)
        full, less = metrics(f, "base"), metrics(f, "some")
        check(less[0]["tflops"] > 0 and full[0]["tflops"] > 0, "no FLOPs")
        said = go(f, "none", code=78, freeze__pattern="*", **base)
        check("nothing to train" in said, said)
        plan = trainer("plan", "-c", f.config, "--memory.table", "full")
        less = trainer("plan", "-c", f.config, "--memory.table", "full", "--freeze.vision", "--freeze.text", "--freeze.experts")
        moments = [int(re.search(r"moments +(\d+) bytes", p)[1]) for p in (plan, less)]
        check(0 < moments[1] < moments[0] / 2, f"{moments}")


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
