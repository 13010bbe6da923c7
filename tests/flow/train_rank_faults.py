# SPDX-License-Identifier: Apache-2.0
"""A training run of four ranks loses one of them, killed or stopped at a moment that the seed decides. The run ends
with an exit code, and the log file of every other rank names the lost one, its step, its call and its samples.
Once on CPUs, where mpirun starts the ranks; once on the emulated device with NCCL's shim (tests/nccl), where the
trainer does."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

from mpirun_env import MPIRUN_ENV
from prepd_flow import BUSY_S, LIMIT_S, Folder, check, children, main, text_of
from resume_flow import command, go, ledger, recorded
from train_flow import SHORT, TRAINER, has_mpi, options

RANKS, SILENCE_S, STEPS = 4, 6.0, 12
TESTS = os.path.join(os.path.dirname(TRAINER), "../tests")
EMULATED, SHIM = os.path.join(TESTS, "trainer_emulated"), os.path.join(TESTS, "nccl_shim")
SEED = int(os.environ.get("TESSERA_SEED", random.randrange(1 << 30)))
rng = random.Random(SEED)
SHARED = {"parallelism__expert_parallel_degree": RANKS}  # experts are exchanged through windows of the ranks' memory
BEAT_S = 1.0  # the longest time between two signs of life of a rank
WHERE = r"step \d+, (in|after) (all gather|reduce scatter|all reduce|all to all|broadcast|load and store): [a-z ]+( of layer \d+)? over [a-z_]+"


def bytes_of(path):
    with open(path, "rb") as f:
        return f.read()


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:
        found = re.search(rb"\0(OMPI_COMM_WORLD_)?RANK=(\d+)", f.read())
    return int(found[2]) if found else None


def words_of(f, name, backend, **changed):
    """The command of a run, and its environment."""
    values = dict(SHORT, **{"job.dump_folder": f.file(name), "training.backend": backend,
                            "feed.replay": f.file("rows.rec"), "comm.heartbeat_timeout_seconds": SILENCE_S})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    program = TRAINER if backend == "cpu" else EMULATED
    return ([program, "train", "-c", f.config, "--nproc", str(RANKS), *options(values)],
            dict(os.environ, LD_LIBRARY_PATH=SHIM))


def start(f, name, backend, **changed):
    """A run that has done two steps, and the file of what it says."""
    words, env = words_of(f, name, backend, training__steps=100000, **changed)
    with open(f.file(name + ".said"), "w") as said:
        p = subprocess.Popen(words, env=env, stdout=said, stderr=said)
    end = time.monotonic() + LIMIT_S
    while text_of(f.file(name + "/metrics.jsonl")).count("\n") < 2:
        if p.poll() is not None or time.monotonic() > end:
            p.kill()
            check(False, text_of(f.file(name + ".said")))
        time.sleep(0.05)
    return p, f.file(name + ".said")


def lose(f, name, backend, number, cause, **changed):
    rank, pids = rng.randrange(1, RANKS), {}
    p, _ = start(f, name, backend, **changed)
    try:
        ranks = children(p.pid)
        if backend == "cpu":
            ranks = [pid for mpirun in ranks for pid in children(mpirun)]
        pids = {rank_of(pid): pid for pid in ranks}
        check(set(pids) >= set(range(RANKS)), f"{pids}")
        time.sleep(BEAT_S + rng.uniform(0.2, 1.2))  # so that the other ranks have heard of a step
        os.kill(pids[rank], number)
        code = p.wait(LIMIT_S)
        check(code != 0, f"exit code {code}")
        last = [line for line in text_of(f.file(name + ".said")).splitlines() if "trainer" in line][-1]
        check(number != signal.SIGSTOP or f"rank {rank} (" in last and "stopped" in last, f"the last line: {last}")
    finally:
        for pid in [p.pid, *pids.values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    for other in set(range(RANKS)) - {rank}:
        log = text_of(f.file(f"{name}/log/rank-{other}.log"))
        line = next((l for l in log.splitlines() if "the run ends:" in l), "")
        check(re.search(rf"the run ends: rank {rank} \(.*, pid {pids[rank]}\) {cause}", line), f"{line}\n{log}")
        check(re.search(rf"heard last .*{WHERE}.*samples( \d+)+.*; this rank: {WHERE}.*samples( \d+)+", line), line)


def lost_ranks_are_named(backend="cpu", **changed):
    with Folder(images=16) as f:
        recorded(f)
        # The connection is reset, instead of closed, if the rank had not read everything.
        lose(f, "killed", backend, signal.SIGKILL, "(died: its connection is closed|died, or its connection to rank .* broke)",
             **changed)
        lose(f, "stopped", backend, signal.SIGSTOP, f"has said nothing for {SILENCE_S:.1f} s", **changed)


def killed_at(f, name, words, told, at):
    """Kills a rank at this step. Returns the rank and the exit code; 0 if the run was over before."""
    p = subprocess.Popen([*command(f, name, **told), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end, lost = time.monotonic() + LIMIT_S, None
    while text_of(f.file(name + "/ledger.jsonl")).count("\n") < at and p.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    try:
        ranks = {rank_of(pid): pid for mpirun in children(p.pid) for pid in children(mpirun)}
        ranks.pop(None, None)
        struck = rng.choice(sorted(ranks))
        os.kill(ranks[struck], signal.SIGKILL)
        lost = struck
    except (OSError, IndexError):  # the ranks are ending
        pass
    return lost, p.wait(LIMIT_S)


def killed_in_time(f, name, words, told):
    """Kills at a step before the last; returns which, and the rank."""
    for most in range(STEPS - 2, 2, -1):
        at = rng.randrange(2, most)
        lost, code = killed_at(f, name, words, told, at)
        if code != 0:
            check(lost is not None, f"no rank was killed: exit code {code}")
            return at, lost
        shutil.rmtree(f.file(name))
    raise AssertionError("every run was over before one of its ranks was killed")


def a_killed_rank_costs_no_step():
    """A run whose rank was killed, even the first one, and that is started again ends like one to which nothing
    happened."""
    with Folder(images=16) as f:
        told = dict(recorded(f, STEPS), checkpoint__interval=2, training__global_batch_size=4, training__nonfinite="skip")
        words = ["--nproc", "2", "--training.backend", "cpu"]
        go(f, "whole", *words, **told)
        for name in ("once", "twice"):
            at, lost = killed_in_time(f, name, words, told)
            # A folder has its name once it is whole. If a rank is killed before the first one, the run begins again.
            kept = any(k.startswith("step-") for k in os.listdir(f.file(name + "/checkpoint")))
            said = go(f, name, *words, **told)
            done = max(ledger(f, name))
            check(("resuming from step" in said) == kept and done == STEPS, f"{done} steps, kept: {kept}\n{said}")
            check(ledger(f, name) == ledger(f, "whole"), f"rank {lost} killed at step {at}: the ledgers differ")
            last = f"checkpoint/step-{STEPS}/model.safetensors"
            check(bytes_of(f.file(f"{name}/{last}")) == bytes_of(f.file(f"whole/{last}")), f"{name}: other values")


def a_nan_ends_all_ranks_at_the_same_step():
    """With an absurd learning rate, every rank says which step it was and of which samples, and leaves with the code
    of bad data; the checkpoint has the values before."""
    with Folder(images=16) as f:
        told = dict(recorded(f, 4), training__steps=40, training__global_batch_size=4, training__nonfinite="stop",
                    checkpoint__interval=0, optimizer__lr=10, optimizer__weight_decay=10, optimizer__eps=0, training__max_norm=0)
        said = go(f, "nan", "--nproc", "2", "--training.backend", "cpu", code=65, **told)
        step = max(ledger(f, "nan"))
        where = rf"step {step}: the gradient is not finite and training.nonfinite says stop: .* rank \d"
        check(ledger(f, "nan")[step]["skipped"] and re.search(where, said), said)
        for rank in range(2):
            log = text_of(f.file(f"nan/log/rank-{rank}.log"))
            check(re.search(rf"step {step}: update skipped: the gradient norm is not finite; \d+ documents, samples( \d+)+", log), log)
            check(re.search(rf"step {step}: (?!update).* rank \d", log), f"no rank and no layer: {log}")
        check(os.path.isdir(f.file(f"nan/checkpoint/step-{step}")), "no checkpoint")


def the_unit_starts_ranks():
    """What trainer@.service runs, with the values that systemd would give."""
    with Folder(images=16) as f:
        told = recorded(f, 2)
        with open(os.path.join(os.environ.get("TESSERA_SOURCE", "."), "deploy/systemd/trainer@.service")) as unit:
            line = re.search(r"^ExecStart=(.*)$", unit.read(), re.M)[1]
        more = dict(SHORT, **{k.replace("__", "."): v for k, v in told.items()}, **{"training.backend": "cpu"})
        values = {"@prefix@/bin/trainer": TRAINER, "${CONFIGURATION_DIRECTORY}/%i.yaml": f.config,
                  "${STATE_DIRECTORY}/%i": f.file("unit"), "$TRAINER_OPTIONS": "--nproc 2 " + " ".join(options(more))}
        for name, value in values.items():
            check(name in line, f"{name} is not in {line}")
            line = line.replace(name, value)
        p = subprocess.run(line.split(), capture_output=True, text=True, timeout=LIMIT_S)
        check(p.returncode == 0 and len(ledger(f, "unit")) == 2, f"{line}\n{p.stdout}{p.stderr}")


SRUN = """#!/bin/sh
[ "$1 $2" = "--mpi=pmix --kill-on-bad-exit=0" ] || exit 64
shift 2
exec mpirun -np 2 "$@"
"""


def the_slurm_script_starts_prepd_and_ranks():
    """With mpirun in the place of srun, because Slurm itself is not here. A run that fails fails the job."""
    with Folder(images=16) as f:
        os.mkdir(f.file("path"))
        with open(f.file("path/srun"), "w") as srun:
            srun.write(SRUN)
        os.chmod(f.file("path/srun"), 0o755)
        env = dict(MPIRUN_ENV, PATH=f.file("path") + ":" + os.environ["PATH"], TESSERA_BIN=os.path.dirname(TRAINER))
        script = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "deploy/slurm/train.sbatch")
        values = dict(SHORT, **{"training.steps": 2, "training.backend": "cpu", "eval.enable": "false", "metrics.ledger_ids": "true",
                                "job.dump_folder": f.file("slurm"), "checkpoint.enable": "true"})
        for more, wanted in ({}, 0), ({"parallelism.tensor_parallel_degree": 3}, 78):
            with open(f.file("said"), "w") as said:
                p = subprocess.Popen(["bash", script, f.config, *options(dict(values, **more))], env=env, stdout=said,
                                     stderr=said, start_new_session=True)
            try:
                code = p.wait(LIMIT_S)
                end = time.monotonic() + 20
                while os.path.exists(f.file("d.sock")) and time.monotonic() < end:
                    time.sleep(0.05)
                check(not os.path.exists(f.file("d.sock")), "prepd is still there")
            finally:
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            check(code == wanted, f"exit code {code}, wanted {wanted}\n{text_of(f.file('said'))}")
            check(wanted or len(ledger(f, "slurm")) == 2, text_of(f.file("said")))


def the_launchers_signal_stops_all_after_the_same_step(backend="cpu"):
    with Folder(images=16) as f:
        recorded(f)
        p, said = start(f, "ended", backend)
        p.send_signal(signal.SIGTERM)
        code = p.wait(LIMIT_S)
        said = text_of(said)
        check(code == 0 and len(set(re.findall(r"stopping after step \d+ as asked", said))) == 1, f"{code}\n{said}")


def has_windows():
    """Whether NCCL's header has them, as this was built with nvcc."""
    with open(os.path.join(SHIM, "libnccl.so.2"), "rb") as f:
        return b"ncclCommWindowRegister" in f.read()


def with_nccl_lost_ranks_are_named():
    lost_ranks_are_named("cuda", comm__expert_exchange="device" if has_windows() else "host", **SHARED)


def with_nccl_the_launchers_signal_stops_all_after_the_same_step():
    the_launchers_signal_stops_all_after_the_same_step("cuda")


def trained(f, backend, **changed):
    words, env = words_of(f, changed.get("comm__engine", "auto"), backend, **changed)
    p = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    check(p.returncode == 0, p.stdout + p.stderr)
    found = re.search(r"trained: loss .*", p.stdout)
    check(found, p.stdout)
    return found[0], p.stderr


def with_nccl_a_run_equals_one_by_mpi():
    """The same four steps on the emulated device, with the engine of GPUs, NCCL."""
    with Folder(images=16) as f:
        recorded(f)
        by_nccl, said = trained(f, "cuda", **SHARED)
        check("4 ranks, by torchrun's variables" in said and "NCCL" in said, said)
        if has_windows():
            check("slots go to their experts on the device" in said and "uncaptured" not in said, said)
        by_mpi, said = trained(f, "cuda", comm__engine="mpi", **SHARED)
        check("4 ranks, by mpirun's variables" in said, said)
        check(by_nccl == by_mpi, f"{by_nccl}, by MPI {by_mpi}")


def ranks_that_cannot_begin_end_the_launcher():
    """Without a GPU no rank gets as far as meeting the others."""
    with Folder(images=4) as f:
        recorded(f)
        words, env = words_of(f, "none", "cuda")
        start = time.monotonic()
        p = subprocess.run([TRAINER, *words[1:]], env=dict(env, CUDA_VISIBLE_DEVICES=""), capture_output=True,
                           text=True, timeout=LIMIT_S)
        check(p.returncode == 69 and re.search(r"rank \d ended first: exit code 69", p.stderr), p.stderr)
        check(time.monotonic() - start < BUSY_S, p.stderr)


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
print(f"seed {SEED} (TESSERA_SEED repeats it)")
by_nccl = [with_nccl_lost_ranks_are_named, with_nccl_the_launchers_signal_stops_all_after_the_same_step,
           with_nccl_a_run_equals_one_by_mpi, ranks_that_cannot_begin_end_the_launcher]
if not os.path.isdir(SHIM):
    print("skipped: nccl.h was not found when this was built: nothing by NCCL")
    by_nccl = []
main(lost_ranks_are_named, a_killed_rank_costs_no_step, a_nan_ends_all_ranks_at_the_same_step,
     the_unit_starts_ranks, the_slurm_script_starts_prepd_and_ranks,
     the_launchers_signal_stops_all_after_the_same_step, *by_nccl)
