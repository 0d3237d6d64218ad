/* fingerprint.c - the sum of mixed words by a second formula, and one flipped bit that changes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/checkkern/ck.h"

/* SplitMix64's finalizer (Steele, Lea, Flood 2014) of the word at the place. */
static uint64_t finalized(uint32_t word, uint64_t place)
{
    uint64_t z = (place << 32 | place >> 32) ^ word;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t expected_of(const dsc_fingerprint_args *a, int64_t flipped)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < a->word_count; i++) {
        uint32_t word;
        memcpy(&word, a->x + i, sizeof word);
        sum += finalized(i == flipped ? word ^ 1u << i % 32 : word, (uint64_t)i);
    }
    return sum;
}

static void verify(const void *args)
{
    const dsc_fingerprint_args *a = args;
    uint64_t start;
    const int32_t halves[2] = { (int32_t)ck_start(a->sum, 0), (int32_t)ck_start(a->sum, 1) };
    memcpy(&start, halves, sizeof start);
    ck_same(a->sum);
    if (*a->sum != start + expected_of(a, -1))
        ck_fail("sum %016llx; expected %016llx", (unsigned long long)*a->sum,
                (unsigned long long)(start + expected_of(a, -1)));
    if (a->word_count > 0 && *a->sum == start + expected_of(a, (int64_t)(ck_random() % (uint32_t)a->word_count)))
        ck_fail("one flipped bit leaves the sum");
}

void ck_fingerprint(void)
{
    static const int64_t lengths[] = { 0, 1, 7, 255, 4095, 4096, 4097, 16384, 16385, 70001 };
    for (size_t n = 0; n < DSC_COUNT(lengths); n++) {
        if (!ck_case("fingerprint n=%lld", (long long)lengths[n]))
            continue;
        ck_align();
        int32_t *x = ck_buf(CK_IN, DSC_I32, lengths[n], "x");
        int32_t *sum = ck_buf(CK_INOUT, DSC_I32, 2, "sum");
        ck_int(x, INT32_MIN / 2, INT32_MAX / 2);
        ck_int(sum, -1000000, 1000000);
        const dsc_fingerprint_args args = { .sum = (void *)sum, .x = (const void *)x, .word_count = lengths[n] };
        ck_kernel(DSC_KERNEL_FINGERPRINT, &args, sizeof args, verify);
    }
}
