/* attention_scratch.c - sizes of attention's scratch. They are apart from the kernels of CPUs, because the part for
 * GPUs needs them too. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/attention_workers.h"

int64_t dsc_attention_fwd_scratch_bytes(int32_t batch, int32_t tokens, int32_t heads, int32_t head_size)
{
    return dsc_attention_workers(batch, tokens, heads) * dsc_attention_fwd_worker_bytes(tokens, head_size);
}

int64_t dsc_attention_bwd_scratch_bytes(int32_t batch, int32_t tokens, int32_t heads, int32_t head_size)
{
    const int64_t deltas = (int64_t)batch * heads * tokens * 4; /* a number a row, for all rows at once: GPUs */
    return dsc_max_i64(deltas,
                       dsc_attention_workers(batch, tokens, heads) * dsc_attention_bwd_worker_bytes(tokens, head_size));
}

int64_t dsc_attention_stored_at(int32_t batch, int32_t tokens, int32_t heads, int32_t head_size)
{
    return dsc_align_up(dsc_attention_bwd_scratch_bytes(batch, tokens, heads, head_size), 256);
}

/* Heads that share keys are stored together. */
int64_t dsc_attention_stored_bytes(const dsc_attention_fwd_args *a, int64_t most)
{
    const int64_t group = a->heads / a->kv_heads * dsc_attention_stored_head_bytes(a->tokens, a->keys.all);
    const int64_t groups =
        dsc_min_i64((int64_t)a->batch * a->kv_heads,
                    dsc_div_ceil(DSC_ATTENTION_STORED_PIECES, dsc_attention_stored_pieces(a->tokens)));
    const bool fits = a->dtype == DSC_BF16 && a->head_size >= DSC_ATTENTION_STORED_HEAD_MIN &&
                      a->head_size <= DSC_ATTENTION_STORED_HEAD_MAX &&
                      dsc_attention_is_plain(&a->keys, &a->logits, a->sinks);
    return fits && most >= group ? group * dsc_min_i64(groups, most / group) : 0;
}
