# SPDX-License-Identifier: Apache-2.0
"""A gradient that is not finite: the error and the log of every rank say on which rank, in which layer and with which
samples it arose. Values of a model that was written are spoiled: in a layer that two ranks share, in layers that
one of two ranks has, and for a token that only one rank's rows contain. test_nonfinite has the case of one rank,
and gradients that are not finite without a spoiled value."""

import os
import re
import struct
import sys

from prepd_flow import Folder, check, main, run
from resume_flow import STREAM, go, header, recorded, spoiled
from train_flow import TRAINER, has_mpi

STEM = "model.language_model."
HIDDEN, VOCAB = 128, 640  # sizes of the model of prepd synth; each rank stores half of the embedding
SAMPLES = r"\(samples( \d+)+( \.\.)?\)"
CPU = ("--nproc", "2", "--training.backend", "cpu")


def stopped(f, name, told, tensor, at, **more):
    """What two ranks say of the bad first step is the same in the error and in every log."""
    model = spoiled(f, "model-" + name, tensor, at)
    said = go(f, name, *CPU, code=65, **dict(told, model__path=model, **more))
    found = re.search(r"warn .*: step 1: (?!update skipped)(.*)", said)
    check(found and f"the gradient is not finite and training.nonfinite says stop: {found[1]}\n" in said, said)
    for rank in range(2):
        with open(f.file(f"{name}/log/rank-{rank}.log")) as log:
            check(f"step 1: {found[1]}\n" in log.read(), f"rank {rank} says otherwise: {found[1]}")
    return found[1]


def expect(said, wanted):
    check(re.fullmatch(wanted, said), f"{said}\nwanted: {wanted}")


def tokens(f, name, rank):
    """Those of a rank's rows in the first step."""
    found = set()
    with open(f.file(f"{name}/log/rank-{rank}.log")) as log:
        ids = re.search(r"step 1: update skipped: .* documents, samples((?: \d+)+)\n", log.read())[1].split()
    for sample in ids:
        path = f.file("sample.safetensors")
        run("sample", "-c", f.config, "--index", sample, "--out", path, "--overwrite")
        with open(path, "rb") as file:
            start, tensors = header(file)
            begin, end = tensors["input_ids"]["data_offsets"]
            file.seek(start + begin)
            found.update(struct.unpack(f"<{(end - begin) // 4}i", file.read(end - begin)))
    return found


def ranks_and_layers_are_named():
    with Folder(images=16, **STREAM) as f:
        rows = dict(recorded(f, 2), checkpoint__enable="true", training__steps=1)
        go(f, "model", **dict(rows, optimizer__lr=1e-9))
        told = dict(rows, training__nonfinite="stop")
        weight = STEM + "layers.1.self_attn.o_proj.weight"
        said = stopped(f, "shared", told, weight, 0)
        expect(said, rf"values of layer 1 \({weight}\) are not finite, stored by rank 1; the forward pass is not finite "
                     rf"from layer 1 on: rank 0 {SAMPLES}, rank 1 {SAMPLES}")
        token = min(tokens(f, "shared", 1) - tokens(f, "shared", 0))
        weight = STEM + "embed_tokens.weight"
        said = stopped(f, "own", told, weight, token * HIDDEN)
        expect(said, rf"values of embedding \({weight}\) are not finite, stored by rank {token // (VOCAB // 2)}; the forward "
                     rf"pass is not finite from embedding on: rank 1 {SAMPLES}")
        for layer, rank in (2, 0), (3, 1):  # what the second stage gets from the first is not finite either
            weight = f"{STEM}layers.{layer}.self_attn.o_proj.weight"
            said = stopped(f, f"stage-{layer}", told, weight, 0, parallelism__pipeline_parallel_degree=2,
                           parallelism__pipeline_parallel_split_points="layers.3")
            expect(said, rf"values of layer {layer} \({weight}\) are not finite, stored by rank {rank}; the forward pass is not finite "
                         rf"from layer {layer} on: rank {rank} {SAMPLES}")


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
main(ranks_and_layers_are_named)
