# SPDX-License-Identifier: Apache-2.0
"""optimizer.in_backward: units are updated in the middle of a backward pass. Without clipping a run leaves the values and
moments of one that updates after it, to the bit, in every layout; with clipping it resumes from a checkpoint as if it had
never ended. With moments in 8 bits and values in bf16 any number of ranks gives the same but for rounding. A step that
was partly updated is not saved. test_in_backward has the case of one rank and of graphs."""

import glob
import json
import os
import sys

from prepd_flow import Folder, check, main
from resume_flow import STREAM, go, header, ledger, recorded, spoiled
from train_flow import SHORT, has_mpi, options, trainer

LAYOUTS = {"one rank": (1, {}), "shard 2": (2, {}), "replicate 2, shard 2": (4, {"data_parallel_replicate_degree": 2}),
           "experts 2": (2, {"expert_parallel_degree": 2}), "tensor 2": (2, {"tensor_parallel_degree": 2}),
           "context 2": (2, {"context_parallel_degree": 2})}
SHARING_ROWS = {"tensor 2", "context 2"}
ATTENTION = "model.language_model.layers.1.self_attn."


def states(f, name, step):
    found = {}
    for path in glob.glob(f.file(f"{name}/checkpoint/step-{step}/training/rank-*.safetensors")):
        with open(path, "rb") as file:
            found[os.path.basename(path)] = file.read()
    check(found, f"{name} has no state of step {step}")
    return found


def ways(f, layout):
    """The words and options of a run of three steps in this layout."""
    ranks, degrees = LAYOUTS[layout]
    words = ("--nproc", str(ranks)) if ranks > 1 else ()
    options = {"parallelism__" + key: value for key, value in degrees.items()}
    batch = 1 if layout in SHARING_ROWS else ranks
    return words, dict(options, training__global_batch_size=batch, training__backend="cpu", checkpoint__interval=3)


def without_clipping_the_bits_are_those_of_whole_updates():
    with Folder(images=16, **dict(STREAM, **{"training.global_batch_size": 1})) as f:
        rows = dict(recorded(f, 16), training__steps=3, training__max_norm=0)
        for i, layout in enumerate(LAYOUTS):
            if layout == "one rank":
                continue  # test_in_backward has it
            words, options = ways(f, layout)
            for in_backward in ("false", "true"):
                go(f, f"{i}-{in_backward}", *words, **dict(rows, **options, optimizer__in_backward=in_backward))
            check(states(f, f"{i}-false", 3) == states(f, f"{i}-true", 3), f"{layout}: values or moments differ")


def a_clipped_run_goes_on_as_if_it_had_not_ended():
    """Also with moments in 8 bits, whose blocks lie across the columns that tensor ranks cut. The run in parts has its
    moments on the host (memory.host), from where they are saved and to where they are read."""
    small = {"optimizer__states": "int8", "training__master": "bf16"}
    with Folder(images=16, **dict(STREAM, **{"training.global_batch_size": 1})) as f:
        rows = dict(recorded(f, 16), training__max_norm=0.5, optimizer__in_backward="true")
        for name, layout, more in ("float", "one rank", {}), ("small", "tensor 2", small):
            words, options = ways(f, layout)
            options = dict(rows, **dict(options, checkpoint__interval=1), **more)
            go(f, name, *words, **dict(options, training__steps=4))
            parts = dict(options, memory__host="moments")
            said = go(f, name + "-parts", *words, **dict(parts, training__steps=2))
            check("of moments rest in the same memory, as the device is the CPU" in said, said)
            go(f, name + "-parts", *words, **dict(parts, training__steps=4))
            check(ledger(f, name) == ledger(f, name + "-parts"), f"{name}: the ledgers differ")
            kept = " ".join(f"{key.split('__')[1]}={value}" for key, value in dict(more, optimizer__in_backward="true").items())
            check([line["states"] for line in ledger(f, name).values()] == 4 * [kept], f"{name}: {ledger(f, name)}")
            check(states(f, name, 4) == states(f, name + "-parts", 4), f"{name}: values or moments differ")
            with open(f.file(name + "-parts/checkpoint/step-4/training/state.json")) as file:
                shares = json.load(file)["unit_share"]
            check(min(shares) > 0 and abs(sum(shares) - 1) < 1e-12, f"{name}: shares of units {shares}")
            check(min(line["grad_norm"] for line in ledger(f, name).values()) > 0.5, f"{name} was not clipped")


def weights(f, name):
    """The bf16 numbers of every tensor after step 1, as bytes."""
    with open(f.file(name + "/checkpoint/step-1/model.safetensors"), "rb") as file:
        start, tensors = header(file)
        file.seek(start)
        data = file.read()
    tensors.pop("__metadata__", None)
    check({told["dtype"] for told in tensors.values()} == {"BF16"}, f"{name} has not only bf16")
    return {tensor: data[slice(*told["data_offsets"])] for tensor, told in tensors.items()}


def differences(one, many):
    """How many numbers there are, how many differ, and how many by more than one step of bf16."""
    count, differ, far, piece = 0, 0, 0, 4096
    for tensor, first in one.items():
        second = many[tensor]
        count += len(first) // 2
        for i in range(0, len(first), piece):
            if first[i:i + piece] != second[i:i + piece]:
                apart = [abs(a - b) for a, b in zip(memoryview(first)[i:i + piece].cast("H"), memoryview(second)[i:i + piece].cast("H"))]
                differ += sum(a != 0 for a in apart)
                far += sum(a > 1 for a in apart)
    return count, differ, far


def any_number_of_ranks_rounds_by_the_same_numbers():
    """Gradients of other ranks are the same but for rounding. So a value becomes the other bf16 number beside it where that
    decides, or turns round where its gradient is next to nothing: with moments in 8 bits 7 in a million do here. With random
    numbers that depended on the rank, half of all would."""
    with Folder(images=16, **dict(STREAM, **{"training.global_batch_size": 8})) as f:
        rows = dict(recorded(f, 1), optimizer__states="int8", training__master="bf16", optimizer__in_backward="true",
                    training__backend="cpu", training__global_batch_size=8)
        for ranks in (1, 2, 4, 8):
            words = ("--nproc", str(ranks)) if ranks > 1 else ()
            go(f, str(ranks), *words, **dict(rows, training__local_batch_size=8 // ranks))
            count, differ, far = differences(weights(f, "1"), weights(f, str(ranks)))
            check(differ < 1e-4 * count and far < 1e-5 * count, f"{ranks} ranks: {differ} of {count} differ, {far} by more than a step")


def a_partial_step_is_told_and_not_saved():
    with Folder(images=16, **dict(STREAM, **{"training.global_batch_size": 1})) as f:
        rows = dict(recorded(f, 8), training__global_batch_size=1, optimizer__in_backward="true")
        go(f, "model", **dict(rows, training__steps=1, optimizer__lr=1e-9))
        model = hidden_overflow(f)
        said = go(f, "stop", code=65, **dict(rows, training__steps=2, model__path=model, training__nonfinite="stop"))
        check("update partial, of head to layer 2" in said, said)
        check("a part of the model was updated in this step, so it is not saved" in said, said)
        check(not glob.glob(f.file("stop/checkpoint/step-*")), "the partial step was saved")
        check(ledger(f, "stop")[1]["partial"] == "head to layer 2", str(ledger(f, "stop")))
        said = go(f, "skip", **dict(rows, training__steps=1, model__path=model))
        check(ledger(f, "skip")[1]["skipped"] and "  partial" in said, said)
        verify_names_its_units(f, dict(rows, training__steps=1, model__path=model))


def verify_names_its_units(f, rows):
    """A replay updates the same units, and differs from a run that is said to have updated others."""
    path, told = f.file("skip/ledger.jsonl"), '"partial":"head to layer 2"'
    here = ("verify", "-c", f.config, *options(dict(SHORT, **{key.replace("__", "."): value for key, value in rows.items()},
                                                    **{"job.dump_folder": f.file("skip")})), "--from", "0")
    check("1 steps, 1 to 1, agree" in trainer(*here), "verify")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    check(told in text, text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(told, told.replace("2", "1")))
    said = trainer(*here, code=65)
    check("the step was partial: updated then: head to layer 1; now: head to layer 2" in said, said)


def hidden_overflow(f):
    """A model whose layer 1 is finite forward, since v is 0, and not backward."""
    model = spoiled(f, "model-hidden", ATTENTION + "v_proj.weight", 0)
    path = os.path.join(model, "model.safetensors")
    with open(path, "r+b") as file:
        start, tensors = header(file)
        for name, two in (("v_proj", b"\0\0"), ("o_proj", b"\x7f\x7f")):  # 0 and 3.4e38 in bf16
            told = tensors[ATTENTION + name + ".weight"]
            begin, end = told["data_offsets"]
            word = two if told["dtype"] == "BF16" else (b"\0\0\0\0" if two == b"\0\0" else b"\0\0\x7f\x7f")
            file.seek(start + begin)
            file.write(word * ((end - begin) // len(word)))
    return model


def what_cannot_be_updated_in_backward_is_refused():
    with Folder(images=16, **STREAM) as f:
        rows = dict(recorded(f, 2), optimizer__in_backward="true", training__steps=1)
        said = go(f, "accumulates", code=78, **dict(rows, training__global_batch_size=2))
        check("this step has 2 on each rank; set training.global_batch_size to 1" in said, said)
        said = go(f, "stages", code=78, **dict(rows, parallelism__pipeline_parallel_degree=2))
        check("parallelism.pipeline_parallel_degree 2 sends several through it" in said, said)


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
main(without_clipping_the_bits_are_those_of_whole_updates, any_number_of_ranks_rounds_by_the_same_numbers, a_clipped_run_goes_on_as_if_it_had_not_ended,
     a_partial_step_is_told_and_not_saved, what_cannot_be_updated_in_backward_is_refused)
