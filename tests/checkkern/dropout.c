/* dropout.c - dropped elements are those whose random word is small, with the words of base/rng.c; what is kept is
 * rounded as dropout.h says, so one answer. SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"
#include "tests/checkkern/ck.h"

static const int64_t lengths[] = { 0, 1, 3, 8, 65, 255, 257, 4096, 4099, 20011 };
/* The last one's counter passes 2^32 within the array. */
static const uint64_t firsts[] = { 0, 1, 4, 4095, (UINT64_C(1) << 34) - 66 };

static double rounded(float x, dsc_dtype dtype)
{
    return dtype == DSC_F32    ? (double)x
           : dtype == DSC_BF16 ? (double)dsc_f32_from_bf16(dsc_bf16_from_f32(x))
                               : (double)dsc_f32_from_f16(dsc_f16_from_f32(x));
}

static void verify(const void *args)
{
    const dsc_dropout_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const bool keep = dsc_rng_u32(a->seed, a->stream, a->first + (uint64_t)i) >= a->threshold;
        const float kept = keep ? (float)ck_start(a->x, i) * a->factor : 0.0f;
        ck_near(a->out, i, rounded(a->add ? (float)ck_start(a->out, i) + kept : kept, a->dtype), 0);
    }
    ck_same(a->out);
}

void ck_dropout(void)
{
    for (size_t l = 0; l < DSC_COUNT(lengths); l++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
            for (int add = 0; add < 2; add++) {
                const uint64_t first = firsts[(l + (size_t)dtype + (size_t)add) % DSC_COUNT(firsts)];
                if (!ck_case("dropout %s n=%lld first=%llu%s", ck_dtype_text(dtype), (long long)lengths[l],
                             (unsigned long long)first, add ? " add" : ""))
                    continue;
                void *x = ck_buf(CK_IN, dtype, lengths[l], "x");
                void *out = ck_buf(add ? CK_INOUT : CK_OUT, dtype, lengths[l], "out");
                ck_normal(x, 0, 3);
                if (add)
                    ck_normal(out, 0, 3);
                const dsc_dropout_args args = { .out = out,
                                                .x = x,
                                                .count = lengths[l],
                                                .seed = UINT64_C(0x123456789ab),
                                                .stream = dsc_rng_stream(DSC_RNG_DROPOUT, (uint32_t)l),
                                                .first = first,
                                                .threshold = (uint32_t)(0.3 * 4294967296.0),
                                                .factor = 1 / 0.7f,
                                                .add = add != 0,
                                                .dtype = dtype };
                ck_kernel(DSC_KERNEL_DROPOUT, &args, sizeof args, verify);
            }
}
