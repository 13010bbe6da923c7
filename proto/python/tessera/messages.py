"""Messages of the wire and what a row's parts hold, as proto/wire.md specifies them byte by byte: header, safetensors block, image
parts, digest. Every size is checked before it is used; ValueError says what is wrong."""
import json
import struct
from typing import Any, Dict, Sequence, Tuple

import numpy as np

from . import hashes
from .row_checks import check_documents, check_tag
from .stream_errors import check, import_needed

HEADER = struct.Struct("<4sHHQIIQQ16s8s")
IMAGE_HEAD = struct.Struct("<BBHIQ8sQ")
HELLO, WELCOME, CREDIT, ROW, END, ERROR, BYE, REFUSE = 1, 2, 3, 4, 5, 6, 7, 8
DTYPES = {"U8": "u1", "I32": "<i4", "F32": "<f4", "U64": "<u8"}
LIMIT = 1 << 30


def message_head(kind: int, text_bytes: int) -> bytes:
    """The header of a message whose other part is a JSON text of so many bytes."""
    return HEADER.pack(b"TSRA", 1, kind, 0, 0, 0, text_bytes, 0, bytes(16), bytes(8))


def header(part: Any) -> Tuple[int, int, int, int, int, bytes]:
    """Reads the header of a message: (kind, row, n_images, block_bytes, image_bytes, digest)."""
    check(len(part) >= 6 and part[:4] == b"TSRA", "the message is not Tessera's")
    version = struct.unpack_from("<H", part, 4)[0]
    check(version == 1, "the peer speaks protocol version", version, "but this client version 1")
    check(len(part) == HEADER.size, "the header has", len(part), "bytes, expected", HEADER.size)
    _, _, kind, row, n_images, reserved, block, images, digest, _ = HEADER.unpack(part)
    check(reserved == 0 and max(block, images) <= LIMIT, "the sizes in the header are impossible")
    return kind, row, n_images, block, images, digest


def unzstd(data: Any, size: int) -> bytes:
    zstandard = import_needed("zstandard")
    check(zstandard.frame_content_size(data) == size <= LIMIT, "a zstd frame does not declare the expected", size, "bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)


def tensors(block: Any) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Reads a safetensors block: (arrays by name, metadata)."""
    check(len(block) >= 8, "the block has only", len(block), "bytes")
    size = struct.unpack_from("<Q", block)[0]
    check(size <= len(block) - 8, "the safetensors header of", size, "bytes does not fit the block")
    entries, arrays = json.loads(block[8:8 + size]), {}
    metadata = entries.pop("__metadata__", {})
    for name, e in entries.items():
        first, last = e["data_offsets"]
        check(0 <= first <= last <= len(block) - 8 - size, name, "lies outside the block")
        arrays[name] = np.frombuffer(block[8 + size + first:8 + size + last],
                                     DTYPES[e["dtype"]]).reshape(e["shape"])
    return arrays, metadata


def image(part: Any, grid: np.ndarray) -> Tuple[int, np.ndarray]:
    """Decodes an image part: (patch_bytes, pixels [n_patches, patch_bytes])."""
    check(len(part) >= IMAGE_HEAD.size, "an image part has only", len(part), "bytes")
    kind, codec, width, n, decoded, _, payload = IMAGE_HEAD.unpack_from(part)
    data = part[IMAGE_HEAD.size:]
    check(kind in (0, 1) and codec in (0, 1) and width in (768, 1536), "an image part has an unknown filter, codec or patch size")
    check(n == int(np.prod(grid, dtype=np.int64)) and decoded == n * width, "an image part does not fit its grid")
    check(payload == len(data), "an image part is cut short")
    data = unzstd(data, decoded) if codec else data
    check(len(data) == decoded, "an image has", len(data), "bytes, expected", decoded)
    pixels = np.frombuffer(data, np.uint8).reshape(n, 3, width // 768, 16, 16)
    if kind:
        pixels = pixels.cumsum(3, dtype=np.uint8).cumsum(4, dtype=np.uint8)
        pixels[:, 0::2] += pixels[:, 1:2]
    return width, pixels.reshape(n, width)


def floats(pixels: np.ndarray, resampler: str = "torch") -> np.ndarray:
    """The float32 values that transformers' image processor computes from these bytes, bit for bit. "torch" is its default
    processor; "pillow" and "pillow13" are its PIL processor, which rounds in another place."""
    check(resampler in ("torch", "pillow", "pillow13"), "there is no resampler", resampler)
    x, half = pixels.astype(np.float32), np.float32(127.5)
    return x / half - np.float32(1) if resampler != "torch" else (x - half) / half


def digest_of(row: Dict[str, Any]) -> bytes:
    """The row digest (wire.md, Row digest)."""
    h = hashes.xxh3_128()
    names = {np.dtype(v): k for k, v in DTYPES.items()}
    for name in sorted(k for k, v in row.items() if isinstance(v, np.ndarray)):
        a = np.ascontiguousarray(row[name])
        h.update(name.encode() + b"\0" + names[a.dtype].encode() + b"\0")
        h.update(struct.pack(f"<{1 + a.ndim}Q", a.ndim, *a.shape) + a.tobytes())
    return h.digest()


def decode(parts: Sequence[Any], tagged: bool = False) -> Dict[str, Any]:
    """Decodes the parts of a ROW message to a dictionary of arrays, with "number" and, as JSON texts or "", "cursor",
    "quarantine" and "references". tagged: the row must have a tag, from which those texts are then taken."""
    kind, number, n_images, block_bytes, image_bytes, digest = header(parts[0])
    check(kind == ROW and len(parts) - 2 - n_images in (0, 1), "these are not the parts of a row")
    check(not tagged or len(parts) == 3 + n_images, "row", number, "came without a tag")
    row, metadata = tensors(unzstd(parts[1], block_bytes))
    check(len(row["grid_thw"]) == n_images, "there are", n_images, "images for", len(row["grid_thw"]), "grids")
    pixels = {768: [np.zeros((0, 768), np.uint8)], 1536: []}
    for part, grid in zip(parts[2:2 + n_images], row["grid_thw"]):
        width, data = image(part, grid)
        pixels[width].append(data)
    row["pixels"] = np.concatenate(pixels[768])
    if pixels[1536]:
        row["pixels_video"] = np.concatenate(pixels[1536])
    total = row["pixels"].nbytes + (row["pixels_video"].nbytes if pixels[1536] else 0)
    check(total == image_bytes, "there are", total, "bytes of pixels, but the header says", image_bytes)
    check(hashes.xxh3_128 is None or digest_of(row) == digest, "the row does not match its digest")
    check_documents(dict(row, number=number))
    if len(parts) == 3 + n_images:
        metadata = json.loads(bytes(parts[-1]))
        check_tag(row, number, metadata)
    return dict(row, number=number, cursor=metadata.get("cursor", ""),
                quarantine=metadata.get("quarantine", ""), references=metadata.get("references", ""))
