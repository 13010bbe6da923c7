# SPDX-License-Identifier: Apache-2.0
"""Twenty steps of AdamW with moments in 8 bits (adamw_steps.c) beside a model in double of the published algorithm, blockwise
quantisation (Dettmers et al. 2022, arXiv:2110.02861), with the map of trainer/ops/state_codes.h.

TESSERA_PYTHON may name an interpreter with torch, and torchao or bitsandbytes or both: their AdamW8bit then take the same
steps on the CPU, in the same blocks of 256 and with that map in place of their own, and must give the same updates.

bitsandbytes does not look for the nearest code on a CPU. It looks shares up in a table of 65,536 places from -1 to 1, so that
all shares below 2^-16 get the code of 2^-16, and only those above 2^-10 their own. Second moments are there, and up to a
quarter of the updates differ. With the nearest codes, which its kernels on GPUs and its code for other types look for, none
does: its update is the same. Both are printed; only the latter must agree.

A moment that lies between two codes but for rounding may become either, which changes an element's later updates by a few
percent, so a small share of the elements may differ."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

SOURCE = os.environ.get("TESSERA_SOURCE", ".")
STEPS, ROWS, RATE = 20, 8, 1e-3
SETTINGS = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}  # of the peers
SHARE = 0.002


def bench():
    """tests/bench/state_maps, which has the model and the gradients."""
    path = os.path.join(SOURCE, "tests/bench/state_maps")
    spec = importlib.util.spec_from_loader("state_maps", importlib.machinery.SourceFileLoader("state_maps", path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def updates_of(values):
    """What each step took away, as a share of the rate."""
    return -np.diff(values.astype(np.float64), axis=0, prepend=0) / RATE


def differing(updates, others):
    """The largest share of the elements that differ in a step."""
    return (np.abs(updates - others) > 1e-3 * np.maximum(1, np.abs(others))).mean(axis=1).max()


def compare(name, updates, others):
    share = differing(updates, others)
    print(f"{name}: at most {share:.4%} of the updates of a step differ by more than 1e-3")
    if not share <= SHARE:
        sys.exit(f"adamw_peers: {name}: at most {SHARE:.2%} may")


def steps_of(gradients):
    program = os.path.join(os.environ["TESSERA_TESTS"], "adamw_steps")
    done = subprocess.run([program, str(STEPS), str(gradients[0].size)], input=gradients.tobytes(), capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return np.frombuffer(done.stdout, np.float32).reshape(STEPS, -1)


def given(folder):
    with np.load(os.path.join(folder, "given.npz")) as arrays:
        return [arrays[name] for name in ("gradients", "signed", "unsigned")]


def values_after_steps(weight, optimizer, gradients):
    import torch
    values = []
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        values.append(weight.detach().numpy().ravel().copy())
    return np.array(values)


def steps_of_torchao(folder):
    import torch
    torch.compile = lambda function, **_: function  # compiling takes longer than the steps
    from torchao.optim import AdamW8bit, subclass_8bit
    gradients, signed, unsigned = given(folder)
    subclass_8bit.get_qmap_signed, subclass_8bit.get_qmap_unsigned = lambda: tuple(signed), lambda: tuple(unsigned)
    weight = torch.nn.Parameter(torch.zeros(gradients[0].shape))
    return values_after_steps(weight, AdamW8bit([weight], block_size=256, **SETTINGS), gradients)


def steps_of_bitsandbytes(folder):
    import torch
    from bitsandbytes.optim import AdamW8bit
    gradients, signed, unsigned = given(folder)

    class WithMaps(AdamW8bit):
        def init_state(self, group, p, *place):
            super().init_state(group, p, *place)
            self.state[p].update(qmap1=torch.tensor(signed), qmap2=torch.tensor(unsigned))

    weight = torch.nn.Parameter(torch.zeros(gradients[0].shape))
    return values_after_steps(weight, WithMaps([weight], min_8bit_size=256, **SETTINGS), gradients)


def steps_of_bitsandbytes_nearest(folder):
    import torch
    from bitsandbytes.backends.cpu import ops

    def quantise(values, code, out_scales, out_codes, size):
        blocks = values.reshape(-1, size)
        scales = blocks.abs().amax(1)
        shares = blocks / torch.where(scales > 0, scales, 1)[:, None]
        out_codes.copy_(torch.bucketize(shares, (code[1:] + code[:-1]) / 2).reshape(values.shape))
        out_scales.copy_(scales)

    ops._quant_blockwise_fp32_direct = quantise
    return steps_of_bitsandbytes(folder)


PEERS = {"torchao": steps_of_torchao, "bitsandbytes": steps_of_bitsandbytes,
         "bitsandbytes, nearest codes": steps_of_bitsandbytes_nearest}


def values_of(python, name, folder):
    """Those after each step, of a package in the other interpreter."""
    done = subprocess.run([python, "-B", os.path.abspath(__file__), folder, name], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"adamw_peers: {name}: {done.stderr}")
    return np.load(os.path.join(folder, "values.npy"))


def beside_peers(python, gradients, updates, signed, unsigned):
    with tempfile.TemporaryDirectory() as folder:
        np.savez(os.path.join(folder, "given.npz"), gradients=gradients, unsigned=unsigned.astype(np.float32),
                 signed=np.sort(np.append(signed, 1.0)).astype(np.float32))  # 255 numbers; their maps have 256
        for name in PEERS:
            package = name.split(",")[0]
            if subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode:
                print(f"skipped: {python} has no {package}")
                continue
            others = updates_of(values_of(python, name, folder))
            if name == "bitsandbytes":
                print(f"{name}, by its table: {differing(updates, others):.2%} differ")
            else:
                compare(name, updates, others)


def main():
    maps = bench()
    gradients = np.array(maps.gradients(1.0, STEPS, ROWS), np.float32)
    updates = updates_of(steps_of(gradients))
    signed, unsigned, not_zero = maps.MAPS["float"]
    model = list(maps.updates(gradients.astype(np.float64), signed, unsigned, not_zero))
    compare("a model in double", updates, np.array(model).reshape(STEPS, -1))
    other = np.array(list(maps.updates(gradients.astype(np.float64), *maps.MAPS["dynamic"]))).reshape(STEPS, -1)
    if differing(updates, other) < 0.5:
        sys.exit("adamw_peers: another map would not be noticed")
    python = os.environ.get("TESSERA_PYTHON", "")
    if python:
        beside_peers(python, gradients, updates, signed, unsigned)
    else:
        print("skipped: TESSERA_PYTHON names no interpreter with torchao or bitsandbytes")


if sys.argv[2:]:
    np.save(os.path.join(sys.argv[1], "values.npy"), PEERS[sys.argv[2]](sys.argv[1]))
else:
    main()
