"""Ranks that others start: by torchrun (on the emulated device, with NCCL's shim) and by srun, where these are
there (srun: with a controller that answers), the losses of one rank; and what a rank says that got a launcher's
variables and no way to reach the others by MPI. TESSERA_TORCHRUN names a torchrun that is not in the path."""

import os
import re
import shutil
import subprocess
import sys

from prepd_flow import LIMIT_S, Folder, check, free_ports, main
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
cases = [ranks_that_mpi_did_not_start_say_how, who_reads_the_log_of_ranks_may_leave]
if TORCHRUN and os.path.isdir(SHIM):
    cases.append(torchrun_starts_ranks)
else:
    print("skipped: no torchrun here, or no NCCL shim was built")
if slurm_answers():
    cases.append(srun_starts_ranks)
else:
    print("skipped: no Slurm answers here")
main(*cases)
