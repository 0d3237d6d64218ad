/* norm.h - what the norms share: a warp's row, sums of columns over a block's warps, and over the blocks.
 *
 * Forward: a warp has a row; up to 2048 channels stay in registers between the sums and the output. Backward: a block
 * has 64 rows, as many as a row of scratch stands for. First its warps find each row's means, then its threads go
 * through columns: 32 vectors of columns wide, eight rows deep; the eight partial sums of a column are added in order.
 * Wide rows would not stay in the caches until a block of 64 comes back to them (64 of 4096 are 1 MiB in bf16, and a
 * GPU has hundreds of blocks): there a block takes eight rows at a time through both steps, and a thread keeps the sums
 * of its columns in registers. Scratch rows are added by a second kernel: 32 of them side by side, in steps of 32, then
 * those 32 in order. All of this follows from the shape. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_NORM_H
#define DSC_KERNELS_CUDA_NORM_H

#include "kernels/cuda/elements.h"

namespace {

enum { FWD_THREADS = 128, FWD_ROWS = FWD_THREADS / 32 };
enum { BWD_THREADS = 256, BWD_WARPS = BWD_THREADS / 32, BWD_ROWS = 64, SUM_WIDTH = 32 };

/* x + y as T keeps it, written to `to`. */
template <int W, class T> __device__ __forceinline__ void add_vectors(float (&x)[W], const float (&y)[W], T *to)
{
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] = to_f32(element<T>::from(x[j] + y[j]));
    store<W>(to, x);
}

/* N vectors of W channels a lane, in registers; vectors beyond the row are left out of every visit. */
template <class T, int W, int N> struct kept_row {
    float x[N][W];
    __device__ __forceinline__ void load_row(const T *in, int64_t channels, int lane)
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int64_t c = (n * 32 + lane) * W;
            if (c < channels)
                load<W>(x[n], in + c);
        }
    }
    /* The row is in + add, and written to `sum`. */
    __device__ __forceinline__ void load_sum(T *sum, const T *in, const T *add, int64_t channels, int lane)
    {
        load_row(in, channels, lane);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int64_t c = (n * 32 + lane) * W;
            float y[W];
            if (c < channels) {
                load<W>(y, add + c);
                add_vectors<W>(x[n], y, sum + c);
            }
        }
    }
    template <class F> __device__ __forceinline__ void visit(const T *, int64_t channels, int lane, F f)
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int64_t c = (n * 32 + lane) * W;
            if (c < channels)
                f(c, x[n]);
        }
    }
};

/* Any number of channels: read again at each visit, from `in` or from `sum`. */
template <class T, int W> struct reread_row {
    __device__ __forceinline__ void load_row(const T *, int64_t, int) {}
    /* A lane reads again only what it has written itself. */
    __device__ __forceinline__ void load_sum(T *sum, const T *in, const T *add, int64_t channels, int lane)
    {
        for (int64_t c = static_cast<int64_t>(lane) * W; c < channels; c += 32 * W) {
            float x[W], y[W];
            load<W>(x, in + c);
            load<W>(y, add + c);
            add_vectors<W>(x, y, sum + c);
        }
    }
    template <class F> __device__ __forceinline__ void visit(const T *in, int64_t channels, int lane, F f)
    {
        for (int64_t c = static_cast<int64_t>(lane) * W; c < channels; c += 32 * W) {
            float x[W];
            load<W>(x, in + c);
            f(c, x);
        }
    }
};

/* Adds the warps' sums of each column, in order. All threads of the block come here. */
template <int W>
__device__ __forceinline__ void add_warps(float *to, const float (&sum)[W], int64_t c, int64_t channels, float *shared)
{
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int j = 0; j < W; j++)
        shared[(warp * W + j) * 32 + lane] = sum[j];
    __syncthreads();
    if (warp < W && c < channels) { /* warp j adds the j-th column of each lane's W; W <= BWD_WARPS */
        float total = shared[warp * 32 + lane];
        for (int k = 1; k < BWD_WARPS; k++)
            total += shared[(k * W + warp) * 32 + lane];
        to[c + warp] = total;
    }
    __syncthreads();
}

/* How many vectors of W columns a thread of the kernel for wide rows has: 1, 2 or 4; 0 where that kernel is not
 * meant. */
template <int W> inline int wide_vectors(int64_t channels)
{
    const int64_t each = static_cast<int64_t>(BWD_THREADS) * W;
    if (channels < each / 2 || channels > 4 * each)
        return 0;
    return channels <= each ? 1 : channels <= 2 * each ? 2 : 4;
}

/* to[i][c] = sum over blocks of partial[block][i][c], i = blockIdx.y of gridDim.y weights that have C columns each. */
struct sum_targets { float *to[2]; };

__global__ void __launch_bounds__(SUM_WIDTH *SUM_WIDTH)
    bwd_sum_kernel(const sum_targets targets, const float *partial, int64_t blocks, int64_t channels)
{
    __shared__ float sums[SUM_WIDTH][SUM_WIDTH + 1];
    const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    const int64_t c = static_cast<int64_t>(blockIdx.x) * SUM_WIDTH + x;
    float sum = 0;
    if (c < channels)
        for (int64_t b = y; b < blocks; b += SUM_WIDTH)
            sum += partial[(b * gridDim.y + blockIdx.y) * channels + c];
    sums[y][x] = sum;
    __syncthreads();
    if (y != 0 || c >= channels)
        return;
    for (int k = 1; k < SUM_WIDTH; k++)
        sum += sums[k][x];
    targets.to[blockIdx.y][c] = sum;
}

/* `count` weights' gradients, 1 or 2. */
inline void sum_blocks(const dsc_cuda_launch *at, const sum_targets &targets, unsigned count, const void *scratch,
                       int64_t rows, int64_t channels)
{
    const dim3 grid(grid_size(dsc_div_ceil(channels, SUM_WIDTH)), count), block(SUM_WIDTH, SUM_WIDTH);
    DSC_CUDA_LAUNCH(bwd_sum_kernel, grid, block, 0, at->stream, targets, static_cast<const float *>(scratch),
                    dsc_div_ceil(rows, BWD_ROWS), channels);
}

} // namespace

#endif
