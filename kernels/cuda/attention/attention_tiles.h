/* attention_tiles.h - shared parts of the attention kernels of warpgroups. They are tiles of 64 rows in swizzled shared
 * memory, rings of tiles that one thread fills by tile copies, and the products that read them.
 *
 * A block is two warpgroups that compute, 64 rows each, and a third before them that gives its registers away and
 * copies. A tile has DP columns, a multiple of 64, in boxes of 64: the copies fill in zeros beyond the head's and
 * behind the last row.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ATTENTION_ATTENTION_TILES_H
#define DSC_KERNELS_CUDA_ATTENTION_ATTENTION_TILES_H

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warpgroups.h"

namespace {

enum { ROWS = TILE * CONSUMERS, SM90_HEAD_MIN = 40, SM90_HEAD_MAX = 128, COPY_REGISTERS = 24, COMPUTE_REGISTERS = 240 };
static_assert(COPY_REGISTERS + CONSUMERS * COMPUTE_REGISTERS <= (1 + CONSUMERS) * START_REGISTERS,
              "warpgroups take more registers than there are");

/* A tile may have more than 64 rows, which continue each box. */
template <int DP, int TILE_ROWS = TILE> __host__ __device__ constexpr int tile_bytes()
{
    return DP / BOX * (TILE_ROWS / TILE) * BOX_BYTES;
}

/* ---- which block has what ---- */

/* Pieces of 128 rows: all tiles of all pairs of a sample and a head. Tile 0 of a pair is its longest. */
struct work_list {
    uint32_t pieces, tiles, pairs;
    uint32_t
        group; /* pairs whose pieces are adjacent in the list; 0: a block has the piece of its number and no other */
};
struct work_piece {
    uint32_t pair, tile;
};

/* Blocks that stay take every gridDim.x-th piece. The pieces of a group of pairs come by length, and every second row
 * of pieces is reversed, so that no block has only long ones. */
template <bool STAY> __device__ __forceinline__ work_piece piece_of(const work_list &w, uint32_t number)
{
    if (!STAY || w.group == 0)
        return { number / w.tiles, number % w.tiles };
    const uint32_t row = number / gridDim.x, first = row * gridDim.x, last = min(first + gridDim.x, w.pieces) - 1;
    const uint32_t i = row % 2 == 0 ? number : first + last - number;
    const uint32_t begin = i / (w.group * w.tiles) * w.group, rest = i - begin * w.tiles;
    const uint32_t pairs = min(w.group, w.pairs - begin);
    return { begin + rest % pairs, rest / pairs };
}

/* `stay`: as many blocks as multiprocessors, each with many pieces. The first loads of a piece then run beside the last
 * stores of the one before. A quarter as many pairs at a time keeps their rows in the L2 cache. */
inline work_list work_of(const dsc_cuda_launch *at, int64_t pairs, int64_t tiles, bool stay)
{
    const int64_t group = stay ? dsc_max_i64(1, at->multiprocessors / 4) : 0;
    return { grid_size(pairs * tiles), grid_size(tiles), grid_size(pairs), static_cast<uint32_t>(group) };
}

inline unsigned blocks_of(const dsc_cuda_launch *at, const work_list &w)
{
    return grid_size(w.group == 0 ? w.pieces : dsc_min_i64(w.pieces, at->multiprocessors));
}

/* ---- copies, by one thread ---- */

/* Rows from `row` on of a tensor's head; `full` hears of tile_bytes. */
template <int DP, int TILE_ROWS = TILE>
__device__ __forceinline__ void copy_tile(unsigned char *tile, const CUtensorMap *map, mbarrier *full, int32_t row,
                                          int32_t head, int32_t batch)
{
#pragma unroll
    for (int c = 0; c < DP; c += BOX)
#pragma unroll
        for (int r = 0; r < TILE_ROWS; r += TILE, tile += BOX_BYTES)
            copy_box(tile, map, full, c, head, row + r, batch);
}

/* Tiles that come one after the other, the first with the turn { 0, 0 }. */
template <int DP, int STAGES, int TILE_ROWS = TILE> struct tile_ring {
    unsigned char *tiles;
    mbarrier *full, *free;
    static constexpr int TILE_BYTES = tile_bytes<DP, TILE_ROWS>(), TILES_BYTES = STAGES * TILE_BYTES;
    static constexpr int BARRIERS = 2 * STAGES;
    typedef ring_turn<STAGES> turn;

    __device__ __forceinline__ unsigned char *tile(const turn &x) const { return tiles + x.stage * TILE_BYTES; }

    /* By one thread, before mbarrier_publish. `fillers`: who says that a stage is full, once each. */
    __device__ __forceinline__ void begin(unsigned fillers) const
    {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&full[i], fillers);
            mbarrier_init(&free[i], CONSUMER_WARPS);
        }
    }

    /* Until the tile's stage may be filled. */
    __device__ __forceinline__ void wait_free(const turn &x) const { mbarrier_wait(&free[x.stage], x.parity ^ 1); }

    __device__ __forceinline__ void copy(const CUtensorMap *map, const turn &x, int32_t row, int32_t head,
                                         int32_t batch) const
    {
        wait_free(x);
        mbarrier_expect(&full[x.stage], TILE_BYTES);
        copy_tile<DP, TILE_ROWS>(tile(x), map, &full[x.stage], row, head, batch);
    }

    /* Until the tile is there. */
    __device__ __forceinline__ void wait_full(const turn &x) const { mbarrier_wait(&full[x.stage], x.parity); }

    /* A warp has read the tile: all of its lanes, though one says so. */
    __device__ __forceinline__ void give_back(const turn &x) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(&free[x.stage]);
    }
};

/* The ring whose tiles and barriers begin there; the addresses move on behind it. */
template <int DP, int STAGES, int TILE_ROWS = TILE>
__device__ __forceinline__ tile_ring<DP, STAGES, TILE_ROWS> lay_ring(unsigned char **tiles, mbarrier **barriers)
{
    const tile_ring<DP, STAGES, TILE_ROWS> ring = { *tiles, *barriers, *barriers + STAGES };
    *tiles += ring.TILES_BYTES;
    *barriers += ring.BARRIERS;
    return ring;
}

/* ---- products of a warpgroup ---- */

/* Asks for 64 rows times the rows of `right`: both tiles' columns are the terms of the sums. */
template <int DP>
__device__ __forceinline__ void ask_rows(float (&sum)[TILE / 8][4], const unsigned char *left,
                                         const unsigned char *right)
{
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < DP; c += BOX) {
        const shared_matrix a = matrix_of(left + c / BOX * BOX_BYTES, 16, EIGHT_ROWS);
        const shared_matrix b = matrix_of(right + c / BOX * BOX_BYTES, 16, EIGHT_ROWS);
#pragma unroll
        for (int k = 0; k < BOX / 16; k++)
            if (c + k == 0)
                wgmma_tiles_first(sum, a, b);
            else
                wgmma_tiles(sum, matrix_at(a, 32 * k), matrix_at(b, 32 * k));
    }
    wgmma_commit();
}

/* Variant with rows in registers, and a tile on the right of as many rows as there are sums. */
template <int DP, int N>
__device__ __forceinline__ void ask_rows(float (&sum)[N / 8][4], const unsigned (&left)[DP / 16][4],
                                         const unsigned char *right)
{
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < DP; c += BOX) {
        const shared_matrix b = matrix_of(right + c / BOX * (N / TILE) * BOX_BYTES, 16, EIGHT_ROWS);
#pragma unroll
        for (int k = 0; k < BOX / 16; k++)
            wgmma<false>(sum, left[c / 16 + k], matrix_at(b, 32 * k), c + k > 0);
    }
    wgmma_commit();
}

/* Asks to add `left` times `right`, whose rows are the terms of the sums. */
template <int DP, int K = TILE>
__device__ __forceinline__ void ask_columns(float (&sum)[DP / 8][4], const unsigned (&left)[K / 16][4],
                                            const unsigned char *right)
{
    const shared_matrix tile = matrix_of(right, K / TILE * BOX_BYTES, EIGHT_ROWS);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K / 16; k++)
        wgmma<true>(sum, left[k], matrix_at(tile, 2 * EIGHT_ROWS * k), true);
    wgmma_commit();
}

/* A product's result as the left operand of the next. */
template <int N = TILE> __device__ __forceinline__ void pack_rows(unsigned (&p)[N / 16][4], const float (&x)[N / 8][4])
{
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] = pack_bf16(x[2 * k + i / 2][2 * (i & 1)], x[2 * k + i / 2][2 * (i & 1) + 1]);
}

/* ---- tensor maps ---- */

typedef decltype(&cuTensorMapEncodeTiled) encode_fn;

/* A [batch, tokens, heads, size] tensor of tiles. */
struct mapped {
    const void *first;
    int64_t stride, head_stride; /* elements between tokens, between heads */
    int32_t batch, tokens, heads, size;
};

/* Requirements of tensor maps: addresses and strides in sixteens of bytes, each stride a multiple of the one before. */
inline bool can_map(const mapped &x)
{
    const int64_t limit = INT64_C(1) << 39;
    return x.size >= SM90_HEAD_MIN && x.size <= SM90_HEAD_MAX && x.head_stride % 8 == 0 &&
           rows_are_aligned(x.first, x.stride, x.size) && x.stride % x.head_stride == 0 &&
           x.stride >= x.heads * x.head_stride && x.stride < limit / x.tokens;
}

/* `encode` is what dsc_cuda_attention_sm90_find found. */
inline dsc_status describe(CUtensorMap *map, const mapped &x, void *encode, dsc_error *err)
{
    const cuuint64_t dim[4] = { static_cast<cuuint64_t>(x.size), static_cast<cuuint64_t>(x.heads),
                                static_cast<cuuint64_t>(x.tokens), static_cast<cuuint64_t>(x.batch) };
    const cuuint64_t stride[3] = { static_cast<cuuint64_t>(2 * x.head_stride), static_cast<cuuint64_t>(2 * x.stride),
                                   static_cast<cuuint64_t>(2 * x.stride * x.tokens) };
    const cuuint32_t box[4] = { BOX, 1, TILE, 1 }, step[4] = { 1, 1, 1, 1 };
    const CUresult result = reinterpret_cast<encode_fn>(encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(x.first), dim, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_DEVICE, "ATTENTION", "cuTensorMapEncodeTiled: status %d", static_cast<int>(result));
}

} // namespace

#endif
