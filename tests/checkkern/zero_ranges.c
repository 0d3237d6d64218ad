/* zero_ranges.c - ranges become zero, and everything between them stays. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/checkkern/ck.h"

#define GAP 3 /* elements between two ranges */

static void verify(const void *args)
{
    const dsc_zero_ranges_args *a = args;
    int64_t end = 0;
    for (int32_t r = 0; r < a->range_count; r++) {
        for (; end < a->first[r]; end++)
            ck_near(a->x, end, ck_start(a->x, end), 0);
        for (; end < a->first[r] + a->count[r]; end++)
            ck_near(a->x, end, 0, 0);
    }
    for (int i = 0; i < GAP; i++, end++)
        ck_near(a->x, end, ck_start(a->x, end), 0);
    ck_same(a->x);
}

static void check(int32_t range_count, int32_t most)
{
    dsc_zero_ranges_args args;
    int64_t end = 0;
    if (!ck_case("zero_ranges ranges=%d most=%d", (int)range_count, (int)most))
        return;
    memset(&args, 0, sizeof args);
    args.range_count = range_count;
    for (int32_t r = 0; r < range_count; r++) {
        args.count[r] = r == 0 ? most : (int32_t)(ck_random() % (uint32_t)(most + 1));
        args.first[r] = end + GAP;
        end += GAP + args.count[r];
    }
    args.x = ck_buf(CK_INOUT, DSC_F32, end + GAP, "x");
    ck_normal(args.x, 0, 1);
    ck_kernel(DSC_KERNEL_ZERO_RANGES, &args, sizeof args, verify);
}

void ck_zero_ranges(void)
{
    static const int32_t most[] = { 0, 1, 31, 64, 255, 256, 257, 1000, DSC_ZERO_RANGES_ELEMENTS_MAX };
    check(0, 1);
    for (size_t m = 0; m < DSC_COUNT(most); m++) {
        check(1, most[m]);
        check(7, most[m]);
        check(DSC_ZERO_RANGES_MAX, most[m]);
    }
}
