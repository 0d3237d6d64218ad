/* attention_sm90.cu - forward attention by warpgroup products and tile copies of sm_90a (as in Shah et al. 2024).
 *
 * A block has 128 query rows of one head: two warpgroups of 64, and a third of which one thread copies tiles of 64 keys
 * and values, up to STAGES ahead. A warpgroup keeps its queries in registers; while it works on the softmax of one
 * tile, the product of the probabilities of the tile before runs. Tiles, softmax and the order of all sums are those of
 * attention_fwd.cu, so that on a GPU whose two kinds of products add up alike both kernels give the same bits.
 * Which of the two a shape takes is measured (attention_plan.cu). SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/ptx_sm90.h"

namespace {

enum {
    WARPGROUP = 128, CONSUMERS = 2, THREADS = WARPGROUP * (CONSUMERS + 1), CONSUMER_WARPS = CONSUMERS * WARPGROUP / 32,
    ROWS = 64 * CONSUMERS, KEYS = 64, STAGES = 4,
    BOX = 64, BOX_BYTES = KEYS * BOX * 2, /* 64 columns of a tile: rows of 128 bytes */
    EIGHT_ROWS = 8 * 128,
    HEAD_MIN = 40, HEAD_MAX = 128,
    /* Of 65536 registers: 128 threads that copy and 256 that compute. */
    COPY_REGISTERS = 24, COMPUTE_REGISTERS = 240
};

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
};

/* What lies in shared memory: tiles of DP / 64 boxes, rows of the result, barriers. */
template <int DP> struct stages {
    unsigned char *k, *v; /* [STAGES] */
    mbarrier *k_full, *v_full, *k_free, *v_free; /* [STAGES] */
    static constexpr int TILE_BYTES = DP / BOX * BOX_BYTES;
    static constexpr int OUT_AT = 2 * STAGES * TILE_BYTES, BARRIERS_AT = OUT_AT + 2 * tile_elements(ROWS, DP);
    static constexpr int BYTES = BARRIERS_AT + 4 * STAGES * static_cast<int>(sizeof(mbarrier));
};

/* The round of the stage's use that tile `j` is: barriers' phases go by it. */
__device__ __forceinline__ unsigned parity_of(int32_t j) { return static_cast<unsigned>(j / STAGES) & 1; }

/* ---- the copying thread ---- */

template <int DP>
__device__ __forceinline__ void copy_tile(unsigned char *tiles, const CUtensorMap *map, mbarrier *full, mbarrier *free,
                                          int32_t j, int32_t key, int32_t head, int32_t batch)
{
    const int stage = j % STAGES;
    mbarrier_wait(&free[stage], parity_of(j) ^ 1);
    mbarrier_expect(&full[stage], stages<DP>::TILE_BYTES);
#pragma unroll
    for (int c = 0; c < DP; c += BOX)
        copy_box(tiles + stage * stages<DP>::TILE_BYTES + c / BOX * BOX_BYTES, map, &full[stage], c, head, key,
                 batch);
}

template <int DP>
__device__ __forceinline__ void copy_tiles(const stages<DP> &s, const sm90_arrays &a, int32_t tiles, int32_t key,
                                           int32_t head, int32_t batch)
{
    for (int32_t j = 0; j < tiles; j++, key += KEYS) {
        copy_tile<DP>(s.k, &a.k, s.k_full, s.k_free, j, key, head, batch);
        copy_tile<DP>(s.v, &a.v, s.v_full, s.v_free, j, key, head, batch);
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

/* Asks for the scores of a tile of keys: their columns are the terms of the sums. */
template <int DP>
__device__ __forceinline__ void ask_scores(float (&score)[KEYS / 8][4], const unsigned (&q)[DP / 16][4],
                                           const unsigned char *k_tile)
{
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < DP; c += BOX) {
        const shared_matrix box = matrix_of(k_tile + c / BOX * BOX_BYTES, 16, EIGHT_ROWS);
#pragma unroll
        for (int k = 0; k < BOX / 16; k++)
            wgmma<false>(score, q[c / 16 + k], matrix_at(box, 32 * k), c + k > 0);
    }
    wgmma_commit();
}

/* Asks for the sums of a tile of values: its rows are the terms. */
template <int DP>
__device__ __forceinline__ void ask_output(float (&out)[DP / 8][4], const unsigned (&p)[KEYS / 16][4],
                                           const unsigned char *v_tile)
{
    const shared_matrix tile = matrix_of(v_tile, BOX_BYTES, EIGHT_ROWS);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma<true>(out, p[k], matrix_at(tile, 2 * EIGHT_ROWS * k), true);
    wgmma_commit();
}

/* Probabilities as the left operand. */
__device__ __forceinline__ void pack_rows(unsigned (&p)[KEYS / 16][4], const float (&x)[KEYS / 8][4])
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] = pack_bf16(x[2 * k + i / 2][2 * (i & 1)], x[2 * k + i / 2][2 * (i & 1) + 1]);
}

/* A warp has read a stage. */
__device__ __forceinline__ void give_back(mbarrier *free, int32_t j)
{
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(&free[j % STAGES]);
}

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

/* Rows row .. row + 15 of this warp over all tiles, the first of which begins with `key`. */
template <int DP>
__device__ __forceinline__ void compute_rows(row_state<DP, 1> &s, const stages<DP> &at, const sm90_arrays &a,
                                             const unsigned (&q)[DP / 16][4], int64_t batch, int32_t row, int32_t key,
                                             int32_t tiles)
{
    const float scale2 = a.scale * LOG2_E;
    float score[1][KEYS / 8][4], old[1][2];
    unsigned p[KEYS / 16][4];
    mbarrier_wait(&at.k_full[0], 0);
    ask_scores<DP>(score[0], q, at.k);
    wgmma_wait<0>(score[0]);
    give_back(at.k_free, 0);
    mask(score, a, batch, row, key);
    soften<DP, 1, KEYS>(s, score, old, scale2);
    pack_rows(p, score[0]);
    for (int32_t j = 1; j < tiles; j++) {
        const int now = j % STAGES, before = (j - 1) % STAGES;
        mbarrier_wait(&at.k_full[now], parity_of(j));
        ask_scores<DP>(score[0], q, at.k + now * stages<DP>::TILE_BYTES);
        mbarrier_wait(&at.v_full[before], parity_of(j - 1));
        ask_output<DP>(s.out[0], p, at.v + before * stages<DP>::TILE_BYTES);
        wgmma_wait<1>(score[0]);
        give_back(at.k_free, j);
        mask(score, a, batch, row, key + j * KEYS);
        soften<DP, 1, KEYS>(s, score, old, scale2);
        wgmma_wait<0>(s.out[0]);
        give_back(at.v_free, j - 1);
        rescale(s, old);
        pack_rows(p, score[0]);
    }
    mbarrier_wait(&at.v_full[(tiles - 1) % STAGES], parity_of(tiles - 1));
    ask_output<DP>(s.out[0], p, at.v + (tiles - 1) % STAGES * stages<DP>::TILE_BYTES);
    wgmma_wait<0>(s.out[0]);
}

/* ---- the kernel ---- */

template <int DP> __device__ __forceinline__ stages<DP> lay_stages(unsigned char *shared)
{
    mbarrier *const barriers = reinterpret_cast<mbarrier *>(shared + stages<DP>::BARRIERS_AT);
    return { shared, shared + STAGES * stages<DP>::TILE_BYTES, barriers, barriers + STAGES, barriers + 2 * STAGES,
             barriers + 3 * STAGES };
}

template <int DP> __device__ __forceinline__ void begin_stages(const stages<DP> &s)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&s.k_full[i], 1);
            mbarrier_init(&s.v_full[i], 1);
            mbarrier_init(&s.k_free[i], CONSUMER_WARPS);
            mbarrier_init(&s.v_free[i], CONSUMER_WARPS);
        }
        mbarrier_publish();
    }
    __syncthreads();
}

template <int DP> __global__ void __launch_bounds__(THREADS, 1) sm90_kernel(const __grid_constant__ sm90_arrays a)
{
    DSC_CUDA_SHARED(unsigned char, shared);
    const stages<DP> at = lay_stages<DP>(shared);
    const int64_t pair = blockIdx.x / a.tiles, batch = pair / a.heads, head = pair % a.heads;
    /* The last tiles have most keys: they come first. */
    const int32_t first = (a.tiles - 1 - static_cast<int32_t>(blockIdx.x % a.tiles)) * ROWS;
    const int32_t end = a.keys.all ? a.tokens : min(first + ROWS, a.tokens);
    const int32_t begin = a.starts ? first_key(a.keys, batch, a.tokens, first) / KEYS * KEYS : 0;
    const int32_t tiles = (end - begin + KEYS - 1) / KEYS;
    begin_stages(at);
    if (threadIdx.x < WARPGROUP) {
        registers_give<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_tiles(at, a, tiles, begin, static_cast<int32_t>(head / (a.heads / a.kv_heads)),
                       static_cast<int32_t>(batch));
        return;
    }
    registers_take<COMPUTE_REGISTERS>();
    const int32_t warp_row = static_cast<int32_t>(threadIdx.x - WARPGROUP) / 32 * 16, row = first + warp_row;
    row_state<DP, 1> s;
    unsigned q[DP / 16][4];
    begin_rows(s);
    load_queries<DP>(q, a.q + batch * a.tokens * a.q_stride + head * a.head_stride, a.q_stride, row, a.tokens, a.size);
    compute_rows(s, at, a, q, batch, row, begin, tiles);
    if (row >= a.tokens)
        return;
    float factor[1][2];
    end_rows(s, factor, a.lse != NULL ? a.lse + pair * a.tokens : NULL, row, a.tokens, a.scale);
    uint16_t *const out_tile = reinterpret_cast<uint16_t *>(shared + stages<DP>::OUT_AT);
    store_warp_rows<DP, 1>(out_tile, warp_row, s.out, factor, a.out + batch * a.tokens * a.out_stride + head * a.size,
                           a.out_stride, row, a.tokens, a.size, a.out_vectors);
}

/* ---- launches ---- */

typedef decltype(&cuTensorMapEncodeTiled) encode_fn;

dsc_status describe(CUtensorMap *map, const dsc_attention_fwd_args *a, const void *x, int64_t head_stride, void *encode,
                    dsc_error *err)
{
    const cuuint64_t dim[4] = { static_cast<cuuint64_t>(a->head_size), static_cast<cuuint64_t>(a->kv_heads),
                                static_cast<cuuint64_t>(a->tokens), static_cast<cuuint64_t>(a->batch) };
    const cuuint64_t stride[3] = { static_cast<cuuint64_t>(2 * head_stride), static_cast<cuuint64_t>(2 * a->kv_stride),
                                   static_cast<cuuint64_t>(2 * a->kv_stride * a->tokens) };
    const cuuint32_t box[4] = { BOX, 1, KEYS, 1 }, step[4] = { 1, 1, 1, 1 };
    const CUresult result = reinterpret_cast<encode_fn>(encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(x), dim, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_DEVICE, "ATTENTION", "cuTensorMapEncodeTiled: status %d", static_cast<int>(result));
}

template <int DP>
dsc_status launch(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, void *encode, dsc_error *err)
{
    constexpr int BYTES = stages<DP>::BYTES;
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    sm90_arrays x = {};
    DSC_TRY(describe(&x.k, a, a->k, head_stride, encode, err));
    DSC_TRY(describe(&x.v, a, a->v, head_stride, encode, err));
    x.out = static_cast<uint16_t *>(a->out), x.lse = a->lse, x.q = static_cast<const uint16_t *>(a->q);
    x.q_stride = a->q_stride, x.out_stride = a->out_stride, x.head_stride = head_stride;
    x.tokens = a->tokens, x.heads = a->heads, x.kv_heads = a->kv_heads, x.size = a->head_size;
    x.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, ROWS));
    x.scale = a->scale;
    x.out_vectors = rows_are_aligned(a->out, a->out_stride, a->head_size);
    x.starts = a->keys.positions != NULL || a->keys.window > 0;
    x.keys = a->keys;
    DSC_TRY(allow_shared(sm90_kernel<DP>, BYTES, err));
    DSC_CUDA_LAUNCH(sm90_kernel<DP>, grid_size(static_cast<int64_t>(x.tiles) * a->batch * a->heads), THREADS, BYTES,
                    at->stream, x);
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

/* What tensor maps ask for: addresses and strides in sixteens of bytes, each stride a multiple of the one before. */
bool dsc_cuda_attention_sm90_fits(const dsc_attention_fwd_args *a)
{
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size), limit = INT64_C(1) << 39;
    return a->dtype == DSC_BF16 && a->keys.past == 0 && a->head_size >= HEAD_MIN && a->head_size <= HEAD_MAX &&
           head_stride % 8 == 0 && rows_are_aligned(a->k, a->kv_stride, a->head_size) &&
           rows_are_aligned(a->v, a->kv_stride, a->head_size) && rows_are_aligned(a->q, a->q_stride, a->head_size) &&
           a->kv_stride % head_stride == 0 && a->kv_stride >= a->kv_heads * head_stride &&
           a->kv_stride < limit / a->tokens;
}

dsc_status dsc_cuda_attention_fwd_sm90(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, void *encode,
                                       dsc_error *err)
{
    DSC_ASSERT(dsc_cuda_attention_sm90_fits(a));
    return a->head_size <= 64 ? launch<64>(at, a, encode, err) : launch<128>(at, a, encode, err);
}
