# SPDX-License-Identifier: Apache-2.0
"""What a step costs and where its time goes, as train --profile, bench ops, bench step and the bench of all ops report it."""

import json
import os
import re
import subprocess
import sys
import tempfile

from prepd_flow import BIN, SANITIZED, SOURCE, Daemon, Folder, check, main, run
from train_flow import SHORT, TRAINER, facts, options, train, trainer

STREAM = {"training.seq_len": 256, "training.global_batch_size": 2}
KINDS = {"vision", "attention", "dense GEMM", "experts", "routing", "element-wise", "head",
         "optimiser", "collectives", "waiting for data", "idle", "step"}


def profile_of(said):
    """Returns {kind: milliseconds}."""
    lines = re.findall(r"^profile: (\S.*?\S) +([0-9.]+) ms +([0-9.]+) %$", said, re.M)
    return {kind: float(ms) for kind, ms, _ in lines}


def least_idle(f, **values):
    """Returns the smallest idle time of a few runs. A step is short here, compared with what a busy machine may take
    away from it."""
    for n in range(4):
        said = trainer("train", "-c", f.config, *options(dict(values, **{"job.dump_folder": f.file(f"profiled-{n}")})), "--profile")
        ms = profile_of(said)
        if ms.get("idle", 0) < 0.5 * ms.get("step", 0):
            break
    return said


def profile_adds_up():
    with Folder(**STREAM) as f:
        run("record", "-c", f.config, "--steps", "3", "--out", f.file("rows.rec"))
        values = dict(SHORT, **{"training.steps": 3, "training.global_batch_size": 2,
                                "feed.replay": f.file("rows.rec"), "job.dump_folder": f.file("a")})
        said = least_idle(f, **values)
        ms = profile_of(said)
        check(set(ms) == KINDS, f"kinds of the profile: {sorted(ms)}\n{said}")
        total = ms.pop("step")
        check(abs(sum(ms.values()) - total) < 0.02, f"{ms} do not add up to {total}")
        for kind in ("vision", "attention", "dense GEMM", "experts", "routing", "element-wise",
                     "head", "optimiser"):
            check(ms[kind] > 0, f"{kind} took no time\n{said}")
        check(ms["idle"] < 0.5 * total, f"a CPU that is half idle\n{said}")
        check("profile: 2 steps" in said, f"the first step was counted\n{said}")
        plain = dict(values, **{"job.dump_folder": f.file("b")})
        said = trainer("train", "-c", f.config, *options(plain))
        check(profile_of(said) == {}, "a profile is printed although none was asked for")
        told = re.findall(r"^memory: planned ([0-9.]+) GiB, taken [0-9.]+ GiB: off by ([0-9.-]+) % "
                          r"\(scratch of ops 0.000 of 0.000 GiB planned;", said, re.M)
        check(len(told) == 1 and -5 < float(told[0][1]) < 100, f"the plan against what is taken: {said}")


def memory_is_as_planned():
    """Resident memory of the CPU backend is within 5 % of the plan, where it is more than any process needs."""
    if SANITIZED:
        return
    with Folder(images=64, **{"training.seq_len": 2048, "training.global_batch_size": 4}) as f:
        run("record", "-c", f.config, "--steps", "3", "--out", f.file("rows.rec"))
        for mode in ("none", "full"):
            values = dict(SHORT, **{"training.steps": 3, "training.seq_len": 2048, "training.local_batch_size": 4,
                                    "training.global_batch_size": 4, "feed.replay": f.file("rows.rec"),
                                    "job.dump_folder": f.file(mode), "training.backend": "cpu", "eval.enable": "false",
                                    "activation_checkpoint.mode": mode})
            said = trainer("train", "-c", f.config, *options(values))
            off = re.findall(r"^memory: planned [0-9.]+ GiB, taken [0-9.]+ GiB: off by ([0-9.-]+) %", said, re.M)
            print(mode, "off by", off)
            check(len(off) == 1 and abs(float(off[0])) < 5, said)


def collectives_are_told():
    with Folder(**STREAM) as f:
        run("record", "-c", f.config, "--steps", "3", "--out", f.file("rows.rec"))
        values = dict(SHORT, **{"training.steps": 3, "training.global_batch_size": 2, "nproc": 2,
                                "training.backend": "cpu", "feed.replay": f.file("rows.rec"), "eval.enable": "false"})
        said = least_idle(f, **values)
        ms = profile_of(said)
        total = ms.pop("step")
        check(ms["collectives"] > 0 and abs(sum(ms.values()) - total) < 0.02, f"{ms} of {total}\n{said}")
        check(ms["idle"] < 0.5 * total, f"what ranks do together is not idle\n{said}")


def bench_device(*args, code=0):
    p = subprocess.run([os.path.join(os.path.dirname(os.environ["TESSERA_BIN"]), "tests/bench_device"), *args], capture_output=True, text=True)
    check(p.returncode == code, f"{args}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def ops_all_have_a_line():
    small = ["--model.path", "debug", "--training.backend", "cpu", "--training.seq_len", "64"]
    said = bench_device("ops", *small, "--seconds", "0.001")
    check(re.search(r"^ceilings: copy of 64 MiB [0-9.]+ GB/s read and written, product of 768\^3 ",
                    said, re.M), said)
    lines = re.findall(r"^(\w+) +\S.* ([0-9.]+) us +([0-9.]+) GB/s +([0-9.]+) TFLOP/s +([0-9.]+) % "
                       r"of (copy|product)$", said, re.M)
    with open(os.path.join(os.environ["TESSERA_SOURCE"], "trainer/ops/ops.def")) as f:
        ops = set(re.findall(r"^ *OP\((\w+)\)|  OP\((\w+)\)", f.read(), re.M))
    ops = {a or b for a, b in ops}
    check(len(ops) > 25 and {line[0] for line in lines} == ops, f"not {sorted(ops)}:\n{said}")
    reached = re.search(r"^(\d+) of (\d+) shapes reach 80 % of their ceiling", said, re.M)
    slow = sum(float(line[4]) < 80 for line in lines)
    check(int(reached.group(2)) == len(lines) and
          abs(len(lines) - int(reached.group(1)) - slow) <= 1, said)
    one = bench_device("ops", "permute", *small, "--seconds", "0.001")
    check(one.count(" us ") == 1 and "permute" in one, one)
    pair = bench_device("ops", "rmsnorm_fwd,add", *small, "--seconds", "0.001")
    check(set(re.findall(r"^([a-z_]+) .* us ", pair, re.M)) == {"rmsnorm_fwd", "add"}, pair)
    given = bench_device("ops", "add", *small, "--seconds", "0.001", "--ceilings", "1000000,1000000")
    check("ceilings:" not in given and float(re.search(r"([0-9.]+) % of copy", given).group(1)) < 5, given)
    check("expected GB/s,TFLOP/s" in bench_device("ops", "add", *small, "--ceilings", "4300", code=64), "--ceilings")


def products_are_timed():
    """trainer bench ops has the ops whose rates trainer plan --measured reads."""
    small = ["--model.path", "debug", "--training.backend", "cpu", "--training.seq_len", "64", "--seconds", "0.001"]
    said = trainer("bench", "ops", *small)
    check(set(re.findall(r"^([a-z_]+) .* us ", said, re.M)) ==
          {"gemm", "grouped_gemm", "attention_fwd", "attention_bwd"}, said)
    check("no op \"gem\"" in trainer("bench", "ops", "gem", *small, code=64), "gem")
    check("what to measure: ops or step" in trainer("bench", "--model.path", "debug", code=64), "bench without a word")


def ceilings_are_in_the_page():
    said = bench_device("count", "--model.path", "qwen3-vl-30b-a3b", "--training.seq_len", "12288",
                        "--training.local_batch_size", "4")
    with open(os.path.join(os.environ["TESSERA_SOURCE"], "trainer/ops/kernels.md")) as f:
        page = f.read()
    check(said.count("\n") > 50, said)
    for line in said.splitlines():
        check(line in page, f"trainer/ops/kernels.md lacks: {line}")


def steps_are_projected():
    small = ["--training.backend", "cpu", "--training.seq_len", "64", "--training.steps", "3",
             "--training.global_batch_size", "2"]
    said = trainer("bench", "step", "--model.path", "debug", "--layers", "3,4", "--ranks", "8",
                   "--document", "20", *small)
    depths = re.findall(r"^depth: +(\d+) layers  step: ([0-9.]+) ms .*  optimiser: ([0-9.]+) ms "
                        r" tokens: (\d+)  images: ([0-9.]+) ", said, re.M)
    check([d[0] for d in depths] == ["3", "4"] and depths[0][3] == "128", said)
    check("warning: the rows had no images" in said, said)
    check(len(re.findall(r"^steps: standard deviation [0-9.]+ % of the mean; [0-9.]+ % of them under "
                         r"90 % of the median's rate$", said, re.M)) == 2, said)
    fit = re.search(r"^fit: ([0-9.-]+) \+ ([0-9.-]+) x layers ms .*optimiser ([0-9.-]+) \+ "
                    r"([0-9.-]+) x layers$", said, re.M)
    a, b, c, d = (float(x) for x in fit.groups())
    for layers, step, update in ((int(x[0]), float(x[1]), float(x[2])) for x in depths):
        check(abs(a + b * layers + update - step) < 0.01, f"{layers} layers are not on it\n{said}")
    whole = float(re.search(r"^projected: 4 layers, optimiser over 8 ranks.*step ([0-9.]+) \+- ",
                            said, re.M).group(1))
    check(abs(a + 4 * b + (c + 4 * d) / 8 - whole) < 0.1, said)
    check(re.search(r"^projected: .*collectives not counted: step [0-9.]+ \+- [0-9.]+ ms  tps: \d+  mfu: [0-9.]+% \+- [0-9.]+% of ",
                    said, re.M), said)
    third = trainer("bench", "step", "--model.path", "debug", "--layers", "3,4,3", *small)
    check(len(re.findall(r"^projected: ", third, re.M)) == 2, third)
    check("model.layers is 2" in trainer("bench", "step", "--model.path", "debug", "--layers", "2",
                                         *small, code=78), "deepstack needs three layers")


def memory_by_part__has_its_plan():
    said = bench_device("memory", "--model.path", "debug", "--training.backend", "cpu",
                        "--training.seq_len", "512", "--training.steps", "8",
                        "--training.local_batch_size", "2", "--training.global_batch_size", "2")
    parts = dict(re.findall(r"^memory: (\S.*?\S) +planned +([0-9.]+) MiB  ", said, re.M))
    check(set(parts) == {"context", "asked for before step 1", "workspace of ops", "libraries' kernels",
                         "captured steps"}, said)
    every = re.search(r"^memory: all planned ([0-9.]+) MiB, taken ([0-9.]+) MiB: off by ([0-9.-]+) % "
                      r"\(goal: 2 %\)$", said, re.M)
    planned, taken, off = (float(x) for x in every.groups())
    check(abs(sum(float(x) for x in parts.values()) - planned) < 1, said)
    check(abs(100 * (taken - planned) / planned - off) < 1, said)
    check(float(parts["context"]) == 0 and planned > 10 and taken > 0.5 * planned, said)  # a CPU has no context
    check("set it to at least 8" in bench_device("memory", "--model.path", "debug", "--training.steps", "3", code=78),
          "three steps")


def loads_are_set():
    # Without --load it is 2.8. Two short rows that take turns leave the load uneven, hence the ranges.
    for load, least, most in ((1, 1.0, 2.2), (3.5, 3.2, 4.0)):
        said = trainer("bench", "step", "--model.path", "debug", "--layers", "3", "--load", str(load),
                       "--training.backend", "cpu", "--training.seq_len", "256",
                       "--training.steps", "1", "--training.global_batch_size", "1")
        got = float(re.search(r"; busiest expert ([0-9.]+) times the mean$", said, re.M).group(1))
        check(least <= got <= most, f"load {load} became {got}\n{said}")
    check("1 to 4.0 times" in trainer("bench", "step", "--model.path", "debug", "--layers", "3",
                                      "--load", "5", "--training.backend", "cpu",
                                      "--training.seq_len", "64", "--training.steps", "1",
                                      "--training.global_batch_size", "1", code=64), "load 5")


def steps_replay_recordings():
    with Folder(**STREAM) as f:
        run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"))
        said = trainer("bench", "step", "-c", f.config, "--feed.replay", f.file("rows.rec"),
                       "--training.backend", "cpu", "--training.steps", "2",
                       "--training.global_batch_size", "2")
        check("the rows had no images" not in said and re.search(r"  images: [1-9]", said), said)


def few_values_are_drawn():
    """Values repeat in benches, and only there."""
    with Folder(**STREAM) as f:
        run("record", "-c", f.config, "--steps", "2", "--out", f.file("rows.rec"))
        few = ["-c", f.config, "--training.backend", "cpu", "--training.global_batch_size", "2",
               "--feed.replay", f.file("rows.rec"), "--eval.enable", "false"]
        for verb, steps, repeat in (([TRAINER, "bench", "step"], 1, True), ([TRAINER, "train"], 1, False)):
            p = subprocess.run([*verb, *few, "--training.steps", str(steps),
                                *([] if repeat else ["--job.dump_folder", f.file("run")])], capture_output=True, text=True)
            check(p.returncode == 0 and "initialised from training.seed" in p.stderr, f"{verb}: {p.stderr}")
            check(("training.seed with values that repeat name=" in p.stderr) == repeat, f"{verb}: {p.stderr}")


class Feed(Daemon):
    """bench_feed, which serves a recording in place of a daemon."""

    def __init__(self, endpoint, rows):
        program = os.path.join(os.path.dirname(os.environ["TESSERA_BIN"]), "tests/bench_feed")
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([program, endpoint, rows], stderr=self.log)


def recordings_are_served_live():
    with Folder(**STREAM) as f:
        rows = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "2", "--out", rows)
        replayed = train(f, "replayed", training__global_batch_size=2, feed__replay=rows, eval__enable="false")
        with Feed("ipc://" + f.file("d.sock"), rows) as d:
            # Four steps from a recording of two steps: it is repeated. The rows are the same, bit for bit.
            served = train(f, "served", training__global_batch_size=2, eval__enable="false")
            check(facts(served) == facts(replayed), f"{facts(served)} is not {facts(replayed)}")
            said = trainer("train", "-c", f.config, "--training.seed", "5", "--training.steps", "1",
                           "--training.global_batch_size", "2", "--job.dump_folder", f.file("other"), code=78)
            check("another stream" in said and "training.seed" in said, said)
            live = ["--live", "--training.backend", "cpu", "--training.seq_len", "256",
                    "--training.global_batch_size", "2", "--training.steps", "6"]
            said = trainer("bench", "step", "-c", f.config, *live)
            check(re.search(r"^input: 6 step starts delayed by a median of [0-9.]+ us, 99 of 100 by at most "
                            r"[0-9.]+ us, the longest [0-9.]+ us; \d by more than 50 us$", said, re.M) and
                  re.search(r"  images: [1-9]", said), said)
            check(d.p.poll() is None and d.stop() == 0, f"{d.said()}")
        check("leave feed.replay" in trainer("bench", "step", "-c", f.config, "--live", "--feed.replay", rows,
                                             code=64), "both")


def figures_of_many_daemons_are_computed():
    """Those on prepd/many-daemons.md are what the reports and trainer plan give today."""
    p = subprocess.run([os.path.join(SOURCE, "tests/bench/prepd/supply"), "--check", "--build", os.path.dirname(os.path.dirname(BIN))],
                       capture_output=True, text=True)
    check(p.returncode == 0, p.stdout + p.stderr)


def a_missing_build_is_named():
    """The bench beside PyTorch needs both programs and the Python package, and says what makes them."""
    p = subprocess.run([sys.executable, "-B", os.path.join(SOURCE, "tests/bench/pytorch"), "--build", "/nowhere"],
                       capture_output=True, text=True)
    check(p.returncode == 1 and "`ninja -C /nowhere programs` makes it" in p.stderr and "Traceback" not in p.stderr, p.stderr)


main(profile_adds_up, memory_is_as_planned, collectives_are_told, ops_all_have_a_line, products_are_timed, ceilings_are_in_the_page, steps_are_projected, memory_by_part__has_its_plan, loads_are_set, steps_replay_recordings, few_values_are_drawn,
     recordings_are_served_live, figures_of_many_daemons_are_computed,
     a_missing_build_is_named)
