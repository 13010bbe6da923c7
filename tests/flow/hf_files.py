# SPDX-License-Identifier: Apache-2.0
"""What the tests of Hugging Face folders share: reading and writing safetensors files by plain numpy, the layouts in
which experts are stored, and running the trainer with a look at its memory. Exits with 77 if numpy is missing."""
import json
import os
import struct
import subprocess
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: no python3-numpy")
    sys.exit(77)

TRAINER = os.path.join(os.environ["TESSERA_BIN"], "trainer")
STORED = {"F32": "<f4", "BF16": "<u2", "F16": "<f2", "F64": "<f8"}


with open(TRAINER, "rb") as program:
    SANITIZED = b"__asan_init" in program.read()  # a sanitizer takes its own memory


def expect(condition, what):
    if not condition:
        print("FAILED:", what)
        sys.exit(1)


def trainer(*args, env=None):
    """Returns (exit code, stdout, stderr)."""
    p = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=600,
                       env=dict(os.environ, **(env or {})))
    return p.returncode, p.stdout, p.stderr


def works(*args, env=None):
    code, out, err = trainer(*args, env=env)
    expect(code == 0, f"trainer {' '.join(args)}: exit code {code}\n{err}")
    return out


def measured(*args):
    """Returns (exit code, output, most resident bytes) of a run. The output goes through a file, so that this
    process can wait for the run."""
    with open(os.devnull, "w") as nothing:
        p = subprocess.Popen([TRAINER, *args], stdout=subprocess.PIPE, stderr=nothing, text=True)
        out = p.stdout.read()
        _, state, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(state)
    return p.returncode, out, usage.ru_maxrss * 1024


def header_bytes(header):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def entry(dtype, shape, at):
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(STORED[dtype]).itemsize
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}


def write(path, tensors):
    """tensors: {name: (dtype, stored array)}."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, v) in tensors.items():
        header[name] = entry(dtype, v.shape, at)
        at = header[name]["data_offsets"][1]
    with open(path, "wb") as f:
        f.write(header_bytes(header))
        for dtype, v in tensors.values():
            f.write(np.ascontiguousarray(v).astype(STORED[dtype]).tobytes())


def write_sparse(path, shapes, dtype="BF16"):
    """Writes a file with a true header and a hole for the data."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        header[name] = entry(dtype, shape, at)
        at = header[name]["data_offsets"][1]
    with open(path, "wb") as f:
        start = f.write(header_bytes(header))
        f.truncate(start + at)
    return at


def read(path, bare=False):
    """Returns {name: (dtype, array as stored; BF16 as its bits)} in the order of the data. bare: the file need not
    be a model's."""
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    expect(bare or header.pop("__metadata__", None) == {"format": "pt"}, f"{path}: metadata format pt")
    out = {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        v = np.frombuffer(data[start + begin:start + end], STORED[t["dtype"]])
        out[name] = (t["dtype"], v.reshape(t["shape"]))
    return out


def files_of(folder):
    """Returns {file: its tensors} and the weight map, which is None if there is no index."""
    names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return {n: read(os.path.join(folder, n)) for n in names}, None
    with open(index, encoding="utf-8") as f:
        return {n: read(os.path.join(folder, n)) for n in names}, json.load(f)["weight_map"]


def same(a, b):
    """Whether two tensors agree in dtype, shape and every bit."""
    return a[0] == b[0] and a[1].shape == b[1].shape and a[1].tobytes() == b[1].tobytes()


def write_shards(folder, tensors, n):
    """Deals the tensors out to n files in turn, with an index."""
    weight_map = {}
    for i in range(n):
        file = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        part = dict(list(tensors.items())[i::n])
        write(os.path.join(folder, file), part)
        weight_map.update({name: file for name in part})
    total = sum(v.nbytes for _, v in tensors.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, f, indent=2)


def fused(tensors):
    """Turns the tensors of any published layout into fused ones, [E, in, out]."""
    out, parts = {}, {}
    for name, (dtype, v) in tensors.items():
        stem, _, rest = name.partition(".experts.")
        if rest.endswith("_proj.weight"):
            expert, which = rest.split(".")[:2]
            parts.setdefault(stem, {})[int(expert), which] = dtype, v.T
        else:
            out[name] = dtype, v
    for stem, one in parts.items():
        experts = range(1 + max(e for e, _ in one))
        dtype = one[0, "gate_proj"][0]
        both = [np.concatenate([one[e, "gate_proj"][1], one[e, "up_proj"][1]], axis=1) for e in experts]
        out[stem + ".experts.gate_up_proj"] = dtype, np.stack(both)
        out[stem + ".experts.down_proj"] = dtype, np.stack([one[e, "down_proj"][1] for e in experts])
    return out


def in_layout(tensors, layout):
    """Turns fused tensors [E, in, out] into the layout "published", "v5" or "per-expert"."""
    out = {}
    for name, (dtype, v) in tensors.items():
        if ".experts." not in name or layout == "published":
            out[name] = dtype, v
        elif layout == "v5":
            out[name] = dtype, np.swapaxes(v, 1, 2)
        else:
            stem = name.rsplit(".", 1)[0]
            for e, matrix in enumerate(v):
                if name.endswith("down_proj"):
                    out[f"{stem}.{e}.down_proj.weight"] = dtype, matrix.T
                else:
                    half = matrix.shape[1] // 2
                    out[f"{stem}.{e}.gate_proj.weight"] = dtype, matrix[:, :half].T
                    out[f"{stem}.{e}.up_proj.weight"] = dtype, matrix[:, half:].T
    return out
