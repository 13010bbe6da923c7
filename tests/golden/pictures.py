# SPDX-License-Identifier: Apache-2.0
"""The pictures of the golden tests of images: generated, kept and shared ones.

Generated are PNGs in every colour mode and depth, orientations and sizes; they have the same bytes everywhere, because they
come from a formula and from zlib without compression. Kept are the tiny JPEG and WebP files of pictures/, which
make_images.py wrote. Shared are all files of the shared data that could be pictures. Needs only numpy."""

import os
import struct
import zlib

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
KEPT = os.path.join(HERE, "pictures")
SHARED_FOLDERS = ("vqav2/images", "images-extra", "odd", "text/llava", "video")
SHARED_ENDS = (".jpg", ".jpeg", ".png", ".webp", ".mpo", ".gif", ".bmp", ".avif", ".mp4")
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6  # colour types of PNG
BANDS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}


def values(height, width, bands, limit=256):
    """[height, width, bands] uint32 below limit: slopes, edges and noise in turn."""
    y, x, c = np.meshgrid(*(np.arange(n, dtype=np.uint32) for n in (height, width, bands)), indexing="ij")
    noise = (x * 2654435761) ^ (y * 2246822519 + c * 3266489917)
    noise = (noise ^ noise >> 15) * 2246822519 >> 9
    slope = x * 3 + y * 7 + 5 * (x * y % 11) + c * 40
    where = (x // 23 + y // 17) % 3
    out = np.where(where == 0, slope, np.where(where == 1, noise, (x // 5 + y // 3 + c) % 2 * (limit - 1)))
    if limit > 256:
        out = np.where(where == 0, slope * 257, out)
    return out % limit


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def exif(orientation):
    """An EXIF block, little endian, that says only this."""
    return b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def damaged_exif():
    """name -> an EXIF block that is wrong somewhere, or says its orientation in an odd way. The orientation is 6."""
    good = exif(6)
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    directory = lambda entries: b"II*\0" + struct.pack("<IH", 8, len(entries) // 12) + entries + bytes(4)
    return {
        "empty": b"", "garbage": b"nothing of the kind", "magic": b"XX*\0" + good[4:], "fortytwo": b"II+\0" + good[4:],
        "far_directory": good[:4] + struct.pack("<I", 4000) + good[8:], "odd_directory": good[:4] + struct.pack("<I", 9) + good[8:],
        "own_directory": good[:4] + struct.pack("<I", 0) + good[8:], "header_only": good[:8], "cut_entry": good[:16],
        "no_next": good[:-4], "many_entries": good[:8] + struct.pack("<H", 500) + good[10:],
        "no_entries": good[:8] + struct.pack("<H", 0) + good[10:],
        "big_endian": b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0),
        "long": directory(struct.pack("<HHII", 0x0112, 4, 1, 6)), "byte": directory(struct.pack("<HHII", 0x0112, 1, 1, 6)),
        "ascii": directory(struct.pack("<HHI4s", 0x0112, 2, 2, b"6\0\0\0")),
        "two_values": directory(struct.pack("<HHIHH", 0x0112, 3, 2, 6, 8)),
        "no_value": directory(struct.pack("<HHIHH", 0x0112, 3, 0, 6, 0)),
        "unknown_type": directory(struct.pack("<HHIHH", 0x0112, 99, 1, 6, 0)),
        "huge_count": directory(struct.pack("<HHIHH", 0x0112, 3, 0x7FFFFFFF, 6, 0)),
        "bad_neighbour": directory(struct.pack("<HHII", 0x010F, 2, 4000, 4000) + entry),
        "three_values": directory(struct.pack("<HHII", 0x0112, 3, 3, 26)) + struct.pack("<HHH", 6, 8, 3),
        "two_long": directory(struct.pack("<HHII", 0x0112, 4, 2, 26)) + struct.pack("<II", 8, 3),
        "signed_byte": directory(struct.pack("<HHII", 0x0112, 6, 1, 6)),
        "ifd": directory(struct.pack("<HHII", 0x0112, 13, 1, 6)),
        "long8": directory(struct.pack("<HHII", 0x0112, 16, 1, 26)) + struct.pack("<Q", 6),
        "rational": directory(struct.pack("<HHII", 0x0112, 5, 1, 26)) + struct.pack("<II", 6, 1),
        "float": directory(struct.pack("<HHIf", 0x0112, 11, 1, 6.0)),
        "then_bad_neighbour": directory(entry + struct.pack("<HHII", 0x0113, 2, 4000, 4000)),
        "twice": directory(entry + struct.pack("<HHIHH", 0x0112, 3, 1, 3, 0)),
    }


def xmp(orientation):
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def png(height, width, colour=RGB, depth=8, extra=b"", array=None, entries=256):
    """A PNG; extra chunks go before the pixels."""
    bands, limit = BANDS[colour], 1 << depth
    v = values(height, width, bands, limit) if array is None else array
    if depth == 16:
        rows = v.astype(">u2").reshape(height, -1).view(np.uint8)
    elif depth == 8:
        rows = v.astype(np.uint8).reshape(height, -1)
    else:
        bits = v.reshape(height, width, 1) >> np.arange(depth - 1, -1, -1, dtype=np.uint32) & 1
        rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    if colour == PALETTE:
        colours = values(16, 16, 3).reshape(256, 3)[: min(limit, entries)]
        extra = chunk(b"PLTE", colours.astype(np.uint8).tobytes()) + extra
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(lines, 0))
            + chunk(b"IEND", b""))


def interlaced(height, width, colour=RGB, depth=8):
    """The PNG in the seven passes of Adam7."""
    bands = BANDS[colour]
    v = values(height, width, bands, 1 << depth)
    lines = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        part = v[y0::dy, x0::dx]
        for line in part if part.size else ():
            if depth == 16:
                row = line.astype(">u2").tobytes()
            elif depth == 8:
                row = line.astype(np.uint8).tobytes()
            else:
                bits = line.reshape(-1, 1) >> np.arange(depth - 1, -1, -1, dtype=np.uint32) & 1
                row = np.packbits(bits.ravel().astype(np.uint8)).tobytes()
            lines += b"\0" + row
    plain = png(height, width, colour, depth)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 1)
    palette = plain[33 : plain.index(b"IDAT") - 4]
    return plain[:8] + chunk(b"IHDR", head) + palette + chunk(b"IDAT", zlib.compress(lines, 0)) + chunk(b"IEND", b"")


def bad_sum(data, kind):
    """The PNG with the checksum of its first chunk of this kind wrong."""
    at = data.index(kind)
    end = at + 4 + struct.unpack(">I", data[at - 4 : at])[0]
    return data[:end] + bytes([data[end] ^ 1]) + data[end + 1 :]


def broken_png():
    """name -> a PNG that is wrong in one place, or unusual."""
    out = {f"bad_sum_{kind.decode()}": bad_sum(png(23, 41, PALETTE, 8, chunk(b"tRNS", b"\0\x80")), kind)
           for kind in (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")}
    for kind, data in ((b"gAMA", struct.pack(">I", 45455)), (b"pHYs", struct.pack(">IIB", 1, 1, 0)), (b"zTXt", b"a\0\0" + zlib.compress(b"b")),
                       (b"iTXt", b"a\0\0\0\0\0b"), (b"tIME", bytes([7, 230, 1, 1, 1, 1, 1])), (b"eXIf", exif(6)), (b"prVt", b"words")):
        out[f"bad_sum_{kind.decode()}"] = bad_sum(png(23, 41, extra=chunk(kind, data)), kind)
    plain = png(23, 41)
    at, end = plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4
    pixels = plain[at + 8 : end - 4]
    cut = lambda n: plain[:at] + chunk(b"IDAT", pixels[:n]) + plain[end:]
    out |= {"unknown_chunk": png(23, 41, extra=chunk(b"prVt", b"words")), "critical_chunk": png(23, 41, extra=chunk(b"PRVT", b"words")),
            "no_pixels": plain[:at] + plain[end:],
            "short_pixels": cut(len(pixels) // 2), "no_adler": cut(len(pixels) - 4), "more_pixels": cut(len(pixels))[:end] + chunk(b"IDAT", b"more") + plain[end:],
            "two_chunks": plain[:at] + chunk(b"IDAT", pixels[:100]) + chunk(b"IDAT", pixels[100:]) + plain[end:],
            "empty_chunk": plain[:at] + chunk(b"IDAT", b"") + plain[at:],
            "exif_behind": plain[:end] + chunk(b"eXIf", exif(6)) + plain[end:],
            "half_end": plain[:-2], "length_only": plain[:-8]}
    return out


def jpeg_with(data, marker_data):
    """The JPEG with one more APP1 segment, the first."""
    return data[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(marker_data)) + marker_data + data[2:]


def animation(still, width, height):
    """One frame, the lossless still, on a larger canvas that claims to be orange."""
    def riff(kind, body):
        return kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)

    def three(n):
        return struct.pack("<I", n)[:3]

    at = still.index(b"VP8L")
    size = struct.unpack("<I", still[at + 4 : at + 8])[0]
    bits = struct.unpack("<I", still[at + 9 : at + 13])[0]
    frame_width, frame_height = bits & 0x3FFF, bits >> 14 & 0x3FFF
    frame = three(2) + three(3) + three(frame_width) + three(frame_height) + three(50) + b"\0"
    body = riff(b"VP8X", bytes([0x12, 0, 0, 0]) + three(width - 1) + three(height - 1))
    body += riff(b"ANIM", bytes([0, 128, 255, 255, 0, 0])) + riff(b"ANMF", frame + riff(b"VP8L", still[at + 8 : at + 8 + size]))
    return riff(b"RIFF", b"WEBP" + body)


def without_adobe(data):
    """The JPEG without its APP14 segment, which tells inks from inverted inks and RGB from YCC."""
    at = 2
    while data[at + 1] != 0xDA:
        size = struct.unpack(">H", data[at + 2 : at + 4])[0]
        if data[at + 1] == 0xEE:
            return data[:at] + data[at + 2 + size :]
        at += 2 + size
    return data


# Height and width. An aspect ratio of 200:1 is allowed, and a larger one is not.
SIZES = [(375, 500), (500, 333), (150, 200), (1080, 1920), (480, 640), (33, 4000), (4000, 33), (20, 4000), (4000, 20),
         (20, 4020), (4020, 20), (15, 3000), (15, 3001), (1, 200), (200, 1), (1, 201), (201, 1), (2, 400), (2, 401),
         (1, 2), (2, 1), (3, 5), (7, 1), (1, 31), (31, 1), (3, 300), (31, 33), (32, 32), (64, 64), (255, 257), (256, 256),
         (257, 255), (100, 300), (30, 500), (16, 500), (48, 48), (80, 80), (2048, 1365)] + [(n, n) for n in range(1, 32)]


def modes():
    """name -> PNG of every colour type and depth, with and without transparency beside the pixels."""
    out = {}
    for name, colour, depths in (("grey", GREY, (1, 2, 4, 8, 16)), ("rgb", RGB, (8, 16)), ("palette", PALETTE, (1, 2, 4, 8)),
                                 ("grey_alpha", GREY_ALPHA, (8, 16)), ("rgba", RGBA, (8, 16))):
        for depth in depths:
            out[f"{name}{depth}"] = png(47, 61, colour, depth)
            if colour == GREY:
                key = struct.pack(">H", 1)
            elif colour == RGB:
                key = struct.pack(">HHH", 0, 40, 80)
            elif colour == PALETTE:
                key = bytes([0, 128][: 1 << depth])
            else:
                continue
            out[f"{name}{depth}_trns"] = png(47, 61, colour, depth, chunk(b"tRNS", key))
    return out


def generated():
    """name -> bytes"""
    out = {f"{w}x{h}.png": png(h, w) for h, w in SIZES}
    out.update({f"{name}.png": data for name, data in modes().items()})
    for o in range(10):
        out[f"orientation{o}.png"] = png(23, 41, extra=chunk(b"eXIf", exif(o)))
    text = b"XML:com.adobe.xmp\0\0\0\0\0"
    out["xmp6.png"] = png(23, 41, extra=chunk(b"iTXt", text + xmp(6)))
    out["xmp6_exif3.png"] = png(23, 41, extra=chunk(b"iTXt", text + xmp(6)) + chunk(b"eXIf", exif(3)))
    out["xmp6_exif0.png"] = png(23, 41, extra=chunk(b"iTXt", text + xmp(6)) + chunk(b"eXIf", exif(0)))
    out["palette8_short.png"] = png(47, 61, PALETTE, 8, array=values(47, 61, 1, 9), entries=9)
    out["no_end.png"] = png(23, 41)[:-12]
    out["tail.png"] = png(23, 41) + b"more"
    out["bad_sum_text.png"] = png(23, 41, extra=chunk(b"tEXt", b"a\0b")[:-1] + b"?")
    for name, (colour, depth) in {"grey1": (GREY, 1), "palette4": (PALETTE, 4), "rgb8": (RGB, 8), "rgba16": (RGBA, 16)}.items():
        out[f"interlaced_{name}.png"] = interlaced(29, 43, colour, depth)
    out["interlaced_tiny.png"] = interlaced(2, 3)
    out.update({f"{name}.png": data for name, data in broken_png().items()})
    out.update({f"exif_{name}.png": png(23, 41, extra=chunk(b"eXIf", data)) for name, data in damaged_exif().items()})
    for name in sorted(os.listdir(KEPT)):
        with open(os.path.join(KEPT, name), "rb") as f:
            out[name] = f.read()
    if "lossless.webp" in out:
        out["offset.webp"] = animation(out["lossless.webp"], 61, 48)
        out["offset_alpha.webp"] = animation(out["alpha.webp"], 61, 48)
    base = out.get("ycc420.jpg")
    if base:
        for o in range(10):
            out[f"orientation{o}.jpg"] = jpeg_with(base, b"Exif\0\0" + exif(o))
        for name, block in damaged_exif().items():
            out[f"exif_{name}.jpg"] = jpeg_with(base, b"Exif\0\0" + block)
        out["exif_no_zeros.jpg"] = jpeg_with(base, b"Exif" + exif(6))
        out["exif_one_zero.jpg"] = jpeg_with(base, b"Exif\0" + exif(6))
        out["exif_two_segments.jpg"] = jpeg_with(jpeg_with(base, b"Exif\0\0" + exif(3)), b"Exif\0\0" + exif(6))
        packet = b"http://ns.adobe.com/xap/1.0/\0" + xmp(6)
        out["no_end.jpg"] = base[:-2]
        out["tail.jpg"] = base + b"more"
        out["cut.jpg"] = base[:-200]
        out["cmyk_plain.jpg"] = without_adobe(out["cmyk.jpg"])
        out["rgb_plain.jpg"] = without_adobe(out["rgb.jpg"])
        out["xmp6.jpg"] = jpeg_with(base, packet)
        out["xmp6_exif3.jpg"] = jpeg_with(jpeg_with(base, packet), b"Exif\0\0" + exif(3))
    return out


def drawn(n, seed):
    """name -> bytes of n pictures of random sizes; drawn_one knows the picture by its name."""
    rng, out = np.random.RandomState(seed), {}
    for _ in range(n):
        h, w = (int(2 ** rng.uniform(0, 11)) for _ in range(2))
        name = f"drawn_{w}x{h}.png"
        out[name] = drawn_one(name)
    return out


def drawn_one(name):
    w, h = (int(v) for v in name[6:-4].split("x"))
    return png(h, w)


def shared(data):
    """name below the shared data folder -> bytes"""
    out = {}
    for top in SHARED_FOLDERS:
        for folder, _, files in os.walk(os.path.join(data, top)):
            for name in files:
                if name.lower().endswith(SHARED_ENDS):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as f:
                        out[os.path.relpath(path, data)] = f.read()
    return dict(sorted(out.items()))
