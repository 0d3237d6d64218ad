/* norm.h - shared parts of the norms: a warp's row, loops over rows and columns, and sums of columns over the blocks.
 *
 * A norm is a struct of arrays, one for each direction, with functions that compute its rows and columns.
 *
 * Forward: a warp has a row, which stays in registers or in shared memory between the sums and the output. Backward: a
 * block has 64 rows, as many as a row of scratch stands for, and a thread has a vector of columns. ROWS rows at a time
 * lie in registers between their sums and their gradients, so that every row is read once. Asynchronous copies bring
 * the next rows meanwhile; a thread reads only what it has copied itself. A thread adds its columns over the rows in
 * order.
 *
 * Rows that are short, too long or not aligned take another kernel. There the warps of a block compute each row's
 * means, then its threads go through columns, 32 vectors of columns wide and eight rows deep. The eight partial sums of
 * a column are added in order. Scratch rows are added by a second kernel: 32 of them side by side, in steps of 32, then
 * those 32 in order. All of this follows from the shape and from the GPU's shared memory.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_NORM_H
#define DSC_KERNELS_CUDA_NORM_H

#include "kernels/cuda/elements.h"
#include "kernels/cuda/shared.h"

namespace {

enum { FWD_THREADS = 128, FWD_ROWS = FWD_THREADS / 32, FWD_CHANNELS_KEPT = 1024 };
enum { BWD_THREADS = 256, BWD_WARPS = BWD_THREADS / 32, BWD_ROWS = 64, BWD_RING_WARPS = 32, SUM_WIDTH = 32 };

/* Factors of W channels: without a weight 1. */
template <int W, class T>
__device__ __forceinline__ void load_weight(float (&w)[W], const T *weight, int64_t c, bool plus_one)
{
    if (weight == NULL) {
#pragma unroll
        for (int j = 0; j < W; j++)
            w[j] = 1.0f;
        return;
    }
    load<W>(w, weight + c);
#pragma unroll
    for (int j = 0; j < W; j++)
        w[j] = plus_one ? 1.0f + w[j] : w[j];
}

/* x += y as T keeps it, written to `to`. */
template <class T, int W> __device__ __forceinline__ void add_vectors(vector<T, W> &x, const vector<T, W> &y, T *to)
{
#pragma unroll
    for (int j = 0; j < W; j++)
        x.elements[j] = element<T>::from(to_f32(x.elements[j]) + to_f32(y.elements[j]));
    store_vector(to, x);
}

/* N vectors of W channels a lane, in registers as they were read; vectors beyond the row are left out of every visit.
 */
template <class T, int W, int N> struct kept_row {
    vector<T, W> kept[N];
    __device__ __forceinline__ void place(char *, int64_t, int, int) {}
    __device__ __forceinline__ void load_row(const T *in, int64_t channels, int lane)
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int64_t c = (n * 32 + lane) * W;
            if (c < channels)
                load_vector(kept[n], in + c);
        }
    }
    /* The row is in + add, and written to `sum`. */
    __device__ __forceinline__ void load_sum(T *sum, const T *in, const T *add, int64_t channels, int lane)
    {
        load_row(in, channels, lane);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int64_t c = (n * 32 + lane) * W;
            vector<T, W> other;
            if (c < channels) {
                load_vector(other, add + c);
                add_vectors(kept[n], other, sum + c);
            }
        }
    }
    template <class F> __device__ __forceinline__ void visit(const T *, int64_t channels, int lane, F f)
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int64_t c = (n * 32 + lane) * W;
            float x[W];
            if (c < channels) {
                unpack(x, kept[n]);
                f(c, x);
            }
        }
    }
};

/* As many channels as shared memory holds. A lane reads only what it has written or copied itself. */
template <class T, int W> struct shared_row {
    vector<T, W> *slots; /* slots of the lane, 32 apart */
    __device__ __forceinline__ void place(char *rows, int64_t channels, int lane, int warp)
    {
        slots = reinterpret_cast<vector<T, W> *>(rows + warp * channels * static_cast<int64_t>(sizeof(T))) + lane;
    }
    __device__ __forceinline__ void load_row(const T *in, int64_t channels, int lane)
    {
        vector<T, W> *to = slots;
        for (int64_t c = static_cast<int64_t>(lane) * W; c < channels; c += 32 * W, to += 32)
            cp_async16(to, in + c, true);
        cp_async_commit();
    }
    __device__ __forceinline__ void load_sum(T *sum, const T *in, const T *add, int64_t channels, int lane)
    {
        vector<T, W> *to = slots;
#pragma unroll 4
        for (int64_t c = static_cast<int64_t>(lane) * W; c < channels; c += 32 * W, to += 32) {
            vector<T, W> x, other;
            load_vector(x, in + c);
            load_vector(other, add + c);
            add_vectors(x, other, sum + c);
            to->words[0] = x.words[0];
        }
    }
    template <class F> __device__ __forceinline__ void visit(const T *, int64_t channels, int lane, F f)
    {
        const vector<T, W> *from = slots;
        cp_async_wait<0>();
#pragma unroll 4
        for (int64_t c = static_cast<int64_t>(lane) * W; c < channels; c += 32 * W, from += 32) {
            float x[W];
            load<W>(x, from->elements);
            f(c, x);
        }
    }
};

/* Any number of channels: read again at each visit, from `in` or from `sum`. */
template <class T, int W> struct reread_row {
    __device__ __forceinline__ void place(char *, int64_t, int, int) {}
    __device__ __forceinline__ void load_row(const T *, int64_t, int) {}
    /* A lane reads again only what it has written itself. */
    __device__ __forceinline__ void load_sum(T *sum, const T *in, const T *add, int64_t channels, int lane)
    {
        for (int64_t c = static_cast<int64_t>(lane) * W; c < channels; c += 32 * W) {
            vector<T, W> x, other;
            load_vector(x, in + c);
            load_vector(other, add + c);
            add_vectors(x, other, sum + c);
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

/* ---- forward: Norm has arrays in, add, sum (as in layernorm.h) of `element`, rows, channels, wide. Its
 * function finish<W>(row, in, r, lane) computes statistics and output of row r, which `row` visits from `in` ---- */

template <class Norm, int W, class Row> __global__ void __launch_bounds__(FWD_THREADS) fwd_kernel(const Norm a)
{
    typedef typename Norm::element T;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t r = static_cast<int64_t>(blockIdx.x) * FWD_ROWS + threadIdx.x / 32;
    if (r >= a.rows)
        return; /* the whole warp */
    const T *in = a.in + dsc_norm_row_at(&a.wide, r, a.channels);
    DSC_CUDA_SHARED(char, rows);
    Row row;
    row.place(rows, a.channels, lane, static_cast<int>(threadIdx.x / 32));
    if (a.add != NULL) {
        T *const total = a.sum + r * a.channels;
        row.load_sum(total, in, a.add + r * a.channels, a.channels, lane);
        in = total;
    } else {
        row.load_row(in, a.channels, lane);
    }
    a.template finish<W>(row, in, r, lane);
}

template <int W, class Row, class Norm> void fwd_launch(const dsc_cuda_launch *at, const Norm &a, int64_t shared_bytes)
{
    DSC_CUDA_LAUNCH((fwd_kernel<Norm, W, Row>), grid_size(dsc_div_ceil(a.rows, FWD_ROWS)), FWD_THREADS,
                    static_cast<size_t>(shared_bytes), at->stream, a);
}

/* Rows of more channels than a lane should have in registers. */
template <int W, class Norm>
dsc_status fwd_launch_long(const dsc_cuda_launch *at, const char *of, const Norm &a, dsc_error *err)
{
    typedef typename Norm::element T;
    const int64_t bytes = FWD_ROWS * a.channels * static_cast<int64_t>(sizeof(T));
    if (2 * bytes > at->shared_bytes) { /* too few rows would be under way */
        fwd_launch<W, reread_row<T, W>>(at, a, 0);
        return DSC_OK;
    }
    DSC_TRY((shared_allow(of, fwd_kernel<Norm, W, shared_row<T, W>>, bytes, err)));
    fwd_launch<W, shared_row<T, W>>(at, a, bytes);
    return DSC_OK;
}

/* ---- backward: Norm has arrays d_in, d_out, d_residual, in, weight of `element`, partial[blocks, WEIGHTS, C] (NULL:
 * the weights are frozen), rows, channels, plus_one, wide, and
 *   stats_of(r)            what the forward has left of row r, a `stats`
 *   normalise(s, x)        makes x_hat of W elements of a row
 *   add_terms(g, x_hat, w, sum)  adds their part of the row's SUMS sums, whose means the gradient needs
 *   gradient(s, mean, g, x_hat, w, y, total)  adds the gradient to y, and its part of the columns to total[WEIGHTS]
 * ---- */

/* Means of a row's SUMS sums. */
template <class Norm> struct row_means { float of[Norm::SUMS]; };

/* All of a warp reads row r. */
template <class Norm, int W> __device__ __forceinline__ row_means<Norm> means_of(const Norm &a, int64_t r, int lane)
{
    const typename Norm::stats stats = a.stats_of(r);
    row_means<Norm> m = {};
    const int64_t in = dsc_norm_row_at(&a.wide, r, a.channels);
    for (int64_t c = static_cast<int64_t>(lane) * W; c < a.channels; c += 32 * W) {
        float g[W], x[W], w[W];
        load<W>(g, a.d_out + r * a.channels + c);
        load<W>(x, a.in + in + c);
        load_weight<W>(w, a.weight, c, a.plus_one);
        a.normalise(stats, x);
        a.add_terms(g, x, w, m.of);
    }
#pragma unroll
    for (int i = 0; i < Norm::SUMS; i++)
        m.of[i] = warp_sum(m.of[i]) / static_cast<float>(a.channels);
    return m;
}

/* Row r's gradient at columns c .. c + W - 1, and its part of their weights' sums. */
template <class Norm, int W>
__device__ __forceinline__ void columns(const Norm &a, int64_t r, int64_t c, const row_means<Norm> &m,
                                        const float (&w)[W], float (&total)[Norm::WEIGHTS][W])
{
    const int64_t i = r * a.channels + c, in = dsc_norm_row_at(&a.wide, r, a.channels) + c;
    const typename Norm::stats stats = a.stats_of(r);
    float g[W], x[W], y[W] = {};
    load<W>(g, a.d_out + i);
    load<W>(x, a.in + in);
    if (a.d_residual != NULL)
        load<W>(y, a.d_residual + i);
    a.normalise(stats, x);
    a.gradient(stats, m.of, g, x, w, y, total);
    store_fast<W>(a.d_in + in, y);
}

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
    __shared__ row_means<Norm> means[BWD_ROWS];
    __shared__ float shared[BWD_WARPS * W * 32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    for (int64_t r = first + warp; r < last; r += BWD_WARPS) {
        const row_means<Norm> m = means_of<Norm, W>(a, r, lane);
        if (lane == 0)
            means[r - first] = m;
    }
    __syncthreads();
    for (int64_t base = 0; base < a.channels; base += 32 * W) {
        const int64_t c = base + lane * W;
        float w[W] = {}, sum[Norm::WEIGHTS][W] = {};
        if (c < a.channels) {
            load_weight<W>(w, a.weight, c, a.plus_one);
#pragma unroll 4
            for (int64_t r = first + warp; r < last; r += BWD_WARPS)
                columns<Norm, W>(a, r, c, means[r - first], w, sum);
        }
        float *const to = a.partial + static_cast<int64_t>(blockIdx.x) * Norm::WEIGHTS * a.channels;
        for (int i = 0; i < Norm::WEIGHTS && a.partial != NULL; i++)
            add_warps<W>(to + i * a.channels, sum[i], c, a.channels, shared);
    }
}

/* The totals over a warp's lanes of COUNT values: lane l has that of value l / (32 / COUNT). */
template <int COUNT> __device__ __forceinline__ float warp_totals(float (&x)[COUNT], int lane)
{
    int width = 16;
#pragma unroll
    for (int half = COUNT / 2; half >= 1; half /= 2, width /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) {
            const bool upper = (lane & width) != 0;
            const float given = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
            x[i] = kept + __shfl_xor_sync(0xffffffffu, given, width);
        }
#pragma unroll
    for (; width >= 1; width /= 2)
        x[0] += __shfl_xor_sync(0xffffffffu, x[0], width);
    return x[0];
}

/* The totals over a block's threads, times `factor`, in every thread; `shared` has a row a warp. The barrier in it is
 * the only one of a step: two arrays in turn are enough. */
template <int COUNT>
__device__ __forceinline__ void block_totals(float (&x)[COUNT], float factor, float (*shared)[COUNT], int lane,
                                             int warp)
{
    const float mine = warp_totals<COUNT>(x, lane);
    if (lane % (32 / COUNT) == 0)
        shared[warp][lane / (32 / COUNT)] = mine;
    __syncthreads();
    float total = 0;
    for (int w = lane / COUNT; w < static_cast<int>(blockDim.x / 32); w += 32 / COUNT)
        total += shared[w][lane % COUNT];
#pragma unroll
    for (int width = 16; width >= COUNT; width /= 2)
        total += __shfl_xor_sync(0xffffffffu, total, width);
    total *= factor;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        x[i] = __shfl_sync(0xffffffffu, total, i);
}

enum { RING_ARRAYS = 3 }; /* d_out, in, d_residual */

/* Shared memory before the ring of rows. */
template <class Norm, int ROWS> struct alignas(16) ring_head {
    typename Norm::stats stats[BWD_ROWS];
    float sums[2][BWD_RING_WARPS][ROWS * Norm::SUMS];
};

/* Copies of the rows [r, r + ROWS) below `last` begin, for the thread's columns from c on. */
template <class Norm, int W, int ROWS>
__device__ __forceinline__ void fetch_rows(const Norm &a, vector<typename Norm::element, W> *to, int64_t r,
                                           int64_t last, int c)
{
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const int64_t i = (r + k) * a.channels + c;
        if (r + k >= last)
            return;
        cp_async16(to + (k * RING_ARRAYS + 0) * blockDim.x, a.d_out + i, true);
        cp_async16(to + (k * RING_ARRAYS + 1) * blockDim.x, a.in + dsc_norm_row_at(&a.wide, r + k, a.channels) + c,
                   true);
        if (a.d_residual != NULL)
            cp_async16(to + (k * RING_ARRAYS + 2) * blockDim.x, a.d_residual + i, true);
    }
}

template <class Norm, int W, int ROWS, int STAGES, int THREADS>
__global__ void __launch_bounds__(THREADS, 1) bwd_ring_kernel(const Norm a)
{
    typedef typename Norm::element T;
    enum { SUMS = Norm::SUMS, SLOT = ROWS * RING_ARRAYS };
    typedef ring_head<Norm, ROWS> head_of_ring;
    DSC_CUDA_SHARED(head_of_ring, head);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int c = static_cast<int>(threadIdx.x) * W;
    const bool mine = c < a.channels;
    const float inverse = 1.0f / static_cast<float>(a.channels);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    vector<T, W> *const ring = reinterpret_cast<vector<T, W> *>(head + 1) + threadIdx.x;
    for (int k = 0; k < STAGES - 1; k++) {
        if (mine && first + k * ROWS < last)
            fetch_rows<Norm, W, ROWS>(a, ring + k * SLOT * blockDim.x, first + k * ROWS, last, c);
        cp_async_commit();
    }
    for (int k = static_cast<int>(threadIdx.x); k < last - first; k += static_cast<int>(blockDim.x))
        head->stats[k] = a.stats_of(first + k);
    float w[W] = {}, total[Norm::WEIGHTS][W] = {};
    if (mine)
        load_weight<W>(w, a.weight, c, a.plus_one);
    __syncthreads();
    int stage = 0;
    for (int64_t r = first; r < last; r += ROWS) {
        const int64_t ahead = r + (STAGES - 1) * ROWS;
        const int fill = stage == 0 ? STAGES - 1 : stage - 1;
        if (mine && ahead < last)
            fetch_rows<Norm, W, ROWS>(a, ring + fill * SLOT * blockDim.x, ahead, last, c);
        cp_async_commit();
        cp_async_wait<STAGES - 1>();
        const vector<T, W> *const rows = ring + stage * SLOT * blockDim.x;
        const typename Norm::stats *const stats = head->stats + (r - first);
        float g[ROWS][W], x[ROWS][W], sums[ROWS * SUMS] = {};
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (!mine || r + k >= last)
                continue;
            load<W>(g[k], rows[(k * RING_ARRAYS + 0) * blockDim.x].elements);
            load<W>(x[k], rows[(k * RING_ARRAYS + 1) * blockDim.x].elements);
            a.normalise(stats[k], x[k]);
            a.add_terms(g[k], x[k], w, sums + k * SUMS);
        }
        block_totals<ROWS * SUMS>(sums, inverse, head->sums[(r - first) / ROWS % 2], lane, warp);
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            float y[W] = {};
            if (!mine || r + k >= last)
                continue;
            if (a.d_residual != NULL)
                load<W>(y, rows[(k * RING_ARRAYS + 2) * blockDim.x].elements);
            a.gradient(stats[k], sums + k * SUMS, g[k], x[k], w, y, total);
            store_fast<W>(a.d_in + dsc_norm_row_at(&a.wide, r + k, a.channels) + c, y);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    float *const to = a.partial + static_cast<int64_t>(blockIdx.x) * Norm::WEIGHTS * a.channels + c;
#pragma unroll
    for (int i = 0; i < Norm::WEIGHTS; i++)
        if (a.partial != NULL && mine)
            store<W>(to + i * a.channels, total[i]);
}

/* False: the rows are short, or the ring does not fit. */
template <class Norm, int W, int ROWS, int STAGES, int THREADS>
bool ring_launch(const dsc_cuda_launch *at, const char *of, const Norm &a, unsigned blocks, dsc_status *status,
                 dsc_error *err)
{
    const int64_t threads = dsc_align_up(a.channels / W, 32);
    const int64_t bytes = static_cast<int64_t>(sizeof(ring_head<Norm, ROWS>)) +
                          threads * STAGES * ROWS * RING_ARRAYS * static_cast<int64_t>(sizeof(uint4));
    if (a.channels / W < 32 || threads > THREADS || bytes > at->shared_bytes)
        return false;
    *status = shared_allow(of, bwd_ring_kernel<Norm, W, ROWS, STAGES, THREADS>, bytes, err);
    if (*status == DSC_OK)
        DSC_CUDA_LAUNCH((bwd_ring_kernel<Norm, W, ROWS, STAGES, THREADS>), blocks, static_cast<unsigned>(threads),
                        static_cast<size_t>(bytes), at->stream, a);
    return true;
}

template <class Norm> dsc_status bwd_launch(const dsc_cuda_launch *at, const char *of, const Norm &a, dsc_error *err)
{
    constexpr int W = 16 / static_cast<int>(sizeof(typename Norm::element));
    const bool aligned = a.channels % W == 0 && a.wide.stride % W == 0 && is_aligned(a.d_in) && is_aligned(a.d_out) &&
                         is_aligned(a.d_residual) && is_aligned(a.in) && is_aligned(a.weight) && is_aligned(a.partial);
    const unsigned blocks = grid_size(dsc_div_ceil(a.rows, BWD_ROWS));
    dsc_status status = DSC_OK;
    if (aligned && (ring_launch<Norm, W, 4, 2, 512>(at, of, a, blocks, &status, err) ||
                    ring_launch<Norm, W, 1, 4, 1024>(at, of, a, blocks, &status, err)))
        return status;
    if (aligned)
        DSC_CUDA_LAUNCH((bwd_kernel<Norm, W>), blocks, BWD_THREADS, 0, at->stream, a);
    else
        DSC_CUDA_LAUNCH((bwd_kernel<Norm, 1>), blocks, BWD_THREADS, 0, at->stream, a);
    return DSC_OK;
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
#pragma unroll 8
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
