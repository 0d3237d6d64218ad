/* batch_norm_avx512.c - batch_norm_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

/* To a 16-bit dtype and back. */
V16_INLINE v16 round_half(v16 x, dsc_dtype dtype) { return dsc_half_trip_avx512(x, dtype); }

#include "kernels/cpu/batch_norm_v16.h"
