/* scalar.h - one element of F32 or BF16 at a time, for references. SPDX-License-Identifier: Apache-2.0 */
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

#endif
