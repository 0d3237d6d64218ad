/* scalar.h - one element of F32, BF16 or F16 at a time, and sums in lanes, for references.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SCALAR_H
#define DSC_KERNELS_SCALAR_H

#include <string.h>

#include <dsc/types.h>

#include "base/bf16.h"
#include "base/f16.h"

static inline float dsc_f32_from_half(uint16_t h, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? dsc_f32_from_f16(h) : dsc_f32_from_bf16(h);
}

static inline uint16_t dsc_half_from_f32(float x, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? dsc_f16_from_f32(x) : dsc_bf16_from_f32(x);
}

static inline float dsc_get(const void *base, int64_t i, dsc_dtype dtype)
{
    return dtype == DSC_F32 ? ((const float *)base)[i] : dsc_f32_from_half(((const uint16_t *)base)[i], dtype);
}

static inline void dsc_put(void *base, int64_t i, dsc_dtype dtype, float x)
{
    if (dtype == DSC_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] = dsc_half_from_f32(x, dtype);
}

/* x as the dtype keeps it. */
static inline float dsc_rounded(float x, dsc_dtype dtype)
{
    return dtype == DSC_F32 ? x : dsc_f32_from_half(dsc_half_from_f32(x, dtype), dtype);
}

/* The largest finite value of a dtype. */
static inline double dsc_dtype_largest(dsc_dtype dtype)
{
    return dtype == DSC_F16 ? 65504.0 : dtype == DSC_BF16 ? 3.3895313892515355e38 : 3.4028234663852886e38;
}

/* Bits of |x|, 0 of an x that is not finite. */
static inline uint32_t dsc_finite_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits &= 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0;
}

/* The first of `count` elements that is finite and becomes infinite in dtype `to`; -1: none. */
static inline int64_t dsc_first_overflow(const void *from, dsc_dtype from_dtype, dsc_dtype to, int64_t count)
{
    const uint32_t least = to == DSC_F16 ? 0x477ff000u : 0x7f7f8000u; /* the first that rounds to infinity */
    uint32_t largest = from_dtype == DSC_F32 ? 0 : least;
    int64_t first = 0;
    if (from_dtype == to || to == DSC_F32)
        return -1;
    for (int64_t i = 0; i < count && from_dtype == DSC_F32; i++) { /* a maximum without a branch: vector instructions */
        const uint32_t bits = dsc_finite_bits(((const float *)from)[i]);
        largest = bits > largest ? bits : largest;
    }
    if (largest < least)
        return -1;
    while (first < count && dsc_finite_bits(dsc_get(from, first, from_dtype)) < least)
        first++;
    return first < count ? first : -1;
}

/* x rounded to one of its neighbours in bf16 by 16 random bits (exact.h, CAST_STOCHASTIC). */
static inline uint16_t dsc_up_or_down(float x, uint32_t random_bits)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return dsc_bf16_from_f32(x);
    return (uint16_t)((u + random_bits) >> 16);
}

/* F32, and the two that are half as long. */
static inline bool dsc_dtype_is_half(dsc_dtype dtype) { return dtype == DSC_BF16 || dtype == DSC_F16; }
static inline bool dsc_dtype_computes(dsc_dtype dtype) { return dtype == DSC_F32 || dsc_dtype_is_half(dtype); }

/* Lane j takes in lane j + w for w = lanes / 2, ..., 2, 1. */
static inline float dsc_lanes_sum(float *lane, int lanes)
{
    for (int width = lanes / 2; width >= 1; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

#endif
