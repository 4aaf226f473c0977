"""Writes SentencePiece models (protocol buffers) for the hostile corpus and the fuzzing seeds."""

import struct


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece(text, score, kind):
    text = text if isinstance(text, bytes) else text.encode()
    return message(1, message(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score) + varint(3 << 3) + varint(kind))


def charsmap(root=256):
    """A double array with one rule, "A" to "b". Another root than 256 leads elsewhere."""
    units = [0x80000000] * 768
    units[0] = root << 10
    units[256 ^ 65] = ((256 ^ 65 ^ 513) << 10) | (1 << 8) | 65
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"b\0"


# Neither a dummy prefix nor a normalization table.
PLAIN = varint(3 << 3) + varint(1) + varint(4 << 3) + varint(0)


def sentencepiece(kind, fallback, normalizer=PLAIN, extra=b""):
    """A model of few pieces. `kind`: 1 unigram, 2 BPE; `fallback`: with the 256 byte pieces."""
    pieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3)
    if fallback:
        pieces += b"".join(piece(f"<0x{i:02X}>", 0, 6) for i in range(256))
    for i, text in enumerate(["\u2581a", "ab", "\u2581", "a", "b", "lo", "l", "o", "H", "e"]):
        pieces += piece(text, -1.5 * i, 1)
    pieces += extra
    flags = varint(3 << 3) + varint(kind) + varint(35 << 3) + varint(int(fallback))
    return pieces + message(2, flags) + message(3, normalizer)
