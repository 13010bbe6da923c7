"""Twenty steps of AdamW with moments in 8 bits (adamw_steps.c) beside a model in double of the published algorithm, blockwise
quantisation (Dettmers et al. 2022, arXiv:2110.02861), with the map of trainer/ops/state_codes.h.

TESSERA_PYTHON may name an interpreter with torch and torchao: its AdamW8bit then takes the same steps on the CPU, in the same
blocks of 256 and with that map in place of its own, and must give the same updates.

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


def steps_of_torchao(folder):
    """In the other interpreter: reads the gradients and maps, and writes the values after each step."""
    import torch
    torch.compile = lambda function, **_: function  # compiling takes longer than the steps
    from torchao.optim import AdamW8bit, subclass_8bit
    with np.load(os.path.join(folder, "given.npz")) as given:
        gradients, signed, unsigned = (given[name] for name in ("gradients", "signed", "unsigned"))
    subclass_8bit.get_qmap_signed, subclass_8bit.get_qmap_unsigned = lambda: tuple(signed), lambda: tuple(unsigned)
    weight = torch.nn.Parameter(torch.zeros(gradients[0].shape))
    optimizer = AdamW8bit([weight], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, block_size=256)
    values = []
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        values.append(weight.detach().numpy().ravel().copy())
    np.save(os.path.join(folder, "values.npy"), np.array(values))


def beside_torchao(python, gradients, updates, signed, unsigned):
    if subprocess.run([python, "-c", "import torchao"], capture_output=True).returncode:
        print(f"skipped: {python} has no torchao")
        return
    with tempfile.TemporaryDirectory() as folder:
        np.savez(os.path.join(folder, "given.npz"), gradients=gradients, unsigned=unsigned.astype(np.float32),
                 signed=np.sort(np.append(signed, 1.0)).astype(np.float32))  # 255 numbers; its maps have 256
        done = subprocess.run([python, "-B", os.path.abspath(__file__), folder], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"adamw_peers: torchao: {done.stderr}")
        compare("torchao", updates, updates_of(np.load(os.path.join(folder, "values.npy"))))


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
        beside_torchao(python, gradients, updates, signed, unsigned)
    else:
        print("skipped: TESSERA_PYTHON names no interpreter with torchao")


steps_of_torchao(sys.argv[1]) if sys.argv[1:] else main()
