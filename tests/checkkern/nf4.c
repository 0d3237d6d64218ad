/* nf4.c - unpacking of NF4 weights. Every variant must equal the reference in every bit, and the reference must be what
 * nf4.h says: tests/unit/test_nf4.c compares with bitsandbytes. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/checkkern/ck_internal.h"

static const struct {
    int64_t first, count;
} spans[] = { { 0, 0 }, { 0, 1 }, { 0, 64 }, { 64, 65 }, { 960, 66 }, { 1024, 999 }, { 128, 9000 }, { 2048, 40961 } };

/* Random codes; fp32 scales of sizes that weights have, and blocks of zeros. */
static uint8_t *units(int64_t elements, dsc_nf4 kind)
{
    const int64_t each = dsc_nf4_unit_bytes(kind), count = dsc_div_ceil(elements, DSC_NF4_UNIT);
    uint8_t *const out = ck_buf(CK_IN, DSC_U8, dsc_max_i64(count, 1) * each, "units");
    for (int64_t i = 0; i < count * each; i++)
        out[i] = (uint8_t)ck_random();
    for (int64_t b = 0; b < count * DSC_NF4_UNIT_BLOCKS && kind == DSC_NF4_PLAIN; b++) {
        const float scale = ck_random() % 16 == 0 ? 0.0f : (float)(ck_random() % 100000) * 1e-6f;
        memcpy(out + b / DSC_NF4_UNIT_BLOCKS * each + DSC_NF4_CODE_BYTES + b % DSC_NF4_UNIT_BLOCKS * 4, &scale, 4);
    }
    return out;
}

static void verify(const void *args)
{
    const dsc_nf4_unpack_args *a = args;
    const dsc_nf4 kind = a->tops != NULL ? DSC_NF4_NESTED : DSC_NF4_PLAIN;
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t at = a->first + i, b = at % DSC_NF4_UNIT / DSC_NF4_BLOCK;
        const uint8_t *unit = (const uint8_t *)a->units + at / DSC_NF4_UNIT * dsc_nf4_unit_bytes(kind);
        const uint8_t both = unit[at % DSC_NF4_UNIT / 2];
        float scale;
        memcpy(&scale, unit + DSC_NF4_CODE_BYTES + (kind == DSC_NF4_PLAIN ? 4 * b : 0), 4);
        if (kind == DSC_NF4_NESTED)
            scale = dsc_nf4_scale(unit[DSC_NF4_CODE_BYTES + b], a->tops[(a->block + i / 64) / 256], a->offset);
        const float x = dsc_nf4_values[i % 2 == 0 ? both / 16 : both % 16] * scale;
        const float expected = a->to_dtype == DSC_F32    ? x
                               : a->to_dtype == DSC_BF16 ? dsc_f32_from_bf16(dsc_bf16_from_f32(x))
                                                         : dsc_f32_from_f16(dsc_f16_from_f32(x));
        ck_near(a->to, i, (double)expected, 0);
    }
    ck_same(a->to);
}

static void check(int64_t first, int64_t count, dsc_nf4 kind, dsc_dtype dtype)
{
    if (!ck_case("nf4_unpack %s to %s first=%lld n=%lld", kind == DSC_NF4_NESTED ? "nested" : "plain",
                 ck_dtype_text(dtype), (long long)first, (long long)count))
        return;
    const int64_t block = kind == DSC_NF4_NESTED ? 250 : 0; /* the next top is reached within the span */
    float *tops = NULL;
    if (kind == DSC_NF4_NESTED) {
        tops = ck_buf(CK_IN, DSC_F32, dsc_nf4_tops(count + block * DSC_NF4_BLOCK), "tops");
        ck_uniform(tops, 0.001, 0.02);
    }
    const dsc_nf4_unpack_args args = { .to = ck_buf(CK_OUT, dtype, count, "to"),
                                       .units = units(first + count, kind),
                                       .first = first,
                                       .count = count,
                                       .tops = tops,
                                       .block = block,
                                       .offset = 0.0413f,
                                       .to_dtype = dtype };
    ck_kernel(DSC_KERNEL_NF4_UNPACK, &args, sizeof args, verify);
}

static void bench(dsc_nf4 kind)
{
    const int64_t n = ck_bench_size(1 << 24, 1 << 28), bytes = dsc_nf4_bytes(kind, n);
    if (!ck_case("bench nf4_unpack %s to bf16", kind == DSC_NF4_NESTED ? "nested" : "plain"))
        return;
    void *from = ck_buf(CK_IN, DSC_U8, bytes, "units");
    memset(from, 0x3c, (size_t)bytes);
    float *tops = kind == DSC_NF4_NESTED ? ck_buf(CK_IN, DSC_F32, dsc_nf4_tops(n), "tops") : NULL;
    if (tops != NULL)
        ck_uniform(tops, 0.001, 0.02);
    const dsc_nf4_unpack_args args = { .to = ck_buf(CK_OUT, DSC_BF16, n, "to"),
                                       .units = from,
                                       .count = n,
                                       .tops = tops,
                                       .offset = 0.04f,
                                       .to_dtype = DSC_BF16 };
    ck_bench(DSC_KERNEL_NF4_UNPACK, &args, sizeof args, n * 2 + bytes, 0, 0);
}

void ck_nf4(void)
{
    for (size_t s = 0; s < DSC_COUNT(spans); s++)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
            check(spans[s].first, spans[s].count, DSC_NF4_PLAIN, dtype);
            check(spans[s].first, spans[s].count, DSC_NF4_NESTED, dtype);
        }
    if (ck_benching()) {
        bench(DSC_NF4_PLAIN);
        bench(DSC_NF4_NESTED);
    }
}
