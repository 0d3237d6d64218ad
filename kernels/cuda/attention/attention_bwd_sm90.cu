/* attention_bwd_sm90.cu - gradients of attention by warpgroup products and tile copies of sm_90a.
 *
 * As in attention_bwd.cu, one kernel computes dk and dv, and one computes dq, without atomics. Blocks of the first keep
 * 128 key rows and go through query rows, in transposed scores; blocks of the second keep query rows and go through
 * keys. In both, a warpgroup has 64 kept rows of two tensors in shared memory. Tiles of 64 rows of the two other
 * tensors come by a ring each, up to STAGES ahead. Accumulators stay in registers. The exponentials of a tile run
 * beside the second product, in dq also beside the last product of the tile before. Numbers of queries come with their
 * tile, by a second warp of the copying warpgroup.
 *
 * The order of all sums is that of attention_bwd.cu, so that where both kinds of products add up alike both give the
 * same bits. The kernel of a shape is chosen by measurement (attention_plan.cu).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_gradients.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/attention/attention_tiles.h"

namespace {

enum { STAGES = 3 };

struct gradient_arrays {
    CUtensorMap q, d_out; /* [batch, tokens, heads, size] */
    CUtensorMap k, v;     /* [batch, tokens, kv_heads, size] */
    bwd_arrays a;
};

/* Shared memory: the kept rows of both tensors, the rings of the others, rows of the result, numbers of the queries
 * in the ring, barriers. */
template <int DP> struct gradient_tiles {
    unsigned char *kept[2]; /* [CONSUMERS] tiles each */
    tile_ring<DP, STAGES> ring[2];
    mbarrier *kept_full;
    uint16_t *out;
    query_numbers numbers; /* [STAGES * TILE] */
    static constexpr int OUT_AT = 2 * CONSUMERS * tile_bytes<DP>() + 2 * tile_ring<DP, STAGES>::TILES_BYTES;
    static constexpr int NUMBERS_AT = OUT_AT + 2 * tile_elements(ROWS, DP);
    static constexpr int BARRIERS_AT = NUMBERS_AT + 3 * 4 * STAGES * TILE;
    static constexpr int BYTES =
        BARRIERS_AT + (1 + 2 * tile_ring<DP, STAGES>::BARRIERS) * static_cast<int>(sizeof(mbarrier));
};

/* `fillers`: who fills a stage of the first ring. */
template <int DP> __device__ __forceinline__ gradient_tiles<DP> begin_tiles(unsigned char *shared, unsigned fillers)
{
    mbarrier *barriers = reinterpret_cast<mbarrier *>(shared + gradient_tiles<DP>::BARRIERS_AT);
    float *const numbers = reinterpret_cast<float *>(shared + gradient_tiles<DP>::NUMBERS_AT);
    gradient_tiles<DP> s;
    s.out = reinterpret_cast<uint16_t *>(shared + gradient_tiles<DP>::OUT_AT);
    s.numbers = { numbers, numbers + STAGES * TILE, reinterpret_cast<int32_t *>(numbers + 2 * STAGES * TILE) };
    s.kept_full = barriers++;
    for (int i = 0; i < 2; i++, shared += CONSUMERS * tile_bytes<DP>())
        s.kept[i] = shared;
    for (int i = 0; i < 2; i++)
        s.ring[i] = lay_ring<DP, STAGES>(&shared, &barriers);
    if (threadIdx.x == 0) {
        mbarrier_init(s.kept_full, 1);
        s.ring[0].begin(fillers);
        s.ring[1].begin(1);
        mbarrier_publish();
    }
    __syncthreads();
    return s;
}

/* ---- the copying warpgroup ---- */

/* The tiles that come by: step j is that of rows row + 64 (j % tiles) .. of head head + j / tiles. */
struct walk {
    int32_t steps, tiles, row, head, batch;

    __device__ __forceinline__ int32_t row_of(int32_t j) const { return row + j % tiles * TILE; }
    __device__ __forceinline__ int32_t head_of(int32_t j) const { return head + j / tiles; }
};

/* By one thread: the kept rows from `row` of `head` on, and the walk's. */
template <int DP>
__device__ __forceinline__ void copy_all(const gradient_tiles<DP> &s, const CUtensorMap *kept0,
                                         const CUtensorMap *kept1, int32_t row, int32_t head, const CUtensorMap *ring0,
                                         const CUtensorMap *ring1, const walk &w)
{
    mbarrier_expect(s.kept_full, 2 * CONSUMERS * tile_bytes<DP>());
    for (int i = 0; i < CONSUMERS; i++) {
        copy_tile<DP>(s.kept[0] + i * tile_bytes<DP>(), kept0, s.kept_full, row + i * TILE, head, w.batch);
        copy_tile<DP>(s.kept[1] + i * tile_bytes<DP>(), kept1, s.kept_full, row + i * TILE, head, w.batch);
    }
    for (int32_t j = 0; j < w.steps; j++) {
        s.ring[0].copy(ring0, j, w.row_of(j), w.head_of(j), w.batch);
        s.ring[1].copy(ring1, j, w.row_of(j), w.head_of(j), w.batch);
    }
}

/* By one warp: the numbers of the queries in the first ring. */
template <int DP>
__device__ __forceinline__ void load_numbers_of_tiles(const gradient_tiles<DP> &s, const bwd_arrays &a, const walk &w)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int32_t j = 0; j < w.steps; j++) {
        s.ring[0].wait_free(j);
        for (int i = lane; i < TILE; i += 32)
            load_number(s.numbers, j % STAGES * TILE + i, a, w.batch, w.head_of(j), w.row_of(j) + i);
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(&s.ring[0].full[j % STAGES]);
    }
}

/* ---- dk, dv ---- */

/* Key rows key .. key + 15 of this warp; `group` is its warpgroup's number. */
template <int DP>
__device__ __forceinline__ void compute_keys(float (&dk)[1][DP / 8][4], float (&dv)[1][DP / 8][4],
                                             const gradient_tiles<DP> &s, const bwd_arrays &a, const walk &w, int group,
                                             int32_t key)
{
    const float scale2 = a.scale * LOG2_E;
    const unsigned char *const k = s.kept[0] + group * tile_bytes<DP>();
    const unsigned char *const v = s.kept[1] + group * tile_bytes<DP>();
    const hidden_rows<1> hidden = find_hidden<1>(a, w.batch, key);
    float score[1][TILE / 8][4], ds[1][TILE / 8][4];
    unsigned p[TILE / 16][4], packed[TILE / 16][4];
    mbarrier_wait(s.kept_full, 0);
    for (int32_t j = 0; j < w.steps; j++) {
        const int numbers = j % STAGES * TILE;
        s.ring[0].wait_full(j);
        ask_rows<DP>(score[0], k, s.ring[0].tile(j));
        s.ring[1].wait_full(j);
        ask_rows<DP>(ds[0], v, s.ring[1].tile(j));
        wgmma_wait<1>(score[0]);
        key_probabilities<1, TILE>(score, s.numbers, numbers, a, key, w.row_of(j), scale2, hidden);
        pack_rows(p, score[0]);
        ask_columns<DP>(dv[0], p, s.ring[1].tile(j));
        wgmma_wait<1>(ds[0]);
        key_gradients<1, TILE>(ds, score, s.numbers, numbers);
        pack_rows(packed, ds[0]);
        ask_columns<DP>(dk[0], packed, s.ring[0].tile(j));
        wgmma_wait<1>(dv[0]);
        wgmma_wait<0>(dk[0]);
        s.ring[0].give_back(j);
        s.ring[1].give_back(j);
    }
}

template <int DP>
__global__ void __launch_bounds__(SM90_THREADS, 1) dkv_sm90_kernel(const __grid_constant__ gradient_arrays x)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const bwd_arrays &a = x.a;
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.kv_heads, key_head = pair % a.kv_heads;
    const int32_t first = static_cast<int32_t>(blockIdx.x % a.tiles) * ROWS; /* the first tiles have most queries */
    /* The query tiles from the first that sees a key of ours to the last, for each head of the group. */
    const int32_t heads = a.heads / a.kv_heads, tile_first = a.keys.all ? 0 : first / TILE;
    const int32_t tiles = end_of_queries<TILE>(a, batch, tile_first, first + ROWS) - tile_first;
    const walk w = { tiles * heads, tiles, tile_first * TILE, static_cast<int32_t>(key_head) * heads,
                     static_cast<int32_t>(batch) };
    const gradient_tiles<DP> s = begin_tiles<DP>(shared, 2);
    if (threadIdx.x < WARPGROUP) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_all(s, &x.k, &x.v, first, static_cast<int32_t>(key_head), &x.q, &x.d_out, w);
        else if (threadIdx.x / 32 == 1)
            load_numbers_of_tiles(s, a, w);
        return;
    }
    registers_take<COMPUTE_REGISTERS>();
    const int32_t warp_row = static_cast<int32_t>(threadIdx.x - WARPGROUP) / 32 * 16, key = first + warp_row;
    float dk[1][DP / 8][4] = {}, dv[1][DP / 8][4] = {};
    compute_keys(dk, dv, s, a, w, warp_row / TILE, key);
    if (key >= a.tokens)
        return;
    const float one[1][2] = { { 1.0f, 1.0f } }, scale[1][2] = { { a.scale, a.scale } };
    const int64_t at = batch * a.tokens * a.kv_stride + key_head * a.head_stride;
    store_warp_rows<DP, 1>(s.out, warp_row, dk, scale, a.dk + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
    store_warp_rows<DP, 1>(s.out, warp_row, dv, one, a.dv + at, a.kv_stride, key, a.tokens, a.size, a.dkv_vectors);
}

/* ---- dq ---- */

/* Query rows row .. row + 15 of this warp. */
template <int DP>
__device__ __forceinline__ void compute_queries(float (&dq)[1][DP / 8][4], const gradient_tiles<DP> &s,
                                                const bwd_arrays &a, const walk &w, int64_t pair, int group,
                                                int32_t row)
{
    const float scale2 = a.scale * LOG2_E;
    const unsigned char *const q = s.kept[0] + group * tile_bytes<DP>();
    const unsigned char *const d_out = s.kept[1] + group * tile_bytes<DP>();
    row_numbers<1> numbers;
    float score[1][TILE / 8][4], ds[1][TILE / 8][4];
    unsigned packed[TILE / 16][4];
    load_numbers<1>(numbers, a, pair, row);
    mbarrier_wait(s.kept_full, 0);
    for (int32_t j = 0; j < w.steps; j++) {
        s.ring[0].wait_full(j);
        ask_rows<DP>(score[0], q, s.ring[0].tile(j));
        s.ring[1].wait_full(j);
        ask_rows<DP>(ds[0], d_out, s.ring[1].tile(j));
        if (j > 0) {
            ask_columns<DP>(dq[0], packed, s.ring[0].tile(j - 1));
            wgmma_wait<2>(score[0]);
        } else {
            wgmma_wait<1>(score[0]);
        }
        row_probabilities<1, TILE>(score, numbers, a, w.batch, row, w.row_of(j), scale2);
        wgmma_wait<0>(ds[0]);
        s.ring[1].give_back(j);
        if (j > 0)
            s.ring[0].give_back(j - 1);
        row_gradients<1, TILE>(ds, score, numbers);
        pack_rows(packed, ds[0]);
    }
    ask_columns<DP>(dq[0], packed, s.ring[0].tile(w.steps - 1));
    wgmma_wait<0>(dq[0]);
}

template <int DP>
__global__ void __launch_bounds__(SM90_THREADS, 1) dq_sm90_kernel(const __grid_constant__ gradient_arrays x)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const bwd_arrays &a = x.a;
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.heads, head = pair % a.heads;
    const int32_t first = (a.tiles - 1 - static_cast<int32_t>(blockIdx.x % a.tiles)) * ROWS;
    const int32_t end = a.keys.all ? a.tokens : min(first + ROWS, a.tokens);
    const int32_t begin = a.starts ? first_key(a.keys, batch, a.tokens, first) / TILE * TILE : 0;
    const int32_t tiles = (end - begin + TILE - 1) / TILE;
    const walk w = { tiles, tiles, begin, static_cast<int32_t>(head / (a.heads / a.kv_heads)),
                     static_cast<int32_t>(batch) };
    const gradient_tiles<DP> s = begin_tiles<DP>(shared, 1);
    if (threadIdx.x < WARPGROUP) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_all(s, &x.q, &x.d_out, first, static_cast<int32_t>(head), &x.k, &x.v, w);
        return;
    }
    registers_take<COMPUTE_REGISTERS>();
    const int32_t warp_row = static_cast<int32_t>(threadIdx.x - WARPGROUP) / 32 * 16, row = first + warp_row;
    float dq[1][DP / 8][4] = {};
    compute_queries(dq, s, a, w, pair, warp_row / TILE, row);
    if (row >= a.tokens)
        return;
    const float scale[1][2] = { { a.scale, a.scale } };
    store_warp_rows<DP, 1>(s.out, warp_row, dq, scale, a.dq + batch * a.tokens * a.q_stride + head * a.head_stride,
                           a.q_stride, row, a.tokens, a.size, a.dq_vectors);
}

/* ---- launches ---- */

/* q, k, v, d_out. */
void tensors_of(const dsc_attention_bwd_args *a, mapped (&to)[4])
{
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    to[0] = { a->q, a->q_stride, head_stride, a->batch, a->tokens, a->heads, a->head_size };
    to[1] = { a->k, a->kv_stride, head_stride, a->batch, a->tokens, a->kv_heads, a->head_size };
    to[2] = { a->v, a->kv_stride, head_stride, a->batch, a->tokens, a->kv_heads, a->head_size };
    to[3] = { a->d_out, a->out_stride, a->head_size, a->batch, a->tokens, a->heads, a->head_size };
}

template <int DP>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode, dsc_error *err)
{
    constexpr int BYTES = gradient_tiles<DP>::BYTES;
    const int64_t pieces = a->batch * dsc_div_ceil(a->tokens, ROWS);
    mapped tensor[4];
    gradient_arrays x = {};
    CUtensorMap *const map[4] = { &x.q, &x.k, &x.v, &x.d_out };
    tensors_of(a, tensor);
    for (int i = 0; i < 4; i++)
        DSC_TRY(describe(map[i], tensor[i], encode, err));
    x.a = arrays_of(a);
    x.a.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, ROWS));
    DSC_TRY(allow_shared(dkv_sm90_kernel<DP>, BYTES, err));
    DSC_TRY(allow_shared(dq_sm90_kernel<DP>, BYTES, err));
    dsc_cuda_attention_delta(at, a);
    DSC_CUDA_LAUNCH(dkv_sm90_kernel<DP>, grid_size(pieces * a->kv_heads), SM90_THREADS, BYTES, at->stream, x);
    DSC_CUDA_LAUNCH(dq_sm90_kernel<DP>, grid_size(pieces * a->heads), SM90_THREADS, BYTES, at->stream, x);
    return DSC_OK;
}

} // namespace

bool dsc_cuda_attention_bwd_sm90_starts(void)
{
    return starts_with_registers(dkv_sm90_kernel<64>) && starts_with_registers(dq_sm90_kernel<64>) &&
           starts_with_registers(dkv_sm90_kernel<128>) && starts_with_registers(dq_sm90_kernel<128>);
}

bool dsc_cuda_attention_bwd_sm90_fits(const dsc_attention_bwd_args *a)
{
    mapped tensor[4];
    bool can = a->dtype == DSC_BF16 && a->keys.past == 0;
    tensors_of(a, tensor);
    for (const mapped &x : tensor)
        can = can && can_map(x);
    return can;
}

dsc_status dsc_cuda_attention_bwd_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                       dsc_error *err)
{
    DSC_ASSERT(dsc_cuda_attention_bwd_sm90_fits(a));
    return a->head_size <= 64 ? launch<64>(at, a, encode, err) : launch<128>(at, a, encode, err);
}
