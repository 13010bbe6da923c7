# SPDX-License-Identifier: Apache-2.0
"""trainer inspect and export on Hugging Face folders that numpy wrote: the published layout, the layout of the 5
series (the last two axes exchanged), one matrix for each expert, shards. Broken folders are named exactly."""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: no python3-numpy")
    sys.exit(77)

BIN = os.environ["TESSERA_BIN"]
E, H, I, L, V, D = 4, 24, 20, 2, 50, 16
CONFIG = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
    "image_token_id": 40, "video_token_id": 41, "vision_start_token_id": 42, "vision_end_token_id": 43,
    "tie_word_embeddings": False,
    "text_config": {
        "vocab_size": V, "hidden_size": H, "intermediate_size": 32, "num_hidden_layers": L,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": E,
        "num_experts_per_tok": 2, "moe_intermediate_size": I, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]}},
    "vision_config": {
        "depth": 2, "hidden_size": D, "num_heads": 2, "intermediate_size": 24, "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0], "out_hidden_size": H, "patch_size": 16}}


def run(*args):
    p = subprocess.run([BIN + "/trainer", *args], capture_output=True, text=True, timeout=120)
    return p.returncode, p.stdout, p.stderr


def expect(condition, what):
    if not condition:
        print("FAILED:", what)
        sys.exit(1)


def tensors():
    """The published layout, with float32 values that bfloat16 holds exactly."""
    rng = np.random.default_rng(3)
    out = {}

    def add(name, *shape):
        v = rng.standard_normal(shape).astype("<f4")
        out[name] = (v.view("<u4") & 0xFFFF0000).view("<f4")

    t, v = "model.language_model.", "model.visual."
    add(t + "embed_tokens.weight", V, H)
    for i in range(L):
        at = f"{t}layers.{i}."
        for name, shape in {"input_layernorm": (H,), "self_attn.q_proj": (32, H), "self_attn.k_proj": (16, H),
                            "self_attn.v_proj": (16, H), "self_attn.o_proj": (H, 32), "self_attn.q_norm": (8,),
                            "self_attn.k_norm": (8,), "post_attention_layernorm": (H,),
                            "mlp.gate": (E, H)}.items():
            add(at + name + ".weight", *shape)
        add(at + "mlp.experts.gate_up_proj", E, H, 2 * I)
        add(at + "mlp.experts.down_proj", E, I, H)
    add(t + "norm.weight", H)
    add("lm_head.weight", V, H)

    def both(name, *shape):
        add(name + ".weight", *shape)
        add(name + ".bias", shape[0])

    both(v + "patch_embed.proj", D, 3, 2, 16, 16)
    add(v + "pos_embed.weight", 16, D)
    for b in range(2):
        at = f"{v}blocks.{b}."
        for name, shape in {"norm1": (D,), "norm2": (D,), "attn.qkv": (3 * D, D), "attn.proj": (D, D),
                            "mlp.linear_fc1": (24, D), "mlp.linear_fc2": (D, 24)}.items():
            both(at + name, *shape)
    for at, n in ((v + "merger.", D), (v + "deepstack_merger_list.0.", 4 * D)):
        both(at + "norm", n)
        both(at + "linear_fc1", 4 * D, 4 * D)
        both(at + "linear_fc2", H, 4 * D)
    return out


def save(path, group, dtype="F32"):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, v in group.items():
        if dtype == "BF16":
            blob = (np.ascontiguousarray(v).view("<u4") >> 16).astype("<u2").tobytes()
        else:
            blob = np.ascontiguousarray(v).astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(v.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(folder):
    out = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        expect(header.pop("__metadata__") == {"format": "pt"}, "metadata format pt")
        for name, t in header.items():
            raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
            if t["dtype"] == "BF16":
                v = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            else:
                v = np.frombuffer(raw, {"F32": "<f4", "F64": "<f8", "F16": "<f2"}[t["dtype"]])
            out[name] = v.reshape(t["shape"])
    return out


def per_expert(group):
    out = {}
    for name, v in group.items():
        stem = name.rsplit(".", 1)[0]
        for e in range(E):
            if name.endswith("gate_up_proj"):
                out[f"{stem}.{e}.gate_proj.weight"] = v[e, :, :I].T
                out[f"{stem}.{e}.up_proj.weight"] = v[e, :, I:].T
            elif name.endswith("experts.down_proj"):
                out[f"{stem}.{e}.down_proj.weight"] = v[e].T
        if ".experts." not in name:
            out[name] = v
    return out


def folder(root, name, group, dtype="F32", shards=1):
    path = os.path.join(root, name)
    os.mkdir(path)
    with open(path + "/config.json", "w") as f:
        json.dump(CONFIG, f, indent=1)
    with open(path + "/generation_config.json", "w") as f:
        f.write('{"eos_token_id":[3,\t5], "top_p":0.80}')
    if shards == 1:
        save(path + "/model.safetensors", group, dtype)
        return path
    names, weight_map = list(group), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: group[n] for n in names[i::shards]}
        save(path + "/" + file, part, dtype)
        weight_map.update({n: file for n in part})
    with open(path + "/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": 0}, "weight_map": weight_map}, f)
    return path


def interrupted(root, source, want):
    """Exports that die while they write the weights: a new folder does not appear, and one that is there
    keeps what it has; the next export succeeds, also into a folder that was empty before."""
    def export(out, *more, limit=None):
        words = [BIN + "/trainer", "export", "--model", source, "--out", out, *more]
        return subprocess.run(words, capture_output=True, timeout=120, preexec_fn=limit and (
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))).returncode

    new, there, empty = (os.path.join(root, name) for name in ("new", "there", "empty"))
    os.mkdir(empty)
    expect(export(there) == 0, "an export")
    with open(os.path.join(there, "mine"), "w") as f:
        f.write("mine")
    before = {name: load_bytes(there, name) for name in os.listdir(there)}
    largest = max(os.path.getsize(os.path.join(there, name)) for name in before)
    for out in (new, there, empty):
        code = export(out, *["--overwrite"] * (out == there), "--dtype", "f32", limit=largest)
        expect(code == -signal.SIGXFSZ, f"{out}: exit code {code}, not killed while it writes")
    expect(not os.path.exists(new), "a part of a model is there")
    expect(os.path.exists(os.path.join(root, ".new.writing")), "it was not killed while it wrote")
    after = {name: load_bytes(there, name) for name in os.listdir(there) if name != ".export.writing"}
    expect(after == before, f"the folder that was there changed: {sorted(after)}")
    expect(os.listdir(empty) == [".export.writing"], "it did not leave what it had written")
    expect(export(new) == 0 and export(empty) == 0 and export(there, "--overwrite", "--shard-bytes", "100000") == 0, "the next ones")
    left = [name for folder in (root, there, empty) for name in os.listdir(folder) if ".writing" in name]
    expect(not left, f"something is left: {left}")
    expect(export(empty) != 0, "a model was overwritten without --overwrite")
    for out in (new, there, empty):
        got = load(out)
        expect(all(np.array_equal(got[n], want[n]) for n in want), f"{out}: a tensor differs")
    expect("mine" in os.listdir(there) and "model.safetensors" not in os.listdir(there), f"{os.listdir(there)}")


def load_bytes(folder, name):
    with open(os.path.join(folder, name), "rb") as f:
        return f.read()


def main():
    root = tempfile.mkdtemp()
    want = tensors()
    total = sum(v.size for v in want.values())
    v5 = {n: np.swapaxes(v, 1, 2) if ".experts." in n else v for n, v in want.items()}
    forms = {
        "published": folder(root, "published", want, "BF16"),
        "five": folder(root, "five", v5),
        "per-expert": folder(root, "per-expert", per_expert(want), "F64"),
        "shards": folder(root, "shards", v5, "BF16", 3),
    }
    for name, path in forms.items():
        code, out, err = run("inspect", path)
        expect(code == 0, f"{name}: inspect: {err}")
        expect("0 missing, 0 extra, 0 misshapen" in out, f"{name}: {out[-300:]}")
        expect(f"{total:,} parameters" in out, f"{name}: total")
        code, out, err = run("export", "--model", path, "--out", path + "-out", "--dtype", "f32",
                             "--layout", "published", "--shard-bytes", "1000000000")
        expect(code == 0, f"{name}: export: {err}")
        size = sum(4 * w.size for w in want.values())
        expect(out == f"{path}-out: {total:,} parameters in {len(want)} tensors, {size:,} bytes in 1 file\n", f"{name}: {out}")
        got = load(path + "-out")
        expect(list(got) == list(want), f"{name}: names and order")
        for n in want:
            expect(np.array_equal(got[n], want[n]), f"{name}: {n} differs")
        for kept in ("config.json", "generation_config.json"):
            with open(f"{path}/{kept}", "rb") as a, open(f"{path}-out/{kept}", "rb") as b:
                expect(a.read() == b.read(), f"{name}: {kept} is kept")

    interrupted(root, forms["published"], want)
    broken = dict(want)
    down = "model.language_model.layers.1.mlp.experts.down_proj"
    broken[down] = broken[down][:, :-1]
    broken["model.extra.weight"] = broken.pop("model.language_model.norm.weight")
    path = folder(root, "broken", broken)
    code, out, err = run("inspect", path)
    expect(code == 65, f"broken: exit code {code}")
    expect("missing    model.language_model.norm.weight" in out, "broken: missing")
    expect("extra      model.extra.weight" in out, "broken: extra")
    expect(f"misshapen  {down} [4, 19, 24], wanted [4, 20, 24]" in out, "broken: misshapen")
    code, _, err = run("export", "--model", path, "--out", path + "-out")
    expect(code == 65 and down in err, "broken: export refuses")
    expect(not any("broken-out" in name for name in os.listdir(root)), "broken: nothing is written")

    os.remove(forms["shards"] + "/model-00002-of-00003.safetensors")
    code, _, err = run("inspect", forms["shards"])
    expect(code in (65, 66) and "model-00002-of-00003" in err, f"a shard is gone: {code} {err}")
    with open(forms["published"] + "/model.safetensors", "r+b") as f:
        f.truncate(os.path.getsize(forms["published"] + "/model.safetensors") - 10)
    code, _, err = run("export", "--model", forms["published"], "--out", root + "/no")
    expect(code == 65 and "model.safetensors" in err, f"truncated: {code} {err}")
    with open(forms["five"] + "/generation_config.json", "w") as f:
        f.write('{"eos_token_id": [3, "5"]}')
    code, _, err = run("inspect", forms["five"])
    expect(code == 65 and "generation_config.json: eos_token_id" in err, f"broken generation_config: {code} {err}")
    with open(forms["five"] + "/config.json", "w") as f:
        f.write('{"model_type": "qwen3_vl_moe", ')
    code, _, err = run("inspect", forms["five"])
    expect(code == 65 and "config.json" in err, f"broken config: {code} {err}")
    shutil.rmtree(root)
    print("ok")


main()
