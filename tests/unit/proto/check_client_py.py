# SPDX-License-Identifier: Apache-2.0
"""check_client_py.py FOLDER SOURCE ROW.safetensors...: imports the package tessera from FOLDER and checks that the rows it
yields from SOURCE, an endpoint or a recording, equal these files byte for byte. Run by test_client.c."""
import itertools
import os
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
from tessera import client, daemon_session, row_checks  # noqa: E402

source, files = sys.argv[2], sys.argv[3:]
rows = list(client.connect(source, prefixes=True) if source.startswith("ipc:") else client.replay(source, prefixes=True))
assert len(rows) == len(files), (len(rows), len(files))
for number, (row, path) in enumerate(zip(rows, files)):
    with open(path, "rb") as f:
        arrays, metadata = client.tensors(f.read())
    assert row["number"] == number and row["cursor"] == metadata["cursor"], number
    names = {k for k, v in row.items() if isinstance(v, np.ndarray)}
    assert names == set(arrays), names ^ set(arrays)
    for name in names:
        assert row[name].dtype == arrays[name].dtype, (path, name)
        assert np.array_equal(row[name], arrays[name]), (path, name)


def refused(row, **changed):
    """What the row is refused with if it has these arrays instead; None leaves one out."""
    try:
        row_checks.check_documents({k: v for k, v in {**row, **changed}.items() if v is not None})
    except ValueError as e:
        return str(e)
    return None


# A prefix of two tokens, its branches of two and one, and a document of three.
good = {"cu_seqlens": np.array([0, 2, 4, 5, 8], np.int32), "input_ids": np.arange(8, dtype=np.int32),
        "labels": np.array([-100, -100, -100, 3, -100, -100, 6, 7], np.int32), "doc_part": np.array([-1, 0, 0, 0], np.int32),
        "doc_prefix": np.array([-1, 0, 0, -1], np.int32), "doc_sample_id": np.array([4, 4, 5, 6], np.uint64)}
assert not refused(good)
for name in good:
    assert refused(good, **{name: None}), name
    assert refused(good, **{name: good[name].astype(np.float32)}) and refused(good, **{name: good[name][None]}), name
for name, wrong in (("cu_seqlens", [0, 2, 2, 5, 8]), ("cu_seqlens", [1, 2, 4, 5, 8]), ("cu_seqlens", [0, 2, 4, 5, 9]),
                    ("cu_seqlens", [0, 4, 2, 5, 8]), ("labels", [-100, 1, -100, 3, -100, -100, 6, 7]),
                    ("labels", [-100, -100, 1, 3, -100, -100, 6, 7]), ("doc_prefix", [-1, 0, 1, -1]),
                    ("doc_prefix", [-1, -1, 0, 0]), ("doc_prefix", [1, -1, -1, -1]), ("doc_prefix", [-1, 0, -1, -1]),
                    ("doc_prefix", [-1, 1, 1, -1]), ("doc_prefix", [-1, 0, 7, -1]), ("doc_part", [0, 0, 0, 0]),
                    ("doc_part", [-1, 0, 1, 0]), ("doc_sample_id", [5, 4, 5, 6])):
    assert refused(good, **{name: np.array(wrong, good[name].dtype)}), (name, wrong)
assert refused(good, number=12, doc_prefix=np.array([-1, 0, 7, -1], np.int32)).startswith("row 12: doc_prefix[2] is 7:")
assert refused(good, loss_weight=np.full(8, 2, np.float32)) and not refused(good, loss_weight=np.ones(8, np.float32))
# The lists of ranks become one, as in proto/row/bad_samples.c; also those that earlier programs kept.
ranks = [{"decisions": [{"id": 7, "cause": "cut", "row": 30}, {"id": 2, "cause": "late"}], "cursor": '{"row": 1, "quarantine": []}'},
         {"decisions": [], "cursor": {"quarantine": [{"id": 2, "cause": "crash"}, {"id": 9, "cause": "a lower word"}]}},
         {"decisions": [{"id": 7, "cause": "short", "row": 12}, {"id": 9, "cause": "empty", "row": 4}], "cursor": None}]
for order in itertools.permutations(ranks):
    union = client.merge_quarantine(order)
    assert list(union) == [2, 7, 9] and union.text() == '{"count":3,"ids":"CFC"}', union.text()
    assert client.merge_quarantine([*order, {"bad_samples": union}, {"bad_samples": union.text()}]) == union
# The text is that of test_bad_samples.c, and what is no list is refused.
index = "0123456789abcdef0123456789abcdef"
page = '{"index":"%s","count":6,"ids":"HfBgBggBgggB"}' % index
known = client.BadSamples(page)
assert list(known) == [7, 38, 39, 71, 1095, 33863] and known.text() == page and known.index == index
known.add(1 << 59)
assert list(client.BadSamples(known.text())) == list(known) and (1 << 59) in known and 8 not in known
for bad in ("7", '"CF"', '{"count":1,"ids":1}', '{"count":2,"ids":"B"}', '{"count":1,"ids":"BB"}', '{"count":-1,"ids":""}',
            '{"count":2000001,"ids":"B"}', '{"count":2,"ids":"BA"}', '{"count":1,"ids":"gA"}', '{"count":1,"ids":"g"}',
            '{"count":1,"ids":"B="}', '{"count":1,"ids":"ggggggggggggB"}', '[{"cause":"c"}]', '[{"id":-1}]', "[7]", "["):
    try:
        known.merge(bad)
    except ValueError:
        continue
    raise AssertionError(f"{bad} is read")
assert len(known) == 7
rng = np.random.default_rng(1)
for largest in (1, 31, 32, 1000, 10**6, 10**12):
    ids = np.unique(rng.integers(0, largest + 1, 3000))
    kept = client.BadSamples([{"id": int(i)} for i in ids])
    assert list(client.BadSamples(kept.text())) == ids.tolist(), largest
# A HELLO that no daemon accepts is not sent, and the member that is too long is named.
try:
    next(client.connect(f"ipc:///tmp/none-{os.getpid()}", cursor={"row": 0, "x": "x" * daemon_session.HELLO_LIMIT}))
except ValueError as e:
    assert "of them cursor, but prepd accepts" in str(e), e
else:
    raise AssertionError("a long HELLO was sent")
print(len(rows), "rows agree")
