/* average.c - moving averages: three roundings, so one answer. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

/* Each operation is exact in double before its rounding, or rounds to the same float. */
static void verify(const void *args)
{
    const dsc_average_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const float before = (float)ck_start(a->average, i), difference = a->value[i] - before;
        const float change = a->share * difference;
        ck_near(a->average, i, (double)(a->share == 1 ? a->value[i] : before + change), 0);
    }
    ck_same(a->average);
}

void ck_average(void)
{
    static const int64_t lengths[] = { 0, 1, 7, 64, 65, 4096, 4097, 20011 };
    static const float shares[] = { 0.0001f, 0.1f, 0.999f, 0, 1 };
    for (size_t n = 0; n < DSC_COUNT(lengths); n++) {
        const float share = shares[n % DSC_COUNT(shares)];
        if (!ck_case("average n=%lld share=%g", (long long)lengths[n], (double)share))
            continue;
        float *average = ck_buf(CK_INOUT, DSC_F32, lengths[n], "average");
        float *value = ck_buf(CK_IN, DSC_F32, lengths[n], "value");
        ck_normal(average, 0, 1);
        ck_normal(value, 0, 1);
        const dsc_average_args args = { .average = average, .value = value, .count = lengths[n], .share = share };
        ck_kernel(DSC_KERNEL_AVERAGE, &args, sizeof args, verify);
    }
}
