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
# The lists of ranks become one, as in proto/decisions.c.
ranks = [{"decisions": [{"id": 7, "cause": "cut", "row": 30}, {"id": 2, "cause": "late"}], "cursor": '{"row": 1, "quarantine": []}'},
         {"decisions": [], "cursor": {"quarantine": [{"id": 2, "cause": "crash"}, {"id": 9, "cause": "a lower word"}]}},
         {"decisions": [{"id": 7, "cause": "short", "row": 12}, {"id": 9, "cause": "empty", "row": 4}], "cursor": None}]
union = [{"id": 2, "cause": "crash"}, {"id": 7, "cause": "short", "row": 12}, {"id": 9, "cause": "empty", "row": 4}]
for order in itertools.permutations(ranks):
    assert client.merge_quarantine(order) == union, client.merge_quarantine(order)
    assert client.merge_quarantine([*order, {"decisions": union}]) == union
# A HELLO that no daemon accepts is not sent, and the member that is too long is named.
for name, given in (("cursor", {"cursor": {"row": 0, "quarantine": ["x" * daemon_session.HELLO_LIMIT]}}),
                    ("quarantine", {"quarantine": [{"id": 1, "cause": "x" * daemon_session.HELLO_LIMIT}]})):
    try:
        next(client.connect(f"ipc:///tmp/none-{os.getpid()}", **given))
    except ValueError as e:
        assert f"of them {name}, but prepd accepts" in str(e), e
    else:
        raise AssertionError("a long HELLO was sent")
print(len(rows), "rows agree")
