"""masking.py - how dsc makes the samples of a masked language model, written again: Philox4x32-10, its permutation, and the choice of
tokens (engine/data/masking.h). SPDX-License-Identifier: Apache-2.0"""
MASK = 7  # the purpose of the random numbers, base/rng.h
LOW = 0xFFFFFFFF


def philox(seed, stream, counter):
    x = [counter & LOW, counter >> 32, stream & LOW, stream >> 32]
    key = [seed & LOW, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ key[0], b & LOW, (a >> 32) ^ x[3] ^ key[1], a & LOW]
        key = [(key[0] + 0x9E3779B9) & LOW, (key[1] + 0xBB67AE85) & LOW]
    return x


def permute(seed, stream, n, i):
    bits = (n - 1).bit_length()
    low_bits, x = bits // 2, i
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    while n > 1:
        low, high = x & low_mask, x >> low_bits & high_mask
        for turn in range(0, 10, 2):
            high ^= philox(seed, stream, turn << 32 | low)[0] & high_mask
            low ^= philox(seed, stream, turn + 1 << 32 | high)[0] & low_mask
        x = high << low_bits | low
        if x < n:
            break
    return x


def masked(seed, epoch, sample, tokens, vocab, mask, special, share=0.15):
    """The model's input, and {position: token} of its targets."""
    count = min(len(tokens), max(1, int(share * len(tokens) + 0.5)))
    word = philox(seed, MASK << 32 | epoch, sample)
    own = word[0] | word[1] << 32
    plain = [t for t in range(len(tokens)) if tokens[t] not in special and tokens[t] != mask]
    rest = [t for t in range(len(tokens)) if t not in plain]
    if count > len(plain):
        places = (plain + rest)[:count]
    else:
        places = [plain[permute(own, MASK << 32, len(plain), k)] for k in range(count)]
    seen = list(tokens)
    for t in places:
        word = philox(own, MASK << 32 | 1, t)
        if t in plain and word[0] < 3435973837:
            seen[t] = mask
        elif t in plain and word[0] < 3865470567:
            seen[t] = word[1] * vocab >> 32
    return seen, {t: tokens[t] for t in places}
