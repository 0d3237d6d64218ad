/* attention_fwd_sm90.cu - forward attention by warpgroup products and tile copies of sm_90a (as in Shah et al. 2024).
 *
 * A block has 128 query rows of one head: two warpgroups of 64. One thread of a third warpgroup copies tiles of keys
 * and values, some ahead. A warpgroup keeps its queries in registers. While it works on the softmax of one tile, the
 * product of the probabilities of the tile before runs. Tiles of 64 keys have the softmax and the order of all sums of
 * attention_fwd.cu: the same bits on a GPU whose two kinds of products add up alike. Tiles of 128 keys need half the
 * waits and rescalings, and change the maxima that the sums are scaled by. attention_plan.cu chooses the kernel of a
 * shape.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/attention/attention_tiles.h"

namespace {

/* DSC_ATTENTION_WARPGROUPS: the fastest on an H200 (bench/results), for all sizes of heads. */
constexpr dsc_attention_kind FASTEST = DSC_ATTENTION_WARPGROUPS_STAYING;

/* Tiles of KEYS keys that a ring has. */
template <int KEYS> __host__ __device__ constexpr int stages_of() { return 4 * TILE / KEYS; }

struct sm90_arrays {
    CUtensorMap k, v; /* [batch, tokens, kv_heads, size] */
    uint16_t *out;
    float *lse;
    const uint16_t *q;
    int64_t q_stride, out_stride, head_stride;
    int32_t tokens, heads, kv_heads, size, tiles;
    float scale;
    bool out_vectors, starts; /* starts: some query may not see its sample's first key */
    dsc_attention_keys keys;
    work_list work;
};

/* Queries first .. first + 127 of a head, and the tiles of keys that they see, from key `begin` on. */
struct piece {
    int32_t pair, batch, head, first, begin, tiles;
};

template <int KEYS> __device__ __forceinline__ piece query_piece_of(const sm90_arrays &a, uint32_t number)
{
    const work_piece p = piece_of<true>(a.work, number);
    const int32_t pair = static_cast<int32_t>(p.pair), batch = pair / a.heads;
    const int32_t first = (a.tiles - 1 - static_cast<int32_t>(p.tile)) * ROWS; /* the last tiles have most keys */
    const int32_t end = a.keys.all ? a.tokens : min(first + ROWS, a.tokens);
    const int32_t begin = a.starts ? first_key(a.keys, batch, a.tokens, first) / KEYS * KEYS : 0;
    return { pair, batch, pair % a.heads, first, begin, (end - begin + KEYS - 1) / KEYS };
}

/* Shared memory: tiles, rows of the result, barriers. */
template <int DP, int KEYS> struct stages {
    typedef tile_ring<DP, stages_of<KEYS>(), KEYS> ring;
    ring k, v;
    static constexpr int OUT_AT = 2 * ring::TILES_BYTES;
    static constexpr int BARRIERS_AT = OUT_AT + 2 * tile_elements(ROWS, DP);
    static constexpr int BYTES = BARRIERS_AT + 2 * ring::BARRIERS * static_cast<int>(sizeof(mbarrier));
};

/* By one thread, for all pieces of the block. */
template <int DP, int KEYS> __device__ __forceinline__ void copy_tiles(const stages<DP, KEYS> &s, const sm90_arrays &a)
{
    ring_turn<stages_of<KEYS>()> turn = { 0, 0 };
    for (uint32_t i = blockIdx.x; i < a.work.pieces; i += gridDim.x) {
        const piece p = query_piece_of<KEYS>(a, i);
        const int32_t head = p.head / (a.heads / a.kv_heads);
        for (int32_t j = 0; j < p.tiles; j++, turn.next()) {
            s.k.copy(&a.k, turn, p.begin + j * KEYS, head, p.batch);
            s.v.copy(&a.v, turn, p.begin + j * KEYS, head, p.batch);
        }
    }
}

/* ---- a computing warpgroup ---- */

/* A warp's 16 rows from `row` on as the left operand. */
template <int DP>
__device__ __forceinline__ void load_queries(unsigned (&q)[DP / 16][4], const uint16_t *head, int64_t stride,
                                             int32_t row, int32_t rows, int32_t size)
{
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < DP / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t r = row + g + 8 * (i & 1), c = 16 * k + 2 * t + 8 * (i / 2);
            q[k][i] = r < rows && c < size ? *reinterpret_cast<const unsigned *>(head + r * stride + c) : 0;
        }
}

template <int KEYS>
__device__ __forceinline__ void mask(float (&score)[1][KEYS / 8][4], const sm90_arrays &a, int64_t batch, int32_t row,
                                     int32_t key)
{
    if (!a.keys.all) {
        if (key + KEYS - 1 > row)
            mask_future<1, KEYS>(score, row, key);
    } else if (a.keys.tokens != NULL || key + KEYS > a.tokens) {
        mask_hidden<1, KEYS>(score, a.keys, batch, a.tokens, key);
    }
    if (a.starts)
        mask_before<1, KEYS>(score, a.keys, batch, a.tokens, row, key);
}

/* Rows row .. row + 15 of this warp over all tiles, the first of which begins with `key` and has the turn. */
template <int DP, int KEYS>
__device__ __forceinline__ void compute_rows(row_state<DP, 1> &s, const stages<DP, KEYS> &at, const sm90_arrays &a,
                                             const unsigned (&q)[DP / 16][4], int64_t batch, int32_t row, int32_t key,
                                             int32_t tiles, ring_turn<stages_of<KEYS>()> &turn)
{
    const float scale2 = a.scale * LOG2_E;
    float score[1][KEYS / 8][4], old[1][2];
    unsigned p[KEYS / 16][4];
    ring_turn<stages_of<KEYS>()> before;
    at.k.wait_full(turn);
    ask_rows<DP, KEYS>(score[0], q, at.k.tile(turn));
    wgmma_wait<0>(score[0]);
    at.k.give_back(turn);
    mask<KEYS>(score, a, batch, row, key);
    soften<DP, 1, KEYS>(s, score, old, scale2);
    pack_rows<KEYS>(p, score[0]);
    for (int32_t j = 1; j < tiles; j++) {
        before = turn;
        turn.next();
        at.k.wait_full(turn);
        ask_rows<DP, KEYS>(score[0], q, at.k.tile(turn));
        at.v.wait_full(before);
        ask_columns<DP, KEYS>(s.out[0], p, at.v.tile(before));
        wgmma_wait<1>(score[0]);
        at.k.give_back(turn);
        mask<KEYS>(score, a, batch, row, key + j * KEYS);
        soften<DP, 1, KEYS>(s, score, old, scale2);
        wgmma_wait<0>(s.out[0]);
        at.v.give_back(before);
        rescale(s, old);
        pack_rows<KEYS>(p, score[0]);
    }
    at.v.wait_full(turn);
    ask_columns<DP, KEYS>(s.out[0], p, at.v.tile(turn));
    wgmma_wait<0>(s.out[0]);
    at.v.give_back(turn);
    turn.next();
}

/* ---- the kernel ---- */

template <int DP, int KEYS> __device__ __forceinline__ stages<DP, KEYS> begin_stages(unsigned char *shared)
{
    mbarrier *barriers = reinterpret_cast<mbarrier *>(shared + stages<DP, KEYS>::BARRIERS_AT);
    constexpr int STAGES = stages_of<KEYS>();
    stages<DP, KEYS> s;
    s.k = lay_ring<DP, STAGES, KEYS>(&shared, &barriers);
    s.v = lay_ring<DP, STAGES, KEYS>(&shared, &barriers);
    if (threadIdx.x == 0) {
        s.k.begin(1);
        s.v.begin(1);
        mbarrier_publish();
    }
    __syncthreads();
    return s;
}

/* A computing warp's part of a piece. out_tile: rows of the result. */
template <int DP, int KEYS>
__device__ __forceinline__ void compute_piece(const stages<DP, KEYS> &at, const sm90_arrays &a, const piece &p,
                                              uint16_t *out_tile, ring_turn<stages_of<KEYS>()> &turn)
{
    const int32_t warp_row = computing_warp() * 16, row = p.first + warp_row;
    const int64_t token = static_cast<int64_t>(p.batch) * a.tokens;
    row_state<DP, 1> s;
    unsigned q[DP / 16][4];
    begin_rows(s);
    load_queries<DP>(q, a.q + token * a.q_stride + p.head * a.head_stride, a.q_stride, row, a.tokens, a.size);
    compute_rows(s, at, a, q, p.batch, row, p.begin, p.tiles, turn);
    if (row >= a.tokens)
        return;
    float factor[1][2];
    float *const lse = a.lse != NULL ? a.lse + static_cast<int64_t>(p.pair) * a.tokens : NULL;
    end_rows(s, factor, lse, row, a.tokens, a.scale);
    store_warp_rows<DP, 1>(out_tile, warp_row, s.out, factor, a.out + token * a.out_stride + p.head * a.size,
                           a.out_stride, row, a.tokens, a.size, a.out_vectors);
}

template <int DP, int KEYS>
__global__ void __launch_bounds__(SM90_THREADS, 1) sm90_kernel(const __grid_constant__ sm90_arrays a)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const stages<DP, KEYS> at = begin_stages<DP, KEYS>(shared);
    if (threadIdx.x < WARPGROUP) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_tiles(at, a);
        return;
    }
    registers_take<COMPUTE_REGISTERS>();
    uint16_t *const out_tile = reinterpret_cast<uint16_t *>(shared + stages<DP, KEYS>::OUT_AT);
    ring_turn<stages_of<KEYS>()> turn = { 0, 0 };
    for (uint32_t i = blockIdx.x; i < a.work.pieces; i += gridDim.x)
        compute_piece(at, a, query_piece_of<KEYS>(a, i), out_tile, turn);
}

/* ---- launches ---- */

/* k or v. */
mapped key_tensor(const dsc_attention_fwd_args *a, const void *x, int64_t stride)
{
    return { x,           stride,      dsc_attention_head_stride(a->head_stride, a->head_size), a->batch, a->tokens,
             a->kv_heads, a->head_size };
}

template <int DP, int KEYS>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, void *encode, bool stay, dsc_error *err)
{
    constexpr int BYTES = stages<DP, KEYS>::BYTES;
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    sm90_arrays x = {};
    DSC_TRY(describe(&x.k, key_tensor(a, a->k, a->k_stride), encode, err));
    DSC_TRY(describe(&x.v, key_tensor(a, a->v, a->v_stride), encode, err));
    x.out = static_cast<uint16_t *>(a->out), x.lse = a->lse, x.q = static_cast<const uint16_t *>(a->q);
    x.q_stride = a->q_stride, x.out_stride = a->out_stride, x.head_stride = head_stride;
    x.tokens = a->tokens, x.heads = a->heads, x.kv_heads = a->kv_heads, x.size = a->head_size;
    x.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, ROWS));
    x.scale = a->scale;
    x.out_vectors = rows_are_aligned(a->out, a->out_stride, a->head_size);
    x.starts = a->keys.positions != NULL || a->keys.window > 0;
    x.keys = a->keys;
    DSC_TRY(allow_shared(sm90_kernel<DP, KEYS>, BYTES, err));
    x.work = work_of(at, static_cast<int64_t>(a->batch) * a->heads, x.tiles, stay);
    DSC_CUDA_LAUNCH((sm90_kernel<DP, KEYS>), blocks_of(at, x.work), SM90_THREADS, BYTES, at->stream, x);
    return DSC_OK;
}

} // namespace

void *dsc_cuda_attention_sm90_find(void)
{
    void *encode = NULL;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &result) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return result == cudaDriverEntryPointSuccess ? encode : NULL;
}

bool dsc_cuda_attention_fwd_sm90_starts(void)
{
    return starts_with_registers(sm90_kernel<64, 64>) && starts_with_registers(sm90_kernel<64, 128>) &&
           starts_with_registers(sm90_kernel<128, 64>) && starts_with_registers(sm90_kernel<128, 128>);
}

bool dsc_cuda_attention_fwd_sm90_fits(const dsc_attention_fwd_args *a)
{
    return a->dtype == DSC_BF16 && a->keys.past == 0 && dsc_attention_is_plain(&a->keys, &a->logits, a->sinks) &&
           can_map(key_tensor(a, a->k, a->k_stride)) && can_map(key_tensor(a, a->v, a->v_stride)) &&
           rows_are_aligned(a->q, a->q_stride, a->head_size);
}

dsc_status dsc_cuda_attention_fwd_sm90(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, void *encode,
                                       dsc_attention_kind kind, dsc_error *err)
{
    DSC_ASSERT(dsc_cuda_attention_fwd_sm90_fits(a));
    if (kind == DSC_ATTENTION_WARPGROUPS)
        kind = FASTEST;
    const bool wide = kind != DSC_ATTENTION_WARPGROUPS_IN_TURN, stay = kind == DSC_ATTENTION_WARPGROUPS_STAYING;
    if (a->head_size <= 64)
        return wide ? launch<64, 128>(at, a, encode, stay, err) : launch<64, 64>(at, a, encode, stay, err);
    return wide ? launch<128, 128>(at, a, encode, stay, err) : launch<128, 64>(at, a, encode, stay, err);
}
