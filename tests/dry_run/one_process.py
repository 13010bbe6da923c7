#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dry runs in one process, which computes nothing and plays every rank of a layout: layouts of a small model in every
dimension, Qwen3-VL-30B-A3B on 8 ranks against sums made here from the published shapes, and 235B-A22B on 64 ranks.
trainer plan must give the same bytes."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../flow"))
from hf_files import SANITIZED, expect, np, trainer  # noqa: E402
from large_model import text, vision  # noqa: E402

PROGRAM = os.path.join(os.environ["TESSERA_TESTS"], "dry_ranks")
MEMORY = 400 << 20  # a dry run takes 126 MiB for the pinned batch and the rows
GLOBAL = {"training.seq_len": 512, "training.local_batch_size": 1, "training.global_batch_size": 16}
ADAPTERS = {"lora.rank": 4, "lora.targets": "q_proj,k_proj,v_proj,o_proj,gate,gate_up_proj,down_proj"}
PARTS = [{"freeze.pattern": "vision"}, {"freeze.pattern": "vision,merger"},
         {"freeze.pattern": "text,experts,router"},
         {"freeze.pattern": "vision merger *embed_tokens* *layers.0.* *layers.1.*"},
         ADAPTERS]
DEGREES = ["data_parallel_replicate", "data_parallel_shard", "context_parallel", "tensor_parallel", "expert_parallel",
           "expert_tensor_parallel", "pipeline_parallel"]
LAYOUTS = [(1, 8, 1, 1, 1, 1), (2, 4, 1, 1, 1, 1), (1, 8, 1, 1, 4, 1), (1, 2, 2, 2, 1, 1), (1, 4, 1, 2, 2, 2),
           (1, 4, 1, 2, 8, 1), (2, 1, 2, 2, 4, 1), (1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 2), (1, 4, 1, 1, 2, 1, 2),
           (1, 2, 1, 2, 2, 2, 2), (2, 1, 2, 1, 1, 1, 2), (1, 2, 2, 1, 1, 1, 2)]


def words(options):
    return [w for k, v in options.items() for w in ("--" + k, str(v))]


def table(said):
    """{what: (should be, is)} of all ranks together."""
    rows = re.findall(r"^([^\d\n]+?) +\d+ +(\d+) +(\d+)$", said.split("of all ranks")[-1], re.M)
    return {name: (int(a), int(b)) for name, a, b in rows}


def dry(model, options, code=0, device="h200", what=None):
    """Runs it; what: "all" writes and reads a checkpoint too, which holds as many zeros as the model has values."""
    what = what or ("all" if model == "debug" else "step")
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run([PROGRAM, folder, device, what, "--model.path", model, *words(options)],
                           capture_output=True, text=True, timeout=600)
    expect(p.returncode == code, f"{model} {options}: exit code {p.returncode}, wanted {code}: {p.stderr[-600:]}\n{p.stdout[-2000:]}")
    if code:
        return p.stderr
    expect(p.stdout.endswith("dry run: all agree\n"), p.stdout)
    return table(p.stdout)


def layouts_agree():
    for degrees in LAYOUTS:
        options = dict(GLOBAL, **{f"parallelism.{k}_degree": v for k, v in zip(DEGREES, degrees)})
        for more in {"activation_checkpoint.mode": "none"}, {"activation_checkpoint.mode": "full", "loss.router_aux_coef": 0.01}:
            stages = degrees[6] if len(degrees) > 6 else 1
            ranks = int(np.prod(degrees[:4])) * stages
            said = dry("debug", dict(options, **more))
            replicas = degrees[0]
            expect(said["elements stored, each by one rank"][1] % replicas == 0, said)
            received = said.get("bytes received in the step", (0, 0))[1]
            expect((received > 0) == (ranks > 1), f"{degrees}: {received} bytes from others")
            sent = said["elements sent to experts, stages"][1]
            expect((sent > 0) == (degrees[4] > 1 or stages > 1), f"{degrees}: {sent} elements to experts and stages")
    dry("debug", dict(GLOBAL, **{"parallelism.data_parallel_shard_degree": 4,
                                 "parallelism.fsdp_reshard_after_forward": "never"}))
    # Units that are updated in backward have buffers and sums of their own, and states of other kinds their sizes.
    small = dict(GLOBAL, **{"training.global_batch_size": 4, "parallelism.data_parallel_shard_degree": 2, "optimizer.in_backward": "true"})
    dry("debug", dict(small, **{"parallelism.data_parallel_replicate_degree": 2}))
    dry("debug", dict(small, **{"parallelism.data_parallel_shard_degree": 4, "parallelism.expert_parallel_degree": 2,
                                "optimizer.states": "int8", "training.master": "bf16", "memory.host": "moments"}))
    # Blocks of 256 go on over the rows of a matrix whose columns are cut.
    dry("debug", dict(small, **{"training.global_batch_size": 2, "parallelism.tensor_parallel_degree": 2, "optimizer.states": "int8"}))
    # A frozen base in codes is stored, gathered and expanded as planned.
    coded = dict(GLOBAL, **ADAPTERS, **{"training.global_batch_size": 4, "lora.base": "nf4"})
    dry("debug", dict(coded, **{"parallelism.data_parallel_shard_degree": 4, "parallelism.expert_parallel_degree": 2}))
    dry("debug", dict(coded, **{"parallelism.data_parallel_shard_degree": 2, "parallelism.tensor_parallel_degree": 2, "lora.base": "int8",
                                "memory.host": "frozen"}))
    # With three stages, the mean over them is not a whole number of bytes.
    dry("qwen3-vl-30b-a3b", dict(GLOBAL, **{"parallelism.data_parallel_shard_degree": 2,
                                            "parallelism.pipeline_parallel_degree": 3}))


def early_ends_agree():
    """The bytes of a step are the formula's, and the plan's, wherever the backward pass ends, for one micro-batch
    and for several. That is so too where frozen weights and moments rest on the host."""
    for degrees in (1, 2, 1, 1, 1, 1), (1, 4, 1, 1, 1, 1), (1, 2, 1, 1, 2, 1), (1, 2, 1, 2, 1, 1), (1, 2, 1, 1, 1, 1, 2):
        options = dict(GLOBAL, **{f"parallelism.{k}_degree": v for k, v in zip(DEGREES, degrees)})
        whole = dry("debug", options)["bytes received in the step"][1]
        for part in PARTS:
            said = dry("debug", dict(options, **part))
            got, planned = said["bytes received in the step"][1], said["of weights, by trainer plan"]
            expect(0 < got < whole and planned[0] > 0, f"{degrees} {part}: {got} of {whole} bytes: {said}")
            consumers = degrees[0] * degrees[1]
            once = dry("debug", dict(options, **part, **{"training.local_batch_size": 16 // consumers, "memory.host": "both"}))
            expect(0 < once["bytes received in the step"][1] < got, f"{degrees} {part}: one micro-step: {once}")


def pieces(count, ranks):
    return -(-count // (64 * ranks)) * 64


def of_layer(shapes, l, wanted):
    """Elements of a decoder layer's tensors, each padded to a multiple of 64, in one span."""
    at = f"model.language_model.layers.{l}."
    return sum(-(-int(np.prod(s)) // 64) * 64 for n, s in shapes.items() if n.startswith(at) and wanted(n[len(at):]))


def slices_are_read(root):
    """Each rank reads its own slices of the files, which are the checkpoint of a dry run, and no more."""
    tried = dict(GLOBAL, **{"training.global_batch_size": 4})
    p = subprocess.run([PROGRAM, root, "h200", "all", "--model.path", "debug", *words(dict(tried, **{"training.global_batch_size": 1}))],
                       capture_output=True, text=True, timeout=600)
    expect(p.returncode == 0, p.stderr)
    path = os.path.join(root, "step-1")
    total = table(p.stdout)["bytes of tensors in their files"][1]
    for degrees in (1, 1, 1, 1, 1, 1), (1, 4, 1, 1, 4, 1), (1, 2, 1, 2, 2, 2), (1, 2, 1, 1, 1, 1, 2):
        said = dry(path, dict(tried, **{f"parallelism.{k}_degree": v for k, v in zip(DEGREES, degrees)}), what="all")
        read = said["bytes read of the weights"]
        expect(read == (total, total) and said["bytes of tensors in their files"] == (total, total), f"{degrees}: {total}: {said}")


def published():
    """Qwen3-VL-30B-A3B, 48 layers, FSDP over 8 ranks, rows of 12,288 tokens."""
    shapes = text("model.language_model.", False) | vision()
    count = sum(int(np.prod(s)) for s in shapes.values())
    options = {"training.seq_len": 12288, "training.local_batch_size": 1, "training.global_batch_size": 8,
               "parallelism.world_size": 8, "activation_checkpoint.mode": "full"}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.Popen([PROGRAM, folder, "h200", "step", "--model.path", "qwen3-vl-30b-a3b", *words(options)],
                             stdout=subprocess.PIPE, text=True)
        said = p.stdout.read()
        _, state, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(state)
    took, resident = time.monotonic() - start, usage.ru_maxrss * 1024
    expect(p.returncode == 0 and said.endswith("dry run: all agree\n"), said[-3000:])
    got = table(said)
    expect(got["elements stored, each by one rank"] == (count, count) and count == 31070754032, f"{count}: {got}")
    # The expected bytes, by hand: each decoder layer has three spans, one each for the experts, attention and the rest.
    # A rank receives seven of the eight pieces of a span: weights in bf16 in the forward pass and, but for the last
    # layer, again in the backward pass; gradients in fp32 after it.
    kinds = {"expert_shard": lambda n: ".experts." in n, "dense": lambda n: n.startswith("self_attn.") and "norm" not in n}
    for group, wanted in kinds.items():
        piece = pieces(of_layer(shapes, 0, wanted), 8)
        line = {k: (int(c), int(b)) for k, c, b in re.findall(
            rf"^{group} +(?:all gather|reduce scatter) +(gather weights|reduce gradients) +(\d+) +(\d+)$", said, re.M)}
        expect(line == {"gather weights": (95, 95 * 7 * piece * 2), "reduce gradients": (48, 48 * 7 * piece * 4)},
               f"{group}: {line}, piece {piece}")
    expect(SANITIZED or resident < MEMORY, f"{resident >> 20} MiB resident")
    print(f"30B-A3B on 8 ranks: {took:.1f} s, {resident >> 20} MiB resident")


def large():
    start = time.monotonic()
    said = dry("qwen3-vl-235b-a22b", {"training.seq_len": 8192, "training.local_batch_size": 1, "training.global_batch_size": 64,
                                      "parallelism.world_size": 64, "parallelism.expert_parallel_degree": 8,
                                      "activation_checkpoint.mode": "full"})
    elements = said["elements stored, each by one rank"]
    expect(elements[0] == elements[1] > 235e9, f"{elements}")
    print(f"235B-A22B on 64 ranks: {time.monotonic() - start:.1f} s")


def one_card():
    """All of 30B-A3B is trained on one H200, and with its moments on the host on one H100 of 80 GB."""
    options = {"training.seq_len": 8192, "training.local_batch_size": 1, "training.global_batch_size": 1,
               "training.master": "bf16", "optimizer.states": "int8", "optimizer.in_backward": "true",
               "activation_checkpoint.mode": "full", "memory.limit": 0.97}
    total = dry("qwen3-vl-30b-a3b", options)["bytes of trainer plan, in all"]
    expect(total[0] == total[1] and 125 << 30 < total[0] <= 135 << 30, f"{total}")
    said = dry("qwen3-vl-30b-a3b", dict(options, **{"memory.host": "moments"}), device="h100")
    total, host = said["bytes of trainer plan, in all"], said["bytes on the host, allocated"]
    expect(total[0] == total[1] and 73 << 30 < total[0] <= 0.97 * 79.1 * 2**30, f"{total}")
    expect(host[0] == host[1] and 58 << 30 < host[0] < 60 << 30, f"{host}")


def one_card_adapters():
    """What is frozen takes its bf16 and nothing more, so that LoRA of 30B-A3B has room on one card of 80 or 96 GB."""
    attention, experts = "q_proj,k_proj,v_proj,o_proj", "gate_up_proj,down_proj"
    for model, targets, states, most in (("30b-a3b", attention, "float32", 67), ("30b-a3b", experts, "float32", 78),
                                         ("30b-a3b", experts, "int8", 74), ("4b", attention, "float32", 17)):
        options = {"training.seq_len": 8192, "training.local_batch_size": 1, "training.global_batch_size": 1,
                   "activation_checkpoint.mode": "full", "lora.rank": 16, "lora.targets": targets, "optimizer.states": states}
        said = dry("qwen3-vl-" + model, options, what="all" if targets == attention else "step")
        total = said["bytes of trainer plan, in all"]
        expect(total[0] == total[1] and (most - 2) << 30 < total[0] <= most << 30, f"{model} {targets} {states}: {total}")
        got, plan, err = trainer("plan", "--model.path", "qwen3-vl-" + model, "--device", "h200", "--full", *words(options))
        expect(got == 0, err)
        held = {what: int(count) for what, count in re.findall(r"^  ([a-z].*?) +(\d+) bytes", plan, re.M)}
        counts = re.search(r"^([\d,]+) of ([\d,]+) parameters are trained", plan, re.M).groups()
        trained, everything = (int(count.replace(",", "")) for count in counts)
        bytes_held = sum(held[what] for what in ("parameters (master values)", "compute weights", "gradients", "moments"))
        per_trained = 4 + 4 + (8 if states == "float32" else 2.04)
        expect(bytes_held <= 2 * everything + per_trained * trained + (1 << 24), f"{model} {targets}: {bytes_held}")
        if targets == attention:
            saved = said["elements in training files"][1]
            expect(saved <= 3 * trained * 1.01, f"{model} {targets}: {saved} elements saved of {trained} that are trained")
        if model == "4b":
            expect(bytes_held <= 1.03 * 2 * (everything - trained), f"{bytes_held} of {everything}")


def plan_is_what_ranks_take():
    """The regions that trainer plan prints for a device sum to what the ranks on such a device take, to the byte."""
    options = dict(GLOBAL, **{"training.global_batch_size": 1, "activation_checkpoint.mode": "selective", "eval.enable": "false",
                              "checkpoint.enable": "false"})
    for device in "h100", "h200", "b200":
        got, plan, err = trainer("plan", "--model.path", "debug", "--device", device, "--full", *words(options))
        expect(got == 0, err)
        total = re.search(r"^  total +(\d+) bytes", plan, re.M)
        taken = dry("debug", options, device=device)["bytes of trainer plan, in all"]
        expect(total and taken == (int(total[1]),) * 2, f"{device}: {taken}: {plan}")


def refused():
    options = dict(GLOBAL, **{"parallelism.data_parallel_shard_degree": 2})
    err = dry("debug", dict(options, **{"parallelism.expert_parallel_degree": 3}), 78)
    expect("expert_parallel_degree" in err, err)


def main():
    root = tempfile.mkdtemp()
    os.environ["TMPDIR"] = root
    try:
        layouts_agree()
        early_ends_agree()
        slices_are_read(root)
        published()
        large()
        one_card()
        one_card_adapters()
        plan_is_what_ranks_take()
        refused()
    finally:
        shutil.rmtree(root)
    print("ok")


main()
