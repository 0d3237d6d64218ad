"""mix_reference.py - shares and rectangles of dsc.images.mixup and cutmix, by engine/data/images/mix.h alone, for comparisons with PyTorch.
SPDX-License-Identifier: Apache-2.0"""
import math

MASK = (1 << 32) - 1


def philox(seed, stream, counter):
    c = [counter & MASK, counter >> 32, stream & MASK, stream >> 32]
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & MASK, (p0 >> 32) ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c


def draw(seed, first, number):
    w = philox(seed, 9 << 32 | number, first)
    return [((w[2 * i] << 32 | w[2 * i + 1]) >> 11) * 2.0 ** -53 + 2.0 ** -54 for i in range(2)]


def beta(alpha, seed, first):
    number = 2
    while True:
        u = draw(seed, first, number)
        number += 1
        if alpha <= 1:
            x, y = math.log(u[0]) / alpha, math.log(u[1]) / alpha
            most = max(x, y)
            total = math.exp(x - most) + math.exp(y - most)
            if most + math.log(total) <= 0:
                return math.exp(x - most) / total
            continue
        v = math.sqrt(alpha) ** -1 * math.log(u[0] / (1 - u[0]))
        w, z = alpha * math.exp(v), u[0] ** 2 * u[1]
        r = (alpha + math.sqrt(alpha)) * v - math.log(4)
        if alpha + r - w + 1 + math.log(5) >= 5 * z or r + 2 * alpha * math.log(2 * alpha / (alpha + w)) >= math.log(z):
            return w / (alpha + w)


def mix(mixup, cutmix, prob, switch, seed, first, height, width):
    """(share of the picture before, None or the rectangle [left, top, right, bottom])"""
    choice = draw(seed, first, 0)
    if choice[0] >= prob:
        return 0.0, None
    cuts = cutmix > 0 and (mixup <= 0 or choice[1] < switch)
    kept = beta(cutmix if cuts else mixup, seed, first)
    if not cuts:
        return 1 - kept, None
    place, ratio = draw(seed, first, 1), 0.5 * math.sqrt(1 - kept)
    x, y, half_width, half_height = int(place[0] * width), int(place[1] * height), int(ratio * width), int(ratio * height)
    box = [max(x - half_width, 0), max(y - half_height, 0), min(x + half_width, width), min(y + half_height, height)]
    return (box[2] - box[0]) * (box[3] - box[1]) / (height * width), box
