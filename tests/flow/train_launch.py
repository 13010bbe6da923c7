"""Ranks that others start: by torchrun (on the emulated device, with NCCL's shim) and by srun, where these are
there (srun: with a controller that answers), the losses of one rank; and what a rank says that got a launcher's
variables and no way to reach the others by MPI; the README's mpirun line, word for word. TESSERA_TORCHRUN names a torchrun that is not in the path."""

import os
import re
import shutil
import subprocess
import sys

from prepd_flow import LIMIT_S, SOURCE, UNPRIVILEGED, Folder, check, free_ports, main, open_to_others
from resume_flow import recorded
from train_flow import SHORT, TRAINER, options

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
    """As plain srun, and torchrun on a machine without GPUs, start them."""
    starters = {"srun --mpi=pmix": {"SLURM_STEP_ID": "0", "SLURM_PROCID": "{}", "SLURM_NTASKS": "2",
                                    "SLURM_LOCALID": "{}", "SLURM_STEP_TASKS_PER_NODE": "2"},
                "start it with mpirun": {"RANK": "{}", "WORLD_SIZE": "2", "LOCAL_RANK": "{}", "LOCAL_WORLD_SIZE": "2"}}
    unlaunched = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI", "OMPI_"))}
    with Folder(images=16) as f:
        recorded(f)
        for wanted, variables in starters.items():
            words = [TRAINER, *words_of(f, "none", comm__port=free_ports())]
            ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env=dict(unlaunched, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                               **{k: v.format(rank) for k, v in variables.items()}))
                     for rank in range(2)]
            try:
                for rank in ranks:
                    said, _ = rank.communicate(timeout=LIMIT_S)
                    check(rank.returncode == 78 and wanted in said,
                          f"exit code {rank.returncode}, wanted: {wanted}\n{said}")
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()


def who_reads_the_log_of_ranks_may_leave():
    with Folder(images=16) as f:
        recorded(f)
        ours, its = os.pipe()
        os.close(ours)
        p = subprocess.run([TRAINER, *map(str, words_of(f, "unheard")), "--nproc", "2"], stdout=subprocess.PIPE, stderr=its,
                           text=True, timeout=LIMIT_S)
        os.close(its)
        check(p.returncode == 0 and "trained: loss" in p.stdout, f"exit code {p.returncode}\n{p.stdout}")


def readmes_line():
    """The words of its mpirun line, up to the comment."""
    with open(os.path.join(SOURCE, "README.md")) as f:
        line, = [line for line in f if line.startswith("mpirun ")]
    return line.split("#")[0].split()


def the_readmes_own_line_starts_ranks():
    """As root, whom Open MPI refuses unless told otherwise, and as a user without rights; in a folder with the programs below
    build/ as there, with a configuration for FILE."""
    kinds = ["root", "user"] if os.geteuid() == 0 else ["user"]
    plain = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_ALLOW")}
    with Folder(images=16) as f:
        recorded(f)
        alone, _ = loss_of([TRAINER, *words_of(f, "alone", training__steps=2)])
        for name in ("bin/trainer", "lib/libtessera_mpi.so"):
            os.makedirs(os.path.dirname(f.file("build/" + name)))
            shutil.copy(os.path.join(os.path.dirname(TRAINER), "..", name), f.file("build/" + name))
        for kind in kinds:
            by = UNPRIVILEGED if kind == "user" and len(kinds) > 1 else []
            if by and not open_to_others(f):
                continue
            words = [word for w in readmes_line() for word in (words_of(f, kind, training__steps=2)[2:] if w == "FILE" else [w])]
            p = subprocess.run([*by, *map(str, words)], cwd=f.path, env=dict(plain, TMPDIR=f.path), capture_output=True, text=True,
                               timeout=LIMIT_S)
            check(p.returncode == 0 and alone in p.stdout, f"{kind}, {words}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
            check("4 ranks, by mpirun's variables" in p.stderr, p.stderr)


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


if not os.path.exists(os.path.join(os.path.dirname(TRAINER), "../lib/libtessera_mpi.so")):
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
cases = [ranks_that_mpi_did_not_start_say_how, the_readmes_own_line_starts_ranks, who_reads_the_log_of_ranks_may_leave]
if TORCHRUN and os.path.isdir(SHIM):
    cases.append(torchrun_starts_ranks)
else:
    print("skipped: no torchrun here, or no NCCL shim was built")
if slurm_answers():
    cases.append(srun_starts_ranks)
else:
    print("skipped: no Slurm answers here")
main(*cases)
