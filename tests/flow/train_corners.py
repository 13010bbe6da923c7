# SPDX-License-Identifier: Apache-2.0
"""Corners of a training run: recordings that end, evaluation in between, updates that are skipped, what does not fit,
what cannot be written."""

import json
import os
import re
import subprocess

from prepd_flow import LIMIT_S, Daemon, Folder, check, main, run
from train_flow import SHORT, TRAINER, has_mpi, options, settings, train, trainer

STREAM = {"training.seq_len": 256, "training.global_batch_size": 4}


def talk(folder, name, code=0, **changed):
    """A short run; returns all that it said, on both outputs."""
    values = dict(SHORT, **{"job.dump_folder": folder.file(name)})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    args = ["train", "-c", folder.config, *options(values)]
    p = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=LIMIT_S, env=settings(args))
    check(p.returncode == code, f"{name}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def steps_of(said):
    return [int(n) for n in re.findall(r"^step: +(\d+) ", said, re.MULTILINE)]


def recordings_end():
    with Folder(**STREAM) as f:
        path = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "2", "--out", path)
        said = talk(f, "same", feed__replay=path, training__steps=2)
        check("begins again" not in said and "checkpoint.enable is false" not in said, said)
        said = talk(f, "longer", feed__replay=path, training__steps=3)
        check(steps_of(said) == [1, 2, 3] and said.count("begins again") == 1, said)
        said = talk(f, "once", feed__replay=path, training__steps=0, training__epochs=1,
                    metrics__log_freq=10)
        check(steps_of(said) == [1, 2] and "ended after 2 steps" in said, said)
        check("checkpoint.enable is false: this run keeps no model" in said, said)  # a long run would be lost
        # A recording has no held-out rows. The run says so and ends well.
        said = talk(f, "eval", feed__replay=path, training__steps=1, eval__enable="true",
                    checkpoint__enable="true")
        check("no held-out rows" in said and "images swapped" not in said, said)
        said = trainer("eval", "-c", f.config, "--feed.replay", path, "--eval.show", "0",
                       "--model.path", f.file("eval/checkpoint"))
        check(re.search(r"eval: loss: [0-9.]+ +accuracy: [0-9.]+% of \d+ answers", said), said)


def recordings_end_inside_a_step():
    """Rows that do not make a whole step are left over, which is reported, by one rank and by two; nothing waits for
    them."""
    mpi = has_mpi()
    if not mpi:
        print("skipped: two ranks: Open MPI was not found when this was built")
    with Folder(**STREAM) as f:
        path = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "5", "--out", path)  # 20 rows
        for ranks in (1, 2) if mpi else (1,):
            once = {"feed__replay": path, "training__steps": 0, "training__epochs": 1,
                    "training__backend": "cpu"}
            if ranks > 1:
                once["nproc"] = ranks
            for rows, left in ((8, 4), (6, 2), (4, 0)):
                said = talk(f, f"by {ranks}/rows/{rows}", training__global_batch_size=rows, **once)
                check(steps_of(said)[-1] == 20 // rows and f"ended after {20 // rows} steps" in said, said)
                check((f"the last {left} rows of {path} are left over: they make no whole step of {rows}" in said) == (left > 0), said)
            said = talk(f, f"22 by {ranks}", code=65, training__global_batch_size=22, **once)
            check("20 rows are recorded here, but a step takes 22" in said, said)


def evaluates_in_between():
    with Folder(**STREAM) as f, Daemon(f.config):
        said = talk(f, "run", eval__enable="true", eval__freq=2, eval__show=2, checkpoint__enable="true")
        between = re.findall(r"^eval: step: (\d+)  loss: [0-9.]+  accuracy: [0-9.]+% of (\d+) answers  ",
                             said, re.MULTILINE)
        check([b[0] for b in between] == ["2"], said)
        last = re.search(r"^eval: loss: ([0-9.]+)  accuracy: ([0-9.]+)% of (\d+) answers  images "
                         r"swapped: ([0-9.]+)% of (\d+) \(own: ([0-9.]+)%\)  ", said, re.MULTILINE)
        check(last and last[3] == between[0][1] and 0 < int(last[5]) < int(last[3]), said)
        check(said.count("  sample ") == 2, said)
        words = re.findall(r"^vqa: (?:step: (\d+)  )?accuracy: ([0-9.]+)% of (\d+) questions", said, re.MULTILINE)
        # Once after step 2, and once at the end.
        check([w[0] for w in words] == ["2", ""] and words[0][2] == words[1][2] != "0", said)
        with open(f.file("run/eval.jsonl")) as file:
            kept = [json.loads(line) for line in file]
        check([e["step"] for e in kept] == [2, 4] and "swapped_percent" in kept[1], f"{kept}")
        check([f"{e['vqa_percent']:.2f}" for e in kept] == [w[1] for w in words], f"{kept}")
        check(f"{kept[1]['own_percent']:.1f}" == last[6] and "own_percent" not in kept[0], f"{kept}")
        check(f"{kept[1]['held_out_loss']:.4f}" == last[1] and f"{kept[1]['accuracy_percent']:.1f}" == last[2], f"{kept}")
        with open(f.file("run/report.html")) as file:
            page = file.read()
        for curve in (">loss</text>", ">held-out loss</text>", ">held-out accuracy</text>"):
            check(page.count(curve) == 1, f"no curve {curve}")
        for fact in (f"held-out accuracy</dt><dd>{last[2]} %<small>of {last[3]} answers",
                     f"images swapped</dt><dd>{last[4]} %<small>of {last[5]} answers",
                     "data set</dt><dd>data<small>split train", "duration</dt><dd>", "version</dt><dd>"):
            check(page.count("<dt>" + fact) == 1, f"the head does not say {fact}")
        said = talk(f, "run", eval__enable="true", eval__freq=2, eval__show=2, checkpoint__enable="true")
        check(not steps_of(said) and "  images swapped: " in said, said)  # it was done, so it only evaluates
        with open(f.file("run/eval.jsonl")) as file:
            check([json.loads(line)["step"] for line in file] == [2, 4], "the last step is there twice")
    with Folder(**STREAM, **{"eval.split": "test"}) as f, Daemon(f.config):
        said = talk(f, "missing", code=66, eval__enable="true")  # at once, and not only when the run ends
        check("test" in said and not steps_of(said), said)


def updates_are_skipped():
    """One weight is NaN: every step says so with sample ids, and changes nothing."""
    with Folder(**STREAM) as f:
        path = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "1", "--out", path)
        train(f, "good", feed__replay=path, training__steps=1, checkpoint__enable="true")
        weights = f.file("good/checkpoint/model.safetensors")
        with open(weights, "rb") as file:
            data = bytearray(file.read())
        header = 8 + int.from_bytes(data[:8], "little")
        about = json.loads(data[8:header])
        name = next(n for n in about if n.endswith("q_proj.weight"))
        at = header + about[name]["data_offsets"][0]
        data[at:at + 2] = b"\xc0\x7f"  # bf16 NaN
        with open(weights, "wb") as file:
            file.write(data)
        said = talk(f, "nan", feed__replay=path, training__steps=2,
                    model__path=f.file("good/checkpoint"), checkpoint__enable="true")
        skipped = re.findall(r"step (\d): update skipped: the gradient norm is not finite; \d+ "
                             r"documents, samples( \d+)+", said)
        check([s[0] for s in skipped] == ["1", "2"], said)
        check("first loss is not a finite number" in said, said)
        with open(f.file("nan/checkpoint/model.safetensors"), "rb") as file:
            after = file.read()
        check(after == bytes(data), "a skipped update changed the weights")
        with open(f.file("nan/metrics.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        check(all(m["skipped"] and m["loss"] is None for m in lines), f"{lines}")


def what_does_not_fit():
    with Folder(**STREAM) as f:
        said = talk(f, "large", code=78, training__seq_len=1048576, training__local_batch_size=4)
        check("memory.limit" in said and "what fits: " in said and "  total  " in said, said)
        said = trainer("plan", "--model.path", "qwen3-vl-30b-a3b", "--training.seq_len", "1048576", "--device", "cpu")
        check(re.search(r"^does not fit: [0-9.]+ % of this machine's memory", said, re.M), said)
        with open("/dev/full", "w") as full:
            for command in (["inspect", f.file("data/model")], ["plan", "-c", f.config]):
                p = subprocess.run([TRAINER, *command], stdout=full, stderr=subprocess.PIPE, text=True,
                                   timeout=LIMIT_S)
                check(p.returncode == 74 and "standard output" in p.stderr, f"{command}: {p}")
        check(not os.path.exists(f.file("large/metrics.jsonl")), "a refused run left metrics")


main(recordings_end, recordings_end_inside_a_step, evaluates_in_between, updates_are_skipped, what_does_not_fit)
