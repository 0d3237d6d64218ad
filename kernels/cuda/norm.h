/* norm.h - shared parts of the norms: a warp's row, loops over rows and columns, and sums of columns over the blocks.
 *
 * A norm is a struct of arrays, one for each direction, with functions that compute its rows and columns.
 *
 * Forward: a warp has a row; up to 2048 channels stay in registers between the sums and the output. Backward: a block
 * has 64 rows, as many as a row of scratch stands for. First its warps compute each row's means. Then its threads go
 * through columns: 32 vectors of columns wide, eight rows deep. The eight partial sums of a column are added in order.
 * Wide rows would leave the caches before a block of 64 returns to them (64 of 4096 are 1 MiB in bf16, and a GPU has
 * hundreds of blocks). There a block takes eight rows at a time through both steps, and a thread keeps the sums of its
 * columns in registers. Scratch rows are added by a second kernel: 32 of them side by side, in steps of 32, then those
 * 32 in order. All of this follows from the shape.
 * SPDX-License-Identifier: Apache-2.0 */
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

/* ---- forward: Norm has arrays in, add, sum (as in layernorm.h) of `element`, rows, channels. Its
 * function finish<W>(row, in, r, lane) computes statistics and output of row r, which `row` visits from `in` ---- */

template <class Norm, int W, class Row> __global__ void __launch_bounds__(FWD_THREADS) fwd_kernel(const Norm a)
{
    typedef typename Norm::element T;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t r = static_cast<int64_t>(blockIdx.x) * FWD_ROWS + threadIdx.x / 32;
    if (r >= a.rows)
        return; /* the whole warp */
    const T *in = a.in + r * a.channels;
    Row row;
    if (a.add != NULL) {
        T *const total = a.sum + r * a.channels;
        row.load_sum(total, in, a.add + r * a.channels, a.channels, lane);
        in = total;
    } else {
        row.load_row(in, a.channels, lane);
    }
    a.template finish<W>(row, in, r, lane);
}

template <int W, class Row, class Norm> void fwd_launch(const dsc_cuda_launch *at, const Norm &a)
{
    DSC_CUDA_LAUNCH((fwd_kernel<Norm, W, Row>), grid_size(dsc_div_ceil(a.rows, FWD_ROWS)), FWD_THREADS, 0, at->stream,
                    a);
}

/* ---- backward: Norm has arrays d_in, d_out, d_residual, in, weight of `element`, partial[blocks, WEIGHTS, C] (NULL:
 * the weights are frozen), rows, channels, and
 *   means_of<W>(r, lane)  what columns() must know of row r, a `means`, whose {} is zeros
 *   columns<W>(r, c, m, w, sum)  row r's gradient at columns c .. c + W - 1; adds to sum[WEIGHTS][W] ---- */

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

template <class Norm, int W> __global__ void __launch_bounds__(BWD_THREADS) bwd_kernel(const Norm a)
{
    __shared__ typename Norm::means means[BWD_ROWS];
    __shared__ float shared[BWD_WARPS * W * 32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    for (int64_t r = first + warp; r < last; r += BWD_WARPS) {
        const typename Norm::means m = a.template means_of<W>(r, lane);
        if (lane == 0)
            means[r - first] = m;
    }
    __syncthreads();
    for (int64_t base = 0; base < a.channels; base += 32 * W) {
        const int64_t c = base + lane * W;
        float w[W] = {}, sum[Norm::WEIGHTS][W] = {};
        if (c < a.channels) {
            load<W>(w, a.weight + c);
#pragma unroll 4
            for (int64_t r = first + warp; r < last; r += BWD_WARPS)
                a.template columns<W>(r, c, means[r - first], w, sum);
        }
        float *const to = a.partial + static_cast<int64_t>(blockIdx.x) * Norm::WEIGHTS * a.channels;
        for (int i = 0; i < Norm::WEIGHTS && a.partial != NULL; i++)
            add_warps<W>(to + i * a.channels, sum[i], c, a.channels, shared);
    }
}

template <class Norm, int W, int K> __global__ void __launch_bounds__(BWD_THREADS, 2) bwd_wide_kernel(const Norm a)
{
    /* Those of these eight rows, and of the eight before, which some threads may still read. */
    __shared__ typename Norm::means means[2][BWD_WARPS];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    float sum[K][Norm::WEIGHTS][W] = {};
    for (int64_t row = first; row < last; row += BWD_WARPS) {
        typename Norm::means *const now = means[(row - first) / BWD_WARPS % 2];
        const typename Norm::means mine =
            row + warp < last ? a.template means_of<W>(row + warp, lane) : typename Norm::means{};
        if (lane == 0)
            now[warp] = mine;
        __syncthreads();
        const int rows = static_cast<int>(min(last - row, static_cast<int64_t>(BWD_WARPS)));
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int64_t c = static_cast<int64_t>(k * BWD_THREADS + static_cast<int>(threadIdx.x)) * W;
            float w[W];
            if (c >= a.channels)
                continue;
            load<W>(w, a.weight + c);
#pragma unroll 4
            for (int r = 0; r < rows; r++)
                a.template columns<W>(row + r, c, now[r], w, sum[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int64_t c = static_cast<int64_t>(k * BWD_THREADS + static_cast<int>(threadIdx.x)) * W;
        float *const to = a.partial + static_cast<int64_t>(blockIdx.x) * Norm::WEIGHTS * a.channels + c;
        if (a.partial == NULL || c >= a.channels)
            continue;
#pragma unroll
        for (int i = 0; i < Norm::WEIGHTS; i++)
            store<W>(to + i * a.channels, sum[k][i]);
    }
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

template <class Norm> void bwd_launch(const dsc_cuda_launch *at, const Norm &a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(typename Norm::element));
    const bool aligned = a.channels % W == 0 && is_aligned(a.d_in) && is_aligned(a.d_out) && is_aligned(a.d_residual) &&
                         is_aligned(a.in) && is_aligned(a.weight) && is_aligned(a.partial);
    const unsigned blocks = grid_size(dsc_div_ceil(a.rows, BWD_ROWS));
    const int wide = aligned ? wide_vectors<W>(a.channels) : 0;
    if (wide == 1)
        DSC_CUDA_LAUNCH((bwd_wide_kernel<Norm, W, 1>), blocks, BWD_THREADS, 0, at->stream, a);
    else if (wide == 2)
        DSC_CUDA_LAUNCH((bwd_wide_kernel<Norm, W, 2>), blocks, BWD_THREADS, 0, at->stream, a);
    else if (wide == 4)
        DSC_CUDA_LAUNCH((bwd_wide_kernel<Norm, W, 4>), blocks, BWD_THREADS, 0, at->stream, a);
    else if (aligned)
        DSC_CUDA_LAUNCH((bwd_kernel<Norm, W>), blocks, BWD_THREADS, 0, at->stream, a);
    else
        DSC_CUDA_LAUNCH((bwd_kernel<Norm, 1>), blocks, BWD_THREADS, 0, at->stream, a);
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
    if (y != 0 || c >= channels || targets.to[blockIdx.y] == NULL)
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
