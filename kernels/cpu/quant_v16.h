/* quant_v16.h - the recipes of quant.h on sixteen lanes. Include after v16_*.h and after the primitives that AVX-512
 * and AVX2 implement separately. These are v16_bits (of |x|), v16_int8 (nearest integers as bytes), v16_of_int8,
 * v16_max_bits, v16_top_bits (of all lanes), v16_where_finite (x where r is finite, else 0).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_QUANT_V16_H
#define DSC_KERNELS_CPU_QUANT_V16_H

#include "kernels/cpu/quant_unit.h"

#define VECTORS (DSC_QUANT_BLOCK / 16)

/* Sixteen integers of -8..7 as eight bytes, and back: 8 is added, the even one of two is in the lower half. */
V16_INLINE void store_int4(uint8_t *to, __m128i bytes)
{
    const __m128i halves = _mm_add_epi8(bytes, _mm_set1_epi8(8));
    const __m128i pairs = _mm_maddubs_epi16(halves, _mm_set1_epi16(0x1001));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packus_epi16(pairs, pairs));
}

V16_INLINE __m128i load_int4(const uint8_t *from)
{
    const __m128i pairs = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)from));
    const __m128i halves = _mm_or_si128(pairs, _mm_slli_epi16(pairs, 4));
    return _mm_sub_epi8(_mm_and_si128(halves, _mm_set1_epi8(15)), _mm_set1_epi8(8));
}

V16_INLINE __m128i load_packed(const uint8_t *q, int64_t i, dsc_quant quant)
{
    return quant == DSC_QUANT_INT4 ? load_int4(q + i / 2) : _mm_loadu_si128((const __m128i *)(const void *)(q + i));
}

V16_INLINE void store_packed(uint8_t *q, int64_t i, __m128i bytes, dsc_quant quant)
{
    if (quant == DSC_QUANT_INT4)
        store_int4(q + i / 2, bytes);
    else
        _mm_storeu_si128((__m128i *)(void *)(q + i), bytes);
}

V16_INLINE void pack_block(uint16_t *scale, uint8_t *q, const void *from, float *error, int64_t first, dsc_dtype dtype,
                           dsc_quant quant)
{
    v16 x[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        x[v] = v16_load(from, first + v * 16, 16, dtype);
        if (error != NULL)
            x[v] = v16_add(x[v], v16_load(error, first + v * 16, 16, DSC_F32));
    }
    v16_ints top = v16_bits(x[0]);
    for (int v = 1; v < VECTORS; v++)
        top = v16_max_bits(top, v16_bits(x[v]));
    const uint32_t top_bits = v16_top_bits(top);
    const float inverse = dsc_quant_inverse(top_bits, quant, scale);
    if (inverse == 0.0f) {
        memset(q, dsc_quant_zero(quant), (size_t)dsc_quant_block_bytes(quant));
        for (int v = 0; v < VECTORS && error != NULL; v++)
            v16_store(error, first + v * 16, 16, DSC_F32, top_bits >= 0x7f800000u ? v16_set(0) : x[v]);
        return;
    }
    const v16 by = v16_set(inverse), step = v16_set(dsc_f32_from_bf16(*scale));
    for (int v = 0; v < VECTORS; v++) {
        const __m128i bytes = v16_int8(v16_mul(x[v], by));
        store_packed(q, v * 16, bytes, quant);
        if (error != NULL)
            v16_store(error, first + v * 16, 16, DSC_F32, v16_sub(x[v], v16_mul(v16_of_int8(bytes), step)));
    }
}

V16_INLINE void pack_half(uint8_t *to, const float *from, float *error, dsc_dtype half)
{
    for (int64_t i = 0; i < DSC_QUANT_UNIT; i += 16) {
        v16 x = v16_load(from, i, 16, DSC_F32);
        if (error != NULL)
            x = v16_add(x, v16_load(error, i, 16, DSC_F32));
        v16_store(to, i, 16, half, x);
        const v16 rounded = v16_load(to, i, 16, half);
        if (error != NULL)
            v16_store(error, i, 16, DSC_F32, v16_where_finite(rounded, v16_sub(x, rounded)));
    }
}

V16_INLINE void reduce_half(float *acc, const uint8_t *leaf, dsc_dtype half, bool overwrite)
{
    for (int64_t i = 0; i < DSC_QUANT_UNIT; i += 16) {
        const v16 x = v16_load(leaf, i, 16, half);
        v16_store(acc, i, 16, DSC_F32, overwrite ? x : v16_add(v16_load(acc, i, 16, DSC_F32), x));
    }
}

V16_INLINE void pack_unit(const dsc_quant_unit *to, const void *from, float *error, dsc_dtype dtype, dsc_quant quant)
{
    for (int64_t b = 0; b < DSC_QUANT_UNIT_BLOCKS; b++)
        pack_block(&to->scale[b], to->q + b * dsc_quant_block_bytes(quant), from, error, b * DSC_QUANT_BLOCK, dtype,
                   quant);
}

V16_INLINE v16 unpacked(const dsc_quant_unit *unit, int64_t i, v16 step, dsc_quant quant)
{
    return v16_mul(v16_of_int8(load_packed(unit->q, i, quant)), step);
}

V16_INLINE void unpack_unit(void *to, const dsc_quant_unit *from, dsc_dtype dtype, dsc_quant quant)
{
    for (int64_t b = 0; b < DSC_QUANT_UNIT_BLOCKS; b++) {
        const v16 step = v16_set(dsc_f32_from_bf16(from->scale[b]));
        for (int64_t i = b * DSC_QUANT_BLOCK; i < (b + 1) * DSC_QUANT_BLOCK; i += 16)
            v16_store(to, i, 16, dtype, unpacked(from, i, step, quant));
    }
}

V16_INLINE void reduce_unit(float *acc, const dsc_quant_unit *leaf, dsc_quant quant, bool overwrite)
{
    for (int64_t b = 0; b < DSC_QUANT_UNIT_BLOCKS; b++) {
        const v16 step = v16_set(dsc_f32_from_bf16(leaf->scale[b]));
        for (int64_t i = b * DSC_QUANT_BLOCK; i < (b + 1) * DSC_QUANT_BLOCK; i += 16) {
            const v16 x = unpacked(leaf, i, step, quant);
            v16_store(acc, i, 16, DSC_F32, overwrite ? x : v16_add(v16_load(acc, i, 16, DSC_F32), x));
        }
    }
}

/* One instance for each dtype and width. */
#define FOR_DTYPE(dtype, call_f32, call_bf16, call_f16) \
    (dtype) == DSC_F32 ? (call_f32) : (dtype) == DSC_BF16 ? (call_bf16) : (call_f16)

static void pack(const dsc_quant_unit *to, const void *from, float *error, dsc_dtype dtype, dsc_quant quant)
{
    if (quant == DSC_QUANT_BF16)
        pack_half(to->q, from, error, DSC_BF16);
    else if (quant == DSC_QUANT_F16)
        pack_half(to->q, from, error, DSC_F16);
    else if (quant == DSC_QUANT_INT4)
        FOR_DTYPE(dtype, pack_unit(to, from, error, DSC_F32, DSC_QUANT_INT4),
                  pack_unit(to, from, error, DSC_BF16, DSC_QUANT_INT4),
                  pack_unit(to, from, error, DSC_F16, DSC_QUANT_INT4));
    else
        FOR_DTYPE(dtype, pack_unit(to, from, error, DSC_F32, DSC_QUANT_INT8),
                  pack_unit(to, from, error, DSC_BF16, DSC_QUANT_INT8),
                  pack_unit(to, from, error, DSC_F16, DSC_QUANT_INT8));
}

static void unpack(void *to, const dsc_quant_unit *from, dsc_dtype dtype, dsc_quant quant)
{
    if (quant == DSC_QUANT_BF16)
        reduce_half(to, from->q, DSC_BF16, true);
    else if (quant == DSC_QUANT_F16)
        reduce_half(to, from->q, DSC_F16, true);
    else if (quant == DSC_QUANT_INT4)
        FOR_DTYPE(dtype, unpack_unit(to, from, DSC_F32, DSC_QUANT_INT4),
                  unpack_unit(to, from, DSC_BF16, DSC_QUANT_INT4),
                  unpack_unit(to, from, DSC_F16, DSC_QUANT_INT4));
    else
        FOR_DTYPE(dtype, unpack_unit(to, from, DSC_F32, DSC_QUANT_INT8),
                  unpack_unit(to, from, DSC_BF16, DSC_QUANT_INT8),
                  unpack_unit(to, from, DSC_F16, DSC_QUANT_INT8));
}

static void ordered_reduce(float *acc, const dsc_quant_unit *leaf, dsc_quant quant, bool overwrite)
{
    if (quant == DSC_QUANT_BF16)
        reduce_half(acc, leaf->q, DSC_BF16, overwrite);
    else if (quant == DSC_QUANT_F16)
        reduce_half(acc, leaf->q, DSC_F16, overwrite);
    else if (quant == DSC_QUANT_INT4)
        overwrite ? reduce_unit(acc, leaf, DSC_QUANT_INT4, true) : reduce_unit(acc, leaf, DSC_QUANT_INT4, false);
    else
        overwrite ? reduce_unit(acc, leaf, DSC_QUANT_INT8, true) : reduce_unit(acc, leaf, DSC_QUANT_INT8, false);
}

const dsc_quant_ops V16_NAME(quant) = { pack, unpack, ordered_reduce };

#endif
