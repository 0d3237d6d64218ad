/* attention_workers.h - into how many parts a call of attention is cut, and their scratch.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_ATTENTION_WORKERS_H
#define DSC_KERNELS_CPU_ATTENTION_WORKERS_H

#include "kernels/cpu/attention_part.h"

static inline int64_t dsc_attention_tiles(int64_t tokens) { return dsc_div_ceil(tokens, DSC_ATTENTION_TILE); }

static inline int64_t dsc_attention_workers(int64_t batch, int64_t tokens, int64_t heads)
{
    return dsc_min_i64(DSC_ATTENTION_WORKERS, batch * heads * dsc_attention_tiles(tokens));
}

/* Bytes of one worker's part, the larger of both layouts, so that it does not depend on the variant. */
static inline int64_t dsc_attention_fwd_worker_bytes(int64_t tokens, int64_t head_size)
{
    dsc_attention_fwd_scratch unused;
    const int64_t one = dsc_attention_fwd_layout(dsc_attention_dims_of(tokens, head_size, 1), NULL, &unused);
    const int64_t two = dsc_attention_fwd_layout(dsc_attention_dims_of(tokens, head_size, 2), NULL, &unused);
    return 4 * dsc_max_i64(one, two);
}

static inline int64_t dsc_attention_bwd_worker_bytes(int64_t tokens, int64_t head_size)
{
    dsc_attention_bwd_scratch unused;
    const int64_t one = dsc_attention_bwd_layout(dsc_attention_dims_of(tokens, head_size, 1), NULL, &unused);
    const int64_t two = dsc_attention_bwd_layout(dsc_attention_dims_of(tokens, head_size, 2), NULL, &unused);
    return 4 * dsc_max_i64(one, two);
}

#endif
