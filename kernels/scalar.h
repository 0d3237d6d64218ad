/* scalar.h - one element of F32 or BF16 at a time, and sums in lanes, for references.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SCALAR_H
#define DSC_KERNELS_SCALAR_H

#include <dsc/types.h>

#include "base/bf16.h"

static inline float dsc_get(const void *base, int64_t i, dsc_dtype dtype)
{
    return dtype == DSC_F32 ? ((const float *)base)[i] : dsc_f32_from_bf16(((const uint16_t *)base)[i]);
}

static inline void dsc_put(void *base, int64_t i, dsc_dtype dtype, float x)
{
    if (dtype == DSC_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] = dsc_bf16_from_f32(x);
}

/* Lane j takes in lane j + w for w = lanes / 2, ..., 2, 1. */
static inline float dsc_lanes_fold(float *lane, int lanes)
{
    for (int width = lanes / 2; width >= 1; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

#endif
