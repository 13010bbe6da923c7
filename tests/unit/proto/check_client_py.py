"""check_client_py.py CLIENT SOURCE ROW.safetensors...: imports client.py from CLIENT and checks that the rows it
yields from SOURCE, an endpoint or a recording, equal these files byte for byte. Run by test_client.c."""
import importlib.util
import sys

import numpy as np

spec = importlib.util.spec_from_file_location("client", sys.argv[1])
client = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client)

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
print(len(rows), "rows agree")
