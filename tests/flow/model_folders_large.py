"""Folders larger than memory: the full name lists of 30B-A3B (882 tensors, 62 GB) and of the text-only
model (18,867 tensors) as sparse files: inspect reads headers only, in seconds and little memory. A
smaller folder with (empty) values is loaded and exported: what is resident is the parameters and a
bounded rest, not the file."""
import json
import os
import shutil
import tempfile
import time

from hf_files import SANITIZED, expect, measured, np, write_sparse

V, H, E, I, D, F = 151936, 2048, 128, 768, 1152, 4304  # spec 1.1, 1.2
MEMORY, SECONDS = 100 << 20, 30  # about 20 MB and half a second; limits for a busy machine and sanitizers


def norm_and_linears(at, norm, sizes):
    out = {f"{at}.norm.weight": [norm], f"{at}.norm.bias": [norm]}
    for name, (rows, columns) in sizes.items():
        out |= {f"{at}.{name}.weight": [rows, columns], f"{at}.{name}.bias": [rows]}
    return out


def text(prefix, separate):
    out = {prefix + "embed_tokens.weight": [V, H]}
    for i in range(48):
        at = f"{prefix}layers.{i}."
        out |= {at + "input_layernorm.weight": [H], at + "self_attn.q_proj.weight": [4096, H],
                at + "self_attn.k_proj.weight": [512, H], at + "self_attn.v_proj.weight": [512, H],
                at + "self_attn.o_proj.weight": [H, 4096], at + "self_attn.q_norm.weight": [128],
                at + "self_attn.k_norm.weight": [128], at + "post_attention_layernorm.weight": [H],
                at + "mlp.gate.weight": [E, H]}
        if not separate:
            out |= {at + "mlp.experts.gate_up_proj": [E, H, 2 * I], at + "mlp.experts.down_proj": [E, I, H]}
        for e in range(E if separate else 0):
            out |= {f"{at}mlp.experts.{e}.gate_proj.weight": [I, H], f"{at}mlp.experts.{e}.up_proj.weight": [I, H],
                    f"{at}mlp.experts.{e}.down_proj.weight": [H, I]}
    return out | {prefix + "norm.weight": [H], "lm_head.weight": [V, H]}


def vision():
    v = "model.visual."
    out = {v + "patch_embed.proj.weight": [D, 3, 2, 16, 16], v + "patch_embed.proj.bias": [D],
           v + "pos_embed.weight": [2304, D]}
    for b in range(27):
        at = f"{v}blocks.{b}."
        for name, shape in (("norm1", [D]), ("norm2", [D]), ("attn.qkv", [3 * D, D]), ("attn.proj", [D, D]),
                            ("mlp.linear_fc1", [F, D]), ("mlp.linear_fc2", [D, F])):
            out |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
    mlp = {"linear_fc1": (4 * D, 4 * D), "linear_fc2": (H, 4 * D)}
    out |= norm_and_linears(v + "merger", D, mlp)
    for j in range(3):
        out |= norm_and_linears(f"{v}deepstack_merger_list.{j}", 4 * D, mlp)
    return out


TEXT = {"vocab_size": V, "hidden_size": H, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "num_experts": E,
        "num_experts_per_tok": 8, "moe_intermediate_size": I, "rms_norm_eps": 1e-6}
MROPE = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}
VL = {"model_type": "qwen3_vl_moe", "image_token_id": 151655, "video_token_id": 151656,
      "vision_start_token_id": 151652, "vision_end_token_id": 151653, "tie_word_embeddings": False,
      "text_config": TEXT | {"rope_theta": 5e6, "rope_scaling": MROPE},
      "vision_config": {"depth": 27, "hidden_size": D, "num_heads": 16, "intermediate_size": F,
                        "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
                        "out_hidden_size": H}}


def folder(root, name, config, shapes, files):
    """Shards of about equal size in the order given; returns path and bytes."""
    path = os.path.join(root, name)
    os.mkdir(path)
    with open(path + "/config.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    sizes = np.cumsum([2 * int(np.prod(s)) for s in shapes.values()])
    of_file = np.minimum(files - 1, (sizes - 1) * files // sizes[-1])
    weight_map, total = {}, 0
    for i in range(files):
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        part = {n: s for (n, s), k in zip(shapes.items(), of_file) if k == i}
        total += write_sparse(os.path.join(path, file), part)
        weight_map.update({n: file for n in part})
    with open(path + "/model.safetensors.index.json", "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    return path, total


def inspect(path, code, *words):
    start = time.monotonic()
    got, out, resident = measured("inspect", path)
    took = time.monotonic() - start
    expect(got == code, f"{path}: exit code {got}, wanted {code}: {out[-600:]}")
    for word in words:
        expect(word in out, f"{path}: \"{word}\" is not said: {out[-600:]}")
    expect((SANITIZED or resident < MEMORY) and took < SECONDS, f"{path}: {resident >> 20} MiB resident, {took:.1f} s")
    print(f"{os.path.basename(path)}: {took:.2f} s, {resident >> 20} MiB resident")


def full_lists(root):
    shapes = text("model.language_model.", False) | vision()
    path, total = folder(root, "30b-a3b", VL, shapes, 13)
    expect(len(shapes) == 882 and total == 62141508064, f"{len(shapes)} tensors, {total} bytes")
    inspect(path, 0, "0 missing, 0 extra, 0 misshapen", "31,070,754,032 parameters in 882 tensors",
            "62141508064 bytes in 882 tensors in 13 files, 882 BF16", "[E, in, out]")
    lost, turned = "model.visual.blocks.26.norm2.bias", "model.language_model.layers.47.mlp.gate.weight"
    broken = {n: s for n, s in shapes.items() if n != lost} | {"model.visual.blocks.27.norm1.bias": [D]}
    broken[turned] = broken[turned][::-1]
    path, _ = folder(root, "30b-a3b-broken", VL, broken, 13)
    inspect(path, 65, "missing    " + lost, "extra      model.visual.blocks.27.norm1.bias",
            f"misshapen  {turned} [2048, 128], wanted [128, 2048]", "1 missing, 1 extra, 1 misshapen")
    v5 = {n: [s[0], s[2], s[1]] if ".experts." in n else s for n, s in shapes.items()}
    path, _ = folder(root, "30b-a3b-v5", VL, v5, 13)
    inspect(path, 0, "0 missing, 0 extra, 0 misshapen", "[E, out, in]")

    shapes = text("model.", True)
    config = TEXT | {"model_type": "qwen3_moe", "rope_theta": 1e6, "tie_word_embeddings": False}
    path, _ = folder(root, "text-30b-a3b", config, shapes, 16)
    expect(len(shapes) == 18867, f"{len(shapes)} tensors")
    inspect(path, 0, "0 missing, 0 extra, 0 misshapen", "30,532,122,624 parameters in 18,867 tensors")


def values_pass_through(root):
    """The file is half as large as the parameters in float32; mapped in whole it would show."""
    tiny = {"vocab_size": 1 << 18, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 64, "num_experts": 16,
            "num_experts_per_tok": 2, "moe_intermediate_size": 512, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "model_type": "qwen3_moe", "tie_word_embeddings": False}
    at = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [1 << 18, 128], at + "input_layernorm.weight": [128],
              at + "self_attn.q_proj.weight": [128, 128], at + "self_attn.k_proj.weight": [64, 128],
              at + "self_attn.v_proj.weight": [64, 128], at + "self_attn.o_proj.weight": [128, 128],
              at + "self_attn.q_norm.weight": [64], at + "self_attn.k_norm.weight": [64],
              at + "post_attention_layernorm.weight": [128], at + "mlp.gate.weight": [16, 128]}
    shapes |= {at + "mlp.experts.gate_up_proj": [16, 1024, 128], at + "mlp.experts.down_proj": [16, 128, 512]}
    shapes |= {"model.norm.weight": [128], "lm_head.weight": [1 << 18, 128]}
    path, total = folder(root, "values", tiny, shapes, 2)
    code, _, resident = measured("export", "--model", path, "--out", path + "-out")
    expect(code == 0, "export")
    rest = resident - 2 * total
    print(f"values: file {total >> 20} MiB, parameters {total >> 19} MiB, {rest >> 20} MiB beside them")
    expect(rest < total // 3, f"{rest >> 20} MiB resident beside the parameters, file {total >> 20} MiB")


def main():
    root = tempfile.mkdtemp()
    try:
        full_lists(root)
        if not SANITIZED:
            values_pass_through(root)
    finally:
        shutil.rmtree(root)
    print("ok")


main()
