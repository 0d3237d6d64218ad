/* batch_norm.cu - sums over rows by parts, which are put together in order, and passes element by element.
 *
 * A block has a tile of columns and some rows. `lanes` threads side by side have W columns each, and the k-th line of
 * threads has rows k, k + step and so on. A thread keeps the numbers of its columns in registers, and reads 16 bytes at
 * once where the arrays allow it. Sums of a block's lines are put together in order.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/batch_norm.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256, LANES = 32, BLOCKS_OF_ROWS = 2048, UNROLL = 4 };

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

struct tile_shape {
    int64_t rows, channels, block_rows;
    int lanes; /* a power of 2 */
};

/* W elements of a row of the matrix, and the rows of this thread: first, first + step, ... below last. */
template <int W> struct place_of {
    int64_t c, first, last, step;
    int local, row, width; /* first column in the block, row of the block's threads, columns of a block */

    __device__ __forceinline__ explicit place_of(const tile_shape &s)
    {
        const int lane = static_cast<int>(threadIdx.x) % s.lanes;
        row = static_cast<int>(threadIdx.x) / s.lanes, step = THREADS / s.lanes, width = s.lanes * W;
        local = lane * W;
        c = static_cast<int64_t>(blockIdx.x) * width + local;
        const int64_t begin = blockIdx.y * s.block_rows, end = begin + s.block_rows;
        first = begin + row;
        last = c >= s.channels ? 0 : end < s.rows ? end : s.rows;
    }

    __device__ __forceinline__ int64_t count() const { return first < last ? (last - first - 1) / step + 1 : 0; }
};

/* Lanes for rows of `channels`, with W in each. */
inline int lanes_for(int64_t channels, int w)
{
    int lanes = 1;
    while (lanes < LANES && lanes * w < channels)
        lanes *= 2;
    return lanes;
}

inline dim3 grid_of(const tile_shape &s, int w)
{
    return dim3(grid_size(dsc_div_ceil(s.channels, s.lanes * w)), grid_size(dsc_div_ceil(s.rows, s.block_rows)));
}

inline tile_shape parts_of(int64_t rows, int64_t channels, int w)
{
    return { rows, channels, dsc_batch_norm_part_rows(rows), lanes_for(channels, w) };
}

/* Rows of a pass without sums: enough blocks for any GPU, and enough rows for what a block reads once. */
inline tile_shape rows_of(int64_t rows, int64_t channels, int w)
{
    const int lanes = lanes_for(channels, w);
    return { rows, channels, dsc_max_i64(UNROLL * (THREADS / lanes), dsc_div_ceil(rows, BLOCKS_OF_ROWS)), lanes };
}

template <class T> constexpr int wide = 16 / static_cast<int>(sizeof(T));

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* Means and squares of n + more numbers of n and of `more`. */
__device__ __forceinline__ void join(float &n, float &mean, float &squares, float more, float other,
                                     float other_squares)
{
    const float total = n + more, apart = other - mean;
    mean = fmaf(apart, more / total, mean);
    squares += fmaf(apart * apart, n * (more / total), other_squares);
    n = total;
}

/* A thread's sums are about the first of its numbers, so that a far mean costs no digits. */
template <int W, class T>
__global__ void __launch_bounds__(THREADS) part_stats_kernel(float *scratch, const T *x, const tile_shape shape)
{
    __shared__ float means[THREADS * W], all_squares[THREADS * W];
    const place_of<W> at(shape);
    const int64_t part = blockIdx.y, count = at.count();
    float origin[W] = {}, sum[W] = {}, squares[W] = {};
    if (count > 0)
        load<W>(origin, x + at.first * shape.channels + at.c);
#pragma unroll 4
    for (int64_t r = at.first + at.step; r < at.last; r += at.step) {
        float v[W];
        load<W>(v, x + r * shape.channels + at.c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            v[j] -= origin[j];
            sum[j] += v[j];
            squares[j] = fmaf(v[j], v[j], squares[j]);
        }
    }
    const float share = count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
#pragma unroll
    for (int j = 0; j < W; j++) {
        means[at.row * at.width + at.local + j] = fmaf(sum[j], share, origin[j]);
        all_squares[at.row * at.width + at.local + j] = fmaxf(fmaf(-sum[j] * share, sum[j], squares[j]), 0.0f);
    }
    __syncthreads();
    const int64_t c = static_cast<int64_t>(blockIdx.x) * at.width + threadIdx.x;
    if (static_cast<int>(threadIdx.x) >= at.width || c >= shape.channels)
        return;
    const int64_t begin = part * shape.block_rows, end = begin + shape.block_rows;
    const int64_t rows = (end < shape.rows ? end : shape.rows) - begin;
    float n = 0, mean = 0, total = 0;
    for (int64_t k = 0; k < at.step && k < rows; k++) {
        const int i = static_cast<int>(k) * at.width + static_cast<int>(threadIdx.x);
        join(n, mean, total, static_cast<float>((rows - k - 1) / at.step + 1), means[i], all_squares[i]);
    }
    scratch[2 * part * shape.channels + c] = mean;
    scratch[(2 * part + 1) * shape.channels + c] = total;
}

struct outputs_of_stats {
    float *stats, *mean, *variance;
};

/* Sums of parts: 8 threads have every eighth part of a column, and are added in order. */
enum { SUMMED_COLUMNS = 32, SUMMERS = THREADS / SUMMED_COLUMNS };

__device__ __forceinline__ double over_summers(double (&shared)[SUMMERS][SUMMED_COLUMNS], double x)
{
    const int lane = static_cast<int>(threadIdx.x) % SUMMED_COLUMNS;
    __syncthreads();
    shared[threadIdx.x / SUMMED_COLUMNS][lane] = x;
    __syncthreads();
    double sum = shared[0][lane];
#pragma unroll
    for (int k = 1; k < SUMMERS; k++)
        sum += shared[k][lane];
    return sum;
}

__device__ __forceinline__ int64_t summed_column(void)
{
    return static_cast<int64_t>(blockIdx.x) * SUMMED_COLUMNS + threadIdx.x % SUMMED_COLUMNS;
}

__global__ void __launch_bounds__(THREADS) finish_stats_kernel(outputs_of_stats out, const float *scratch, int64_t rows,
                                                               int64_t channels, int64_t part_rows, double eps)
{
    __shared__ double shared[SUMMERS][SUMMED_COLUMNS];
    const int64_t c = summed_column(), parts = c < channels ? (rows - 1) / part_rows + 1 : 0;
    const int64_t first = threadIdx.x / SUMMED_COLUMNS;
    double sum = 0, squares = 0;
#pragma unroll 8
    for (int64_t p = first; p < parts; p += SUMMERS) {
        const int64_t count = p + 1 < parts ? part_rows : rows - p * part_rows;
        sum += static_cast<double>(count) * static_cast<double>(scratch[2 * p * channels + c]);
    }
    const double mean = over_summers(shared, sum) / static_cast<double>(rows);
#pragma unroll 8
    for (int64_t p = first; p < parts; p += SUMMERS) {
        const int64_t count = p + 1 < parts ? part_rows : rows - p * part_rows;
        const double d = static_cast<double>(scratch[2 * p * channels + c]) - mean;
        squares += static_cast<double>(scratch[(2 * p + 1) * channels + c]);
        squares += static_cast<double>(count) * (d * d);
    }
    squares = over_summers(shared, squares);
    if (first > 0 || c >= channels)
        return;
    out.stats[c] = static_cast<float>(mean);
    out.stats[channels + c] = static_cast<float>(1 / sqrt(squares / static_cast<double>(rows) + eps));
    if (out.mean != nullptr)
        out.mean[c] = static_cast<float>(mean);
    if (out.variance != nullptr)
        out.variance[c] = static_cast<float>(squares / static_cast<double>(rows > 1 ? rows - 1 : 1));
}

__global__ void __launch_bounds__(THREADS)
    constant_stats_kernel(outputs_of_stats out, const float *mean, const float *variance, int64_t channels, double eps)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= channels)
        return;
    out.stats[c] = mean[c];
    out.stats[channels + c] = static_cast<float>(1 / sqrt(static_cast<double>(variance[c]) + eps));
    if (out.mean != nullptr)
        out.mean[c] = mean[c];
    if (out.variance != nullptr)
        out.variance[c] = variance[c];
}

template <int W, class T> void part_stats(const dsc_cuda_launch *at, const dsc_batch_stats_args *a)
{
    const tile_shape shape = parts_of(a->rows, a->channels, W);
    DSC_CUDA_LAUNCH((part_stats_kernel<W, T>), grid_of(shape, W), THREADS, 0, at->stream, a->scratch,
                    static_cast<const T *>(a->x), shape);
}

template <class T> void stats_of(const dsc_cuda_launch *at, const dsc_batch_stats_args *a)
{
    const unsigned blocks = grid_size(dsc_div_ceil(a->channels, SUMMED_COLUMNS));
    const outputs_of_stats out = { a->stats, a->mean, a->variance };
    if (a->channels % wide<T> == 0 && is_aligned(a->x))
        part_stats<wide<T>, T>(at, a);
    else
        part_stats<1, T>(at, a);
    DSC_CUDA_LAUNCH(finish_stats_kernel, blocks, THREADS, 0, at->stream, out, a->scratch, a->rows, a->channels,
                    dsc_batch_norm_part_rows(a->rows), static_cast<double>(a->eps));
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

template <bool FAST> __device__ __forceinline__ float activate(dsc_activation kind, float x)
{
    switch (kind) {
    case DSC_RELU:
        return activation_of<DSC_RELU, FAST>(x);
    case DSC_RELU6:
        return activation_of<DSC_RELU6, FAST>(x);
    case DSC_SILU:
        return activation_of<DSC_SILU, FAST>(x);
    default:
        return activation_of<DSC_HARD_SWISH, FAST>(x);
    }
}

template <bool FAST> __device__ __forceinline__ float slope_of(dsc_activation kind, float x)
{
    switch (kind) {
    case DSC_RELU:
        return activation_slope<DSC_RELU, FAST>(x);
    case DSC_RELU6:
        return activation_slope<DSC_RELU6, FAST>(x);
    case DSC_SILU:
        return activation_slope<DSC_SILU, FAST>(x);
    default:
        return activation_slope<DSC_HARD_SWISH, FAST>(x);
    }
}

/* To the dtype and back. */
template <class T, int W> __device__ __forceinline__ void round_all(float (&x)[W])
{
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] = to_f32(element<T>::from(x[j]));
}

template <> __device__ __forceinline__ void round_all<float, 1>(float (&)[1]) {}
template <> __device__ __forceinline__ void round_all<float, 4>(float (&)[4]) {}

template <> __device__ __forceinline__ void round_all<uint16_t, 8>(float (&x)[8])
{
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const uint32_t pair = pack_bf16(x[j], x[j + 1]);
        x[j] = __uint_as_float(pair << 16), x[j + 1] = __uint_as_float(pair & 0xffff0000u);
    }
}

/* Numbers of its columns that a thread keeps. */
template <int W> struct columns_of {
    float mean[W], rstd[W], weight[W], bias[W];
};

/* Operands of forward. */
template <class T> struct norm_of {
    const T *x, *add, *weight, *bias;
    const float *stats;
    int64_t channels;
    bool activates;
    dsc_activation kind;

    template <int W> __device__ __forceinline__ void begin(columns_of<W> &of, int64_t c) const
    {
        if (c >= channels)
            return;
        load<W>(of.mean, stats + c);
        load<W>(of.rstd, stats + channels + c);
        load<W>(of.weight, weight + c);
        load<W>(of.bias, bias + c);
    }

    /* h, the normalized x, and z, which the activation is of. */
    template <int W>
    __device__ __forceinline__ void run(float (&h)[W], float (&z)[W], const columns_of<W> &of, int64_t i) const
    {
        float more[W];
        load<W>(h, x + i);
        if (add != nullptr)
            load<W>(more, add + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            h[j] = (h[j] - of.mean[j]) * of.rstd[j];
            z[j] = fmaf(h[j], of.weight[j], of.bias[j]);
        }
        round_all<T>(z);
        if (add == nullptr)
            return;
#pragma unroll
        for (int j = 0; j < W; j++)
            z[j] += more[j];
        round_all<T>(z);
    }

    /* d, the gradient of z. */
    template <int W> __device__ __forceinline__ void gradient(float (&d)[W], const float (&z)[W]) const
    {
        if (!activates)
            return;
#pragma unroll
        for (int j = 0; j < W; j++)
            d[j] *= slope_of<sizeof(T) == 2>(kind, z[j]);
        round_all<T>(d);
    }
};

template <class T> struct forward_op {
    T *out;
    norm_of<T> norm;

    template <int W> __device__ __forceinline__ void run(const columns_of<W> &of, int64_t i, int64_t) const
    {
        float h[W], z[W];
        norm.template run<W>(h, z, of, i);
#pragma unroll
        for (int j = 0; j < W; j++)
            z[j] = norm.activates ? activate<sizeof(T) == 2>(norm.kind, z[j]) : z[j];
        store_fast<W>(out + i, z);
    }
};

template <int W, class Op> __global__ void __launch_bounds__(THREADS) rows_kernel(const Op op, const tile_shape shape)
{
    const place_of<W> at(shape);
    columns_of<W> of = {};
    op.norm.begin(of, at.c);
    for (int64_t r = at.first; r < at.last; r += at.step)
        op.template run<W>(of, r * shape.channels + at.c, at.c);
}

template <int W, class Op> void run_rows(const dsc_cuda_launch *at, const Op &op, int64_t rows)
{
    const tile_shape shape = rows_of(rows, op.norm.channels, W);
    if (rows > 0)
        DSC_CUDA_LAUNCH((rows_kernel<W, Op>), grid_of(shape, W), THREADS, 0, at->stream, op, shape);
}

template <class T> bool lies_well(const norm_of<T> &of)
{
    return of.channels % wide<T> == 0 && is_aligned(of.x) && is_aligned(of.add) && is_aligned(of.weight) &&
           is_aligned(of.bias) && is_aligned(of.stats);
}

template <class T> void forward(const dsc_cuda_launch *at, const dsc_batch_norm_fwd_args *a)
{
    const forward_op<T> op = { static_cast<T *>(a->out),
                               { static_cast<const T *>(a->x), static_cast<const T *>(a->add),
                                 static_cast<const T *>(a->weight), static_cast<const T *>(a->bias), a->stats,
                                 a->channels, a->activates, a->kind } };
    if (lies_well(op.norm) && is_aligned(a->out))
        run_rows<wide<T>>(at, op, a->rows);
    else
        run_rows<1>(at, op, a->rows);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

template <int W, class T>
__global__ void __launch_bounds__(THREADS)
    part_gradients_kernel(float *scratch, const T *d_out, const norm_of<T> norm, const tile_shape shape)
{
    __shared__ float sums[THREADS * W], alongs[THREADS * W];
    const place_of<W> at(shape);
    const int64_t part = blockIdx.y;
    float sum[W] = {}, along[W] = {};
    columns_of<W> of = {};
    norm.begin(of, at.c);
    for (int64_t r = at.first; r < at.last; r += at.step) {
        const int64_t i = r * shape.channels + at.c;
        float h[W], z[W], d[W];
        load<W>(d, d_out + i);
        norm.template run<W>(h, z, of, i);
        norm.template gradient<W>(d, z);
#pragma unroll
        for (int j = 0; j < W; j++) {
            sum[j] += d[j];
            along[j] = fmaf(d[j], h[j], along[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < W; j++) {
        sums[at.row * at.width + at.local + j] = sum[j];
        alongs[at.row * at.width + at.local + j] = along[j];
    }
    __syncthreads();
    const int64_t c = static_cast<int64_t>(blockIdx.x) * at.width + threadIdx.x;
    if (static_cast<int>(threadIdx.x) >= at.width || c >= shape.channels)
        return;
    float total = 0, total_along = 0;
    for (int k = 0; k < at.step; k++) {
        total += sums[k * at.width + static_cast<int>(threadIdx.x)];
        total_along += alongs[k * at.width + static_cast<int>(threadIdx.x)];
    }
    scratch[2 * part * shape.channels + c] = total;
    scratch[(2 * part + 1) * shape.channels + c] = total_along;
}

/* Sums over rows, and behind the parts their means. */
__global__ void __launch_bounds__(THREADS) finish_gradients_kernel(float *d_weight, float *d_bias, float *scratch,
                                                                   int64_t rows, int64_t channels, int64_t parts)
{
    __shared__ double shared[SUMMERS][SUMMED_COLUMNS];
    const int64_t c = summed_column(), first = threadIdx.x / SUMMED_COLUMNS;
    double sum = 0, along = 0;
#pragma unroll 8
    for (int64_t p = first; p < parts; p += SUMMERS)
        if (c < channels) {
            sum += static_cast<double>(scratch[2 * p * channels + c]);
            along += static_cast<double>(scratch[(2 * p + 1) * channels + c]);
        }
    sum = over_summers(shared, sum);
    along = over_summers(shared, along);
    if (first > 0 || c >= channels)
        return;
    scratch[2 * parts * channels + c] = static_cast<float>(sum / static_cast<double>(rows));
    scratch[(2 * parts + 1) * channels + c] = static_cast<float>(along / static_cast<double>(rows));
    if (d_bias != nullptr)
        d_bias[c] = static_cast<float>(sum);
    if (d_weight != nullptr)
        d_weight[c] = static_cast<float>(along);
}

template <class T> struct backward_op {
    T *d_x, *d_add;
    const T *d_out;
    const float *means; /* [2, channels]: of d, and of d h */
    norm_of<T> norm;
    bool constant;

    template <int W> __device__ __forceinline__ void run(const columns_of<W> &of, int64_t i, int64_t c) const
    {
        float h[W], z[W], d[W], sum[W], along[W];
        load<W>(d, d_out + i);
        norm.template run<W>(h, z, of, i);
        norm.template gradient<W>(d, z);
        if (d_add != nullptr)
            store_fast<W>(d_add + i, d);
        if (d_x == nullptr)
            return;
        load<W>(sum, means + c);
        load<W>(along, means + norm.channels + c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            d[j] = constant ? d[j] : d[j] - sum[j] - h[j] * along[j];
            d[j] *= of.weight[j] * of.rstd[j];
        }
        store_fast<W>(d_x + i, d);
    }
};

template <int W, class T>
void gradients(const dsc_cuda_launch *at, const backward_op<T> &op, float *scratch, int64_t rows)
{
    const tile_shape shape = parts_of(rows, op.norm.channels, W);
    DSC_CUDA_LAUNCH((part_gradients_kernel<W, T>), grid_of(shape, W), THREADS, 0, at->stream, scratch, op.d_out,
                    op.norm, shape);
}

template <class T> void backward(const dsc_cuda_launch *at, const dsc_batch_norm_bwd_args *a)
{
    const int64_t parts = dsc_batch_norm_parts(a->rows);
    const backward_op<T> op = { static_cast<T *>(a->d_x),
                                static_cast<T *>(a->d_add),
                                static_cast<const T *>(a->d_out),
                                a->scratch + 2 * parts * a->channels,
                                { static_cast<const T *>(a->x), static_cast<const T *>(a->activates ? a->add : nullptr),
                                  static_cast<const T *>(a->weight), static_cast<const T *>(a->bias), a->stats,
                                  a->channels, a->activates, a->kind },
                                a->constant };
    const bool aligned = lies_well(op.norm) && is_aligned(a->d_x) && is_aligned(a->d_add) && is_aligned(a->d_out) &&
                         is_aligned(op.means);
    if (!a->joined && aligned)
        gradients<wide<T>>(at, op, a->scratch, a->rows);
    else if (!a->joined)
        gradients<1>(at, op, a->scratch, a->rows);
    if (!a->joined)
        DSC_CUDA_LAUNCH(finish_gradients_kernel, grid_size(dsc_div_ceil(a->channels, SUMMED_COLUMNS)), THREADS, 0,
                        at->stream, a->d_weight, a->d_bias, a->scratch, a->rows, a->channels, parts);
    if (a->d_x == NULL && a->d_add == NULL)
        return;
    if (aligned)
        run_rows<wide<T>>(at, op, a->rows);
    else
        run_rows<1>(at, op, a->rows);
}

/* ---- groups of micro-batches ------------------------------------------------------------------------------------- */

/* A thread has a column; number k of all is micro-batch k / ranks of rank k % ranks. */
__global__ void __launch_bounds__(THREADS) join_kernel(const dsc_batch_norm_join_args a)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, count = a.ranks * a.each;
    if (c >= a.channels)
        return;
    double sum = 0, other = 0;
    for (int64_t k = 0; k < count; k++) {
        const float *part = a.parts + (k % a.ranks * a.each + k / a.ranks) * 2 * a.channels;
        sum += static_cast<double>(part[c]);
        other += static_cast<double>(part[a.channels + c]);
    }
    const double rows = static_cast<double>(a.rows), all = rows * static_cast<double>(count);
    if (a.gradients) {
        a.out[c] = static_cast<float>(sum / all);
        a.out[a.channels + c] = static_cast<float>(other / all);
        return;
    }
    const double mean = sum / static_cast<double>(count), before = a.rows > 1 ? rows - 1 : 1;
    double squares = 0;
    for (int64_t k = 0; k < count; k++) {
        const float *part = a.parts + (k % a.ranks * a.each + k / a.ranks) * 2 * a.channels;
        const double apart = static_cast<double>(part[c]) - mean;
        squares += static_cast<double>(part[a.channels + c]) * before + rows * (apart * apart);
    }
    a.out[c] = static_cast<float>(mean);
    a.out[a.channels + c] = static_cast<float>(1 / sqrt(squares / all + static_cast<double>(a.eps)));
    if (a.mean != nullptr)
        a.mean[c] = static_cast<float>(mean);
    if (a.variance != nullptr)
        a.variance[c] = static_cast<float>(squares / (all > 1 ? all - 1 : 1));
}

} // namespace

dsc_status dsc_cuda_run_BATCH_NORM_JOIN(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_batch_norm_join_args *a = static_cast<const dsc_batch_norm_join_args *>(args);
    (void)err;
    DSC_ASSERT(a->ranks >= 1 && a->each >= 1 && a->rows >= 1 && a->channels >= 1);
    DSC_CUDA_LAUNCH(join_kernel, grid_size(dsc_div_ceil(a->channels, THREADS)), THREADS, 0, at->stream, *a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_BATCH_STATS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_batch_stats_args *a = static_cast<const dsc_batch_stats_args *>(args);
    DSC_TRY(dtype_check("BATCH_STATS", a->dtype, err));
    DSC_ASSERT(a->rows >= 1 && a->channels >= 1);
    const outputs_of_stats out = { a->stats, a->mean, a->variance };
    if (a->running_mean != NULL)
        DSC_CUDA_LAUNCH(constant_stats_kernel, grid_size(dsc_div_ceil(a->channels, THREADS)), THREADS, 0, at->stream,
                        out, a->running_mean, a->running_variance, a->channels, static_cast<double>(a->eps));
    else
        DSC_CUDA_FOR_DTYPE(a->dtype, T, stats_of<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_BATCH_NORM_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_batch_norm_fwd_args *a = static_cast<const dsc_batch_norm_fwd_args *>(args);
    DSC_TRY(dtype_check("BATCH_NORM_FWD", a->dtype, err));
    DSC_ASSERT(!a->activates || dsc_batch_norm_activates(a->kind));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, forward<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_BATCH_NORM_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_batch_norm_bwd_args *a = static_cast<const dsc_batch_norm_bwd_args *>(args);
    DSC_TRY(dtype_check("BATCH_NORM_BWD", a->dtype, err));
    DSC_ASSERT(a->rows >= 1 && (!a->activates || dsc_batch_norm_activates(a->kind)));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, backward<T>(at, a));
    return DSC_OK;
}
