# SPDX-License-Identifier: Apache-2.0
"""Ranks that others start, by torchrun (on the emulated device, with NCCL's shim) and by srun, if these are installed
(and for srun a controller answers): they have the losses of one rank. Also what a rank says that has a launcher's
variables but cannot reach the others by MPI, and running.md's mpirun line, word for word. TESSERA_TORCHRUN names a
torchrun that is not in the path."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

from faults import SHIM as FAULTS, sanitized
from prepd_flow import LIMIT_S, SOURCE, UNPRIVILEGED, Folder, below, check, free_ports, main, open_to_others
from resume_flow import recorded
from train_flow import SHORT, TRAINER, has_mpi, options

TESTS = os.path.join(os.path.dirname(TRAINER), "../tests")
EMULATED, SHIM = os.path.join(TESTS, "trainer_emulated"), os.path.join(TESTS, "nccl_shim")
TORCHRUN = os.environ.get("TESSERA_TORCHRUN", shutil.which("torchrun"))


def words_of(f, name, **changed):
    values = dict(SHORT, **{"job.dump_folder": f.file(name), "training.backend": "cpu", "training.threads": 1,
                            "feed.replay": f.file("rows.rec")})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    return ["train", "-c", f.config, *options(values)]


def loss_of(words, **env):
    p = subprocess.run([str(w) for w in words], env=dict(os.environ, **env), capture_output=True, text=True,
                       timeout=LIMIT_S)
    found = re.search(r"trained: loss .*", p.stdout)
    check(p.returncode == 0 and found, f"exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return found[0], p.stderr


def ranks_that_mpi_did_not_start_say_how():
    """Started as by plain srun, and by torchrun on a machine without GPUs."""
    starters = {"srun --mpi=pmix": {"SLURM_STEP_ID": "0", "SLURM_PROCID": "{}", "SLURM_NTASKS": "2",
                                    "SLURM_LOCALID": "{}", "SLURM_STEP_TASKS_PER_NODE": "2"},
                "start it with mpirun": {"RANK": "{}", "WORLD_SIZE": "2", "LOCAL_RANK": "{}", "LOCAL_WORLD_SIZE": "2"}}
    unlaunched = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI", "OMPI_"))}
    with Folder(images=16) as f:
        recorded(f)
        for wanted, variables in starters.items():
            words, port = [TRAINER, *words_of(f, "none")], free_ports()
            ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env=dict(unlaunched, MASTER_PORT=str(port), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                               **{k: v.format(rank) for k, v in variables.items()}))
                     for rank in range(2)]
            try:
                said = "".join(rank.communicate(timeout=LIMIT_S)[0] for rank in ranks)
                codes = [rank.returncode for rank in ranks]
                check(codes == [78, 78] and wanted in said, f"exit codes {codes}, wanted: {wanted}\n{said}")
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()


def the_reader_of_the_ranks_log_may_leave():
    with Folder(images=16) as f:
        recorded(f)
        ours, its = os.pipe()
        os.close(ours)
        p = subprocess.run([TRAINER, *map(str, words_of(f, "unheard")), "--nproc", "2"], stdout=subprocess.PIPE, stderr=its,
                           text=True, timeout=LIMIT_S)
        os.close(its)
        check(p.returncode == 0 and "trained: loss" in p.stdout, f"exit code {p.returncode}\n{p.stdout}")


def mpirun_may_miss_that_a_rank_ends():
    """A rank that has no answer from a busy mpirun ends without it. Its exit code says that it ended well."""
    if sanitized():
        return
    with Folder(images=16) as f:
        recorded(f)
        loss_of([TRAINER, *words_of(f, "unnoticed", training__steps=1), "--nproc", "2"], LD_PRELOAD=FAULTS)


def page_s_line():
    """The words of its mpirun line, up to the comment."""
    with open(os.path.join(SOURCE, "trainer/running.md")) as f:
        line, = [line for line in f if line.startswith("mpirun ")]
    return line.split("#")[0].split()


def the_page_s_own_line_starts_ranks():
    """As root, whom Open MPI refuses unless told otherwise, and as a user without rights; in a folder that has the
    programs below build/ and a configuration for FILE."""
    kinds = ["root", "user"] if os.geteuid() == 0 else ["user"]
    plain = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_ALLOW")}
    with Folder(images=16) as f:
        recorded(f)
        alone, _ = loss_of([TRAINER, *words_of(f, "alone", training__steps=2)])
        for name in ("bin/trainer", "lib/tessera/libtessera_mpi.so"):
            os.makedirs(os.path.dirname(f.file("build/" + name)))
            shutil.copy(os.path.join(os.path.dirname(TRAINER), "..", name), f.file("build/" + name))
        for kind in kinds:
            by = UNPRIVILEGED if kind == "user" and len(kinds) > 1 else []
            if by and not open_to_others(f):
                continue
            words = [word for w in page_s_line() for word in (words_of(f, kind, training__steps=2)[2:] if w == "FILE" else [w])]
            p = subprocess.run([*by, *map(str, words)], cwd=f.path, capture_output=True, text=True, timeout=LIMIT_S,
                               env=dict(plain, TMPDIR=f.path, OMPI_MCA_orte_allowed_exit_without_sync="1"))
            check(p.returncode == 0 and alone in p.stdout, f"{kind}, {words}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
            check("4 ranks, by mpirun's variables" in p.stderr, p.stderr)


def what_is_refused_is_said_once():
    """The launcher refuses it before there is any rank, so nothing is waited for and nothing is begun."""
    wrong = [({"parallelism__expert_parallel_degree": 3}, 78, "expert_parallel_degree 3 must divide"),
             ({"training__global_batch_size": 3, "training__local_batch_size": 1}, 78, "; or set training.global_batch_size to 4"),
             ({"parallelism__world_size": 2}, 78, "the layout needs 2 ranks, a GPU each, but there are 4"),
             ({"parallelism__pipeline_parallel_degree": 2,
               "parallelism__pipeline_parallel_split_points": "layers.9"}, 78, "these fit: layers.3"),
             ({"freeze__pattern": "no_such"}, 78, "matches no parameter of this model"),
             ({"model__layers": 2}, 78, "debug can only be cut to 3 to 4"),
             ({"model__layers": 3, "parallelism__pipeline_parallel_degree": 2}, 78, "the model has 3 layers, of which"),
             ({"model__path": "none"}, 66, "neither a folder with config.json nor a preset"),
             ({"feed__replay": "none.rec"}, 66, "none.rec: cannot open the recording"),
             ({"feed__replay": os.path.join(SOURCE, "README.md")}, 65, "byte 0: this is not a recording"),
             ({"checkpoint__enable": "true", "checkpoint__load_step": 7}, 66, "checkpoint.load_step 7: there is no such")]
    with Folder(images=16) as f:
        recorded(f)
        for changed, code, wanted in wrong:
            words = words_of(f, "refused", **{"model__path": "debug", "training__local_batch_size": 1, **changed})
            p = subprocess.run([TRAINER, *map(str, words), "--nproc", "4"], capture_output=True, text=True, timeout=LIMIT_S)
            said = p.stderr.splitlines()
            check(p.returncode == code and len(said) == 1 and wanted in said[0], f"{changed}: {p.returncode}, {p.stderr}")
            check("starting" not in p.stderr and not os.path.exists(f.file("refused")), f"{changed}: ranks were started")
        p = subprocess.run([TRAINER, "eval", "--nproc", "2"], capture_output=True, text=True, timeout=LIMIT_S)
        check(p.returncode == 64 and "model.path is not set" in p.stderr and p.stderr.count("\n") == 1, f"eval: {p.stderr}")
        # An error that only the ranks find is printed by rank 0 alone. The logs of the others have it too.
        with open(f.file("data/model/model.safetensors"), "wb") as weights:
            weights.write((9).to_bytes(8, "little"))
        words = words_of(f, "found", model__path=f.file("data/model"), training__local_batch_size=1)
        p = subprocess.run([TRAINER, *map(str, words), "--nproc", "4"], capture_output=True, text=True, timeout=LIMIT_S)
        told = [line for line in p.stderr.splitlines() if " error " in line]
        check(p.returncode == 65 and len(told) == 1 and "trainer[0]: " in told[0] and "safetensors" in told[0], p.stderr)
        for rank in range(1, 4):
            with open(f.file(f"found/log/rank-{rank}.log")) as log:
                check("safetensors" in log.read(), f"rank {rank}'s log has no cause")


def listening():
    """{inode: address} of every TCP socket of this machine that listens."""
    found = {}
    for kind in "tcp", "tcp6":
        with open(f"/proc/net/{kind}") as f:
            for words in (line.split() for line in f.read().splitlines()[1:]):
                if words[3] == "0A":
                    found[words[9]] = words[1].split(":")[0]
    return found


def sockets_of(pid):
    """(name, inodes) of a process that may end meanwhile."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/comm") as f:
            name = f.read().strip()
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        return name, {link[8:-1] for link in links if link.startswith("socket:[")}
    return "", set()


def ranks_of_one_machine_listen_on_loopback():
    """The launcher, mpirun and the ranks, from the start to the end."""
    loopback = {"0100007F", "00000000000000000000000001000000"}
    with Folder(images=16) as f:
        recorded(f)
        p = subprocess.Popen([TRAINER, *map(str, words_of(f, "heard")), "--nproc", "2"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seen = set()
        while p.poll() is None:
            pids, addresses = [p.pid, *below(p.pid)], listening()
            for name, inodes in map(sockets_of, pids):
                seen |= {(name, addresses[inode]) for inode in inodes if inode in addresses}
            time.sleep(0.02)
        said = p.stdout.read()
        check(p.returncode == 0, said)
        names = {name for name, _ in seen}
        check({"mpirun", "prterun"} & names and any(name.startswith("trainer") for name in names), f"not seen: {seen}")
        check({address for _, address in seen} <= loopback, f"{sorted(seen)}")


def torchrun_starts_ranks():
    with Folder(images=16) as f:
        recorded(f)
        alone, _ = loss_of([TRAINER, *words_of(f, "alone")])
        got, said = loss_of([TORCHRUN, "--no-python", "--nproc-per-node", 2, "--master-port", free_ports(), EMULATED,
                             *words_of(f, "torchrun", training__backend="cuda")],
                            LD_LIBRARY_PATH=SHIM + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
        check("2 ranks, by torchrun's variables" in said and "NCCL" in said, said)
        check(got == alone, f"{got}, alone {alone}")


def srun_starts_ranks():
    with Folder(images=16) as f:
        recorded(f)
        alone, _ = loss_of([TRAINER, *words_of(f, "alone")])
        got, said = loss_of(["srun", "--mpi=pmix", "-n", 2, TRAINER, *words_of(f, "srun")])
        check("2 ranks, by Slurm's variables" in said and got == alone, f"{got}, alone {alone}\n{said}")


def slurm_answers():
    return shutil.which("srun") and subprocess.run(["sinfo"], capture_output=True, timeout=60).returncode == 0


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
cases = [ranks_that_mpi_did_not_start_say_how, ranks_of_one_machine_listen_on_loopback, what_is_refused_is_said_once,
         the_page_s_own_line_starts_ranks, the_reader_of_the_ranks_log_may_leave, mpirun_may_miss_that_a_rank_ends]
if TORCHRUN and os.path.isdir(SHIM):
    cases.append(torchrun_starts_ranks)
else:
    print("skipped: no torchrun here, or no NCCL shim was built")
if slurm_answers():
    cases.append(srun_starts_ranks)
else:
    print("skipped: no Slurm answers here")
main(*cases)
