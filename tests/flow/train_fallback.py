# SPDX-License-Identifier: Apache-2.0
"""A kernel or a capture that fails on one rank before step 1 is replaced on all ranks, with one warning; ledger and
checkpoint say by what, a run that goes on elsewhere says what differs. On the
emulated device with NCCL's shim (tests/nccl), whose ways are broken by TESSERA_EMULATED_BROKEN."""

import json
import os
import re
import subprocess

from prepd_flow import LIMIT_S, Folder, check, main, run
from resume_flow import KEPT, recorded
from train_flow import SHORT, TRAINER, options

TESTS = os.path.join(os.path.dirname(TRAINER), "../tests")
EMULATED, SHIM = os.path.join(TESTS, "trainer_emulated"), os.path.join(TESTS, "nccl_shim")
RANKS, STEPS = 2, 4
NO_MEMORY = 71  # the exit code
BUCKETS = 1  # of these rows
ALL_FIRST = {"text_forward": "cudnn", "text_backward": "cudnn", "vision_forward": "cudnn",
             "vision_backward": "cudnn", "experts": "hopper", "graphs": "step", "deterministic": "true"}
TEXT_FORWARD, TEXT_BACKWARD, VISION_FORWARD, EXPERTS, GRAPHS = 0, 1, 2, 4, 5  # trainer/device/choices.h


def train(f, name, broken="", code=0, ranks=RANKS, **changed):
    """Runs all ranks; returns what was printed."""
    values = dict(SHORT, **KEPT, **{"job.dump_folder": f.file(name), "training.backend": "cuda",
                                    "feed.replay": f.file("rows.rec"), "training.steps": STEPS, "eval.enable": "false"})
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    env = dict(os.environ, LD_LIBRARY_PATH=SHIM, TESSERA_EMULATED_BROKEN=broken, CUDA_DEVICE_MAX_CONNECTIONS="1")
    p = subprocess.run([EMULATED, "train", "-c", f.config, "--nproc", str(ranks), *options(values)],
                       capture_output=True, text=True, timeout=LIMIT_S, env=env)
    check(p.returncode == code, f"{name}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def words(text):
    return dict(word.split("=") for word in text.split())


def ledger(f, name):
    with open(f.file(name + "/ledger.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def kept(f, name, step):
    with open(f.file(f"{name}/checkpoint/step-{step}/training/state.json")) as file:
        return words(json.load(file)["choices"])


def log_of(f, name, rank):
    with open(f.file(f"{name}/log/rank-{rank}.log")) as log:
        return log.read()


def of_rank(f, name, rank):
    """What the log file of a rank says was chosen."""
    return words(re.findall("chosen for this run: (.*)", log_of(f, name, rank))[-1])


def fell(said):
    return re.findall(r"warn .*?: (.*): (\S+) instead of (\S+) on all ranks of this run, since \S+ failed on rank (\d)", said)


def one_rank_moves_all():
    with Folder(images=32) as f:
        recorded(f, 2 * STEPS)
        said = train(f, "whole")
        check(not fell(said) and kept(f, "whole", STEPS) == ALL_FIRST, said)
        # what NCCL is set to, and what slows it
        for told in ("info .* NCCL .* with .*NCCL_ALGO=\\^NVLS,NVLSTree .*NCCL_LAUNCH_ORDER_IMPLICIT=1",
                     "warn .* CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one way"):
            check(re.search(told, said), f"{told}: {said}")
        said = train(f, "broken", f"1:{TEXT_BACKWARD}:3:0 0:{VISION_FORWARD}:1:0 1:{EXPERTS}:1:0 1:{GRAPHS}:1:0")
        want = dict(ALL_FIRST, text_backward="portable", vision_forward="cudnn_next", experts="portable", graphs="off")
        check(fell(said) == [("attention of text, backward", "portable", "cudnn", "1"),
                             ("attention of vision, forward", "cudnn_next", "cudnn", "0"),
                             ("the experts' products", "portable", "hopper", "1"),
                             ("steps as graphs", "off", "captured", "1")], said)
        for rank in range(RANKS):
            check(of_rank(f, "broken", rank) == want, f"rank {rank}: {of_rank(f, 'broken', rank)}")
            # kernels of collectives run beside the experts' (device_options.collectives)
            check(", beside collectives" in log_of(f, "broken", rank), log_of(f, "broken", rank))
        lines = ledger(f, "broken")
        check(words(lines[0]["choices"]) == want and not any("choices" in line for line in lines[1:]), f"{lines}")
        check(kept(f, "broken", STEPS) == want, f"{kept(f, 'broken', STEPS)}")
        with open(f.file("broken/report.html")) as page:
            check("attention of text, backward: portable" in page.read(), "the page of the run describes the device as it was")
        # the emulated kernels are the same ones, so a fallback must change no bit of a loss
        check([line["loss"] for line in lines] == [line["loss"] for line in ledger(f, "whole")], "the losses differ")

        said = train(f, "broken", training__steps=STEPS + 2)  # resumed where nothing is broken
        for key in want:
            told = f"{key} was {want[key]} and is {ALL_FIRST[key]}" in said
            check(told == (want[key] != ALL_FIRST[key]), f"{key}: {said}")
        check([line["step"] for line in ledger(f, "broken") if "choices" in line] == [1, STEPS + 1], "ledger")
        check(kept(f, "broken", STEPS + 2) == ALL_FIRST, "the checkpoint of the resumed run")


def a_rank_without_the_libraries_moves_all():
    with Folder(images=16) as f:
        recorded(f, STEPS)
        train(f, "lacking", "1:none", training__steps=1)
        want = dict(ALL_FIRST, experts="portable", **{key: "portable" for key in ALL_FIRST if key.endswith("ward")})
        for rank in range(RANKS):
            check(of_rank(f, "lacking", rank) == want, f"rank {rank}: {of_rank(f, 'lacking', rank)}")


def what_fails_where_others_moved_it_moves_all_again():
    """Rank 0 takes the next engine, which fails on rank 1; and a collective can only be captured by both."""
    with Folder(images=16) as f:
        recorded(f, STEPS)
        # three rounds capture once for each shape bucket; the next capture is that of the sum over ranks
        said = train(f, "chain", f"0:{TEXT_FORWARD}:1:0 1:{TEXT_FORWARD}:2:0 1:{GRAPHS}:1:{3 * BUCKETS}", training__steps=1)
        check(fell(said) == [("attention of text, forward", "cudnn_next", "cudnn", "0"),
                             ("attention of text, forward", "portable", "cudnn_next", "1"),
                             ("steps as graphs", "off", "captured", "1")], said)
        want = dict(ALL_FIRST, text_forward="portable", graphs="off")
        for rank in range(RANKS):
            check(of_rank(f, "chain", rank) == want, f"rank {rank}: {of_rank(f, 'chain', rank)}")


def later_an_error_ends_the_run():
    with Folder(images=16) as f:
        recorded(f, STEPS)
        said = train(f, "later", f"1:{EXPERTS}:1:60", code=69, cuda_graph__scope="off")
        check("emulated: the experts' products by hopper is broken" in said and not fell(said), said)
        check(0 < len(ledger(f, "later")) < STEPS, f"{ledger(f, 'later')}")


def named_ways_end_the_run():
    with Folder(images=16) as f:
        recorded(f, STEPS)
        said = train(f, "named", f"1:{EXPERTS}:1:0", code=69, training__experts="hopper")
        check("the experts' products by hopper, after which there is nothing else to try: emulated" in said, said)
        said = train(f, "none", f"1:{TEXT_BACKWARD}:7:0", code=69)
        check("by portable, after which there is nothing else to try; before that: emulated" in said, said)


def a_way_that_a_later_bucket_moved_is_tried_in_the_earlier_ones():
    with Folder(images=32) as f:
        recorded(f, STEPS)
        buckets = int(re.search(r"buckets: (\d+)", run("plan", "-c", f.config))[1])
        check(buckets > 1, f"{buckets} buckets")
        # the first bucket uses attention three times; after all buckets have captured, the first one does it again
        said = train(f, "back", f"0:{TEXT_FORWARD}:1:3 0:{GRAPHS}:1:{buckets}", ranks=1, training__steps=1)
        check(", beside collectives" not in said, "one rank has collectives")
        chosen = words(ledger(f, "back")[0]["choices"])
        check(chosen == dict(ALL_FIRST, text_forward="cudnn_next", graphs="off"), f"{chosen}")


def an_evaluation_falls_back_too():
    with Folder(images=16) as f:
        recorded(f, STEPS)
        train(f, "kept", training__steps=1, ranks=1)
        env = dict(os.environ, TESSERA_EMULATED_BROKEN=f"0:{TEXT_FORWARD}:3:0 0:{TEXT_BACKWARD}:7:0 0:{GRAPHS}:1:0")
        p = subprocess.run([EMULATED, "eval", "-c", f.config, "--training.backend", "cuda", "--feed.replay", f.file("rows.rec"),
                            "--eval.show", "0", "--model.path", f.file("kept/checkpoint"), "--training.local_batch_size", "1"],
                           capture_output=True, text=True, timeout=LIMIT_S, env=env)
        said = p.stdout + p.stderr
        check(p.returncode == 0 and "attention of text, forward: portable instead of cudnn" in said, said)
        check("backward" not in said and "as graphs" not in said, said)  # it has neither


def what_says_nothing_of_a_way_moves_none():
    with Folder(images=16) as f:
        recorded(f, STEPS)
        said = train(f, "full", f"1:{TEXT_BACKWARD}:1:0:memory", code=NO_MEMORY, training__steps=1)
        check("trying attention of text, backward by cudnn: emulated" in said and not fell(said), said)
        # a rank that fails before the others have come out of the sum must not wait for them elsewhere
        said = train(f, "alone", "1:never:8", code=NO_MEMORY, training__steps=1)
        check("emulated: no 8 bytes" in said and "calls differ" not in said and not fell(said), said)
        # these layouts capture nothing, so that a capture fails is nothing to them
        shared = {"parallelism.expert_parallel_degree": 2}
        layouts = [("staged", {"parallelism.pipeline_parallel_degree": 2}),
                   ("shared", dict(shared, **{"comm.expert_exchange": "host"}))]
        if "through counts that the host reads" in train(f, "reach", training__steps=1, **shared):  # a build without windows
            layouts.append(("auto", shared))
        for name, layout in layouts:
            said = train(f, name, f"1:{GRAPHS}:1:0", training__steps=1, **layout)
            check(not fell(said) and of_rank(f, name, 0) == dict(ALL_FIRST, graphs="off"), said)


if os.path.exists(EMULATED) and os.path.exists(SHIM):
    main(one_rank_moves_all, a_rank_without_the_libraries_moves_all, what_fails_where_others_moved_it_moves_all_again,
         a_way_that_a_later_bucket_moved_is_tried_in_the_earlier_ones, an_evaluation_falls_back_too, what_says_nothing_of_a_way_moves_none,
         later_an_error_ends_the_run, named_ways_end_the_run)
else:
    print("skipped: nccl.h was not found when this was built")
