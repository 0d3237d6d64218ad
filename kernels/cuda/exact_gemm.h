/* exact_gemm.h - our own matrix product: a block computes a 64 x 64 tile, a thread 4 x 4 elements of it. Each sum is
 * one chain of fp32 multiply-adds in the order of k. Zeros are added beyond its end, which change no number but a
 * negative 0.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_EXACT_GEMM_H
#define DSC_KERNELS_CUDA_EXACT_GEMM_H

#include "kernels/cuda/elements.h"

namespace
{

enum { TILE = 64, TILE_K = 16, TILE_THREADS = 256, EACH = 4, STEP = TILE / EACH };

template <class TA> struct exact_gemm_arrays {
    const TA *a, *b;
    int64_t m, n, k, a_row, a_col, b_row, b_col; /* element (i, j) is at i * row + j * col */
};

unsigned exact_gemm_grid(int64_t m, int64_t n) { return grid_size(dsc_div_ceil(m, TILE) * dsc_div_ceil(n, TILE)); }

/* shared[kk][i] = op(x)[first + i, k + kk], 0 outside. */
template <class TA>
__device__ __forceinline__ void load_tile(float (&shared)[TILE_K][TILE + 1], const TA *x, int64_t first, int64_t count,
                                          int64_t k, int64_t k_count, int64_t along, int64_t along_k)
{
    for (int e = static_cast<int>(threadIdx.x); e < TILE * TILE_K; e += TILE_THREADS) {
        const int i = along_k == 1 ? e / TILE_K : e % TILE, kk = along_k == 1 ? e % TILE_K : e / TILE;
        const bool inside = first + i < count && k + kk < k_count;
        shared[kk][i] = inside ? to_f32(x[(first + i) * along + (k + kk) * along_k]) : 0.0f;
    }
}

struct exact_gemm_position {
    int64_t row, col;
};

/* This thread's sums: sum[i][j] is of the place's row + STEP * i and col + STEP * j, which may lie outside. */
template <class TA>
__device__ __forceinline__ exact_gemm_position exact_gemm_tile(const exact_gemm_arrays<TA> &p, float (&sum)[EACH][EACH])
{
    __shared__ float left[TILE_K][TILE + 1], right[TILE_K][TILE + 1];
    const int64_t tiles = (p.m + TILE - 1) / TILE, tile_col = blockIdx.x / tiles;
    const int64_t row = (blockIdx.x - tile_col * tiles) * TILE, col = tile_col * TILE;
    const int x = static_cast<int>(threadIdx.x % STEP), y = static_cast<int>(threadIdx.x / STEP);
    for (int64_t k = 0; k < p.k; k += TILE_K) {
        load_tile(left, p.a, row, p.m, k, p.k, p.a_row, p.a_col);
        load_tile(right, p.b, col, p.n, k, p.k, p.b_col, p.b_row);
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < TILE_K; kk++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(left[kk][y + STEP * i], right[kk][x + STEP * j], sum[i][j]);
        __syncthreads();
    }
    return { row + y, col + x };
}

} // namespace

#endif
