# SPDX-License-Identifier: Apache-2.0
"""Samples that share a prefix (data.group shared_prefix): every sample comes once and has the tokens, labels, positions
and pixels that it has alone; who makes the rows, who dies, and where a consumer resumes change nothing; a bad picture
costs its questions, a bad question itself; a consumer that does not know prefixes is refused by name."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import numpy as np

from families import write_families
from formats import in_data, options, write_lines
from faults import trap
from prepd_flow import BIN, SOURCE, Daemon, Folder, check, digest, free_ports, main, run, wait_for, workers_below
from prepd_video import clip, write_video

sys.path.insert(0, os.path.join(SOURCE, "proto", "python"))
from tessera import client, daemon_session  # noqa: E402

PREFIX = {"data.group": "shared_prefix", "training.epochs": 1, "training.seq_len": 128}
KNOWN = "the run knew it to be bad"
NEEDS = "must say"


def rows_of(f, prefixes=True, **values):
    return client.connect("ipc://" + f.file("d.sock"), timeout=60.0, prefixes=prefixes, **values)


def up(f):
    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")


def items_of(row):
    """The pixels of each item of a row, in order. The larger of two ids of visual tokens is that of clips."""
    visual = row["visual_row"]
    place = {merged: token for token, merged in reversed(list(enumerate(visual.tolist())))}
    ids, found, at, merged = row["input_ids"], [], {False: 0, True: 0}, 0
    both = "pixels_video" in row and len(row["pixels"]) > 0
    clip = ids[visual >= 0].max(initial=0)
    for n in row["grid_thw"].prod(axis=1, dtype=np.int64).tolist():
        moving = "pixels_video" in row and (not both or ids[place[merged]] == clip)
        found.append(row["pixels_video" if moving else "pixels"][at[moving]:at[moving] + n])
        at[moving] += n
        merged += n // 4
    return found


def samples_of(row):
    """The samples of a row as each is alone: (id, part) and ids, labels, positions, places of its visual tokens, the
    digests of the pictures that it shows in order, and weights. A branch is put together with its prefix."""
    borders, prefix = row["cu_seqlens"], row.get("doc_prefix")
    first = np.cumsum(np.r_[0, row["grid_thw"].prod(axis=1, dtype=np.int64) // 4])[:-1]
    items = items_of(row)
    for doc, (number, part) in enumerate(zip(row["doc_sample_id"].tolist(), row["doc_part"].tolist())):
        if part < 0:
            continue
        at = np.arange(borders[doc], borders[doc + 1])
        if prefix is not None and prefix[doc] >= 0:
            at = np.r_[np.arange(borders[prefix[doc]], borders[prefix[doc] + 1]), at]
        visual = row["visual_row"][at]
        shown = [hash(items[i].tobytes()) for i in np.flatnonzero(np.isin(first, visual))]
        yield (number, part), (row["input_ids"][at].tolist(), row["labels"][at].tolist(), row["position_ids"][:, at].tolist(),
                               (visual >= 0).tolist(), shown, row.get("loss_weight", np.ones(borders[-1]))[at].tolist())


def epoch(f, *args, **values):
    """All samples of an epoch by (id, part), and its rows."""
    with Daemon(f.config, *args):
        up(f)
        rows = list(rows_of(f, **values))
    found = [pair for row in rows for pair in samples_of(row)]
    check(len(dict(found)) == len(found), "a sample came twice")
    return dict(found), rows


def prefixes_of(rows):
    return sum(int((row["doc_part"] < 0).sum()) for row in rows)


def compare(f, *args):
    """Every sample under shared_prefix with the same sample under none; returns both streams' rows."""
    alone, apart = epoch(f, *args, "--data.group", "none")
    shared, rows = epoch(f, *args)
    check(set(shared) == set(alone) and len(alone) > 30, f"{len(shared)} of {len(alone)} samples")
    for key, one in alone.items():
        for k, what in enumerate(("ids", "labels", "positions", "visual tokens", "pictures", "weights")):
            check(shared[key][k] == one[k], f"sample {key}: {what}\n{one[k]}\n{shared[key][k]}")
    return apart, rows


def every_sample_is_what_it_is_alone():
    with Folder(images=24, **PREFIX) as f:
        apart, rows = compare(f)
        tokens = [sum(len(row["input_ids"]) for row in of) for of in (apart, rows)]
        check(prefixes_of(rows) > 6 and tokens[1] < 0.9 * tokens[0], f"{prefixes_of(rows)} prefixes, {tokens} tokens")
        # one question is that sample alone
        for index in (0, 1, 2):
            got = []
            for group in ("none", "shared_prefix"):
                run("sample", "-c", f.config, "--data.group", group, "--index", str(index), "--out", f.file(group), "--overwrite")
                with open(f.file(group), "rb") as x:
                    got.append(client.tensors(x.read())[0])
            check(set(got[0]) == set(got[1]) and all(np.array_equal(got[0][k], got[1][k]) for k in got[0]), f"sample {index}")


def pictures_clips_and_texts_are_shared():
    """Several pictures, a clip, and texts without pictures; weights of the loss; and single samples between them."""
    with Folder(images=24, **dict(PREFIX, **{"training.seq_len": 256})) as f:
        args, n = write_families(f)
        _, rows = compare(f, *args)
        shares = {}
        for row in rows:
            for doc in np.flatnonzero(row["doc_part"] < 0):
                items = np.unique(np.searchsorted(np.cumsum(row["grid_thw"].prod(axis=1) // 4), row["visual_row"][
                    row["cu_seqlens"][doc]:row["cu_seqlens"][doc + 1]], side="right")[
                        row["visual_row"][row["cu_seqlens"][doc]:row["cu_seqlens"][doc + 1]] >= 0]).tolist()
                kind = "text" if not items else "two" if len(items) > 1 else "clip" if row["grid_thw"][items[0]][0] > 1 else "one"
                shares[kind] = shares.get(kind, 0) + int((row["doc_prefix"] == doc).sum())
        check(shares["one"] >= 8 and shares["two"] == 5 and shares["clip"] == 3 and shares["text"] >= 8, f"{shares} of {n}")
        check(digest(f.config, *args, "--steps", "2", "--prepd.workers", "1") == digest(f.config, *args, "--steps", "2"), "workers")


def sources_of_a_mixture_share_within_themselves():
    with Folder(images=16, **dict(PREFIX, **{"training.seq_len": 256})) as f:
        args, _ = write_families(f)
        write_lines(in_data(f, "text.jsonl"), [{"text": "the same words at first " * 20 + str(k)} for k in range(6)])
        with open(f.file("mix.yaml"), "w") as x:
            x.write("vqa:\n  path: data\n  format: vqav2\n"
                    "clips:\n  path: data/families.jsonl\n  format: video\n\n"
                    "text:\n  path: data/text.jsonl\n  format: text\n")
        mixture = options(data__format="mixture", data__path=f.file("mix.yaml"), data__prefix_min_tokens=16)
        _, rows = compare(f, *mixture)
        check(prefixes_of(rows) > 10, f"{prefixes_of(rows)} prefixes")


def who_makes_the_rows_changes_nothing():
    """One worker or three, workers that are killed, and workers that are sent the files."""
    with Folder(images=48, **PREFIX) as f:
        one = digest(f.config, "--steps", "5", "--prepd.workers", "1")
        check(one == digest(f.config, "--steps", "5", "--prepd.workers", "3"), "the number of workers changes the stream")
        with Daemon(f.config) as d:
            up(f)
            chain, n = [], 0
            for row in rows_of(f, credit_bytes=1 << 20):
                chain.append(client.digest_of(row))
                for pid in workers_below(d.p.pid)[:1] if n % 3 == 0 else []:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                n += 1
        with Daemon(f.config):
            up(f)
            check([client.digest_of(row) for row in rows_of(f)] == chain and n >= 8, f"deaths change {n} rows")
        port = free_ports()
        endpoint = f"tcp://127.0.0.1:{port}"
        with Daemon(f.config, "--prepd.endpoint", endpoint, "--prepd.workers", "0", "--data.ship", "true"):
            far = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{port + 1}"])
            try:
                remote = [client.digest_of(row) for row in client.connect(endpoint, timeout=60.0, prefixes=True)]
            finally:
                far.terminate()
                far.wait(60)
        check(remote == chain, "workers elsewhere make other rows")


def a_consumer_resumes_and_ranks_change():
    with Folder(images=48, **PREFIX) as f, Daemon(f.config):
        up(f)
        whole = [(row["number"], client.digest_of(row)) for row in rows_of(f)]
        got, cursor = [], None
        for row in rows_of(f):
            got.append((row["number"], client.digest_of(row)))
            cursor = row["cursor"]
            if len(got) == 3:
                break
        got += [(row["number"], client.digest_of(row)) for row in rows_of(f, cursor=cursor)]
        check(got == whole, "a resumed stream differs")
        two, last = [], []
        for rank in (0, 1):  # four rows of the first step, between two ranks
            for k, row in enumerate(rows_of(f, rank=rank, ranks=2)):
                two.append((row["number"], client.digest_of(row)))
                if k == 1:
                    last.append(row["cursor"])
                    break
        check(sorted(two) == whole[:4], f"two ranks got {[n for n, _ in two]}")
        for cursor in last:
            check([(row["number"], client.digest_of(row)) for row in rows_of(f, cursor=cursor)] == whole[4:], "after two ranks")


def refused(rows, *words):
    try:
        next(iter(rows))
    except (RuntimeError, ValueError) as why:
        check(all(word in str(why) for word in words), f"refused as: {why}")
        return
    check(False, "a consumer that does not know prefixes was given them")


def old_consumers_are_refused_and_recordings_play():
    with Folder(images=24, **PREFIX) as f:
        run("record", "-c", f.config, "--steps", "2", "--out", f.file("rows.rec"))
        recorded = list(client.replay(f.file("rows.rec"), prefixes=True))
        check(prefixes_of(recorded) > 4, "there are no prefixes to play")
        refused(client.replay(f.file("rows.rec")), "rows.rec", "prefixes=True")
        chain = [client.digest_of(row) for row in recorded]
        with Daemon(f.config):
            up(f)
            refused(rows_of(f, prefixes=False), "data.group shared_prefix", NEEDS, "prefixes=True")
            newest, daemon_session.SESSION_VERSION = daemon_session.SESSION_VERSION, 1
            try:
                refused(rows_of(f, prefixes=False), "needs version 3", "has protocol version 1")
                daemon_session.SESSION_VERSION = 4
                refused(rows_of(f), "needs version 3", "needs a daemon with protocol version 4")
            finally:
                daemon_session.SESSION_VERSION = newest
            rows = rows_of(f)
            check([client.digest_of(next(rows)) for _ in chain] == chain, "other rows")
            rows.close()
            taken = []
            for rank in (0, 1):
                rows = rows_of(f, rank=rank, ranks=2)
                taken += [next(rows)["number"] for _ in range(len(chain) // 2)]
                rows.close()
        check(sorted(taken) == list(range(len(chain))), f"two ranks do not share the rows out: {taken}")


def blank(row, number):
    """Of a branch in a row: whether it has no labels, and whether its pictures are zeros."""
    doc = [i for i, (n, part) in enumerate(zip(row["doc_sample_id"], row["doc_part"])) if n == number and part >= 0][0]
    borders = row["cu_seqlens"]
    labels = row["labels"][borders[doc]:borders[doc + 1]]
    shows = row["doc_prefix"][doc] if "doc_prefix" in row and row["doc_prefix"][doc] >= 0 else doc
    visual = row["visual_row"][borders[shows]:borders[shows + 1]]
    pixels = row["pixels"].reshape(-1, 4 * 768)[visual[visual >= 0]]
    return bool((labels == -100).all()), not pixels.any()


def bad(rows):
    """{bad sample: (no labels, no picture)} of all rows, and how many samples there are."""
    found = {}
    for row in rows:
        for entry in json.loads(row["quarantine"]):
            found[entry["id"]] = (*blank(row, entry["id"]), entry["cause"])
    return found, [key[0] for row in rows for key, _ in samples_of(row)]


def a_bad_picture_costs_its_questions():
    """A picture that cannot be decoded, and one that kills its worker."""
    with trap(), Folder(images=24, **PREFIX, **{"prepd.solo_deaths": 1, "data.quarantine_limit": 100}) as f:
        truncated, poison, ends = [i for i in f.train_images() if len(f.questions_of(i)) > 1][:3]
        with open(ends, "r+b") as x:  # its data end early, which is told and costs nothing
            x.seek(os.path.getsize(ends) // 2)
            x.write(b"\xff\xd9")
            x.truncate()
        with open(truncated, "r+b") as x:
            x.truncate(os.path.getsize(truncated) // 2)
        with open(poison, "ab") as x:
            x.write(b"POISON:abort")
        with Daemon(f.config) as d:
            up(f)
            rows = list(rows_of(f))
            said = json.loads(run("status", "-c", f.config, "--json"))["train"]
            text = d.said()
        # each row that shows it loses two leases, and a third with its first sample alone; its questions are not asked
        showing = sum(bool(set(row["doc_sample_id"].tolist()) & set(f.questions_of(poison))) for row in rows)
        check(text.count("worker gone") <= 3 * showing + 1 < 3 * len(f.questions_of(poison)), f"{showing} rows show it\n{text}")
        check([os.path.basename(q["file"]) for q in said["damaged"]] == [os.path.basename(ends)], f"{said}")
        found, ids = bad(rows)
        wanted = sorted(f.questions_of(truncated) + f.questions_of(poison))
        check(sorted(found) == wanted, f"bad are {sorted(found)}, wanted {wanted}\n{text}")
        check(sorted(q["id"] for q in said["quarantined"]) == wanted, f"{said}")
        check(sorted(ids) == list(range(said["samples"])), "not every sample came once")
        check(all(labels and picture for labels, picture, _ in found.values()), f"{found}")
        check(all("signal 6" in found[i][2] for i in f.questions_of(poison)), f"{found}")
        good = [row for row in rows if not json.loads(row["quarantine"])]
        check(good and all(not blank(row, i)[1] for row in good for i in row["doc_sample_id"]), "a good picture is zero")
        one = digest(f.config, "--steps", "3", "--prepd.workers", "1")
        check(one == digest(f.config, "--steps", "3", "--prepd.workers", "3"), "bad pictures make the stream depend on workers")


def a_bad_clip_costs_its_questions():
    """A video that is whole when it is indexed but not when it is decoded, in a mixture that takes its questions again
    and again."""
    with Folder(images=8, **PREFIX) as f:
        for name in ("good.avi", "late.mkv"):
            check(write_video(in_data(f, name)), "encoder")
        shown = [name for name, n in (("good.avi", 3), ("late.mkv", 4)) for _ in range(n)]
        path = write_lines(in_data(f, "clips.jsonl"), [clip(name, f"What is {k}?", "red") for k, name in enumerate(shown)])
        with open(f.file("mix.yaml"), "w") as x:
            x.write(f"clips:\n  format: video\n  path: {path}\n  weight: 3\nvqa:\n  path: data\n  format: vqav2\n  weight: 1\n")
        mixture = options(data__format="mixture", data__path=f.file("mix.yaml"), training__seq_len=512, training__global_batch_size=1)
        run("plan", "-c", f.config, *mixture)
        times = os.stat(in_data(f, "late.mkv"))
        with open(in_data(f, "late.mkv"), "r+b") as x:
            x.seek(times.st_size // 2)
            x.write(b"\0" * (times.st_size - times.st_size // 2))
        os.utime(in_data(f, "late.mkv"), ns=(times.st_atime_ns, times.st_mtime_ns))
        with Daemon(f.config, *mixture) as d:
            up(f)
            rows = list(rows_of(f))
            check("worker gone" not in d.said(), d.said())
        causes = {q["id"]: q["cause"] for row in rows for q in json.loads(row["quarantine"])}
        check(sorted(causes) == [3, 4, 5, 6] and len(set(causes.values())) == 1 and "late.mkv" in causes[3], f"{causes}")
        taken = [key[0] for row in rows for key, _ in samples_of(row)]
        check(taken.count(0) > 1 and taken.count(3) > 1, f"no question came again: {taken}")
        for row in rows:
            number, part, prefix = (row[name].tolist() for name in ("doc_sample_id", "doc_part", "doc_prefix"))
            shows = [items_of(row)[i] for i in range(len(row["grid_thw"]))]
            clips = [i for i, n in enumerate(number) if part[i] >= 0 and n < len(shown)]
            check(clips and all(prefix[i] >= 0 for i in clips), f"row {row['number']}: {number} {prefix}")
            blank = sum(not pixels.any() for pixels in shows)
            check(blank == len({prefix[i] for i in clips if number[i] in causes}), f"row {row['number']}: {blank} blank items")
        one = digest(f.config, *mixture, "--steps", "2", "--prepd.workers", "1")
        check(one == digest(f.config, *mixture, "--steps", "2", "--prepd.workers", "3"), "the stream depends on workers")


def a_bad_question_costs_itself():
    """A run knows bad samples, as an earlier cursor lists them. One question of a picture loses its labels; of another all do, and with them
    the picture. The documents stay as they are."""
    with Folder(images=24, **PREFIX) as f, Daemon(f.config):
        up(f)
        rows = list(rows_of(f))
        first = next(row for row in rows_of(f))
        # branches of a row that comes after the first one
        row = next(row for row in rows[1:] if (row["doc_part"] < 0).sum() > 1)
        groups = [row["doc_sample_id"][row["doc_prefix"] == doc].tolist() for doc in np.flatnonzero(row["doc_part"] < 0)]
        one, all_of_it = groups[0][1], groups[1]
        cursor = json.loads(first["cursor"])
        cursor["quarantine"] = [{"id": i, "cause": "by hand"} for i in sorted([one, *all_of_it])]
        again = [first, *rows_of(f, cursor=cursor)]
        found, _ = bad(again)
        check(found == {one: (True, False, KNOWN), **{i: (True, True, KNOWN) for i in all_of_it}}, f"{found}")
        for was, now in zip(rows, again, strict=True):
            for name in ("input_ids", "position_ids", "cu_seqlens", "doc_prefix", "doc_part", "doc_sample_id", "visual_row", "grid_thw"):
                check(np.array_equal(was.get(name), now.get(name)), f"row {was['number']}: {name} depends on what is bad")


def references_are_those_of_samples():
    """Held-out rows say of each document what its answer is judged by; a prefix is judged by nothing."""
    with Folder(images=24, **PREFIX) as f:
        found = {}
        for group in ("none", "shared_prefix"):
            with Daemon(f.config, "--data.group", group):
                up(f)
                rows = list(rows_of(f, stream="eval"))
            of = [(number, json.dumps(reference) if reference else None, part) for row in rows
                  for number, reference, part in zip(row["doc_sample_id"].tolist(), json.loads(row["references"] or "[]"),
                                                     row["doc_part"].tolist(), strict=True)]
            check(all((reference is None) == (part < 0) for _, reference, part in of), f"{group}: {of}")
            found[group] = {number: reference for number, reference, part in of if part >= 0}
        check(found["none"] == found["shared_prefix"] and len(found["none"]) > 4 and prefixes_of(rows) > 1, f"{found}")


if __name__ == "__main__":
    main(every_sample_is_what_it_is_alone, pictures_clips_and_texts_are_shared,
         sources_of_a_mixture_share_within_themselves, who_makes_the_rows_changes_nothing, a_consumer_resumes_and_ranks_change,
         old_consumers_are_refused_and_recordings_play, a_bad_picture_costs_its_questions, a_bad_clip_costs_its_questions, a_bad_question_costs_itself,
         references_are_those_of_samples)
