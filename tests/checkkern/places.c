/* places.c - places of tokens other than padding, against transformers' cumulative sum of a mask.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

/* cumsum(mask) * mask + padding */
static void verify(const void *args)
{
    const dsc_places_args *a = args;
    for (int64_t b = 0; b < a->batch; b++) {
        int32_t sum = 0;
        for (int64_t t = 0; t < a->sequence; t++) {
            const int32_t mask = a->tokens[b * a->sequence + t] != a->padding ? 1 : 0;
            sum += mask;
            ck_near(a->places, b * a->sequence + t, (double)(sum * mask + a->padding), 0);
        }
    }
    ck_same(a->places);
}

static void check(int64_t batch, int64_t sequence, int32_t padding, int32_t highest)
{
    if (!ck_case("places B=%lld T=%lld padding=%d highest=%d", (long long)batch, (long long)sequence, (int)padding,
                 (int)highest))
        return;
    int32_t *const places = ck_buf(CK_OUT, DSC_I32, batch * sequence, "places");
    const int32_t *const tokens = ck_buf(CK_IN, DSC_I32, batch * sequence, "tokens");
    ck_int(tokens, 0, highest);
    const dsc_places_args args = {
        .places = places, .tokens = tokens, .batch = batch, .sequence = sequence, .padding = padding
    };
    ck_kernel(DSC_KERNEL_PLACES, &args, sizeof args, verify);
}

void ck_places(void)
{
    static const int64_t lengths[] = { 1, 31, 32, 33, 64, 100, 514 };
    for (size_t l = 0; l < DSC_COUNT(lengths); l++) {
        check(3, lengths[l], 1, 2);
        check(5, lengths[l], 0, 40);
    }
    check(2, 70, 1, 0); /* nothing is padding */
    check(2, 70, 0, 0); /* all is */
    check(0, 8, 1, 5);
}
