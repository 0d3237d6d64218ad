"""charsmap.py - builds the compiled normalizer of SentencePiece ("Precompiled") from a table of replacements: a double array
as darts-clone's, then the replacements. SPDX-License-Identifier: Apache-2.0"""
import struct


def build_charsmap(table):
    """bytes of the map; table: {text: replacement}."""
    blob, place, root = bytearray(), {}, {}
    for key, to in table.items():
        if to not in place:
            place[to] = len(blob)
            blob += to.encode() + b"\0"
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[-1] = place[to]
    units, used, first = {}, {0}, 1
    queue = [(root, 0, 0)]
    while queue:
        node, at, label = queue.pop()
        labels = [0 if byte < 0 else byte for byte in node]
        base = first
        while any((base ^ byte) in used for byte in labels):
            base += 1
        first = max(first, base - 300)  # gaps further back stay
        units[at] = label | (256 if -1 in node else 0) | (at ^ base) << 10
        for byte, child in node.items():
            used.add(base ^ max(byte, 0))
            if byte < 0:
                units[base] = child | 1 << 31
            else:
                queue.append((child, base ^ byte, byte))
    size = (max(used) | 255) + 1
    return struct.pack(f"<I{size}I", 4 * size, *(units.get(i, 255 ^ i & 255) for i in range(size))) + bytes(blob)
