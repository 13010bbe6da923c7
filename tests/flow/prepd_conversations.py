# SPDX-License-Identifier: Apache-2.0
"""Conversation files: the same rows as the VQAv2 files from which they were written, every record of a stream once,
several images, bad records named."""

import contextlib
import fcntl
import gzip
import json
import os
import subprocess
import sys

import zstandard
from formats import (fingerprint, in_data, llava, load, messages, options, stream_of, write_array,
                     write_lines)
from prepd_flow import BIN, Daemon, Folder, check, digest, main, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def form(path, **more):
    return options(data__format="conversations", data__path=path, **more)


def same_rows_as_vqav2():
    """A question with its picture is the same document whichever kind of file it is in."""
    with Folder() as f:
        samples = load(f)
        wanted = digest(f.config, "--steps", "8")
        for path in (write_array(in_data(f, "a.json"), [llava(*s) for s in samples]),
                     write_lines(in_data(f, "b.jsonl"), [messages(*s) for s in samples])):
            check(digest(f.config, "--steps", "8", *form(path)) == wanted, f"{path}: other rows")
        with open(in_data(f, "a.json"), "rb") as x:
            array = x.read()
        for name, data in (("m.json", b"\xef\xbb\xbf \n" + array), ("z.json.gz", gzip.compress(array)),
                           ("z.json.zst", zstandard.compress(array)), ("mz.json.gz", gzip.compress(b"\xef\xbb\xbf" + array))):
            with open(in_data(f, name), "wb") as x:
                x.write(data)
            check(f"checked {len(samples)} samples, 0 bad" in run("check", "-c", f.config, *form(x.name)), name)
            if name == "m.json":
                check(digest(f.config, "--steps", "8", *form(x.name)) == wanted, f"{name}: other rows")
            rows = stream_of(f, form(x.name, training__epochs=1))
            check(sorted(i for r in rows for i in r["doc_sample_id"]) == list(range(len(samples))), f"{name}: not every record came")
        moved = write_lines(f.file("c.jsonl"), [llava(*s) for s in samples])
        got = digest(f.config, "--steps", "8", *form(moved, data__images=f.file("data")))
        check(got == wanted, "data.images: other rows")


def a_missing_folder_of_pictures_is_one_error():
    """With its name, by every verb; in a mixture too. A file is no folder."""
    with Folder() as f:
        samples = load(f)
        talks = write_lines(in_data(f, "a.jsonl"), [llava(*s) for s in samples])
        mixture = f.file("mix.yaml")
        with open(mixture, "w") as x:
            x.write(f"talks:\n  format: conversations\n  path: {talks}\n  images: {f.file('nowhere')}\n")
        for verb, path, words in (("check", f.file("nowhere"), form(talks, data__images=f.file("nowhere"))), ("serve", talks, form(talks, data__images=talks)),
                                  ("check", f.file("nowhere"), options(data__format="mixture", data__path=mixture))):
            said = run(verb, "-c", f.config, *words, code=66).splitlines()
            check(len(said) == 1 and f"{path}: " in said[0] and "there is no such folder; data.images" in said[0], said)


def several_images(samples):
    """Two pictures, two questions, a system turn; every fifth sample has no picture at all."""
    out = []
    for k in range(0, len(samples) - 1, 2):
        (a, qa, aa), (b, qb, ab) = samples[k], samples[k + 1]
        if k % 10 == 0:
            out.append({"messages": [{"role": "user", "content": qa},
                                     {"role": "assistant", "content": aa}]})
            continue
        out.append({"images": [a, b], "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": f"<image><image>First: {qa}"},
            {"role": "assistant", "content": aa},
            {"role": "user", "content": f"Second: {qb}"},
            {"role": "assistant", "content": ab}]})
    return out


def every_record_once_and_resumed():
    with Folder(images=64) as f:
        records = several_images(load(f))
        args = form(write_lines(in_data(f, "multi.jsonl"), records), training__epochs=1)
        whole = stream_of(f, args)
        ids = [i for r in whole for i in r["doc_sample_id"]]
        check(sorted(ids) == list(range(len(records))), "not every record came once")
        items = sum(len(r["grid_thw"]) for r in whole)
        check(items == sum(len(r.get("images", [])) for r in records), f"{items} images")
        first = stream_of(f, args, 3)
        rest = stream_of(f, args, cursor=json.loads(first[-1]["cursor"]))
        check([fingerprint(r) for r in first + rest] == [fingerprint(r) for r in whole],
              "stopped and resumed, the stream differs")
        check(len({digest(f.config, "--steps", "3", *args, "--prepd.workers", str(w))
                   for w in (1, 3)}) == 1, "the number of workers changes the stream")


def a_template_of_another_model():
    """It is refused before anything is read, and accepted by the option that says so; the rows are those without it."""
    with Folder(images=16) as f:
        path = write_lines(in_data(f, "a.jsonl"), [llava(*s) for s in load(f)])
        wanted = digest(f.config, "--steps", "2", *form(path))
        template = f.file("data/model/chat_template.jinja")
        with open(template, "w") as x:
            x.write("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
        said = run("digest", "-c", f.config, "--steps", "2", *form(path), code=78)
        for word in (template, "does not know this chat template", "Qwen3-VL Instruct", "model.chat_template"):
            check(word in said, f"{word!r} is not in:\n{said}")
        taken = subprocess.run([BIN, "digest", "-c", f.config, "--steps", "2",
                                *form(path, model__chat_template="instruct")], capture_output=True, text=True)
        check(taken.stdout.strip() == wanted, f"other rows: {taken.stdout}{taken.stderr}")
        check(f"{template} is not used" in taken.stderr, f"the template is not mentioned: {taken.stderr}")


def weights_of_stages():
    with Folder(images=32) as f:
        image = load(f)[0][0]
        record = {"image": image, "question": "What?", "answer": ["I look. ", "I think. ", "So."]}
        args = form(write_lines(in_data(f, "s.jsonl"), [record]), training__epochs=1,
                    data__stage_weights="0.25,0,2", training__global_batch_size=1)
        row, = stream_of(f, args)
        weights = row["loss_weight"][row["labels"] != -100]
        check(sorted(set(weights.tolist())) == [0.25, 2.0], f"weights {weights}")
        check(weights[-1] == 2.0, "the end token has the last stage's weight")
        plain = stream_of(f, args[:4] + options(training__epochs=1, training__global_batch_size=1))[0]
        check("loss_weight" not in plain, "weights of 1 are sent")
        check((plain["labels"] != -100).sum() > (row["labels"] != -100).sum(), "weight 0 is trained")


def bad_records_are_named():
    with Folder(images=32) as f:
        good = [llava(*s) for s in load(f)[:4]]
        lines = good[:2] + ['{"image": "x.jpg", }', llava("images/absent.jpg", "q", "a"),
                            llava(good[0]["image"], "q", "a", mark=""),
                            dict(good[0], conversations=[{"from": "human", "value": "<image>"}])]
        path = write_lines(in_data(f, "bad.jsonl"), lines + good[2:])
        said = run("check", "-c", f.config, *form(path), code=65)
        for word in ("bad.jsonl:3: not JSON", "column", "images/absent.jpg", "show 0 images",
                     "no token to train", "checked 8 samples, 4 bad"):
            check(word in said, f"{word!r} is not in:\n{said}")
        array = write_array(in_data(f, "bad.json"), good)
        with open(array, "r+") as x:
            text = x.read()
            x.seek(0)
            x.write(text[:-2] + ",\n]")
        said = run("check", "-c", f.config, *form(array), code=65)
        check("bad.json:" in said and "column" in said, said)


def a_file_is_not_held_out_from_itself():
    with Folder(images=16) as f:
        path = write_lines(in_data(f, "a.jsonl"), [llava(*s) for s in load(f)])
        for more, ok in (((), False), (options(eval__path=path), True)):
            with Daemon(f.config, *form(path), *more):
                wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
                try:
                    next(client.connect("ipc://" + f.file("d.sock"), stream="eval", timeout=60.0))
                    check(ok, "the training file was taken as held out")
                except RuntimeError as refused:
                    check(not ok and "eval.path" in str(refused), str(refused))


def parsed_by_one_while_others_wait():
    """A daemon that comes while another parses a large file takes what that one keeps, or parses it where that one died."""
    with Folder(images=16) as f:
        samples, cache = load(f), f.file("cache")
        args = form(write_lines(in_data(f, "large.jsonl"), [dict(llava(*s), filler=" " * (1 << 20)) for s in samples[:9]]),
                    prepd__cache_dir=cache)
        os.mkdir(cache)

        def serving(d):
            wait_for(lambda: os.path.exists(f.file("d.sock.control")), "the daemon serves")
            return d.said()

        with Daemon(f.config, *args) as d:
            check("from the last start" not in serving(d), d.said())
        kept, = (os.path.join(cache, name) for name in os.listdir(cache) if name.startswith("chats-"))
        for made in (True, False):
            os.rename(kept, kept + ".made")
            with open(kept + ".lock", "w") as lock, contextlib.ExitStack() as all_:
                fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write("pid 7 elsewhere")
                lock.flush()
                d = all_.enter_context(Daemon(f.config, *args))
                wait_for(lambda: "pid 7 elsewhere is parsing the data; waiting until it is done" in d.said(), d.said())
                check(not os.path.exists(f.file("d.sock")), "it did not wait")
                if made:
                    os.rename(kept + ".made", kept)
                lock.close()  # as the kernel does if the holder dies
                check(("from the last start" in serving(d)) == made, d.said())
                check(os.path.exists(kept) and not os.path.exists(kept + ".lock"), os.listdir(cache))


def shared_records():
    """Real records whose pictures are beside them: messages with several images, and LLaVA's form with PNGs."""
    shared = os.environ.get("TESSERA_SHARED") or os.path.join(os.environ.get("TESSERA_SOURCE", "."), "..", "shared")
    here = os.path.abspath(os.path.join(shared, "data/text/llava"))
    if not os.path.isdir(here):
        print("skipped: no shared records")
        return
    with Folder(images=16, **{"training.seq_len": 8192}) as f:
        for name, n in (("llama-factory/mllm_demo.json", 6), ("qwen3vl-finetune/single_images.json", 3)):
            said = run("check", "-c", f.config, *form(os.path.join(here, name), prepd__cache_dir=f.file("cache")))
            check(f"checked {n} samples, 0 bad" in said, f"{name}: {said}")


main(same_rows_as_vqav2, a_missing_folder_of_pictures_is_one_error,
     every_record_once_and_resumed, a_template_of_another_model, weights_of_stages, bad_records_are_named,
     parsed_by_one_while_others_wait, a_file_is_not_held_out_from_itself, shared_records)
