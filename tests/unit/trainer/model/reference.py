#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second, plain implementation of the forward pass, in numpy and float64: one document, one image
and one token at a time, with dense masks and no packing tricks. Written from the model's description,
not from the C code.

    reference.py FOLDER ROW.safetensors     prints one line per target: its negative log-likelihood,
                                            then "aux VALUE"
"""
import json
import math
import struct
import sys

import numpy as np


def load(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    types = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "U8": "u1", "U64": "<u8"}
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            out[name] = np.frombuffer(data[begin:end], types[t["dtype"]]).reshape(t["shape"])
    return out


def layernorm(x, w, b):
    mu = x.mean(-1, keepdims=True)
    var = ((x - mu) ** 2).mean(-1, keepdims=True)
    return (x - mu) / np.sqrt(var + 1e-6) * w + b


def rmsnorm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


gelu_erf = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))


def rotate(x, angle):
    """x [n, heads, d], angle [n, d/2]: pairs (j, j + d/2)."""
    half = x.shape[-1] // 2
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


class Model:
    def __init__(self, folder):
        self.c = json.load(open(folder + "/config.json"))
        self.w = {k: v.astype(np.float64) for k, v in load(folder + "/model.safetensors").items()}

    # -- vision ---------------------------------------------------------------------------------
    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def table(self, h, w):
        """Aligned-corner bilinear interpolation of the position table, [h, w, D]."""
        e = self.w["model.visual.pos_embed.weight"]
        n = int(round(math.sqrt(len(e))))
        e = e.reshape(n, n, -1)
        out = np.empty((h, w, e.shape[-1]))
        for i in range(h):
            for j in range(w):
                u, v = i * (n - 1) / max(h - 1, 1), j * (n - 1) / max(w - 1, 1)
                f, g = int(u), int(v)
                c, d = min(f + 1, n - 1), min(g + 1, n - 1)
                a, b = u - f, v - g
                out[i, j] = ((1 - a) * (1 - b) * e[f, g] + (1 - a) * b * e[f, d]
                             + a * (1 - b) * e[c, g] + a * b * e[c, d])
        return out

    def merger(self, x, name, norm_first):
        norm = self.w[name + ".norm.weight"], self.w[name + ".norm.bias"]
        wide = 4 * x.shape[-1]
        z = layernorm(x, *norm).reshape(-1, wide) if norm_first else layernorm(x.reshape(-1, wide), *norm)
        return self.linear(gelu_erf(self.linear(z, name + ".linear_fc1")), name + ".linear_fc2")

    def frame(self, pixels, h, w):
        """One frame of one item: pixels [h w, 3, 2, 16, 16] in merge order -> visual rows, deepstack."""
        v = self.c["vision_config"]
        coords = [(2 * R + r, 2 * C + c) for R in range(h // 2) for C in range(w // 2)
                  for r in range(2) for c in range(2)]
        x = np.einsum("pctyx,dctyx->pd", pixels / 127.5 - 1, self.w["model.visual.patch_embed.proj.weight"])
        x = x + self.w["model.visual.patch_embed.proj.bias"]
        table = self.table(h, w)
        x = x + np.array([table[y, xx] for y, xx in coords])
        heads, d = v["num_heads"], v["hidden_size"] // v["num_heads"]
        freq = 10000.0 ** (-np.arange(d // 4) / (d // 4))
        angle = np.array([[y * f for f in freq] + [xx * f for f in freq] for y, xx in coords])
        deep = []
        for b in range(v["depth"]):
            at = f"model.visual.blocks.{b}."
            a = layernorm(x, self.w[at + "norm1.weight"], self.w[at + "norm1.bias"])
            q, k, val = self.linear(a, at + "attn.qkv").reshape(-1, 3, heads, d).transpose(1, 0, 2, 3)
            q, k = rotate(q, angle), rotate(k, angle)
            p = softmax(np.einsum("ihd,jhd->hij", q, k) / math.sqrt(d))
            x = x + self.linear(np.einsum("hij,jhd->ihd", p, val).reshape(len(x), -1), at + "attn.proj")
            m = layernorm(x, self.w[at + "norm2.weight"], self.w[at + "norm2.bias"])
            x = x + self.linear(gelu_tanh(self.linear(m, at + "mlp.linear_fc1")), at + "mlp.linear_fc2")
            if b in v["deepstack_visual_indexes"]:
                j = v["deepstack_visual_indexes"].index(b)
                deep.append(self.merger(x, f"model.visual.deepstack_merger_list.{j}", False))
        return self.merger(x, "model.visual.merger", True), deep

    # -- text -----------------------------------------------------------------------------------
    def experts(self, x, at, stats):
        t = self.c["text_config"]
        y = np.zeros_like(x)
        width = t["moe_intermediate_size"]
        for i, row in enumerate(x):
            p = softmax(self.w[at + "gate.weight"] @ row)
            chosen = np.argsort(-p, kind="stable")[: t["num_experts_per_tok"]]
            weight = p[chosen] / p[chosen].sum() if t["norm_topk_prob"] else p[chosen]
            stats.append((chosen, p))
            for e, we in zip(chosen, weight):
                gu = row @ self.w[at + "experts.gate_up_proj"][e]
                g, u = gu[:width], gu[width:]
                y[i] += we * ((g / (1 + np.exp(-g)) * u) @ self.w[at + "experts.down_proj"][e])
        return y

    def document(self, ids, positions, visual, deep, visual_row, stats):
        """Logits [n, V] of one document."""
        t = self.c["text_config"]
        pre, eps, d = "model.language_model.", t["rms_norm_eps"], t["head_dim"]
        heads, kv = t["num_attention_heads"], t["num_key_value_heads"]
        x = self.w[pre + "embed_tokens.weight"][ids].copy()
        shown = visual_row >= 0
        x[shown] = visual[visual_row[shown]]
        _, sh, sw = t["rope_scaling"]["mrope_section"]
        angle = np.empty((len(ids), d // 2))
        for j in range(d // 2):
            axis = 1 if j % 3 == 1 and j < 3 * sh else 2 if j % 3 == 2 and j < 3 * sw else 0
            angle[:, j] = positions[axis] * t["rope_theta"] ** (-2 * j / d)
        causal = np.tril(np.ones((len(ids), len(ids)), bool))
        for layer in range(t["num_hidden_layers"]):
            at = f"{pre}layers.{layer}."
            a = rmsnorm(x, self.w[at + "input_layernorm.weight"], eps)
            q, k, v = ((a @ self.w[f"{at}self_attn.{n}_proj.weight"].T).reshape(len(ids), -1, d) for n in "qkv")
            q = rotate(rmsnorm(q, self.w[at + "self_attn.q_norm.weight"], eps), angle)
            k = rotate(rmsnorm(k, self.w[at + "self_attn.k_norm.weight"], eps), angle)
            o = np.empty_like(q)
            for i in range(heads):
                j = i // (heads // kv)
                s = np.where(causal, q[:, i] @ k[:, j].T / math.sqrt(d), -np.inf)
                o[:, i] = softmax(s) @ v[:, j]
            x = x + o.reshape(len(ids), -1) @ self.w[at + "self_attn.o_proj.weight"].T
            m = rmsnorm(x, self.w[at + "post_attention_layernorm.weight"], eps)
            x = x + self.experts(m, at + "mlp.", stats)
            if layer < len(deep):
                x[shown] += deep[layer][visual_row[shown]]
        return rmsnorm(x, self.w[pre + "norm.weight"], eps) @ self.w["lm_head.weight"].T


def visual_rows(model, row):
    """All items' visual rows and deepstack features, in grid order."""
    kind = {}
    starts = np.cumsum([0] + [g.prod() // 4 for g in row["grid_thw"]])
    for token, m in zip(row["input_ids"], row["visual_row"]):
        if m >= 0:
            kind[int(np.searchsorted(starts, m, "right")) - 1] = token == model.c["video_token_id"]
    still = video = 0
    rows, deep = [], []
    for i, (t, h, w) in enumerate(row["grid_thw"]):
        n = h * w
        for _ in range(t):
            if kind[i]:
                p = row["pixels_video"][video : video + n].reshape(n, 3, 2, 16, 16)
                video += n
            else:
                p = np.repeat(row["pixels"][still : still + n].reshape(n, 3, 1, 16, 16), 2, 2)
                still += n
            r, f = model.frame(p.astype(np.float64), h, w)
            rows.append(r)
            deep.append(f)
    if not rows:
        return np.zeros((0, model.c["text_config"]["hidden_size"])), []
    return np.concatenate(rows), [np.concatenate(f) for f in zip(*deep)]


def main():
    model, row = Model(sys.argv[1]), load(sys.argv[2])
    visual, deep = visual_rows(model, row)
    stats, cu = [], row["cu_seqlens"]
    for a, b in zip(cu[:-1], cu[1:]):
        logits = model.document(row["input_ids"][a:b], row["position_ids"][:, a:b], visual, deep,
                                row["visual_row"][a:b], stats)
        for t in range(a, b - 1):
            label = row["labels"][t + 1]
            if label != -100:
                z = logits[t - a]
                print(repr(float(np.log(np.exp(z - z.max()).sum()) + z.max() - z[label])))
    experts = model.c["text_config"]["num_experts"]
    f, p = np.zeros(experts), np.zeros(experts)
    for chosen, probability in stats:
        f[chosen] += 1 / len(stats)
        p += probability / len(stats)
    print("aux", repr(float(experts * (f * p).sum())))


main()
