# SPDX-License-Identifier: Apache-2.0
"""deploy/Containerfile: what it is made of, and its steps.

    python3 -B tests/flow/deploy_containerfile.py --build [--cuda] [--base FOLDER] [--keep FOLDER] [--certificates FILE]

carries its steps out in bare Debian 13 roots, as root and without a container engine, then looks for what the images must not
have, serves and trains in them. --cuda compiles the CUDA backend and brings NVIDIA's wheels (3 GB). --keep leaves the stages in
FOLDER, and takes those that are there from an earlier command. --certificates: those of this machine, for pip, if it reaches PyPI by
its own certificate."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from containerfile_steps import Builder, stages_of
from debian_root import lacking
from prepd_flow import BIN, LIMIT_S, UNPRIVILEGED, Folder, check, main, unprivileged, wait_for

SOURCE = os.path.abspath(os.environ.get("TESSERA_SOURCE", "."))
FILE = os.path.join(SOURCE, "deploy/Containerfile")
COMPILERS = ("cc", "gcc", "g++", "clang", "ld", "nvcc", "make", "ninja", "cmake")


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as f:
        return f.read()


def it_is_what_it_should_be():
    stages = stages_of(FILE)
    check({"prepd", "trainer"} <= set(stages), stages)
    for stage in stages.values():
        check(stage.image == "debian:13-slim", f"{stage.name} begins with {stage.image}")
        for instruction, rest in stage.steps:
            if instruction == "COPY" and not rest.startswith("--from="):
                for name in rest.split()[:-1]:
                    check(glob.glob(os.path.join(SOURCE, name)), f"{stage.name} copies {name}, which is not there")
    for name in ("prepd", "trainer"):
        check(stages[name].last("USER") not in (None, "root", "0"), f"{name} runs as root")
        check(stages[name].last("ENTRYPOINT") == f'["{name}"]', stages[name].last("ENTRYPOINT"))
        for instruction, rest in stages[name].steps:
            if instruction == "RUN" and "apt-get install" in rest:
                packages = rest.split("apt-get install")[1].split("&&")[0]
                check("--no-install-recommends" in packages and not re.search(r"\b(gcc|g\+\+|clang)\b|-dev\b", packages), packages)
    used = {*stages["prepd"].sources(), *(s for n in stages["prepd"].sources() for s in stages[n].sources())}
    check(used == {"build-prepd"}, f"the image of prepd takes from {used}")
    check("build-prepd" not in stages["trainer"].sources(), "the image of the trainer takes from prepd's")


def both_containers_may_use_the_socket():
    """Both images have one user, who may connect to a daemon of that user under the usual umask; another may not."""
    stages = stages_of(FILE)
    users = {name: re.findall(r"useradd .*--uid (\d+) --gid (\d+)", " ".join(rest for word, rest in stages[name].steps if word == "RUN"))
             for name in ("prepd", "trainer")}
    check(users["prepd"] == users["trainer"] and len(users["prepd"]) == 1, users)
    if os.geteuid() != 0:
        print("skipped: only root can become two users")
        return
    with Folder(**{"training.epochs": 1}) as f:
        by = unprivileged(f)
        if by is None:
            return
        shutil.copytree(os.path.join(SOURCE, "proto/python/tessera"), f.file("tessera"))
        (uid, gid), = users["prepd"]
        subprocess.run(["chown", "-R", f"{uid}:{gid}", f.path], check=True)
        os.chmod(f.path, 0o755)

        def words(user, *args):
            return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *args]
        server = subprocess.Popen(words(uid, *by[len(UNPRIVILEGED):], BIN, "serve", "-c", f.config), umask=0o022, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: os.path.exists(f.file("d.sock")), "the daemon listens")
            for user, code, said in ((int(uid) + 1, 78, "may not write to the socket"), (uid, 0, "row ")):
                p = subprocess.run(words(user, "/usr/bin/python3", "-B", f.file("tessera"), "ipc://" + f.file("d.sock")),
                                   capture_output=True, text=True, timeout=LIMIT_S)
                check(p.returncode == code and said in p.stdout + p.stderr, f"user {user}: {p.returncode}: {p.stdout[-500:]}{p.stderr}")
        finally:
            server.terminate()
            server.wait(60)


def wheels_are_of_fixed_versions():
    names = []
    for page in ("deploy/nvidia-build.txt", "deploy/nvidia-run.txt"):
        lines = [line for line in read(page).splitlines() if not line.startswith("#")]
        for line in lines:
            check(re.fullmatch(r"nvidia-[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line), f"{page}: {line}")
        names += [line.split("==")[0] for line in lines]
    check(len(names) == len(set(names)), names)
    listed = read("deploy/licences.md")
    for library in ("libcublasLt", "libcudnn", "libnccl"):
        check(f"`{library}`" in listed, library)


# From here on: the build.

def has_none_of(root, program, *names):
    """Neither the program, nor a file or folder whose name begins with one of the names, nor a compiler."""
    found = [n for n in root.files() if os.path.basename(n).startswith(names) and not n.startswith(("/proc", "/dev", "/var/lib/dpkg"))]
    check(not found, f"{root.path} has {found[:5]}")
    programs = [c for c in (program, *COMPILERS) if any(os.path.lexists(root.file(f"usr/{d}/{c}")) for d in ("bin", "local/bin"))]
    check(not programs, f"{root.path} has {programs}")


def size_of(path):
    return int(subprocess.run(["du", "-smx", path], capture_output=True, text=True, check=True).stdout.split()[0])


def prepd_image(builder):
    root = builder.built("prepd")
    has_none_of(root, "trainer", "nvidia", "libcublas", "libopenblas", "libmpi.", "libtessera_")
    check("build" not in " ".join(os.listdir(root.path)), os.listdir(root.path))

    def prepd(*args, **more):
        return root.run(*builder.start_words(root, *args), **more)
    check(re.match(r"prepd [0-9.]+", prepd("--version")), "version")
    prepd("synth", "--out", "/tmp/data", "--images", "32", "--seed", "1", "--sizes", "small")
    options = ["--data.format", "vqav2", "--data.path", "/tmp/data", "--model.path", "/tmp/data/model", "--training.seq_len", "512"]
    check("0 bad" in prepd("check", *options), "check")
    prepd("record", *options, "--training.global_batch_size", "2", "--steps", "3", "--out", "/tmp/rows.rec")
    server = subprocess.Popen(root.words(*builder.start_words(root, *root.cmd, *options, "--prepd.workers", "1")), stderr=subprocess.PIPE, text=True)
    begun = time.monotonic()
    while True:
        p = subprocess.run(root.words(*builder.start_words(root, "status", "--connect", "ipc:///run/prepd/prepd.sock")), capture_output=True, text=True)
        if p.returncode == 0 and "rows" in p.stdout or time.monotonic() - begun > 120:
            break
        time.sleep(1)
    server.terminate()
    said = server.communicate(timeout=60)[1]
    check(p.returncode == 0 and server.returncode == 0, f"{p.stderr}{said}")
    print(f"prepd: {size_of(root.path)} MB, of them {size_of(builder.base)} base; serves as {root.user}")
    return root


def trainer_image(builder, prepd):
    root = builder.built("trainer")
    has_none_of(root, "prepd", "libvips", "libavcodec", "libavformat", "libswscale", "libprepd_")
    shutil.copy(prepd.file("tmp/rows.rec"), root.file("tmp/rows.rec"))
    shutil.copytree(prepd.file("tmp/data/model"), root.file("tmp/model"))
    said = root.run(*builder.start_words(root, "train", "--feed.replay", "/tmp/rows.rec", "--model.path", "/tmp/model", "--training.seq_len", "512",
                                         "--training.global_batch_size", "2", "--training.local_batch_size", "1", "--training.steps", "3",
                                         "--job.dump_folder", "/var/lib/tessera/run", "--metrics.log_freq", "1"))
    check("trained: loss" in said, said)
    if builder.args.get("CUDA", "ON") != "OFF":
        known = root.run("ldconfig", "-p")
        for library in ("libcublasLt.so", "libcudnn.so", "libnccl.so", "libnvrtc.so"):
            check(library in known, f"ldconfig does not know {library}")
        check("not found" not in root.run("ldd", "/usr/lib/tessera/libtessera_cuda.so"), "libtessera_cuda.so lacks a library")
        check("NVIDIA driver" in said, f"without a driver the trainer should say that there is none: {said}")
    print(f"trainer: {size_of(root.path)} MB, of them {size_of(builder.base)} base; trains as {root.user}: "
          + re.search("trained: loss.*", said).group())


def build(words):
    def value(name):
        return words[words.index(name) + 1] if name in words else None
    lack = lacking()
    if lack:
        print(f"skipped: {lack}")
        return
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = value("--keep") or temporary
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o755)
        builder = Builder(stages_of(FILE), SOURCE, folder, value("--base") or os.path.join(folder, "base"), "trixie",
                          {"CUDA": "ON" if "--cuda" in words else "OFF"}, value("--certificates"))
        trainer_image(builder, prepd_image(builder))
    print(f"both images were built and run in {time.monotonic() - begun:.0f} s")


if "--build" in sys.argv[1:]:
    build(sys.argv[1:])
    sys.exit(0)
main(it_is_what_it_should_be, both_containers_may_use_the_socket, wheels_are_of_fixed_versions)
