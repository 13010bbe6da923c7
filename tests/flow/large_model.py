# SPDX-License-Identifier: Apache-2.0
"""The published tensors of Qwen3-VL-30B-A3B and of its text-only sister, and folders of them with true names, shapes
and offsets but holes in place of values."""
import json
import os

from hf_files import np, write_sparse

V, H, E, I, D, F = 151936, 2048, 128, 768, 1152, 4304  # the sizes of Qwen3-VL-30B-A3B


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
    """Makes shards of about equal size, in the order given; returns the path and the bytes."""
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
