# SPDX-License-Identifier: Apache-2.0
"""Four ranks under mpirun do collectives, by MPI on the CPU and by NCCL (tests/nccl) on the emulated device, when one
of them is killed, stopped, cut off or fails, at a moment that the seed decides. All others end within the set
time, with an exit code, and their logs name the rank, its step, call, layer and samples."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from mpirun_env import MPIRUN_ENV
from prepd_flow import BIN, LIMIT_S, check, main, text_of

LOOP = os.path.join(os.path.dirname(BIN), "../tests/ranks_loop")
RANKS, SILENCE_S, CALL_S = 4, 6.0, 6.0
SHIM = os.path.join(os.path.dirname(LOOP), "nccl_shim")
ENV = dict(MPIRUN_ENV, LD_LIBRARY_PATH=SHIM, OMPI_MCA_odls_base_sigkill_timeout="5")
SEED = int(os.environ.get("TESSERA_SEED", random.randrange(1 << 30)))
rng = random.Random(SEED)


def wait_for_first_step(folder, p, said):
    end = time.monotonic() + LIMIT_S
    while not text_of(os.path.join(folder, "step")).strip():
        check(p.poll() is None, f"exit code {p.returncode} before the first step: {text_of(said.name)}")
        check(time.monotonic() < end, f"no first step within {LIMIT_S} s")
        time.sleep(0.02)


def faulty_run(number, rank, *options):
    """Sends the signal to the rank in the middle of a run; returns its exit code and what was said."""
    folder = tempfile.mkdtemp(prefix="ranks")
    try:
        with open(os.path.join(folder, "said"), "w+") as said:
            p = subprocess.Popen(["mpirun", "-np", str(RANKS), LOOP, folder, "100000000",
                                  "--comm.heartbeat_timeout_seconds", str(SILENCE_S), *options],
                                 env=ENV, stdout=said, stderr=said)
            wait_for_first_step(folder, p, said)
            time.sleep(rng.uniform(0.5, 1.0))
            pids = [int(text_of(os.path.join(folder, f"pid.{r}"))) for r in range(RANKS)]
            os.kill(pids[rank], number)
            try:
                code = p.wait(LIMIT_S)
            finally:
                p.kill()
                for pid in pids:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            said.seek(0)
            return code, said.read()
    finally:
        shutil.rmtree(folder)


def expect(code, said, rank, cause, others=None):
    """Every other rank ended by that cause and knew where the lost rank was."""
    check(code != 0, f"exit code 0\n{said}")
    check("did not leave its work" not in said, f"a rank did not get out of its work by itself\n{said}")
    for other in others if others is not None else set(range(RANKS)) - {rank}:
        line = next((l for l in said.splitlines() if f"trainer[{other}]: the run ends:" in l), "")
        check(re.search(rf"the run ends: rank {rank} .*{cause}", line), f"rank {other}: {line}\n{said}")
        check("this rank: step " in line and "sum of nothing of layer" in line and "over world" in line
              and re.search(r"samples \d+ 7 8", line), line)
        if cause != "failed":
            check(re.search(r"heard last [\d.]+ s ago: (step \d+, (in|after) all reduce: sum of "
                            r"nothing of layer \d over world.*samples \d+ 7 8|before the first step)",
                            line), line)


def a_rank_is_killed(*options):
    rank = rng.randrange(RANKS)
    expect(*faulty_run(signal.SIGKILL, rank, *options), rank, "died")


def a_rank_is_stopped(*options):
    rank = rng.randrange(1, RANKS)
    expect(*faulty_run(signal.SIGSTOP, rank, *options), rank, f"has said nothing for {SILENCE_S:.1f} s")


def a_rank_loses_its_link():
    rank = rng.randrange(1, RANKS)
    code, said = faulty_run(signal.SIGUSR1, rank)
    expect(code, said, rank, "connection")
    expect(code, said, 0, "connection", [rank])


def a_rank_fails():
    rank = rng.randrange(RANKS)
    code, said = faulty_run(signal.SIGUSR2, rank)
    check(f"rank {rank} failed: told to fail" in said, said)
    expect(code, said, rank, "failed")


def a_rank_hangs(*options):
    """Its control thread lives."""
    rank = rng.randrange(RANKS)
    code, said = faulty_run(signal.SIGHUP, rank, "--comm.train_timeout_seconds", str(CALL_S), *options)
    check(code != 0, said)
    return rank, said


def a_rank_hangs_outside_of_calls():
    """The others' deadline tells which rank they wait for."""
    rank, said = a_rank_hangs()
    check(re.search(rf"no answer within {CALL_S:.1f} s from ranks?[ \d]* {rank}\b", said), said)


def with_nccl_a_rank_is_killed():
    a_rank_is_killed("--comm.engine", "nccl")


def with_nccl_a_rank_is_stopped():
    a_rank_is_stopped("--comm.engine", "nccl")


def with_nccl_a_rank_hangs():
    """The device does not say whom it waits for; rank 0 names the one rank that does not wait."""
    rank, said = a_rank_hangs("--comm.engine", "nccl")
    took = re.search(rf"the run ends: rank {rank} \(.*\) keeps the others waiting: .*"
                     r"has not finished its collectives within ([\d.]+) s", said)
    check(took and CALL_S <= float(took[1]) < LIMIT_S, said)


if shutil.which("mpirun") is None or not os.path.exists(LOOP):
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
print(f"seed {SEED} (TESSERA_SEED repeats it)")
by_nccl = [with_nccl_a_rank_is_killed, with_nccl_a_rank_is_stopped, with_nccl_a_rank_hangs]
if not os.path.isdir(SHIM):
    print("skipped: nccl.h was not found when this was built: nothing by NCCL")
    by_nccl = []
main(a_rank_is_killed, a_rank_is_stopped, a_rank_loses_its_link, a_rank_fails, a_rank_hangs_outside_of_calls,
     *by_nccl)
