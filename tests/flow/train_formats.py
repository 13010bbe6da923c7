# SPDX-License-Identifier: Apache-2.0
"""Samples of other formats through the trainer: prepd sample, then one forward and backward pass."""

import html.parser
import json
import os
import re
import subprocess
import sys

import numpy as np
from formats import in_data, llava, load, options, write_lines
from prepd_flow import Daemon, Folder, check, main, run, wait_for
from prepd_video import data_set
from train_flow import train, trainer

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def read(path):
    with open(path, "rb") as f:
        return client.tensors(f.read())[0]


def with_weights(f):
    """The folder of a model with its first weights."""
    run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"))
    train(f, "first", feed__replay=f.file("rows.rec"), training__steps=1, optimizer__lr=0,
          training__seq_len=512, checkpoint__enable="true")
    return os.path.join(f.file("first"), "checkpoint")


def probe_row(*args):
    """tests/golden/probe.c: logits, loss and gradients of a row."""
    program = os.path.join(os.path.dirname(os.environ["TESSERA_BIN"]), "tests/probe")
    p = subprocess.run([program, *args], capture_output=True, text=True)
    check(p.returncode == 0, f"probe {args}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout


def probe(f, model, name, index, *args):
    batch, out = f.file(name + ".row"), f.file(name + ".out")
    run("sample", "-c", f.config, "--index", str(index), "--out", batch, "--overwrite", *args)
    said = probe_row("--model", model, "--batch", batch, "--out", out, "--overwrite")
    check(said.startswith(f"weights: {model}\n"), said)
    return read(batch), read(out)


def mean_loss(row, logits):
    """From the logits: the mean over targets, by their weights."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    at = np.flatnonzero(row["labels"] != -100)
    weight = row.get("loss_weight", np.ones(len(row["labels"])))[at]
    return -(weight * x[at - 1, row["labels"][at]]).sum() / weight.sum()


def conversations_reach_the_trainer():
    with Folder(images=32) as f:
        model = with_weights(f)
        (a, qa, aa), (b, qb, ab) = load(f)[0], load(f)[-1]
        check(a != b, "the set has one picture")
        path = write_lines(in_data(f, "two.jsonl"), [
            {"images": [a, b], "messages": [
                {"role": "user", "content": f"<image>{qa} <image>{qb}"},
                {"role": "assistant", "content": f"{aa} {ab}"}]},
            {"image": a, "question": qa, "answer": ["It is ", "I think ", aa]}])
        args = options(data__format="conversations", data__path=path, data__stage_weights="0.25,0,2")
        for index, images in ((0, 2), (1, 1)):
            row, out = probe(f, model, f"row{index}", index, *args)
            check(len(row["grid_thw"]) == images, f"{len(row['grid_thw'])} images")
            check(("loss_weight" in row), "the weights are not sent")
            loss, wanted = float(out["loss"].reshape(-1)[0]), mean_loss(row, out["logits"])
            check(abs(loss - wanted) < 1e-5 * wanted, f"loss {loss}, from the logits {wanted}")


FORMS = {  # {what is asked: the record}; {0} and {1} stand for pictures
    "Which digit stands there?": {"image": "{0}", "conversations": [
        {"from": "human", "value": "<image>\nWhich digit stands there?"}, {"from": "gpt", "value": "one"}]},
    "Which one is below?": {"image": "{0}", "conversations": [
        {"from": "human", "value": "Which one is below?\n<image>"}, {"from": "gpt", "value": "two"}]},
    "Is [picture] above [picture] here?": {"images": ["{0}", "{1}", "{0}"], "messages": [
        {"role": "user", "content": "<image>Is <image>\nabove <image> here?"}, {"role": "assistant", "content": "no"}]},
    "What is seen?": {"image": "{1}", "messages": [
        {"role": "system", "content": "Be short.\nBe right."}, {"role": "user", "content": "<image>What is seen?"},
        {"role": "assistant", "content": "dots"}]},
    "Two and two? In one word.": {"messages": [
        {"role": "system", "content": "Be <b>bold</b>."}, {"role": "user", "content": "Two and two?\n\nIn one word."},
        {"role": "assistant", "content": "four"}]},
    "And without pictures?": {"messages": [
        {"role": "user", "content": "And without pictures?"}, {"role": "assistant", "content": "none"},
        {"role": "user", "content": "A second turn?"}, {"role": "assistant", "content": "yes"}]}}


class Cells(html.parser.HTMLParser):
    """The rows of a page's tables as lists of texts, and its pictures."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.pictures, self.into = [], 0, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
        self.into = tag
        self.pictures += tag == "img"

    def handle_endtag(self, tag):
        self.into = None

    def handle_data(self, data):
        if self.into == "td":
            self.rows[-1][-1] += data


def evaluated(f, model, path, **changed):
    """What an evaluation of this file's samples says."""
    args = options(data__path=path, eval__path=path, **changed)
    with Daemon(f.config, "--shared", *args):
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
        return trainer("eval", "-c", f.config, "--shared", *args, *options(model__path=model, eval__page=f.file("page.html")))


def held_out_questions_are_shown():
    """In every form of a record, in the list and on the page."""
    with Folder(images=32) as f:
        model = with_weights(f)
        pictures = sorted({s[0] for s in load(f)})
        records = [json.loads(json.dumps(r).replace("{0}", pictures[0]).replace("{1}", pictures[1])) for r in FORMS.values()]
        wanted = dict(zip(FORMS, ("one", "two", "no", "dots", "four", "none")), **{"A second turn?": "yes"})
        path = write_lines(in_data(f, "held.jsonl"), records)
        for show in (len(wanted), 3):
            said = evaluated(f, model, path, data__format="conversations", eval__show=show)
            lines = re.findall(r"^  sample \d +(.*?) +answer: (\S+) +model: ", said, re.MULTILINE)
            check(len(lines) == show and set(lines) <= set(wanted.items()), said)
            check("of 7 answers" in said and "of 6 documents have all answers right" in said, said)
            with open(f.file("page.html")) as file:
                text = file.read()
            page = Cells(text)
            rows = [tuple(r) for r in page.rows if r]
            # every answer is judged, and all turns of a document are there as soon as one of them is
            check(all(r[3] in ("right", "wrong", "right so far") and (r[1] == r[2]) <= (r[3] == "right") for r in rows), rows)
            check(dict(r[:2] for r in rows).items() >= dict(lines).items() and len({r[0] for r in rows}) == len(rows), rows)
            check(("A second turn?" in text) == ("And without pictures?" in text), rows)
            check("VQAv2" not in text and f.path not in text, "another data set's name, or a path of this machine")
            if show == len(wanted):
                check({r[:2] for r in rows} == set(wanted.items()) and page.pictures >= 5, f"{rows} {page.pictures}")


def short_rows_are_evaluated():
    """Rows with less room than as many answers as are generated at once, and a row of one token."""
    with Folder(images=16) as f:
        model = with_weights(f)
        for seq_len, text in ((31, "one two three"), (16, "q" * 16)):  # the second text is cut after its 16th token
            path = write_lines(in_data(f, "held.jsonl"), [{"text": text}] * 2)
            said = evaluated(f, model, path, data__format="text", training__seq_len=seq_len)
            check("of 2 answers" in said and said.count("answer: ") == 2, said)


def rows_of(f, *args):
    """The rows of an epoch, through a recording."""
    path = f.file("shared.rec")
    run("record", "-c", f.config, "--steps", "1000", "--out", path, "--overwrite", *options(training__epochs=1), *args)
    return [row for row in client.replay(path) if len(row["input_ids"])]


def save(path, row):
    """Writes a row as a file, as prepd sample does."""
    names = {"int32": "I32", "uint8": "U8", "float32": "F32", "uint64": "U64"}
    header, data = {}, b""
    arrays = (k for k, v in row.items() if hasattr(v, "tobytes"))
    for name in sorted(arrays, key=lambda k: (-row[k].itemsize, k)):
        v = row[name]
        raw = v.tobytes()
        header[name] = {"dtype": names[str(v.dtype)], "shape": list(v.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text + data)
    return path


def unshared(row):
    """The same documents, each with a copy of its pictures."""
    grids, rows, pixels = [], np.full_like(row["visual_row"], -1), []
    first = np.concatenate([[0], np.cumsum(np.prod(row["grid_thw"], axis=1) // 4)])
    done = 0
    for begin, end in zip(row["cu_seqlens"], row["cu_seqlens"][1:]):
        shown = row["visual_row"][begin:end]
        for item in sorted({int(np.searchsorted(first, r, "right")) - 1 for r in shown[shown >= 0]}):
            at = np.flatnonzero((shown >= first[item]) & (shown < first[item + 1])) + begin
            rows[at] = done + np.arange(len(at))
            done += len(at)
            grids.append(row["grid_thw"][item])
            pixels.append(row["pixels"][4 * first[item]:4 * first[item + 1]])
    return dict(row, grid_thw=np.array(grids, np.int32), visual_row=rows, pixels=np.concatenate(pixels))


def shared_images_give_the_same_loss():
    """A picture that is encoded once for all its questions gives the loss of documents with a copy each."""
    with Folder(images=32) as f:
        model = with_weights(f)
        samples = load(f)
        path = write_lines(in_data(f, "l.jsonl"), [llava(*s) for s in samples])
        shared = options(data__group="shared_image")
        for args in (shared, shared + options(data__format="conversations", data__path=path)):
            rows = rows_of(f, *args)
            ids = sorted(int(i) for r in rows for i in r["doc_sample_id"])
            check(ids == list(range(len(samples))), "not every sample came once")
            pictures = {s[0] for s in samples}
            items = sum(len(r["grid_thw"]) for r in rows)
            check(items == len(pictures), f"{items} images are sent, there are {len(pictures)}")
        row = max(rows, key=lambda r: len(r["doc_sample_id"]) - len(r["grid_thw"]))
        check(len(row["doc_sample_id"]) >= 2 * len(row["grid_thw"]), "no picture is shared in any row")
        losses, grads = [], []
        for name, r in (("shared", row), ("apart", unshared(row))):
            out = f.file(name + ".out")
            probe_row("--model", model, "--batch", save(f.file(name + ".row"), r), "--out", out, "--overwrite")
            tensors = read(out)
            losses.append(float(tensors["loss"].reshape(-1)[0]))
            grads.append({k: v for k, v in tensors.items() if k.startswith("grad.")})
        check(abs(losses[0] - losses[1]) < 1e-6 * losses[1], f"losses {losses}")
        for k, v in grads[0].items():
            scale = np.abs(grads[1][k]).max() + 1e-12
            check(np.abs(v - grads[1][k]).max() < 1e-4 * scale, f"{k} differs")


def videos_are_trained():
    """Two steps on clips beside pictures; a clip's gradient reaches the patch embedding."""
    with Folder(images=32) as f:
        path, n, _ = data_set(f, 6)
        args = dict(data__format="video", data__path=path, training__global_batch_size=2)
        with Daemon(f.config, *options(**args)):
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
            train(f, "run", training__steps=2, training__seq_len=512, checkpoint__enable="true", **args)
        with open(os.path.join(f.file("run"), "metrics.jsonl")) as x:
            losses = [json.loads(line)["loss"] for line in x if "loss" in json.loads(line)]
        check(len(losses) == 2 and all(np.isfinite(losses)), f"losses {losses}")
        model = os.path.join(f.file("run"), "checkpoint")
        row, out = probe(f, model, "clip", 0, *options(data__format="video", data__path=path))
        check(len(row["pixels"]) == 0 and len(row["pixels_video"]), "the row has no clip alone")
        loss, wanted = float(out["loss"].reshape(-1)[0]), mean_loss(row, out["logits"])
        check(abs(loss - wanted) < 1e-5 * wanted, f"loss {loss}, from the logits {wanted}")
        grads = {k: v for k, v in out.items() if "patch_embed" in k and k.startswith("grad.")}
        check(grads and all(np.abs(v).max() > 0 for v in grads.values()), f"no gradient: {list(grads)}")


main(held_out_questions_are_shown, short_rows_are_evaluated, videos_are_trained, conversations_reach_the_trainer, shared_images_give_the_same_loss)
