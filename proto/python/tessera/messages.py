# SPDX-License-Identifier: Apache-2.0
"""Messages of the wire and what a row's parts hold, as proto/wire.md specifies them byte by byte: header, safetensors block, image
parts, digest. Every size is checked before it is used; ValueError says what is wrong."""
import json
import struct
from typing import Any, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from . import hashes
from .row_checks import check_documents, check_form, check_items, check_tag, check_tokens
from .stream_errors import check, import_needed

HEADER = struct.Struct("<4sHHQIIQQ16s8s")
IMAGE_HEAD = struct.Struct("<BBHIQ8sQ")
HELLO, WELCOME, CREDIT, ROW, END, ERROR, BYE, REFUSE = 1, 2, 3, 4, 5, 6, 7, 8
DTYPES = {"U8": "u1", "I32": "<i4", "F32": "<f4", "U64": "<u8"}
LIMIT = 1 << 30
MANY = 4096  # patches that are unfiltered at once
HEAD_LIMIT = 16 << 20  # of a block's JSON, which has a cursor and a list of bad samples at most; it takes 20 times as much memory


def message_head(kind: int, text_bytes: int) -> bytes:
    """The header of a message whose other part is a JSON text of so many bytes."""
    return HEADER.pack(b"TSRA", 1, kind, 0, 0, 0, text_bytes, 0, bytes(16), bytes(8))


def header(part: Any) -> Tuple[int, int, int, int, int, bytes]:
    """Reads the header of a message: (kind, row, n_images, block_bytes, image_bytes, digest)."""
    check(len(part) >= 6 and part[:4] == b"TSRA", "the message is not Tessera's")
    version = struct.unpack_from("<H", part, 4)[0]
    check(version == 1, "the peer speaks protocol version", version, "but this client version 1")
    check(len(part) == HEADER.size, "the header has", len(part), "bytes, expected", HEADER.size)
    _, _, kind, row, n_images, reserved, block, images, digest, sum_ = HEADER.unpack(part)
    check(hashes.xxh3_128 is None or sum_ in (bytes(8), hashes.hash_of(bytes(part[:-8]))[:8]), "the header does not match its check")
    check(reserved == 0 and block <= LIMIT and images <= (LIMIT if n_images else 0), "the sizes in the header are impossible")
    return kind, row, n_images, block, images, digest


def unzstd(data: Any, size: int) -> bytes:
    zstandard = import_needed("zstandard")
    check(zstandard.frame_content_size(data) == size <= LIMIT, "a zstd frame does not declare the expected", size, "bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)


def tensors(block: Any) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Reads a safetensors block: (arrays by name, which are views of it, metadata)."""
    check(len(block) >= 8, "the block has only", len(block), "bytes")
    size = struct.unpack_from("<Q", block)[0]
    check(size <= min(len(block) - 8, HEAD_LIMIT), "the safetensors header of", size, "bytes does not fit the block")
    entries, arrays, spans, at = json.loads(bytes(block[8:8 + size])), {}, [], 0
    metadata = entries.pop("__metadata__", {})
    check(all(isinstance(text, str) for text in metadata.values()), "the block's metadata are no texts")
    for name, e in entries.items():
        first, last = e["data_offsets"]
        check(0 <= first <= last <= len(block) - 8 - size, name, "lies outside the block")
        arrays[name] = np.frombuffer(memoryview(block)[8 + size + first:8 + size + last], DTYPES[e["dtype"]]).reshape(e["shape"])
        check(arrays[name].shape == tuple(e["shape"]) and arrays[name].flags.aligned, name, "has an impossible shape or place")
        spans.append((first, last))
    for first, last in sorted(spans):
        check(first == at, "the tensors overlap, or leave out bytes of the block")
        at = last
    check(at == len(block) - 8 - size, "the block has bytes after its last tensor")
    return arrays, metadata


class ImageHead(NamedTuple):
    """An image part whose head fits its grid. Nothing of it is decoded yet."""
    plane: bool  # the filter
    zstd: bool
    width: int  # patch_bytes
    n: int  # patches
    check: bytes
    data: Any


def image_head(part: Any, grid: np.ndarray) -> ImageHead:
    """Reads the head of an image part."""
    check(len(part) >= IMAGE_HEAD.size, "an image part has only", len(part), "bytes")
    kind, codec, width, n, decoded, sum_, payload = IMAGE_HEAD.unpack_from(part)
    data = part[IMAGE_HEAD.size:]
    check(kind in (0, 1) and codec in (0, 1) and width in (768, 1536), "an image part has an unknown filter, codec or patch size")
    check(n == int(np.prod(grid, dtype=np.int64)) and decoded == n * width, "an image part does not fit its grid")
    check(payload == len(data) and (codec or payload == decoded), "an image part is cut short")
    return ImageHead(kind == 1, codec == 1, width, n, sum_, data)


def decode_pixels(head: ImageHead, out: np.ndarray) -> None:
    """Decodes an image part into out [n, width]."""
    data = np.frombuffer(unzstd(head.data, out.nbytes) if head.zstd else head.data, np.uint8).reshape(out.shape)
    for at in range(0, head.n, MANY):
        some, planes = data[at:at + MANY], out[at:at + MANY].reshape(-1, 3, head.width // 768, 16, 16)
        if head.plane:
            planes[:] = some.reshape(planes.shape).cumsum(3, dtype=np.uint8).cumsum(4, dtype=np.uint8)
            planes[:, 0::2] += planes[:, 1:2]
        else:
            out[at:at + MANY] = some
    check(hashes.xxh3_128 is None or hashes.hash_of(out.reshape(-1).data)[:8] == head.check, "an image does not match the hash in its head")


def image(part: Any, grid: np.ndarray) -> Tuple[int, np.ndarray]:
    """Decodes an image part: (patch_bytes, pixels [n_patches, patch_bytes])."""
    head = image_head(part, grid)
    pixels = np.empty((head.n, head.width), np.uint8)
    decode_pixels(head, pixels)
    return head.width, pixels


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
        h.update(struct.pack(f"<{1 + a.ndim}Q", a.ndim, *a.shape))
        h.update(a.reshape(-1).view(np.uint8).data)
    return h.digest()


def decode(parts: Sequence[Any], tagged: bool = False) -> Dict[str, Any]:
    """Decodes the parts of a ROW message to a dictionary of arrays, with "number" and, as JSON texts or "", "cursor",
    "quarantine" and "references". tagged: the row must have a tag, from which those texts are then taken. ValueError: the row is
    bad, however it is."""
    try:
        return decode_parts(parts, tagged)
    except (ValueError, ImportError, MemoryError):  # the last two are this machine's fault
        raise
    except Exception as e:
        raise ValueError(f"the row cannot be read: {type(e).__name__}: {e}") from e


def decode_parts(parts: Sequence[Any], tagged: bool) -> Dict[str, Any]:
    """Sizes are compared before memory is taken for them, those that the daemon ordered first."""
    kind, number, n_images, block_bytes, image_bytes, digest = header(parts[0])
    check(kind == ROW and len(parts) - 2 - n_images in (0, 1), "these are not the parts of a row")
    check(not tagged or len(parts) == 3 + n_images, "row", number, "came without a tag")
    row, metadata = tensors(unzstd(parts[1], block_bytes))
    check_form(row)
    if len(parts) == 3 + n_images:
        metadata = json.loads(bytes(parts[-1]))
        check_tag(row, number, metadata)
    check_documents(dict(row, number=number))
    check_tokens(row)
    check(len(row["grid_thw"]) == n_images, "there are", n_images, "images for", len(row["grid_thw"]), "grids")
    heads = [image_head(part, grid) for part, grid in zip(parts[2:2 + n_images], row["grid_thw"])]
    check_items(row, [head.width for head in heads])
    total = sum(head.n * head.width for head in heads)
    check(total == image_bytes, "there are", total, "bytes of pixels, but the header says", image_bytes)
    for name, width in (("pixels", 768), ("pixels_video", 1536)):
        n = sum(head.n for head in heads if head.width == width)
        if n or width == 768:
            row[name] = np.empty((n, width), np.uint8)
    at = {768: 0, 1536: 0}
    for head in heads:
        pixels = row["pixels" if head.width == 768 else "pixels_video"]
        decode_pixels(head, pixels[at[head.width]:at[head.width] + head.n])
        at[head.width] += head.n
    check(hashes.xxh3_128 is None or digest_of(row) == digest, "the row does not match its digest")
    return dict(row, number=number, cursor=metadata.get("cursor", ""),
                quarantine=metadata.get("quarantine", ""), references=metadata.get("references", ""))
