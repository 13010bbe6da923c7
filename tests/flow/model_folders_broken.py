# SPDX-License-Identifier: Apache-2.0
"""Weights that cannot be right are refused with the names of the file and the tensor: truncated, overlapping, with
sizes that are not true, with an index that does not match its shards."""
import json
import os
import shutil
import struct
import tempfile

from hf_files import expect, files_of, header_bytes, trainer, works, write

NORM, HEAD = "model.language_model.norm.weight", "lm_head.weight"


def change_header(path, change):
    """Rewrites the header of a file and leaves the data as it is."""
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    change(header)
    with open(path, "wb") as f:
        f.write(header_bytes(header) + data[start:])


def refused(folder, words, what, codes=(65,)):
    for verb in (("inspect", folder), ("export", "--model", folder, "--out", folder + "-out")):
        code, out, err = trainer(*verb)
        expect(code in codes, f"{what}: trainer {verb[0]}: exit code {code}\n{err}")
        for word in words:
            expect(word in err, f"{what}: trainer {verb[0]} does not say \"{word}\":\n{err}")
    expect(not os.path.exists(folder + "-out/config.json"), f"{what}: something was written")


def offsets(tensor, begin, end):
    def change(header):
        header[tensor]["data_offsets"][0] += begin
        header[tensor]["data_offsets"][1] += end
    return change


def key(tensor, name, value):
    def change(header):
        header[tensor][name] = value
    return change


def main():
    root = tempfile.mkdtemp()
    here = os.path.dirname(os.path.abspath(__file__))
    golden = os.path.join(here, "../golden/cases/moe")
    one, cut = os.path.join(root, "one"), os.path.join(root, "cut")
    works("export", "--model", golden, "--out", one)
    works("export", "--model", golden, "--out", cut, "--shard-bytes", "60000")
    files, index = files_of(cut)
    names = sorted(files)
    expect(len(names) >= 3, f"shards: {names}")
    last = list(files[names[1]])[-1]
    first_of_next = list(files[names[2]])[0]
    turn = 0

    def copy(source):
        nonlocal turn
        turn += 1
        return shutil.copytree(source, os.path.join(root, str(turn)))

    for what, change, words in (
            ("overlap", offsets(NORM, -4, -4), ["model.safetensors", NORM, "overlap"]),
            ("a hole", offsets(NORM, 4, 4), ["model.safetensors", NORM]),
            ("offsets longer than the shape", offsets(NORM, 0, 4), ["model.safetensors", NORM, "100"]),
            ("offsets backwards", offsets(NORM, 0, -1000), ["model.safetensors", NORM]),
            ("a shape larger than the bytes", key(NORM, "shape", [25]), ["model.safetensors", NORM]),
            ("a shape that overflows", key(NORM, "shape", [1 << 40, 1 << 40]), ["model.safetensors", NORM]),
            ("a negative size", key(NORM, "shape", [-24]), ["model.safetensors", NORM]),
            ("a wider dtype than the bytes", key(NORM, "dtype", "F64"), ["model.safetensors", NORM]),
            ("an unknown dtype", key(NORM, "dtype", "F3"), ["model.safetensors", NORM, "F3"]),
            ("another shape, as many numbers", key(NORM, "shape", [2, 12]), [NORM, "[2, 12]", "[24]"]),
            ("integers", key(NORM, "dtype", "I32"), [NORM, "I32"])):
        folder = copy(one)
        change_header(folder + "/model.safetensors", change)
        refused(folder, words, what)

    def shorten(path, by):
        os.truncate(path, os.path.getsize(path) - by)

    folder = copy(one)
    shorten(folder + "/model.safetensors", 1)
    refused(folder, ["model.safetensors", "truncated"], "one byte short")
    folder = copy(cut)
    shorten(f"{folder}/{names[1]}", 3)
    refused(folder, [names[1], last, "truncated"], "a shard cut short")
    folder = copy(cut)
    os.truncate(f"{folder}/{names[0]}", 5)
    refused(folder, [names[0]], "a shard of 5 bytes")
    folder = copy(cut)
    with open(f"{folder}/{names[0]}", "ab") as f:
        f.write(b"more")
    refused(folder, [names[0], "4 bytes after"], "bytes after the last tensor")
    folder = copy(cut)
    os.remove(f"{folder}/{names[1]}")
    refused(folder, [names[1]], "a shard is gone", codes=(66,))

    folder = copy(cut)
    twice = dict(files[names[1]])
    twice[first_of_next] = files[names[2]][first_of_next]
    write(f"{folder}/{names[1]}", twice)
    refused(folder, [first_of_next, names[1], names[2], "two shards"], "a tensor in two shards")

    def with_index(change):
        at = copy(cut)
        with open(at + "/model.safetensors.index.json", encoding="utf-8") as f:
            data = json.load(f)
        change(data["weight_map"])
        with open(at + "/model.safetensors.index.json", "w", encoding="utf-8") as f:
            json.dump(data, f)
        return at

    refused(with_index(lambda m: m.update({HEAD: "model-9.safetensors"})), ["model-9.safetensors"],
            "the index names a file that is not there", codes=(66,))
    refused(with_index(lambda m: m.update({HEAD: "../x"})), [HEAD], "the index leads out of the folder")
    refused(with_index(lambda m: m.update({"no.such": names[0]})), ["no.such"], "the index names no tensor")
    wrong = names[0] if index[HEAD] != names[0] else names[1]
    refused(with_index(lambda m: m.update({HEAD: wrong})), [HEAD, wrong, index[HEAD]], "another shard")
    refused(with_index(lambda m: m.clear()), ["missing"], "an empty weight map")

    both = copy(cut)  # the reference takes the single file
    shutil.copy(one + "/model.safetensors", both)
    os.remove(f"{both}/{names[0]}")
    works("inspect", both)
    shutil.rmtree(root)
    print("ok")


main()
