"""What a step costs and where its time goes: train --profile, bench ops, bench step."""

import os
import re

from prepd_flow import Folder, check, main, run
from train_flow import SHORT, options, trainer

STREAM = {"training.seq_len": 256, "training.global_batch_size": 2}
KINDS = {"vision", "attention", "dense GEMM", "experts", "routing", "element-wise", "head",
         "optimiser", "collectives", "waiting for data", "idle", "step"}


def profile_of(said):
    """Kind -> milliseconds."""
    lines = re.findall(r"^profile: (\S.*?\S) +([0-9.]+) ms +([0-9.]+) %$", said, re.M)
    return {kind: float(ms) for kind, ms, _ in lines}


def profile_adds_up():
    with Folder(**STREAM) as f:
        run("record", "-c", f.config, "--steps", "3", "--out", f.file("rows.rec"))
        values = dict(SHORT, **{"training.steps": 3, "training.global_batch_size": 2,
                                "feed.replay": f.file("rows.rec"), "job.dump_folder": f.file("a")})
        said = trainer("train", "-c", f.config, *options(values), "--profile")
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
        check(profile_of(said) == {}, "always on")
        told = re.findall(r"^memory: planned ([0-9.]+) GiB, scratch of ops 0.000 GiB, taken "
                          r"[0-9.]+ GiB: off by ([0-9.-]+) % ", said, re.M)
        check(len(told) == 1 and -5 < float(told[0][1]) < 100, f"the plan against what is taken: {said}")


def ops_all_have_a_line():
    said = trainer("bench", "ops", "--model.path", "debug", "--training.backend", "cpu",
                   "--training.seq_len", "64", "--seconds", "0.001")
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
    one = trainer("bench", "ops", "permute", "--model.path", "debug", "--training.backend", "cpu",
                  "--training.seq_len", "64", "--seconds", "0.001")
    check(one.count(" us ") == 1 and "permute" in one, one)
    check("no op \"gem\"" in trainer("bench", "ops", "gem", "--model.path", "debug", code=64), "gem")
    check("ops or step" in trainer("bench", "--model.path", "debug", code=64), "nothing named")


def steps_are_projected():
    small = ["--training.backend", "cpu", "--training.seq_len", "64", "--training.steps", "3",
             "--training.global_batch_size", "2"]
    said = trainer("bench", "step", "--model.path", "debug", "--layers", "3,4", "--ranks", "8",
                   "--bench.document", "20", *small)
    depths = re.findall(r"^depth: +(\d+) layers  step: ([0-9.]+) ms .*  optimiser: ([0-9.]+) ms "
                        r" tokens: (\d+)  images: ([0-9.]+) ", said, re.M)
    check([d[0] for d in depths] == ["3", "4"] and depths[0][3] == "128", said)
    check("warning: fed without images" in said, said)
    check(len(re.findall(r"^steps: standard deviation [0-9.]+ % of the mean; [0-9.]+ % of them under "
                         r"90 % of the median's rate$", said, re.M)) == 2, said)
    fit = re.search(r"^fit: ([0-9.-]+) \+ ([0-9.-]+) x layers ms .*optimiser ([0-9.-]+) \+ "
                    r"([0-9.-]+) x layers$", said, re.M)
    a, b, c, d = (float(x) for x in fit.groups())
    for layers, step, update in ((int(x[0]), float(x[1]), float(x[2])) for x in depths):
        check(abs(a + b * layers + update - step) < 0.01, f"{layers} layers are not on it\n{said}")
    whole = float(re.search(r"^projected: 4 layers, optimiser over 8 ranks.*step ([0-9.]+) ms",
                            said, re.M).group(1))
    check(abs(a + 4 * b + (c + 4 * d) / 8 - whole) < 0.1, said)
    check("model.layers is 2" in trainer("bench", "step", "--model.path", "debug", "--layers", "2",
                                         *small, code=78), "deepstack needs three layers")


def loads_are_set():
    # The router as it comes has 2.8; two short rows that take turns leave it uneven.
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
        check("fed without images" not in said and re.search(r"  images: [1-9]", said), said)


main(profile_adds_up, ops_all_have_a_line, steps_are_projected, loads_are_set, steps_replay_recordings)
