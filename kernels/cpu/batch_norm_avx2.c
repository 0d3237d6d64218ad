/* batch_norm_avx2.c - batch_norm_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

/* To a 16-bit dtype and back. */
V16_INLINE v16 round_half(v16 x, dsc_dtype dtype)
{
    return (v16) { dsc_half_trip_avx2(x.low, dtype), dsc_half_trip_avx2(x.high, dtype) };
}

#include "kernels/cpu/batch_norm_v16.h"
