/* attention_fwd.cu - attention on tensor cores (Dao 2023). A block has 4 warps and 64 MT query rows of one head;
 * key tiles of BC rows come two deep by asynchronous copies. Scores, maxima and sums stay in registers. A warp takes
 * part in a tile only when one of its rows may see one of its keys. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/launchers.h"

namespace {

enum { WARPS = 4, THREADS = 32 * WARPS };

struct fwd_arrays {
    uint16_t *out;
    float *lse;
    const uint16_t *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, out_stride, head_stride;
    int32_t tokens, heads, kv_heads, size, tiles;
    float scale; /* factor of logits: 1 where the rule makes them of scores */
    logit_rule rule;
    const uint16_t *sinks;
    bool in_vectors, out_vectors, starts; /* starts: some query may not see its sample's first key */
    dsc_attention_keys keys;
};

template <int DP, int MT, int BC> constexpr int fwd_shared_bytes()
{
    return 2 * (tile_elements(16 * MT * WARPS, DP) + 4 * tile_elements(BC, DP));
}

/* MORE: with what dsc_attention_is_plain says no to. The others do without its registers. */
template <int DP, int MT, int BC, bool MORE> __global__ void __launch_bounds__(THREADS) fwd_kernel(const fwd_arrays a)
{
    constexpr int BR = 16 * MT * WARPS;
    DSC_CUDA_SHARED(uint16_t, shared);
    uint16_t *const q_tile = shared, *const k_tile = q_tile + tile_elements(BR, DP);
    uint16_t *const v_tile = k_tile + 2 * tile_elements(BC, DP);
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.heads, head = pair % a.heads;
    const int32_t past = a.keys.past, all_keys = past + a.tokens;
    const int64_t key_head = head / (a.heads / a.kv_heads) * a.head_stride;
    /* The last tiles have most keys: they come first. */
    const int32_t first = (a.tiles - 1 - static_cast<int32_t>(blockIdx.x % a.tiles)) * BR;
    const int32_t warp_row = static_cast<int32_t>(threadIdx.x / 32) * 16 * MT, row = first + warp_row;
    const head_rows q = { a.q + batch * a.tokens * a.q_stride + head * a.head_stride, a.q_stride, a.tokens, a.size,
                          a.in_vectors };
    const head_rows k = { a.k + batch * a.tokens * a.k_stride + key_head, a.k_stride, all_keys, a.size, a.in_vectors };
    const head_rows v = { a.v + batch * a.tokens * a.v_stride + key_head, a.v_stride, all_keys, a.size, a.in_vectors };
    const int32_t end = a.keys.all ? a.tokens : past + min(first + BR, a.tokens);
    const int32_t begin = a.starts ? first_key<MORE>(a.keys, batch, a.tokens, first) / BC : 0;
    const bool both = MORE && a.starts && a.keys.all;
    const int32_t tiles = both ? end_of_tiles<BC, MORE>(a.keys, batch, a.tokens, begin, first + BR)
                               : (end + BC - 1) / BC;
    const float slope = MORE ? slope_of(a.rule, a.heads, head) : 0.0f;
    const float scale2 = a.scale * LOG2_E;
    row_state<DP, MT> s;
    begin_rows(s);
    load_rows<DP, BR, THREADS>(q_tile, q, first);
    load_rows<DP, BC, THREADS>(k_tile + begin % 2 * tile_elements(BC, DP), k, begin * BC);
    load_rows<DP, BC, THREADS>(v_tile + begin % 2 * tile_elements(BC, DP), v, begin * BC);
    cp_async_commit();
    for (int32_t j = begin; j < tiles; j++) {
        const int now = j % 2 * tile_elements(BC, DP), next = (j + 1) % 2 * tile_elements(BC, DP);
        if (j + 1 < tiles) {
            load_rows<DP, BC, THREADS>(k_tile + next, k, (j + 1) * BC);
            load_rows<DP, BC, THREADS>(v_tile + next, v, (j + 1) * BC);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        if (row < a.tokens && (a.keys.all || j * BC < past + row + 16 * MT)) {
            float score[MT][BC / 8][4];
            multiply_rows<DP, MT, BC / 8>(score, q_tile, warp_row, k_tile + now);
            if (MORE && a.rule.any) {
                cap_scores(score, a.rule);
                slope_scores<false>(score, a.rule, slope, past + row, j * BC);
            }
            if (a.keys.all)
                mask_hidden<MT, BC>(score, a.keys, batch, a.tokens, j * BC);
            else if (j * BC + BC - 1 > past + row)
                mask_future<MT, BC>(score, past + row, j * BC);
            if (a.starts)
                mask_before<MT, BC, MORE>(score, a.keys, batch, a.tokens, row, j * BC);
            if (both)
                mask_behind<MT, BC>(score, a.keys, batch, a.tokens, row, j * BC);
            float old[MT][2];
            soften<DP, MT, BC>(s, score, old, scale2);
            rescale(s, old);
            multiply_columns<DP, MT, BC / 8>(s.out, score, v_tile + now);
        }
        __syncthreads();
    }
    cp_async_wait<0>();
    if (row >= a.tokens)
        return;
    float factor[MT][2];
    float *lse = a.lse != NULL ? a.lse + pair * a.tokens : NULL;
    if (MORE && a.sinks != NULL)
        end_rows_with(to_f32(a.sinks[head]), s, factor, lse, row, a.tokens, a.scale);
    else
        end_rows(s, factor, lse, row, a.tokens, a.scale);
    store_warp_rows<DP, MT>(q_tile, warp_row, s.out, factor, a.out + batch * a.tokens * a.out_stride + head * a.size,
                            a.out_stride, row, a.tokens, a.size, a.out_vectors);
}

template <int DP, int MT, int BC, bool MORE = false>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, dsc_error *err)
{
    constexpr int BYTES = fwd_shared_bytes<DP, MT, BC>();
    const int32_t tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, 16 * MT * WARPS));
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    const logit_rule rule = rule_of(a->logits, a->scale);
    const fwd_arrays arrays = { static_cast<uint16_t *>(a->out),
                                a->lse,
                                static_cast<const uint16_t *>(a->q),
                                static_cast<const uint16_t *>(a->k),
                                static_cast<const uint16_t *>(a->v),
                                a->q_stride,
                                a->k_stride,
                                a->v_stride,
                                a->out_stride,
                                head_stride,
                                a->tokens,
                                a->heads,
                                a->kv_heads,
                                a->head_size,
                                tiles,
                                rule.any ? 1.0f : a->scale,
                                rule,
                                static_cast<const uint16_t *>(a->sinks),
                                head_stride % 8 == 0 && rows_are_aligned(a->q, a->q_stride, a->head_size) &&
                                    rows_are_aligned(a->k, a->k_stride, a->head_size) &&
                                    rows_are_aligned(a->v, a->v_stride, a->head_size),
                                rows_are_aligned(a->out, a->out_stride, a->head_size),
                                a->keys.positions != NULL || a->keys.window > 0,
                                a->keys };
    DSC_TRY(allow_shared(fwd_kernel<DP, MT, BC, MORE>, BYTES, err));
    DSC_CUDA_LAUNCH((fwd_kernel<DP, MT, BC, MORE>), grid_size(static_cast<int64_t>(tiles) * a->batch * a->heads),
                    THREADS, BYTES, at->stream, arrays);
    return DSC_OK;
}

dsc_status launch_more(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, dsc_error *err)
{
    if (a->head_size <= 16)
        return launch<16, 1, 32, true>(at, a, err);
    if (a->head_size <= 32)
        return launch<32, 2, 64, true>(at, a, err);
    if (a->head_size <= 64)
        return launch<64, 2, 64, true>(at, a, err);
    if (a->head_size <= 96)
        return launch<96, 1, 64, true>(at, a, err);
    return launch<128, 1, 64, true>(at, a, err);
}

} // namespace

dsc_status dsc_cuda_attention_fwd_warps(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, dsc_error *err)
{
    if (!dsc_attention_is_plain(&a->keys, &a->logits, a->sinks))
        return launch_more(at, a, err);
    if (a->head_size <= 16)
        return launch<16, 1, 32>(at, a, err);
    if (a->head_size <= 32)
        return launch<32, 2, 64>(at, a, err);
    if (a->head_size <= 64)
        return launch<64, 2, 64>(at, a, err);
    if (a->head_size <= 96)
        return launch<96, 2, 64>(at, a, err);
    /* Cards like RTX 40 have 99 KiB for a block. A warp with half the rows adds up in the same order. */
    return fwd_shared_bytes<128, 2, 64>() <= at->shared_bytes ? launch<128, 2, 64>(at, a, err)
                                                              : launch<128, 1, 64>(at, a, err);
}

dsc_status dsc_cuda_run_ATTENTION_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_attention_fwd_args *a = static_cast<const dsc_attention_fwd_args *>(args);
    bool done = false;
    DSC_TRY(dtype_check("ATTENTION_FWD", a->dtype, err));
    DSC_ASSERT(a->kv_heads >= 1 && a->heads % a->kv_heads == 0);
    DSC_ASSERT(a->batch >= 1 && a->tokens >= 1 && a->heads >= 1 && a->head_size >= 1);
    DSC_ASSERT(a->scale > 0);
    DSC_ASSERT(a->keys.past == 0 || (a->batch == 1 && !a->keys.all));
    DSC_TRY(dsc_cuda_attention_fwd_library(at, a, &done, err));
    if (done)
        return DSC_OK;
    if (a->dtype != DSC_BF16 || a->head_size > DSC_CUDA_ATTENTION_TENSOR_HEAD_MAX)
        return dsc_cuda_attention_fwd_plain(at, a, err);
    const dsc_attention_kind kind = dsc_cuda_attention_fwd_chosen(at->attention, a);
    if (kind == DSC_ATTENTION_WARPS)
        return dsc_cuda_attention_fwd_warps(at, a, err);
    return dsc_cuda_attention_fwd_sm90(at, a, dsc_cuda_attention_encode(at->attention), kind, err);
}
