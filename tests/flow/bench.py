"""What a step costs and where its time goes: train --profile, bench ops, bench step."""

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
        check(profile_of(trainer("train", "-c", f.config, *options(plain))) == {}, "always on")


main(profile_adds_up)
