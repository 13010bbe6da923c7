"""tests/gpu where there is no GPU: it says so, leaves its report and does not pass for success."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile

from prepd_flow import check, main

GPU = os.path.join(os.environ["TESSERA_SOURCE"], "tests/gpu")


def gpu(*args, code=0):
    p = subprocess.run([GPU, *args], capture_output=True, text=True, timeout=120)
    check(p.returncode == code, f"{args}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def without_a_gpu():
    stages = gpu("--list").split()
    check(stages[0] == "build" and {"parity", "memcheck", "bench-ops", "train"} <= set(stages), stages)
    with tempfile.TemporaryDirectory() as out:
        said = gpu("--out", out, "parity", "bench-ops", code=69)
        check(said.count("result: failed (69)") == 2 and "no GPU" in said, said)
        reports = sorted(glob.glob(os.path.join(out, "*.txt")))
        check(len(reports) == 2 and all("_no-gpu_" in r for r in reports), reports)
        with open(reports[0]) as f:
            check(f.read().splitlines()[-1] == "result: failed (69)", reports[0])
        # A report that ends well is not asked for again; --again does.
        done = reports[0].replace("bench-ops", "parity") if "bench-ops" in reports[0] else reports[0]
        with open(done, "w") as f:
            f.write("result: ok\n")
        check("parity: done for this tree" in gpu("--out", out, "parity"), "run twice")
        gpu("--out", out, "--again", "parity", code=69)
    check("tests/gpu [STAGE...]" in gpu("no-such-stage", code=64), "usage")


if shutil.which("nvidia-smi"):
    print("skipped: there is a driver here")
    sys.exit(77)
main(without_a_gpu)
