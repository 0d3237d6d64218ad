/* attention_bwd_sm90.h - shared parts of the gradients by warpgroups: the kept rows and the rings of tiles of a block,
 * the loop over tiles, and the warpgroup that copies. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_BWD_SM90_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_BWD_SM90_H

#include "kernels/cuda/attention/attention_gradients.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/attention/attention_tiles.h"

namespace {

/* Tiles that a ring has: what fits beside the kept rows and the result's. */
template <int DP> __host__ __device__ constexpr int stages() { return DP <= 64 ? 4 : 3; }

struct gradient_arrays {
    CUtensorMap q, d_out; /* [batch, tokens, heads, size] */
    CUtensorMap k, v;     /* [batch, tokens, kv_heads, size] */
    bwd_arrays a;
    work_list work;
    /* Waves that store score gradients: those of the wave's first head, the bytes of a head, and the wave's first pair
     * of a sample and a head. */
    unsigned char *stored;
    int64_t head_bytes;
    int32_t first_pair; /* 0 without waves */
};

/* Registers of the threads that copy and of those that compute. Those of wide heads need all there are for products. */
template <int DP> __host__ __device__ constexpr int copy_registers() { return DP <= 64 ? 40 : COPY_REGISTERS; }
template <int DP> __host__ __device__ constexpr int compute_registers() { return DP <= 64 ? 232 : COMPUTE_REGISTERS; }
static_assert(copy_registers<64>() + CONSUMERS * compute_registers<64>() <= (1 + CONSUMERS) * START_REGISTERS,
              "warpgroups take more registers than there are");

/* Shared memory: the kept rows of both tensors, the rings of the others, rows of the result, numbers of the queries
 * in the ring, barriers. */
template <int DP> struct gradient_tiles {
    static constexpr int STAGES = stages<DP>();
    unsigned char *kept[2]; /* [CONSUMERS] tiles each */
    tile_ring<DP, STAGES> ring[2];
    mbarrier *kept_full, *kept_free;
    uint16_t *out;
    query_numbers numbers; /* [STAGES * TILE] */
    static constexpr int OUT_AT = 2 * CONSUMERS * tile_bytes<DP>() + 2 * tile_ring<DP, STAGES>::TILES_BYTES;
    static constexpr int NUMBERS_AT = OUT_AT + 2 * tile_elements(ROWS, DP);
    static constexpr int BARRIERS_AT = NUMBERS_AT + 3 * 4 * STAGES * TILE;
    static constexpr int BYTES =
        BARRIERS_AT + (2 + 2 * tile_ring<DP, STAGES>::BARRIERS) * static_cast<int>(sizeof(mbarrier));
};

/* `fillers`: who fills a stage of the first ring. */
template <int DP> __device__ __forceinline__ gradient_tiles<DP> begin_tiles(unsigned char *shared, unsigned fillers)
{
    mbarrier *barriers = reinterpret_cast<mbarrier *>(shared + gradient_tiles<DP>::BARRIERS_AT);
    float *const numbers = reinterpret_cast<float *>(shared + gradient_tiles<DP>::NUMBERS_AT);
    constexpr int STAGES = gradient_tiles<DP>::STAGES;
    gradient_tiles<DP> s;
    s.out = reinterpret_cast<uint16_t *>(shared + gradient_tiles<DP>::OUT_AT);
    s.numbers = { numbers, numbers + STAGES * TILE, reinterpret_cast<int32_t *>(numbers + 2 * STAGES * TILE) };
    s.kept_full = barriers++;
    s.kept_free = barriers++;
    for (int i = 0; i < 2; i++, shared += CONSUMERS * tile_bytes<DP>())
        s.kept[i] = shared;
    for (int i = 0; i < 2; i++)
        s.ring[i] = lay_ring<DP, STAGES>(&shared, &barriers);
    if (threadIdx.x == 0) {
        mbarrier_init(s.kept_full, 1);
        mbarrier_init(s.kept_free, CONSUMER_WARPS);
        s.ring[0].begin(fillers);
        s.ring[1].begin(1);
        mbarrier_publish();
    }
    __syncthreads();
    return s;
}

/* ---- the copying warpgroup ---- */

/* The tiles that come by: rows row .. end - 1 in steps of 64, of heads head .. head_end - 1 one after the other. */
struct walk {
    int32_t steps, row, end, head, head_end, batch;
};

/* Position in the loop over tiles: row and the turn of the rings. */
template <int STAGES> struct place {
    ring_turn<STAGES> turn;
    int32_t row;

    __device__ __forceinline__ void next(const walk &w)
    {
        turn.next();
        row = row + TILE < w.end ? row + TILE : w.row;
    }
};

/* By one thread: the kept rows from `row` of `head` on, and the walk's. parity: of the number of the block's pieces
 * before this one. `turn` goes on to the next piece. */
template <int DP>
__device__ __forceinline__ void copy_all(const gradient_tiles<DP> &s, const CUtensorMap *kept0,
                                         const CUtensorMap *kept1, int32_t row, int32_t head, const CUtensorMap *ring0,
                                         const CUtensorMap *ring1, const walk &w, unsigned parity,
                                         ring_turn<stages<DP>()> &turn)
{
    mbarrier_wait(s.kept_free, parity ^ 1);
    mbarrier_expect(s.kept_full, 2 * CONSUMERS * tile_bytes<DP>());
    for (int i = 0; i < CONSUMERS; i++) {
        copy_tile<DP>(s.kept[0] + i * tile_bytes<DP>(), kept0, s.kept_full, row + i * TILE, head, w.batch);
        copy_tile<DP>(s.kept[1] + i * tile_bytes<DP>(), kept1, s.kept_full, row + i * TILE, head, w.batch);
    }
    for (int32_t from = w.head; from < w.head_end; from++)
        for (int32_t at = w.row; at < w.end; at += TILE, turn.next()) {
            s.ring[0].copy(ring0, turn, at, from, w.batch);
            s.ring[1].copy(ring1, turn, at, from, w.batch);
        }
}

/* By one warp: the numbers of the queries in the first ring. */
template <int DP>
__device__ __forceinline__ void load_numbers_of_tiles(const gradient_tiles<DP> &s, const bwd_arrays &a, const walk &w,
                                                      ring_turn<stages<DP>()> &turn)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    place<stages<DP>()> at = { turn, w.row };
    for (int32_t head = w.head, left = w.steps; left > 0; left--) {
        s.ring[0].wait_free(at.turn);
        for (int i = lane; i < TILE; i += 32)
            load_number(s.numbers, at.turn.stage * TILE + i, a, w.batch, head, at.row + i);
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(&s.ring[0].full[at.turn.stage]);
        at.next(w);
        head += at.row == w.row;
    }
    turn = at.turn;
}

/* A computing warp has read the kept rows for the last time. */
template <int DP> __device__ __forceinline__ void give_back_kept(const gradient_tiles<DP> &s)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(s.kept_free);
}

/* Registers of products that are under way. */
struct under_way {
    float score[1][TILE / 8][4], ds[1][TILE / 8][4];
    unsigned p[TILE / 16][4], packed[TILE / 16][4];
};

/* ---- stored score gradients: a tile's bytes are the registers of the warps that computed them ----
 *
 * A warp has 16 keys of the tile's 64. Its part has 16 queries after the other, of each the 16 bytes of each lane. */

enum {
    STORED_BYTES = DSC_ATTENTION_STORED_TILE_BYTES,
    STORED_WARP_BYTES = STORED_BYTES / 4,
    STORED_QUERIES_BYTES = STORED_WARP_BYTES / 4
};
static_assert(TILE == DSC_ATTENTION_STORED_TILE && ROWS == DSC_ATTENTION_STORED_KEYS && CONSUMERS == 2,
              "tiles are those of the contract");

/* `lane`: the tile's place for this lane of its warp. */
__device__ __forceinline__ void store_slopes(unsigned char *lane, const unsigned (&packed)[TILE / 16][4])
{
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
        *reinterpret_cast<uint4 *>(lane + k * STORED_QUERIES_BYTES) =
            make_uint4(packed[k][0], packed[k][1], packed[k][2], packed[k][3]);
}

/* A warp's 16 queries of the tile, by all of its keys, as the left operand. */
__device__ __forceinline__ void load_slopes(unsigned (&left)[TILE / 16][4], const unsigned char *tile)
{
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        const uint4 x =
            *reinterpret_cast<const uint4 *>(tile + k * STORED_WARP_BYTES + warp * STORED_QUERIES_BYTES + 16 * lane);
        left[k][0] = transpose_8x8(x.x);
        left[k][1] = transpose_8x8(x.z);
        left[k][2] = transpose_8x8(x.y);
        left[k][3] = transpose_8x8(x.w);
    }
}

/* ---- launches ---- */

/* q, k, v, d_out. */
inline void tensors_of(const dsc_attention_bwd_args *a, mapped (&to)[4])
{
    const int64_t head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    to[0] = { a->q, a->q_stride, head_stride, a->batch, a->tokens, a->heads, a->head_size };
    to[1] = { a->k, a->k_stride, head_stride, a->batch, a->tokens, a->kv_heads, a->head_size };
    to[2] = { a->v, a->v_stride, head_stride, a->batch, a->tokens, a->kv_heads, a->head_size };
    to[3] = { a->d_out, a->out_stride, a->head_size, a->batch, a->tokens, a->heads, a->head_size };
}

/* All but the work. */
inline dsc_status describe_all(gradient_arrays *x, const dsc_attention_bwd_args *a, void *encode, dsc_error *err)
{
    mapped tensor[4];
    CUtensorMap *const map[4] = { &x->q, &x->k, &x->v, &x->d_out };
    tensors_of(a, tensor);
    for (int i = 0; i < 4; i++)
        DSC_TRY(describe(map[i], tensor[i], encode, err));
    x->a = arrays_of(a);
    x->a.tiles = static_cast<int32_t>(dsc_div_ceil(a->tokens, ROWS));
    x->stored =
        static_cast<unsigned char *>(a->scratch) + dsc_attention_stored_at(a->batch, a->tokens, a->heads, a->head_size);
    x->head_bytes = dsc_attention_stored_head_bytes(a->tokens, a->keys.all);
    return DSC_OK;
}

} // namespace

/* attention_dq_sm90.cu: enqueues dq after dsc_cuda_attention_delta. */
dsc_status dsc_cuda_attention_dq_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                      bool early, bool stay, dsc_error *err);
/* Heads first .. first + pairs - 1 of all samples, whose score gradients are stored (kernels/attention.h). */
dsc_status dsc_cuda_attention_dq_stored_sm90(const dsc_cuda_launch *at, const dsc_attention_bwd_args *a, void *encode,
                                             int64_t first, int64_t pairs, dsc_error *err);
bool dsc_cuda_attention_dq_sm90_starts(void);

#endif
