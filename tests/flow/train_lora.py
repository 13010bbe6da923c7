# SPDX-License-Identifier: Apache-2.0
"""LoRA: only adapters are trained, a run resumes bit for bit, and its result can be opened in two ways: merged, and
as an adapter's folder that, together with the base model, equals the merged one for either version of
transformers. A checkpoint has the adapter alone, unless checkpoint.model says otherwise, and knows its base by hash. A base
without weights is refused."""

import json
import os
import re
import shutil
import struct
import subprocess

import numpy

from prepd_flow import Folder, check, main, run
from resume_flow import STREAM, bit_flipped, go, recorded, same
from train_flow import LIMIT_S, TRAINER, options, trainer

TARGETS = "q_proj,k_proj,v_proj,o_proj,gate,gate_up_proj,down_proj"
RANK, ALPHA = 4, 12
ROUNDED_TWICE = 1 / 128  # the base and the merged value are in BF16
KINDS = {"F32": (numpy.uint32, 0), "BF16": (numpy.uint16, 16)}


def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            kind, shift = KINDS[t["dtype"]]
            bits = numpy.frombuffer(data[slice(*t["data_offsets"])], kind).astype(numpy.uint32) << shift
            out[name] = bits.view(numpy.float32).astype(numpy.float64).reshape(t["shape"])
    return out


def delta(adapter, name, shape, reader, scale=ALPHA / RANK):
    """What the adapter's files add to a stored tensor, or None, as PEFT reads them for that reader."""
    module = name.removesuffix(".weight")
    if len(shape) == 3:
        stem, last = module.rsplit(".", 1)
        inside = f"base_model.model.{stem}.base_layer.lora_A.weight" in adapter
        module = stem + (".base_layer" if inside and last == "gate_up_proj" else "")
    a, b = (adapter.get(f"base_model.model.{module}.lora_{x}.weight") for x in "AB")
    if a is None:
        return None
    if len(shape) == 2:
        return scale * b @ a
    # PEFT: for a matrix [rows, columns], as the reader has it, A is over the columns and B over the rows.
    rows, columns = shape[1:] if reader == "transformers4" else shape[:0:-1]
    a, b = a.reshape(shape[0], RANK, columns), b.reshape(rows, RANK, shape[0])
    value = scale * numpy.einsum("ore,eri->eoi", b, a)
    return value if reader == "transformers4" else value.transpose(0, 2, 1)


def opened(f, base, step, reader):
    """The adapter's folder applied to the base is the merged model; returns the tensors that it changes, and its
    configuration."""
    merged, adapter = tensors(step + "model.safetensors"), tensors(step + "adapter/adapter_model.safetensors")
    state = tensors(step + "training/rank-00000-of-00001.safetensors")
    changed, before = [], tensors(base + "/model.safetensors")
    for name, value in merged.items():
        more = delta(adapter, name, value.shape, reader)
        wanted = before[name] if more is None else before[name] + more
        if more is not None and numpy.abs(more).max() > 0:
            changed.append(name.removesuffix(".weight"))
        check(numpy.abs(value - wanted).max() <= numpy.abs(wanted).max() * ROUNDED_TWICE, name)
    with open(step + "adapter/adapter_config.json") as file:
        config = json.load(file)
    check(config["r"] == RANK and config["lora_alpha"] == ALPHA, config)
    return changed, config, len(adapter), state


def targets_are(config, changed, reader):
    parameters = [n for n in changed if n.endswith(("gate_up_proj", "experts.down_proj"))]
    if reader == "transformers5":
        parameters += [n + ".weight" for n in changed if n.endswith("mlp.gate")]
    modules = set(changed) - set(parameters) - {n.removesuffix(".weight") for n in parameters}
    check(set(config["target_modules"]) == modules, config)
    check(set(config["target_parameters"]) == set(parameters), config)


def adapter_and_model_are_the_merged_model():
    with Folder(**STREAM) as f:
        rows = recorded(f, 6)
        lora = {"lora__rank": RANK, "lora__alpha": ALPHA, "lora__targets": TARGETS, "optimizer__lr": 0.01}
        said = go(f, "bare", code=66, **rows, **lora)
        check("lora.rank is 4" in said and "no weights here" in said and "lora.random_base" in said, said)
        go(f, "base", **dict(rows, training__steps=1, optimizer__lr=0))
        lora["model__path"] = base = f.file("base/checkpoint")
        always = {"checkpoint__model": "always"}
        said = go(f, "run", **rows, **lora, **always)
        check("frozen" in said and "parameters are trained" in said, said)
        # The run in parts has its base and its moments on the host, from where it is saved and exported.
        host = {"memory__host": "both"}
        said = go(f, "parts", **dict(rows, training__steps=3), **lora, **host)
        check("of frozen weights rest in" in said and "of moments rest in" in said, said)
        five = dict(host, lora__adapter_for="transformers5")
        check("resuming from step 3" in go(f, "parts", **rows, **lora, **five, **always), "the run began again from the start")
        same(f, "run", "parts", 6)

        for name, reader in (("run", "transformers4"), ("parts", "transformers5")):
            step = f.file(f"{name}/checkpoint/step-6/")
            changed, config, n, state = opened(f, base, step, reader)
            check(2 * len(changed) == n and len(changed) == 7 * sum("q_proj" in c for c in changed), f"{changed}")
            targets_are(config, changed, reader)
        check(all("lora_" in n for n in state), f"there are values of frozen tensors: {list(state)[:3]}")
        trainer("inspect", f.file("run/checkpoint"))
        a_checkpoint_is_an_adapter(f, rows, lora)

        # It learns: the loss of the same rows falls, as slowly as adapters do.
        losses = [json.loads(line)["loss"] for line in open(f.file("run/ledger.jsonl"), encoding="utf-8")]
        check(losses[-1] < losses[0] - 0.02, losses)
        said = go(f, "other", code=78, **rows, **dict(lora, lora__targets="qkv"))
        check("lora.targets" in said and not os.path.exists(f.file("other/checkpoint/step-1")), said)
        a_base_in_fewer_bits(f, rows, lora, losses)
        rows_with_lengths(f, rows, lora)
        square_experts_cannot_be_misread(f, rows, lora)
        experts_of_text_only_models_are_linear_maps(f, lora)


def evaluated(f, name, *words, **changed):
    """The first line of trainer eval, and its loss."""
    values = {"job.dump_folder": f.file(name), "feed.replay": f.file("rows.rec"), "eval.show": 2, "training.global_batch_size": 2}
    values.update({key.replace("__", "."): value for key, value in changed.items()})
    said = trainer("eval", "-c", f.config, "--shared", *options(values), *words)
    return said.splitlines()[0], float(re.search(r"^eval: loss: ([0-9.]+)", said, re.MULTILINE)[1])


def an_evaluation_is_of_the_run():
    """With the run's own options trainer eval takes its newest whole checkpoint; otherwise it says which weights it
    takes. No page replaces that of other weights."""
    with Folder(**STREAM) as f:
        rows = recorded(f, 4)
        go(f, "base", **dict(rows, training__steps=1, optimizer__lr=0))
        base = f.file("base/checkpoint")
        lora = {"lora__rank": RANK, "lora__targets": TARGETS, "optimizer__lr": 0.01, "model__path": base, "eval__page": f.file("page.html")}
        _, before = evaluated(f, "run", model__path=base)
        for name, more in (("run", {}), ("nf4", {"lora__base": "nf4", "memory__host": "both"})):
            how = dict(lora, **more)
            go(f, name, **rows, **how)
            first, own = evaluated(f, name, **how)
            check(first == f"weights: checkpoint {f.file(name)}/checkpoint/step-4, adapters on {base}", first)
            trainer("export", "--merge", "--model", f.file(name + "/checkpoint"), "--out", f.file(name + "-merged"))
            first, merged = evaluated(f, name, **dict(how, model__path=f.file(name + "-merged")))
            check(first.startswith(f"weights: {f.file(name)}-merged (the run in {f.file(name)}/checkpoint began from"), first)
            check(own < before - 0.5 and abs(own - merged) < 0.02, f"{name}: {own}, merged {merged}, base {before}")
        first, own = evaluated(f, "run", **lora, checkpoint__load_step=0)
        check(first == f"weights: {base} (checkpoint.load_step is 0)" and own == before, f"{first}: {own}, {before}")
        check("step-2, adapters" in evaluated(f, "run", **lora, checkpoint__load_step=2)[0], "step 2")
        os.makedirs(f.file("none/checkpoint"))
        first, _ = evaluated(f, "none", **lora)
        check(first == f"weights: {base} (no checkpoint in {f.file('none')}/checkpoint)", first)
        shutil.copy(base + "/model.safetensors", f.file("none/checkpoint/model.safetensors"))
        check("none/checkpoint, but a model: --model.path" in evaluated(f, "none", **lora)[0], "a model without a checkpoint")
        os.remove(f.file("run/checkpoint/step-4/adapter/adapter_config.json"))
        check("step-3, adapters" in evaluated(f, "run", **lora)[0], "a damaged checkpoint")
        pages_are_kept(f, rows, lora)


def pages_are_kept(f, rows, lora):
    """The page has the run's name, the step and the samples; each evaluation above has its own."""
    pages = {n: read(f.file(n)).decode() for n in os.listdir(f.path) if n.startswith("page")}
    tiles = {n: dict(re.findall(r"<dt>(model|step|run)</dt><dd>(.*?)(?:<|$)", text)) for n, text in pages.items()}
    check(tiles["page.html"] == {"model": "checkpoint", "step": "4", "run": "run"} and len(pages) == 6, tiles)
    check({(t["step"], t.get("run")) for t in tiles.values()} == {("4", "run"), ("4", "nf4"), ("3", "run"), ("none", None)}, tiles)
    check(re.search(r"<td>\d+</td></tr>", pages["page.html"]) and "<th>sample</th>" in pages["page.html"], pages["page.html"][-900:])
    again = dict(lora, feed__replay=rows["feed__replay"], training__steps=1, checkpoint__enable="false", eval__page="")
    before = read(f.file("run/report.html"))
    go(f, "run", **again)
    check(read(f.file("run/set-aside-report.html")) == before != read(f.file("run/report.html")), "report.html")
    check(b"<dt>run</dt><dd>run<" in before, before)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def a_checkpoint_is_an_adapter(f, rows, lora):
    """It has the adapter and names the base, which is merged in when the run ends if asked, or later, and checked
    each time."""
    base, first = lora["model__path"], f.file("end/checkpoint/step-6")
    go(f, "end", **rows, **lora, checkpoint__model="end")
    check(sorted(os.listdir(first)) == ["adapter", "training"], os.listdir(first))
    with open(first + "/training/base.json", encoding="utf-8") as file:
        said = json.load(file)
    frozen = tensors(base + "/model.safetensors")
    check(said["model"] == base and said["lora"]["rank"] == RANK and said["frozen"].keys() == frozen.keys(), said["model"])
    weights = os.path.getsize(base + "/model.safetensors")
    size = sum(os.path.getsize(os.path.join(at, n)) for at, _, names in os.walk(first) for n in names)
    check(size < weights, f"{size} bytes for a model of {weights}")
    check("trainer export --merge" in trainer("inspect", first, code=66), "inspect")
    check("trainer export --merge" in trainer("export", "--model", first, "--out", f.file("no"), code=66), "export")

    # Merged in the end, and by the verb: the bytes are those that a checkpoint with checkpoint.model always has.
    check("adapter" in os.listdir(f.file("end/checkpoint")), os.listdir(f.file("end/checkpoint")))
    want = read(f.file("run/checkpoint/step-6/model.safetensors"))
    check(read(f.file("end/checkpoint/model.safetensors")) == want, "merged in the end")
    trainer("export", "--merge", "--model", first, "--out", f.file("merged"))
    check(read(f.file("merged/model.safetensors")) == want, "merged by the verb")
    trainer("export", "--merge", "--model", first, "--layout", "v5", "--out", f.file("v5"))
    trainer("export", "--model", f.file("v5"), "--layout", "published", "--out", f.file("published"))
    now, before = tensors(f.file("published/model.safetensors")), tensors(f.file("merged/model.safetensors"))
    check(all((now[n] == before[n]).all() for n in before), "merged into another layout")
    trainer("export", "--model", f.file("merged"), "--out", f.file("again"))
    check(not os.path.exists(f.file("no")) and read(f.file("again/model.safetensors")) == want, "written again")
    said = trainer("export", "--merge", "--model", base, "--out", f.file("no"), code=65)
    check("no checkpoint" in said, said)

    # Another base is refused by the name of a tensor that differs.
    name = sorted(frozen)[7]
    another = bit_flipped(f, "else", base, name)
    said = go(f, "end", code=78, **rows, **dict(lora, model__path=another))
    check(name in said and base in said and another in said, said)
    said = trainer("export", "--merge", "--model", first, "--base", another, "--out", f.file("no"), code=78)
    check(name in said, said)
    shutil.move(base, base + "-moved")
    trainer("export", "--merge", "--model", f.file("run/checkpoint"), "--base", base + "-moved", "--out", f.file("moved"))
    check(read(f.file("moved/model.safetensors")) == want, "merged with a base that was moved")
    shutil.move(base + "-moved", base)


def a_base_in_fewer_bits(f, rows, lora, before):
    """The losses are close to those beside the base itself, and a run continues bit for bit beside the same base, and
    beside another only if told to. An export adds the adapters to the base as it is in its files."""
    coded = dict(lora, lora__base="nf4")
    said = go(f, "nf4", **rows, **coded)
    check("in codes in place of" in said, said)
    losses = [json.loads(line)["loss"] for line in open(f.file("nf4/ledger.jsonl"), encoding="utf-8")]
    check(losses[-1] < losses[0] - 0.02 and losses != before, losses)
    check(all(abs(a - b) < 0.02 * b for a, b in zip(losses, before)), f"{losses} are not close to {before}")
    go(f, "nf4-parts", **dict(rows, training__steps=3), **coded)
    go(f, "nf4-parts", **rows, **coded, memory__host="frozen")
    same(f, "nf4", "nf4-parts", 6)
    shutil.rmtree(f.file("nf4-parts/checkpoint/step-6"))
    said = go(f, "nf4-parts", code=78, **rows, **lora)
    check("base in nf4" in said and "lora.base is bf16" in said and "convert_states" in said, said)
    said = go(f, "nf4-parts", **rows, **dict(lora, lora__base="int8"), checkpoint__convert_states="true")
    check("resuming from step" in said, said)
    said = go(f, "nf4-no", code=78, **rows, **dict(coded, checkpoint__model="end"))
    check("trainer export --merge" in said, said)

    base, step = lora["model__path"], f.file("nf4/checkpoint/step-6")
    p = subprocess.run([TRAINER, "export", "--merge", "--model", step, "--out", f.file("nf4-merged")],
                       capture_output=True, text=True, timeout=LIMIT_S)
    check(p.returncode == 0 and "beside a base in nf4" in p.stdout + p.stderr, p.stdout + p.stderr)
    merged, stored = tensors(f.file("nf4-merged/model.safetensors")), tensors(base + "/model.safetensors")
    adapter = tensors(step + "/adapter/adapter_model.safetensors")
    for name, value in merged.items():
        more = delta(adapter, name, value.shape, "transformers4")
        wanted = stored[name] if more is None else stored[name] + more
        check(numpy.abs(value - wanted).max() <= numpy.abs(wanted).max() * ROUNDED_TWICE, name)


def rows_with_lengths(f, rows, lora):
    """DoRA: its files are those of PEFT, a run continues bit for bit, and the export has rows of the trained lengths."""
    dora = dict(lora, lora__dora="true", lora__targets="q_proj,v_proj,o_proj")
    go(f, "dora", **rows, **dora)
    go(f, "dora-parts", **dict(rows, training__steps=3), **dora, memory__host="both")
    go(f, "dora-parts", **rows, **dora)
    same(f, "dora", "dora-parts", 6)
    said = go(f, "dora", code=78, **rows, **dict(dora, lora__dora="false"), checkpoint__convert_states="true")
    check("lora.dora true, and lora.dora is false now" in said, said)
    base, step = lora["model__path"], f.file("dora/checkpoint/step-6")
    adapter, stored = tensors(step + "/adapter/adapter_model.safetensors"), tensors(base + "/model.safetensors")
    with open(step + "/adapter/adapter_config.json") as file:
        check(json.load(file)["use_dora"] is True, "use_dora")
    trainer("export", "--merge", "--model", step, "--out", f.file("dora-merged"))
    merged, moved = tensors(f.file("dora-merged/model.safetensors")), 0
    for name, value in merged.items():
        more = delta(adapter, name, value.shape, "transformers4")
        wanted = stored[name]
        if more is not None:
            length = adapter[f"base_model.model.{name.removesuffix('.weight')}.lora_magnitude_vector"]
            whole = stored[name] + more
            wanted = whole * (length / numpy.linalg.norm(whole, axis=1))[:, None]
            moved += numpy.abs(length - numpy.linalg.norm(stored[name], axis=1)).max() > 1e-3
        check(numpy.abs(value - wanted).max() <= numpy.abs(wanted).max() * ROUNDED_TWICE, name)
    check(moved > 0, "no length was trained")
    said = go(f, "dora-no", code=78, **rows, **dict(lora, lora__dora="true"))
    check("lora.dora" in said, said)


def square_experts_cannot_be_misread(f, rows, lora):
    """hidden size = expert width, down_proj alone: the other matrix is there too, without effect, and its shapes
    differ between the two readers."""
    shutil.copytree(f.file("data/model"), f.file("square"))
    with open(f.file("square/config.json"), encoding="utf-8") as file:
        config = json.load(file)
    text = config["text_config"]
    text["moe_intermediate_size"] = text["hidden_size"]
    with open(f.file("square/config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    shapes = {}
    square = dict(lora, lora__targets="down_proj", lora__random_base="true", checkpoint__model="end", model__path=f.file("square"))
    go(f, "drawn", **dict(rows, training__steps=1), **dict(square, optimizer__lr=0))
    for reader in ("transformers4", "transformers5"):
        go(f, reader, **dict(rows, training__steps=2), **dict(square, lora__adapter_for=reader, checkpoint__model="always"))
        step = f.file(f"{reader}/checkpoint/step-2/")
        changed, config, n, _ = opened(f, f.file("drawn/checkpoint"), step, reader)
        check(len(changed) == text["num_hidden_layers"] and n == 4 * len(changed), f"{changed}")
        check(len(config["target_parameters"]) == 2 * len(changed), config)
        adapter = tensors(step + "adapter/adapter_model.safetensors")
        shapes[reader] = {n: a.shape for n, a in adapter.items() if "base_layer" in n}
        check(not any(adapter[n].any() for n in shapes[reader]), "the other's values")
    four, five = shapes.values()
    check(four.keys() == five.keys() and all(four[n] != five[n] for n in four), shapes)


def experts_of_text_only_models_are_linear_maps(f, lora):
    """For either reader. If only gate and up have adapters, down has one of zeros, without which PEFT would fuse
    none for the 5 series."""
    with open(f.file("data/model/config.json"), encoding="utf-8") as file:
        text = json.load(file)["text_config"]
    shutil.copytree(f.file("data/model"), f.file("text"))
    with open(f.file("text/config.json"), "w", encoding="utf-8") as file:
        json.dump(dict(text, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], rope_scaling=None), file)
    with open(f.file("lines.jsonl"), "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": f"the number of this line is {i} " * 30}) + "\n" for i in range(30))
    data = {"data.format": "text", "data.path": f.file("lines.jsonl"), "training.epochs": 1}
    run("record", "-c", f.config, "--steps", "2", "--out", f.file("text.rec"), *options(data))
    rows = {"feed__replay": f.file("text.rec"), "data__format": "text", "training__epochs": 1}
    lora = dict(lora, lora__targets="gate,gate_up_proj", lora__random_base="true", model__path=f.file("text"),
                lora__adapter_for="transformers5", checkpoint__model="always", lora__scaling="rslora")
    go(f, "text-drawn", **rows, **dict(lora, training__steps=1, optimizer__lr=0))
    go(f, "text-run", **rows, **dict(lora, training__steps=2))
    step = f.file("text-run/checkpoint/step-2/")
    before = tensors(f.file("text-drawn/checkpoint/model.safetensors"))
    adapter, merged = tensors(step + "adapter/adapter_model.safetensors"), tensors(step + "model.safetensors")
    changed, added = 0, {}
    for name, value in merged.items():
        more = delta(adapter, name, value.shape, "transformers5", ALPHA / RANK ** 0.5)
        if more is None or "experts" not in name:
            continue
        base, which = before[name], name.split(".")[6]  # model.layers.L.mlp.experts.E.WHICH.weight
        check(numpy.abs(value - base - more).max() <= numpy.abs(value).max() * ROUNDED_TWICE, name)
        added[which] = added.get(which, 0) + numpy.abs(more).max()
        changed += 1
    check(added["gate_proj"] > 0 and added["up_proj"] > 0 and added["down_proj"] == 0, f"{added}")
    trainer("export", "--merge", "--model", step, "--out", f.file("text-merged"))
    check(read(f.file("text-merged/model.safetensors")) == read(step + "model.safetensors"), "merged by the verb")
    check(changed == 3 * text["num_experts"] * text["num_hidden_layers"], f"{changed}")
    with open(step + "adapter/adapter_config.json") as file:
        config = json.load(file)
    check(config["use_rslora"] and config["lora_alpha"] == ALPHA, config)
    check("target_parameters" not in config and 2 * len(config["target_modules"]) == len(adapter), config)


main(adapter_and_model_are_the_merged_model, an_evaluation_is_of_the_run)
