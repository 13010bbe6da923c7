# SPDX-License-Identifier: Apache-2.0
"""Videos, as files and as folders of frames, beside pictures: every record comes once, resumed, with any number of
workers; frames and times are those of transformers; bad files are named and nothing else is lost."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
from formats import fingerprint, in_data, llava, load, options, stream_of, write_array, write_lines
from prepd_flow import BIN, Daemon, Folder, check, digest, main, run, wait_for, workers_below

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

WRITE = os.path.join(os.path.dirname(BIN), "..", "tests", "write_video")
VIDEO_PAD = "<|video_pad|>"


def write_video(path, encoder="mpeg4", width=96, height=64, frames=30, rate="24", seed=5):
    p = subprocess.run([WRITE, path, encoder, str(width), str(height), str(frames), rate, str(seed)])
    check(p.returncode in (0, 77), f"write_video: {p.returncode}")
    return p.returncode == 0


def clip(video, question, answer, **more):
    part = dict({"type": "video", "video": video}, **more)
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": question}]},
                         {"role": "assistant", "content": answer}]}


def frames_folder(f, name, n=5):
    os.makedirs(in_data(f, name))
    sizes = {}
    for path in f.train_images():
        with open(path, "rb") as x:  # to find frames of one size by their headers
            data = x.read()
        at = data.index(b"\xff\xc0")
        sizes.setdefault(data[at + 5:at + 9], []).append(path)
    same = max(sizes.values(), key=len)
    for k in range(n):
        shutil.copy(same[k % len(same)], in_data(f, f"{name}/frame_{k}.jpg"))  # frame_10 comes after frame_9
    with open(in_data(f, f"{name}/readme.txt"), "w") as x:
        x.write("no frame")
    return name


def data_set(f, n=12):
    """Writes records of clips and pictures; returns their number."""
    made = [name for k in range(n) for name in [f"clips/{k}.{'mkv' if k % 3 else 'avi'}"]
            if os.makedirs(in_data(f, "clips"), exist_ok=True) or
            write_video(in_data(f, name), width=64 + 32 * (k % 3), frames=10 + 7 * k, seed=3 + k)]
    check(len(made) == n, "FFmpeg's own encoder is there")
    pictures = load(f)
    records = [clip(v, pictures[k][1], pictures[k][2]) for k, v in enumerate(made)]
    records.append(clip(frames_folder(f, "dump", 12), "What?", "red", fps=4))
    records.append({"image": pictures[0][0], "video": made[0], "conversations": [
        {"from": "human", "value": "<video>First <image>" + pictures[0][1]},
        {"from": "gpt", "value": pictures[0][2]}]})
    records += [llava(*s) for s in pictures[:10]]
    return write_lines(in_data(f, "v.jsonl"), records), len(records), made


def form(path, **more):
    return options(**dict(dict(data__format="video", data__path=path, training__epochs=1), **more))


def texts_of(f, row):
    """Turns the ids back into text, by the tokenizer's own table."""
    with open(f.file("data/model/tokenizer.json")) as x:
        t = json.load(x)
    names = {i: s for s, i in t["model"]["vocab"].items()}
    names.update({a["id"]: a["content"] for a in t["added_tokens"]})
    return "".join(names[int(i)] for i in row["input_ids"]).replace("\u0120", " ").replace("\u010a", "\n")


def every_record_once_resumed_any_workers():
    with Folder(images=32) as f:
        path, n, _ = data_set(f)
        args = form(path)
        whole = stream_of(f, args)
        check(sorted(int(i) for r in whole for i in r["doc_sample_id"]) == list(range(n)), "not every record came once")
        check(sum(len(r["grid_thw"]) for r in whole) == n + 1, "items")
        check(any("pixels_video" in r and len(r["pixels"]) for r in whole), "no row has both")
        stop = len(whole) // 2
        rest = stream_of(f, args, cursor=json.loads(whole[stop - 1]["cursor"]))
        check([fingerprint(r) for r in rest] == [fingerprint(r) for r in whole[stop:]], "resumed, the stream differs")
        check(len({digest(f.config, "--steps", "4", *args, "--prepd.workers", str(w)) for w in (1, 2, 7)}) == 1,
              "the number of workers changes the stream")
        one = digest(f.config, "--steps", "4", *args)
        for more in (dict(video__fps=4), dict(video__max_frames=6), dict(video__max_pixels=20000)):
            check(digest(f.config, "--steps", "4", *form(path, **more)) != one, f"{more} does not change the stream")


def sample(f, path, index, **more):
    out = f.file(f"{index}.row")
    run("sample", "-c", f.config, "--index", str(index), "--out", out, "--overwrite", *form(path, **more))
    with open(out, "rb") as x:
        return client.tensors(x.read())[0]


def frames_and_times_as_specified():
    """Of 48 frames of 64 x 64 at 24 a second, four frames are taken in two pairs, at 0.3 and 1.6 seconds."""
    with Folder(images=16) as f:
        check(write_video(in_data(f, "a.avi"), width=64, frames=48), "encoder")
        frames_folder(f, "dump", 11)
        path = write_array(in_data(f, "v.json"), [clip("a.avi", "What?", "red"),
                                                  clip("dump", "What?", "red", sample_fps="2")])
        # The folder's processor has smaller limits than the published one, whose limits are set here.
        with open(f.file("data/model/video_preprocessor_config.json"), "r+", encoding="utf-8") as x:
            limits = json.load(x)
            limits["size"]["shortest_edge"] = 4096
            x.seek(0)
            json.dump(limits, x)
            x.truncate()
        row = sample(f, path, 0, video__max_pixels=25165824)
        check(row["grid_thw"].tolist() == [[2, 4, 4]], row["grid_thw"].tolist())
        pads = "<|vision_start|>" + VIDEO_PAD * 4 + "<|vision_end|>"
        want = f"user\n<0.3 seconds>{pads}<1.6 seconds>{pads}What?"
        check(want in texts_of(f, row), texts_of(f, row))
        check(row["pixels_video"].shape == (32, 1536) and len(row["pixels"]) == 0, row["pixels_video"].shape)
        pairs = row["pixels_video"].reshape(32, 3, 2, 256)
        check((pairs[:, :, 0] != pairs[:, :, 1]).any(), "both frames of a pair are the same")
        later = sample(f, path, 0, video__max_pixels=25165824, video__prompt="5.23")
        want = f"user\n<|vision_start|><0.3 seconds>{pads}<1.6 seconds>{pads}<|vision_end|>What?"
        check(want in texts_of(f, later), texts_of(f, later))
        check(len(later["input_ids"]) == len(row["input_ids"]) + 2 and
              (later["pixels_video"] == row["pixels_video"]).all(), "more than the text differs")
        row = sample(f, path, 1)  # 11 frames at 2 per second: all are taken, and the last one twice
        check(row["grid_thw"][0][0] == 6, row["grid_thw"].tolist())
        for k in range(6):
            at = (4 * k + 1) / 4 if k < 5 else 5.0
            check(f"<{at:.1f} seconds>" in texts_of(f, row), (k, texts_of(f, row)))
        patches = np.prod(row["grid_thw"][0][1:])
        last = row["pixels_video"][5 * patches:].reshape(patches, 3, 2, 256)
        check((last[:, :, 0] == last[:, :, 1]).all(), "the last frame is not its own partner")


def a_clip_beyond_its_row():
    with Folder(images=16) as f:
        check(write_video(in_data(f, "a.avi"), width=448, height=320, frames=100), "encoder")
        path = write_array(in_data(f, "v.json"), [clip("a.avi", "What?", "red")])
        wide = dict(video__max_pixels=25165824)
        row = sample(f, path, 0, **wide)
        check(row["grid_thw"][0][0] == 4 and 300 < len(row["input_ids"]) <= 512, "the clip is not shrunk to fit its row")
        said = run("check", "-c", f.config, *form(path, data__oversize="refuse", **wide), code=65)
        check("data.oversize: refuse" in said, said)
        said = run("check", "-c", f.config, *form(path, video__fps=24, training__seq_len=256), code=65)
        check("video.max_frames" in said, said)


def every_clip_has_a_hash():
    with Folder(images=32) as f:
        path, _, clips = data_set(f, 2)
        said = run("check", "-c", f.config, *form(path), "--hash")
        check("hash\t-" not in said and "could not be" not in said, said)


def bad_videos_are_named():
    with Folder(images=16) as f:
        picture = load(f)[0]
        for name in ("good.avi", "cut.avi", "late.mkv", "noise.mkv"):
            check(write_video(in_data(f, name)), "encoder")
        with open(in_data(f, "cut.avi"), "r+b") as x:
            x.truncate(os.path.getsize(in_data(f, "cut.avi")) * 2 // 3)
        with open(in_data(f, "noise.mkv"), "r+b") as x:
            x.seek(900)
            x.write(os.urandom(400))
        with open(in_data(f, "list.mp4"), "w") as x:
            x.write("ffconcat version 1.0\nfile /etc/hostname\n")
        os.makedirs(in_data(f, "empty"))
        frames_folder(f, "dump")
        records = [clip("good.avi", "a", "b"), clip("cut.avi", "a", "b"), clip("list.mp4", "a", "b"),
                   clip(picture[0], "a", "b"), clip("absent.mp4", "a", "b"), clip("empty", "a", "b", fps=1),
                   clip("dump", "a", "b"), clip("good.avi", "a", "b", fps=2),
                   clip(["dump/frame_0.jpg"], "a", "b"), llava(*picture), clip("noise.mkv", "a", "b"),
                   llava("good.avi", "q", "a")]
        path = write_lines(in_data(f, "bad.jsonl"), records)
        said = run("check", "-c", f.config, *form(path), code=65)
        lines = {int(x.split("\t")[0]): x for x in said.splitlines() if x.count("\t") >= 3}
        for at, words in ((1, "cut.avi"), (2, "no video"), (3, "no video"), (4, "No such file"),
                          (5, "holds 0 pictures"), (6, '"fps"'), (7, "is a file and has an \"fps\""), (8, "found a"),
                          (9, "shown elsewhere"), (10, "noise.mkv"), (11, "shown elsewhere")):
            check(words in lines.get(at, ""), f"record {at} does not say {words!r}:\n{said}")
        check(0 not in lines, said)
        # A video that is whole when it is indexed but not when it is decoded costs only its own sample.
        path = write_lines(in_data(f, "late.jsonl"), [clip("good.avi", "a", "b"), clip("late.mkv", "a", "b")])
        args = form(path, training__global_batch_size=1, data__pack="false")
        first = stream_of(f, args)
        index = [x for x in os.listdir(in_data(f, ".tessera")) if x.endswith(".tsx")]
        check(index, "no index was kept")
        times = os.stat(in_data(f, "late.mkv"))
        with open(in_data(f, "late.mkv"), "r+b") as x:
            x.seek(times.st_size // 2)
            x.write(b"\0" * (times.st_size - times.st_size // 2))
        os.utime(in_data(f, "late.mkv"), ns=(times.st_atime_ns, times.st_mtime_ns))
        rows = {int(r["doc_sample_id"][0]): r for r in stream_of(f, args)}
        check(json.loads(rows[1].get("quarantine") or "[]"), "the damaged sample is not in quarantine")
        check(not rows[1]["pixels_video"].any() and (rows[1]["labels"] == -100).all(), "it is trained")
        good = [r for r in first if int(r["doc_sample_id"][0]) == 0][0]
        check(fingerprint(rows[0]) == fingerprint(good), "the good sample changed")


def one_that_is_too_large_is_known_by_its_size():
    """Its reader is not mistaken for one that has another file, and the next start knows it again."""
    with Folder(images=16) as f:
        for name, frames in (("small.avi", 10), ("large.avi", 120)):
            check(write_video(in_data(f, name), frames=frames), "encoder")
        limit = os.path.getsize(in_data(f, "small.avi"))
        path = write_lines(in_data(f, "sizes.jsonl"), [clip("small.avi", "a", "b"), clip("large.avi", "a", "b")])
        args = form(path, prepd__workers=-1, video__file_bytes=limit)
        for word in ("index built", "index loaded"):
            with Daemon(f.config, *args) as d:
                wait_for(lambda: os.path.exists(f.file("d.sock.workers")), "the daemon")
                p = subprocess.Popen([BIN, "worker", "--connect", "ipc://" + f.file("d.sock.workers"), "--data-root", f.file("data")])
                try:
                    rows = list(client.connect("ipc://" + f.file("d.sock"), timeout=60.0))
                    check([int(i) for r in rows for i in r["doc_sample_id"]] == [0], "not the small one alone")
                    check(p.poll() is None and word in d.said() and "stale" not in d.said(), d.said())
                finally:
                    p.kill()
                    p.wait()


def beside_pictures_in_a_mixture():
    with Folder(images=32) as f:
        path, n, _ = data_set(f)
        with open(f.file("mix.yaml"), "w") as x:
            x.write(f"clips:\n  format: video\n  path: {path}\n  weight: 1\n"
                    "vqa:\n  format: vqav2\n  path: data\n  weight: 3\n")
        args = options(data__format="mixture", data__path=f.file("mix.yaml"), training__epochs=2)
        rows = stream_of(f, args)
        ids = [int(i) for r in rows for i in r["doc_sample_id"]]
        check(0.2 < sum(i < n for i in ids) / len(ids) < 0.3, "a quarter are records with clips")
        check(len({digest(f.config, "--steps", "5", *args, "--prepd.workers", str(w)) for w in (1, 3)}) == 1,
              "the number of workers changes the stream")


def held_out_videos_alone():
    """The workers that have begun without FFmpeg learn that they need it."""
    with Folder(images=32) as f:
        path, n, _ = data_set(f)
        pictures = write_lines(in_data(f, "p.jsonl"), [llava(*s) for s in load(f)[:40]])
        with Daemon(f.config, *form(pictures, eval__path=path)) as d:
            wait_for(lambda: os.path.exists(f.file("d.sock")), "the daemon")
            first = [fingerprint(r) for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0)]
            check([w for w in workers_below(d.p.pid) if mapped(w)] == [], "FFmpeg without videos")
            held_out = list(client.connect("ipc://" + f.file("d.sock"), stream="eval", timeout=60.0))
            check(sorted(int(i) for r in held_out for i in r["doc_sample_id"]) == list(range(n)), "not every record came once")
            check(any("pixels_video" in r for r in held_out), "no videos")
            again = [fingerprint(r) for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0)]
            check(again == first, "the train stream changed")
            # A worker that had no work meanwhile is replaced when it asks for some.
            wait_for(lambda: all(mapped(w) for w in workers_below(d.p.pid)), "workers still without the video decoder")


def mapped(pid):
    with open(f"/proc/{pid}/maps") as m:
        return "libavcodec" in m.read()


if __name__ == "__main__":
    main(every_record_once_resumed_any_workers, frames_and_times_as_specified, a_clip_beyond_its_row,
         bad_videos_are_named, one_that_is_too_large_is_known_by_its_size, every_clip_has_a_hash, beside_pictures_in_a_mixture, held_out_videos_alone)
