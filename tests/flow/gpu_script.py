# SPDX-License-Identifier: Apache-2.0
"""tests/gpu on a machine without a GPU: it says so, leaves its report, and does not pass as a success."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from prepd_flow import check, main

GPU = os.path.join(os.environ["TESSERA_SOURCE"], "tests/gpu")
GPU_FILES = os.path.join(os.environ["TESSERA_SOURCE"], "tests/bench/gpu")


def gpu(*args, code=0, **env):
    p = subprocess.run([GPU, *args], capture_output=True, text=True, timeout=120, env=dict(os.environ, **env))
    check(p.returncode == code, f"{args}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def libraries_travel():
    """For each module that the trainer's build asks pkg-config for, --prepare packs the package it is in."""
    source = os.environ["TESSERA_SOURCE"]
    with open(os.path.join(source, "tests/bench/gpu/libraries.sh")) as f:
        packages = re.search(r'^packages="(.*?)"', f.read(), re.M | re.S).group(1).split()
    modules = set()
    for room in ("common", "proto", "trainer", "tests/CMakeLists.txt"):
        top = os.path.join(source, room)
        files = [top] if os.path.isfile(top) else glob.glob(top + "/**/CMakeLists.txt", recursive=True)
        for name in files:
            with open(name) as f:
                for words in re.findall(r"\b(?:need|pkg_check_modules)\((.*?)\)", f.read()):
                    modules |= {w.split(">")[0] for w in words.split()[1:] if w.islower() or "-" in w}
    check({"libzmq", "libpng", "openblas"} <= modules, modules)
    with open(os.path.join(source, "tests/bench/gpu/built.sh")) as f:
        check("-DHTTP=OFF" in f.read(), "the programs that travel have the HTTP door")
    modules.discard("libmicrohttpd")  # which they are built without
    said = subprocess.run(["dpkg", "-S", *(f"*/{m}.pc" for m in modules)], capture_output=True, text=True).stdout
    owners = {line.split("/")[-1][:-len(".pc")]: line.split(":")[0] for line in said.splitlines()}
    for module in sorted(modules):
        by_alternatives = {"openblas": "libopenblas-pthread-dev", "ompi-c": "libopenmpi-dev"}
        owner = by_alternatives.get(module, owners.get(module))
        check(owner in packages, f"{module} is of {owner or 'no package'}, which tests/gpu --prepare does not take")


def what_travels_stays_packed():
    """The libraries are unpacked beside the build, and again if they have changed; .gpu/ stays as --prepare left it."""
    with tempfile.TemporaryDirectory() as tree:
        shutil.copytree(os.path.join(os.path.dirname(GPU), "bench/gpu"), os.path.join(tree, "tests/bench/gpu"))
        shutil.copy(GPU, os.path.join(tree, "tests"))
        os.mkdir(os.path.join(tree, ".gpu"))
        for words in ("one", "another"):
            kept = os.path.join(tree, "lib/kept")
            os.makedirs(os.path.dirname(kept), exist_ok=True)
            with open(kept, "w") as f:
                f.write(words)
            subprocess.run(["tar", "-cJf", ".gpu/prefix.tar.xz", "lib"], cwd=tree, check=True)
            p = subprocess.run(["tests/gpu", "--dry", "--out", "out", "--again", "ranks-1"], cwd=tree,
                               capture_output=True, text=True, timeout=120)
            check(p.returncode == 0 and "result: skipped (77)" in p.stdout, p.stdout + p.stderr)
            check(os.listdir(os.path.join(tree, ".gpu")) == ["prefix.tar.xz"], os.listdir(os.path.join(tree, ".gpu")))
            with open(os.path.join(tree, "build-gpu/prefix/lib/kept")) as f:
                check(f.read() == words, "the libraries of another time")


def libraries_in_wheels_are_found():
    """cuDNN and NCCL may be in Python's wheels alone, with headers and libraries in folders of their own."""
    with tempfile.TemporaryDirectory() as work:
        wheels = os.path.join(work, "nvidia")
        for name in ("cudnn/include/cudnn.h", "nccl/include/nccl.h", "nccl/lib/libnccl.so.2", "bin/python3"):
            path = os.path.join(work, name) if name.startswith("bin") else os.path.join(wheels, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", opener=lambda at, flags: os.open(at, flags, 0o755)) as f:
                f.write(f"#!/bin/sh\necho {wheels}\n")  # what Python says of where its wheels are
        p = subprocess.run(["bash", "-c", f". {GPU_FILES}/environment.sh; echo $NCCL_HOME:$CUDNN_HOME:$LD_LIBRARY_PATH"],
                           capture_output=True, text=True, timeout=60,
                           env={"PATH": f"{work}/bin:{os.environ['PATH']}", "source_dir": work, "prefix": f"{work}/prefix",
                                "rows": f"{work}/rows", "build": work})
        said = p.stdout.strip().split(":")
        check(said[:2] == [f"{wheels}/nccl", f"{wheels}/cudnn"] and f"{wheels}/nccl/lib" in said, p.stdout + p.stderr)


def what_travels_leaves_room():
    """--prepare fails if more than 38 of 40 MiB would travel. The files of this tree leave room for what is packed beside them."""
    def room(tree, words, code=0):
        p = subprocess.run(["bash", "-c", f". {GPU_FILES}/room.sh; {words}"], cwd=tree, capture_output=True, text=True, timeout=60)
        check(p.returncode == code, f"{words}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
        return p.stdout + p.stderr

    packed = 35 << 19
    with tempfile.TemporaryDirectory() as tree:
        for name, size in (("rows/kept", (38 << 20) - packed), (".gpu/rows.tar.xz", packed), ("build/left", 9 << 20),
                           (".git/objects/pack/left", 9 << 20), ("outputs/left", 9 << 20), ("rows/left.pyc", 9 << 20)):
            os.makedirs(os.path.join(tree, os.path.dirname(name)), exist_ok=True)
            with open(os.path.join(tree, name), "wb") as f:
                f.truncate(size)
        check("travels: 38.0 MiB of 40: the tree 20.5, .gpu 17.5" in room(tree, "check_room"), "what travels")
        with open(os.path.join(tree, "rows/one_more"), "wb") as f:
            f.write(b" ")
        check("more than 38 MiB would travel, and 2 of 40 stay free" in room(tree, "check_room", code=1), "no room")
        said = subprocess.run(f"head -c 999 {GPU} | bash -c '. {GPU_FILES}/room.sh; squeeze' | python3 -c "
                              "'import lzma, sys; sys.stdout.write(lzma.open(sys.stdin.buffer).read().decode())'",
                              shell=True, capture_output=True, text=True, timeout=60).stdout
        with open(GPU) as f:
            check(said == f.read(999), "Python cannot unpack it")
    tree = int(room(os.environ["TESSERA_SOURCE"], "tree_bytes"))
    check(1 << 20 < tree <= (38 << 20) - packed, f"the tree has {tree / (1 << 20):.1f} MiB: too many for {packed / (1 << 20)} beside them")


def rows_of_photographs_are_full():
    """Few pictures with many questions, as --prepare records them: each picture in many samples, rows full but for an epoch's last."""
    prepd = os.path.join(os.environ["TESSERA_BIN"], "prepd")
    with tempfile.TemporaryDirectory() as work:
        made, few = os.path.join(work, "made"), os.path.join(work, "few")
        subprocess.run([prepd, "synth", "--out", made, "--images", "80", "--seed", "1"], check=True, capture_output=True, timeout=60)
        subprocess.run([sys.executable, "-B", f"{GPU_FILES}/photographs.py", made, few, "3", "200"], check=True, timeout=60)
        check(len(os.listdir(os.path.join(few, "images/train2014"))) == 3, "pictures")
        said = subprocess.run([prepd, "plan", "--model.path", os.path.join(made, "model"), "--data.path", few, "--data.group", "none",
                               "--training.seq_len", "512", "--prepd.cache_dir", os.path.join(work, "cache")],
                              capture_output=True, text=True, timeout=60)
        check(said.returncode == 0 and "samples: 200, refused: 0" in said.stdout, said.stdout + said.stderr)
        check(float(re.search(r"^tokens: .*fill: ([0-9.]+) %", said.stdout, re.M).group(1)) > 90, said.stdout)


def without_a_gpu():
    stages = gpu("--list").split()
    check("name" not in gpu("--ops").split() and "xent" in gpu("--ops").split(), "the ops of ops.def")
    check(stages[:3] == ["versions", "build", "smoke"] and {"parity", "memcheck", "bench-ops", "train"} <= set(stages), stages)
    with tempfile.TemporaryDirectory() as out:
        said = gpu("--out", out, "parity", "bench-ops", code=69)
        check(said.count("result: failed (69)") == 2 and "no GPU" in said, said)
        reports = sorted(glob.glob(os.path.join(out, "*.txt")))
        check(len(reports) == 2 and all("_no-gpu_" in r for r in reports), reports)
        with open(reports[0]) as f:
            check(f.read().splitlines()[-1] == "result: failed (69)", reports[0])
        # A stage whose report ended well is not run again, except with --again.
        done = reports[0].replace("bench-ops", "parity") if "bench-ops" in reports[0] else reports[0]
        with open(done, "w") as f:
            f.write("result: ok\n")
        check("parity is done for this tree already" in gpu("--out", out, "parity"), "run twice")
        gpu("--out", out, "--again", "parity", code=69)
        # A stage that lacks something says so. That is no failure, and the stage is run again.
        empty = os.path.join(out, "empty")
        os.mkdir(empty)
        for _ in range(2):
            said = gpu("--dry", "--out", out, "ranks-1", "nccl", TESSERA_GPU_BUILD=empty)
            check(said.count("result: skipped (77)") == 2 and said.count("skipped: ") == 2, said)
        # A stage that takes too long is ended, and its report says so.
        slow = os.path.join(out, "slow/bin")
        os.makedirs(slow)
        with open(os.path.join(slow, "trainer"), "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as f:
            f.write("#!/bin/sh\nexec sleep 60\n")
        said = gpu("--dry", "--out", out, "bench-text", code=1, TESSERA_GPU_LIMIT_S="0.5",
                   TESSERA_GPU_BUILD=os.path.dirname(slow))
        check("did not end within 0.5 s" in said and "result: failed (124)" in said, said)
    with tempfile.TemporaryDirectory() as out:
        # With the programs of this build, stages run up to the point where they need the driver.
        said = gpu("--dry", "--out", out, "parity", "bench-ops", "bench-text", code=69,
                   TESSERA_GPU_BUILD=os.path.dirname(os.environ["TESSERA_BIN"]))
        check(said.count("result: failed (69)") == 3, said)
        built = os.path.exists(os.path.join(os.path.dirname(os.environ["TESSERA_BIN"]), "lib/tessera/libtessera_cuda.so"))
        why = "there is no NVIDIA driver on this machine" if built else "libtessera_cuda.so does not exist"
        check(said.count(why) == 3, said)
        check("fits: " in said, f"the plan that bench-text stands on\n{said}")
    check("tests/gpu [STAGE...]" in gpu("no-such-stage", code=64), "usage")


if shutil.which("nvidia-smi"):
    print("skipped: there is a driver here")
    sys.exit(77)
def reports_are_kept():
    """`keep` puts the reports of a run beside the others, without the machine's path, and the pages get their newest figures."""
    source = os.environ["TESSERA_SOURCE"]
    with tempfile.TemporaryDirectory() as work:
        tree = os.path.join(work, "tree")
        for part in "tests/bench/results", "trainer/ops":
            shutil.copytree(os.path.join(source, part), os.path.join(tree, part))
        results, page = os.path.join(tree, "tests/bench/results"), os.path.join(tree, "trainer/ops/kernels.md")

        def call(name, *args, code=0):
            p = subprocess.run([os.path.join(results, name), *args], capture_output=True, text=True, timeout=60)
            check(p.returncode == code, f"{name} {args}: {p.returncode}\n{p.stdout}{p.stderr}")
            return p.stdout + p.stderr

        def row():
            with open(page) as f:
                return re.search(r"^\| add \| residual \|.*$", f.read(), re.M).group(0).split(" | ")

        least = float(row()[5])
        report = "2999-01-01_NVIDIA-H200_1_0123456789_bench-ops.txt"
        for name, date, us in (report, "2999-01-01", 2000 * least), (report.replace("H200", "H100"), "2999-01-02", 1.0):
            with open(os.path.join(work, name), "w") as f:
                f.write(f"date: {date}T00:00:00Z  gpu: x\nmpirun: /srv/tree/build-gpu/prefix/bin/mpirun\n"
                        f"add               residual {us:12.1f} us    4216.3 GB/s      0.00 TFLOP/s   98.9 % of copy\n")
        check("2 reports kept" in call("keep", work), "keep")
        check(row()[6] == f"{2 * least:.3f}" and row()[7] == "2.00 |", row())
        with open(os.path.join(results, "gpu", report)) as f:
            check("\nmpirun: build-gpu/prefix/bin/mpirun\n" in f.read(), "the path of a machine")
        call("measured", "--check")
        with open(page) as f:
            text = f.read()
        with open(page, "w") as f:
            f.write(text.replace(f"| {2 * least:.3f} | 2.00 |", "| 0.001 | 2.00 |"))
        check("kernels.md is not what the reports say" in call("measured", "--check", code=1), "a page that was edited")
        call("keep", tree, code=66)


main(libraries_travel, libraries_in_wheels_are_found, what_travels_stays_packed, what_travels_leaves_room,
     rows_of_photographs_are_full, without_a_gpu, reports_are_kept)
