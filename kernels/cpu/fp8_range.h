/* fp8_range.h - the body of the cast to fp8, which every variant compiles with its own instructions. Without branches,
 * so that compilers make vectors of it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_FP8_RANGE_H
#define DSC_KERNELS_CPU_FP8_RANGE_H

#include <string.h>

#include "kernels/cpu/fp8_internal.h"

static inline float fp8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t fp8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* The nearest number of the format. mantissa: its bits; low: the exponent of its least normal number. */
static inline __attribute__((always_inline)) uint8_t fp8_round(float x, dsc_fp8 format)
{
    const int mantissa = format == DSC_FP8_E4M3 ? 3 : 2, low = format == DSC_FP8_E4M3 ? -6 : -14;
    const uint32_t largest = dsc_fp8_largest_bits(format), most = format == DSC_FP8_E4M3 ? 0x7eu : 0x7bu;
    const uint32_t bits = fp8_bits(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    const int cut = 23 - mantissa;
    /* Below the least normal number, an addition rounds: its sum has a last bit of one step of the format. */
    const uint32_t anchor = dsc_fp8_power_bits(23 - mantissa + low);
    const uint32_t small = fp8_bits(fp8_float(size) + fp8_float(anchor)) - anchor;
    const uint32_t normal =
        ((size + (1u << (cut - 1)) - 1 + (size >> cut & 1u)) >> cut) - ((uint32_t)(126 + low) << mantissa);
    uint32_t q = size < dsc_fp8_power_bits(low) ? small : normal;
    q = size >= largest ? most : q;
    return (uint8_t)(size >= 0x7f800000u ? 0x7fu : q | sign);
}

static inline uint32_t fp8_top(const uint16_t *x, int64_t count)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t size = x[i] & 0x7fffu;
        top = size > top ? size : top;
    }
    return top << 16;
}

static inline __attribute__((always_inline)) void fp8_row(uint8_t *to, const uint16_t *x, int64_t count, float power,
                                                          dsc_fp8 format)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = fp8_round(fp8_float((uint32_t)x[i] << 16) * power, format);
}

/* Rows [first, first + count) of a matrix, in squares that stay in cache while they are turned. */
static inline __attribute__((always_inline)) void fp8_rows(const dsc_cast_fp8_args *a, int64_t first, int64_t count,
                                                           float power, dsc_fp8 format)
{
    uint8_t square[FP8_ROWS][FP8_COLS];
    for (int64_t c = 0; c < a->col_count; c += FP8_COLS) {
        const int64_t cols = dsc_min_i64(FP8_COLS, a->col_count - c);
        for (int64_t r = 0; r < count; r++) {
            const int64_t at = (first + r) * a->col_count + c;
            fp8_row(square[r], (const uint16_t *)a->from + at, cols, power, format);
            if (a->rows != NULL)
                memcpy(a->rows + at, square[r], (size_t)cols);
        }
        for (int64_t k = 0; k < cols && a->columns != NULL; k++)
            for (int64_t r = 0; r < count; r++)
                a->columns[(c + k) * a->row_count + first + r] = square[r][k];
    }
}

#define FP8_DEFINE(isa)                                                                                                \
    uint32_t dsc_fp8_top_##isa(const uint16_t *x, int64_t count) { return fp8_top(x, count); }                         \
    void dsc_fp8_rows_##isa(const dsc_cast_fp8_args *a, int64_t first, int64_t count, float power)                     \
    {                                                                                                                  \
        if (a->format == DSC_FP8_E4M3)                                                                                 \
            fp8_rows(a, first, count, power, DSC_FP8_E4M3);                                                            \
        else                                                                                                           \
            fp8_rows(a, first, count, power, DSC_FP8_E5M2);                                                            \
    }

#endif
