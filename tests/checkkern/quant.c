/* quant.c - packing for the wire. Every variant must equal the reference in every bit, and the reference must be what
 * quant.h says: the least bf16 scale that reaches the largest number, and the nearest integers.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/quant.h"
#include "tests/checkkern/ck_internal.h"

static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
static const struct { int64_t count, pieces; } shapes[] = { { 0, 1 }, { 1024, 0 }, { 1024, 1 }, { 2048, 3 },
                                                            { 9216, 2 }, { 33792, 4 } };
static const dsc_quant quants[] = { DSC_QUANT_INT8, DSC_QUANT_INT4, DSC_QUANT_BF16, DSC_QUANT_F16 };

static float half_value(const uint8_t *q, int64_t i, dsc_quant quant)
{
    uint16_t h;
    memcpy(&h, q + 2 * i, 2);
    return quant == DSC_QUANT_F16 ? dsc_f32_from_f16(h) : dsc_f32_from_bf16(h);
}

/* Numbers of very different sizes from block to block; in some an Inf, a NaN, denormals, or nothing but zeros. */
static void fill(const void *buf, int64_t count)
{
    for (int64_t b = 0; b < count / DSC_QUANT_BLOCK; b++) {
        const double size = ldexp(1, (int)(ck_random() % 24) - 14);
        const uint32_t kind = ck_random() % 16;
        for (int64_t i = b * DSC_QUANT_BLOCK; i < (b + 1) * DSC_QUANT_BLOCK; i++)
            ck_set(buf, i, kind == 0 ? 0 : ldexp((double)(int32_t)ck_random(), kind == 1 ? -179 : -31) * size);
        const int64_t at = b * DSC_QUANT_BLOCK + ck_random() % DSC_QUANT_BLOCK;
        if (kind == 2 || kind == 3)
            ck_set(buf, at, kind == 2 ? (double)INFINITY : (double)NAN);
        if (kind == 4) /* as large as can be */
            ck_set(buf, at, -60000.0);
    }
}

static int packed_value(const uint8_t *q, int64_t i, dsc_quant quant)
{
    if (quant == DSC_QUANT_INT8)
        return q[i] < 128 ? q[i] : q[i] - 256;
    return (q[i / 2] >> (i % 2 != 0 ? 4 : 0)) % 16 - 8;
}

/* One block against what it is made of. start: of its elements in from and error. */
static void verify_block(const dsc_quantize_args *a, uint16_t scale, const uint8_t *q, int64_t start)
{
    const double levels = a->quant == DSC_QUANT_INT4 ? 7 : 127, step = (double)dsc_f32_from_bf16(scale);
    double x[DSC_QUANT_BLOCK], top = 0;
    bool finite = true;
    for (int i = 0; i < DSC_QUANT_BLOCK; i++) {
        x[i] = ck_get(a->from, start + i);
        if (a->error != NULL)
            x[i] = (double)((float)x[i] + (float)ck_start(a->error, start + i));
        finite = finite && isfinite(x[i]);
        top = fmax(top, fabs(x[i]));
    }
    const double least = (double)(float)(top / levels), below = (double)dsc_f32_from_bf16((uint16_t)(scale - 1));
    if (finite ? scale == 0 ? least > 0x1p-126 : step < least || below >= least : !isnan(step))
        ck_fail("block at %lld: scale %a where the largest is %a", (long long)start, step, top);
    for (int i = 0; i < DSC_QUANT_BLOCK; i++) {
        const double off = x[i] - packed_value(q, i, a->quant) * step;
        if (finite && scale != 0 && fabs(off) > 0.50001 * step)
            ck_fail("[%lld]: %a is %d steps of %a", (long long)(start + i), x[i], packed_value(q, i, a->quant), step);
        if (a->error != NULL)
            ck_near(a->error, start + i, finite ? off : 0, fabs(off) * 0x1p-24);
    }
}

/* Elements of 16 bits: the nearest, so what is left is at most half of what there is between two. */
static void verify_half(const dsc_quantize_args *a, const uint8_t *piece, int64_t start, int64_t i)
{
    float x = (float)ck_get(a->from, start + i);
    if (a->error != NULL)
        x = x + (float)ck_start(a->error, start + i);
    const float got = half_value(piece, i, a->quant);
    const dsc_dtype half = a->quant == DSC_QUANT_F16 ? DSC_F16 : DSC_BF16;
    if (isfinite(x) && fabsf(x) < 60000 && fabs((double)(x - got)) > 0.5 * ck_spacing(half, (double)x))
        ck_fail("[%lld]: %a is %a", (long long)(start + i), (double)x, (double)got);
    if (a->error != NULL)
        ck_near(a->error, start + i, isfinite(got) ? (double)(x - got) : 0, 0);
}

/* Bits as the reference's; on a GPU any NaN for a NaN: which one Inf - Inf gives is the processor's. */
static bool same_byte(const dsc_quantize_args *a, int64_t at)
{
    const int64_t first = at - at % a->to_stride_bytes % 2; /* start of the element of 16 bits */
    if (ck_get(a->to, at) == ck_ref(a->to, at))
        return true;
    if (!ck_on_gpu() || !dsc_quant_is_half(a->quant))
        return false;
    const uint8_t got[2] = { (uint8_t)ck_get(a->to, first), (uint8_t)ck_get(a->to, first + 1) };
    const uint8_t want[2] = { (uint8_t)ck_ref(a->to, first), (uint8_t)ck_ref(a->to, first + 1) };
    return isnan(half_value(got, 0, a->quant)) && isnan(half_value(want, 0, a->quant));
}

static void verify_pack(const void *args)
{
    const dsc_quantize_args *a = args;
    for (int64_t i = 0; i < a->pieces * a->to_stride_bytes; i++)
        if (!same_byte(a, i))
            ck_fail("to[%lld] is %d, of the reference %d", (long long)i, (int)ck_get(a->to, i), (int)ck_ref(a->to, i));
    if (a->error != NULL)
        ck_same(a->error);
    for (int64_t p = 0; p < a->pieces; p++) {
        const uint8_t *piece = (const uint8_t *)a->to + p * a->to_stride_bytes;
        for (int64_t i = 0; dsc_quant_is_half(a->quant) && i < a->count; i++)
            verify_half(a, piece, p * a->from_stride, i);
        for (int64_t b = 0; !dsc_quant_is_half(a->quant) && b < a->count / DSC_QUANT_BLOCK; b++)
            verify_block(a, ((const uint16_t *)(const void *)piece)[b],
                         piece + dsc_quant_scale_bytes(a->quant, a->count) +
                             b * DSC_QUANT_BLOCK / (a->quant == DSC_QUANT_INT4 ? 2 : 1),
                         p * a->from_stride + b * DSC_QUANT_BLOCK);
    }
}

/* Pieces lie apart, so that what is between them must stay. */
static void check_pack(int64_t count, int64_t pieces, dsc_dtype dtype, dsc_quant quant, bool error)
{
    if (!ck_case("quantize %s from %s n=%lldx%lld%s", dsc_quant_text(quant), ck_dtype_text(dtype), (long long)pieces,
                 (long long)count, error ? " with error" : ""))
        return;
    ck_align();
    const int64_t bytes = dsc_quant_bytes(quant, count), stride = count + 1024, to_stride = bytes + 48;
    uint8_t *to = ck_buf(CK_OUT, DSC_U8, pieces * to_stride, "to");
    void *from = ck_buf(CK_IN, dtype, pieces * stride, "from");
    float *kept = error ? ck_buf(CK_INOUT, DSC_F32, pieces * stride, "error") : NULL;
    fill(from, pieces * stride);
    if (error)
        ck_normal(kept, 0, 0.01);
    ck_gaps(to, pieces, bytes, to_stride);
    const dsc_quantize_args args = { .to = to, .from = from, .error = kept, .count = count, .pieces = pieces,
                                     .from_stride = stride, .to_stride_bytes = to_stride, .from_dtype = dtype,
                                     .quant = quant };
    ck_kernel(DSC_KERNEL_QUANTIZE, &args, sizeof args, verify_pack);
}

/* Any bytes are packed numbers; scales of every kind. */
static void fill_packed(uint8_t *at, int64_t count, int64_t bytes, dsc_quant quant)
{
    for (int64_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)ck_random();
    for (int64_t b = 0; b < dsc_quant_scale_bytes(quant, count) / 2; b++) {
        const uint16_t scale = ck_random() % 16 == 0 ? 0x7fc0 : dsc_bf16_from_f32(ldexpf(1, (int)(ck_random() % 20)));
        memcpy(at + 2 * b, &scale, 2);
    }
}

static double unpacked(const uint8_t *piece, int64_t count, int64_t i, dsc_quant quant)
{
    uint16_t scale;
    if (dsc_quant_is_half(quant))
        return (double)half_value(piece, i, quant);
    memcpy(&scale, piece + i / DSC_QUANT_BLOCK * 2, 2);
    return packed_value(piece + dsc_quant_scale_bytes(quant, count), i, quant) * (double)dsc_f32_from_bf16(scale);
}

static bool same_number(double got, double expected) { return got == expected || (isnan(got) && isnan(expected)); }

static void verify_unpack(const void *args)
{
    const dsc_dequantize_args *a = args;
    for (int64_t p = 0; p < a->pieces; p++)
        for (int64_t i = 0; i < a->count; i++) {
            const uint8_t *piece = (const uint8_t *)a->from + p * a->from_stride_bytes;
            const float x = (float)unpacked(piece, a->count, i, a->quant);
            const double expected = (double)(a->to_dtype == DSC_F16    ? dsc_f32_from_f16(dsc_f16_from_f32(x))
                                             : a->to_dtype == DSC_BF16 ? dsc_f32_from_bf16(dsc_bf16_from_f32(x))
                                                                       : x);
            if (!same_number(ck_get(a->to, p * a->to_stride + i), expected))
                ck_fail("piece %lld [%lld] = %a, expected %a", (long long)p, (long long)i,
                        ck_get(a->to, p * a->to_stride + i), expected);
        }
}

static void check_unpack(int64_t count, int64_t pieces, dsc_dtype dtype, dsc_quant quant)
{
    if (!ck_case("dequantize %s to %s n=%lldx%lld", dsc_quant_text(quant), ck_dtype_text(dtype), (long long)pieces,
                 (long long)count))
        return;
    ck_align();
    const int64_t bytes = dsc_quant_bytes(quant, count), stride = count + 1024, from_stride = bytes + 48;
    uint8_t *from = ck_buf(CK_IN, DSC_U8, pieces * from_stride, "from");
    void *to = ck_buf(CK_OUT, dtype, pieces * stride, "to");
    for (int64_t p = 0; p < pieces; p++)
        fill_packed(from + p * from_stride, count, bytes, quant);
    ck_gaps(to, pieces, count, stride);
    const dsc_dequantize_args args = { .to = to, .from = from, .count = count, .pieces = pieces, .to_stride = stride,
                                       .from_stride_bytes = from_stride, .to_dtype = dtype, .quant = quant };
    ck_kernel(DSC_KERNEL_DEQUANTIZE, &args, sizeof args, verify_unpack);
}

static void verify_reduce(const void *args)
{
    const dsc_ordered_reduce_quantized_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        float s = (float)unpacked(a->leaf, a->count, i, a->quant);
        if (!a->overwrite)
            s = (float)ck_start(a->acc, i) + s;
        for (int64_t k = 1; k < a->grad_part_count; k++)
            s = s + (float)unpacked((const uint8_t *)a->leaf + k * a->leaf_stride_bytes, a->count, i, a->quant);
        if (!same_number(ck_get(a->acc, i), (double)s))
            ck_fail("[%lld] = %a, expected %a", (long long)i, ck_get(a->acc, i), (double)s);
    }
}

static void check_reduce(int64_t count, int64_t leaves, dsc_quant quant, bool overwrite)
{
    if (!ck_case("ordered_reduce_quantized %s n=%lldx%lld%s", dsc_quant_text(quant), (long long)leaves,
                 (long long)count, overwrite ? " overwrite" : ""))
        return;
    ck_align();
    const int64_t bytes = dsc_quant_bytes(quant, count), stride = bytes + 48;
    uint8_t *leaf = ck_buf(CK_IN, DSC_U8, leaves * stride, "leaves");
    float *acc = ck_buf(CK_INOUT, DSC_F32, count, "acc");
    for (int64_t k = 0; k < leaves; k++)
        fill_packed(leaf + k * stride, count, bytes, quant);
    ck_normal(acc, 0, 1000);
    const dsc_ordered_reduce_quantized_args args = { .acc = acc,
                                                     .leaf = leaf,
                                                     .leaf_stride_bytes = stride,
                                                     .grad_part_count = leaves,
                                                     .count = count,
                                                     .quant = quant,
                                                     .overwrite = overwrite };
    ck_kernel(DSC_KERNEL_ORDERED_REDUCE_QUANTIZED, &args, sizeof args, verify_reduce);
}

static void bench(dsc_quant quant)
{
    const int64_t n = ck_bench_size(1 << 24, 1 << 26), bytes = dsc_quant_bytes(quant, n);
    if (ck_case("bench quantize bf16 to %s", dsc_quant_text(quant))) {
        void *from = ck_buf(CK_IN, DSC_BF16, n, "from");
        memset(from, 0x3c, (size_t)n * 2);
        const dsc_quantize_args args = { .to = ck_buf(CK_OUT, DSC_U8, bytes, "to"), .from = from, .count = n,
                                         .pieces = 1, .from_dtype = DSC_BF16, .quant = quant };
        ck_bench(DSC_KERNEL_QUANTIZE, &args, sizeof args, n * 2 + bytes, 0, 0);
    }
    if (ck_case("bench dequantize %s to bf16", dsc_quant_text(quant))) {
        void *from = ck_buf(CK_IN, DSC_U8, bytes, "from");
        memset(from, 0x3c, (size_t)bytes);
        const dsc_dequantize_args args = { .to = ck_buf(CK_OUT, DSC_BF16, n, "to"), .from = from, .count = n,
                                           .pieces = 1, .to_dtype = DSC_BF16, .quant = quant };
        ck_bench(DSC_KERNEL_DEQUANTIZE, &args, sizeof args, n * 2 + bytes, 0, 0);
    }
    if (ck_case("bench ordered_reduce 4 %s leaves", dsc_quant_text(quant))) {
        void *leaf = ck_buf(CK_IN, DSC_U8, 4 * bytes, "leaves");
        memset(leaf, 0x3c, (size_t)(4 * bytes));
        const dsc_ordered_reduce_quantized_args args = { .acc = ck_buf(CK_INOUT, DSC_F32, n, "acc"),
                                                         .leaf = leaf,
                                                         .leaf_stride_bytes = bytes,
                                                         .grad_part_count = 4,
                                                         .count = n,
                                                         .quant = quant };
        ck_bench(DSC_KERNEL_ORDERED_REDUCE_QUANTIZED, &args, sizeof args, n * 8 + 4 * bytes, 0, 0);
    }
}

void ck_quant(void)
{
    for (size_t q = 0; q < DSC_COUNT(quants); q++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++) {
            for (size_t d = 0; d < (dsc_quant_is_half(quants[q]) ? 1 : DSC_COUNT(dtypes)); d++) {
                check_pack(shapes[s].count, shapes[s].pieces, dtypes[d], quants[q], false);
                check_unpack(shapes[s].count, shapes[s].pieces, dtypes[d], quants[q]);
            }
            check_pack(shapes[s].count, shapes[s].pieces, DSC_F32, quants[q], true);
            if (shapes[s].pieces > 0)
                for (int overwrite = 0; overwrite < 2; overwrite++)
                    check_reduce(shapes[s].count, shapes[s].pieces, quants[q], overwrite != 0);
        }
    for (size_t q = 0; q < 2 && ck_benching(); q++)
        bench(quants[q]);
}
