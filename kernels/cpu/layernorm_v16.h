/* layernorm_v16.h - layer normalisation on 16 lanes, bit by bit what layernorm_ref.c does; compiled by
 * layernorm_avx2.c and layernorm_avx512.c after their v16 words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/norm_v16.h"

void V16_NAME(layernorm_fwd)(const void *args, int64_t first, int64_t last) { norm_fwd_any(args, first, last, false); }

void V16_NAME(layernorm_bwd)(const void *args, int64_t first, int64_t last) { norm_bwd_any(args, first, last, false); }

void V16_NAME(layernorm_bwd_sum)(const void *args, int64_t first, int64_t last)
{
    norm_bwd_sum(args, first, last, (norm_kind){ DSC_F32, false, true });
}
