/* embedding.cu - token plus position embedding, and its gradient without floating-point atomics.
 *
 * The gradient sorts rows by token: integer counts, starts, rows put into their token's part in any order, and each
 * row's place in it found by counting smaller rows there. Then a block per token adds its rows in increasing order,
 * which are the CPU's bits. A frequent token has several blocks, each for some of its columns.
 * scratch: end [vocab], row [rows], unordered [rows]. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

enum { THREADS = 256, STARTS_THREADS = 1024 };
/* A token of at least FREQUENT rows: blocks of FREQUENT_COLUMNS columns, which read FREQUENT_TILE rows at a time. */
enum { FREQUENT = 256, FREQUENT_COLUMNS = 32, FREQUENT_TILE = 256 };

/* The tokens whose rows a table has: [first, first + count). */
struct span {
    int64_t first, count;
    __device__ __forceinline__ int64_t row_of(int32_t token) const
    {
        const int64_t row = token - first;
        return row >= 0 && row < count ? row : -1;
    }
};

template <class T, int W>
__global__ void fwd_kernel(T *out, const int32_t *tokens, const T *table, const T *position, const int32_t *places,
                           int64_t sequence, int64_t channels, float factor, span part)
{
    const int64_t r = blockIdx.x, row = tokens != NULL ? part.row_of(tokens[r]) : r;
    const T *token_row = row >= 0 ? table + row * channels : NULL;
    const int64_t place = places != NULL ? places[r] : position != NULL ? r % sequence : 0;
    const T *position_row = position != NULL ? position + place * channels : NULL;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < channels; c += static_cast<int64_t>(blockDim.x) * W) {
        float x[W] = {}, p[W];
        if (token_row != NULL)
            load<W>(x, token_row + c);
        if (position_row != NULL) {
            load<W>(p, position_row + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                x[j] = fmaf(factor, x[j], p[j]);
        } else {
#pragma unroll
            for (int j = 0; j < W; j++)
                x[j] *= factor;
        }
        store<W>(out + r * channels + c, x);
    }
}

template <class T> void fwd(const dsc_cuda_launch *at, const dsc_embedding_fwd_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const bool aligned = a->channels % W == 0 && is_aligned(a->out) && is_aligned(a->table) && is_aligned(a->position);
    T *out = static_cast<T *>(a->out);
    const T *table = static_cast<const T *>(a->table), *position = static_cast<const T *>(a->position);
    const unsigned rows = grid_size(a->rows);
    const float factor = dsc_embedding_factor(a->factor);
    const span part = { a->parted ? a->first : 0, a->parted ? a->vocab : INT32_MAX };
    if (aligned)
        DSC_CUDA_LAUNCH((fwd_kernel<T, W>), rows, threads_for(a->channels / W, THREADS), 0, at->stream, out, a->tokens,
                        table, position, a->places, a->sequence, a->channels, factor, part);
    else
        DSC_CUDA_LAUNCH((fwd_kernel<T, 1>), rows, threads_for(a->channels, THREADS), 0, at->stream, out, a->tokens,
                        table, position, a->places, a->sequence, a->channels, factor, part);
}

/* ---- rows by token ---- */

__global__ void count_kernel(int32_t *end, const int32_t *tokens, int64_t rows, span part)
{
    const int64_t r = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int64_t v = r < rows ? part.row_of(tokens[r]) : -1;
    if (v >= 0)
        atomicAdd(&end[v], 1);
}

/* Counts become starts. One block: thread t has a stretch of the vocabulary. */
__global__ void __launch_bounds__(STARTS_THREADS) starts_kernel(int32_t *end, int64_t vocab)
{
    __shared__ int32_t sums[STARTS_THREADS];
    const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int64_t each = (vocab + threads - 1) / threads;
    const int64_t first = min(t * each, vocab), last = min(first + each, vocab);
    int32_t sum = 0;
#pragma unroll 8
    for (int64_t v = first; v < last; v++)
        sum += end[v];
    sums[t] = sum;
    __syncthreads();
    for (int step = 1; step < threads; step *= 2) { /* inclusive sums, doubling */
        const int32_t below = t >= step ? sums[t - step] : 0;
        __syncthreads();
        sums[t] += below;
        __syncthreads();
    }
    int32_t start = t > 0 ? sums[t - 1] : 0;
    for (int64_t v = first; v < last; v++) {
        const int32_t count = end[v];
        end[v] = start;
        start += count;
    }
}

/* Each token's start moves over its rows and stops at its end, which is the next one's start. */
__global__ void place_kernel(int32_t *end, int32_t *unordered, const int32_t *tokens, int64_t rows, span part)
{
    const int64_t r = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int64_t v = r < rows ? part.row_of(tokens[r]) : -1;
    if (v >= 0)
        unordered[atomicAdd(&end[v], 1)] = static_cast<int32_t>(r);
}

__global__ void order_kernel(int32_t *row, const int32_t *end, const int32_t *unordered, const int32_t *tokens,
                             span part)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= end[part.count - 1]) /* all rows whose tokens the table has */
        return;
    const int32_t r = unordered[i];
    const int64_t v = part.row_of(tokens[r]);
    const int32_t first = v == 0 ? 0 : end[v - 1], last = end[v];
    int32_t smaller = 0;
#pragma unroll 4
    for (int32_t k = first; k < last; k++)
        smaller += unordered[k] < r;
    row[first + smaller] = r;
}

/* ---- sums ---- */

/* `factor` times the sum of d_out's rows that `row_at(k)` names, k < count, in order. */
template <class T, int W, class F>
__device__ __forceinline__ void sum_rows(float *to, const T *d_out, int64_t channels, int64_t count, float factor,
                                         F row_at)
{
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < channels; c += static_cast<int64_t>(blockDim.x) * W) {
        float sum[W] = {}, x[W];
#pragma unroll 8
        for (int64_t k = 0; k < count; k++) {
            load<W>(x, d_out + row_at(k) * channels + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] = sum[j] + x[j];
        }
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] *= factor;
        store<W>(to + c, sum);
    }
}

template <class T, int W>
__global__ void table_kernel(float *d_table, const T *d_out, const int32_t *end, const int32_t *row, int64_t channels,
                             int64_t padding, float factor)
{
    const int64_t v = blockIdx.x;
    const int32_t first = v == 0 ? 0 : end[v - 1];
    if (v != padding && end[v] - first >= FREQUENT)
        return; /* frequent_kernel's */
    sum_rows<T, W>(d_table + v * channels, d_out, channels, v == padding ? 0 : end[v] - first, factor,
                   [=](int64_t k) { return static_cast<int64_t>(row[first + k]); });
}

/* A thread's part of a tile: W columns of every ROWS-th row. Elements are converted when they are written, so that no
 * thread waits for its loads before. */
template <class T, int W> struct tile_share {
    enum { ACROSS = FREQUENT_COLUMNS / W, ROWS = THREADS / ACROSS, COUNT = FREQUENT_TILE / ROWS };
    typedef typename word<W *static_cast<int>(sizeof(T))>::type words;
    words raw[COUNT];

    __device__ __forceinline__ void read(const T *d_out, const int32_t *row, int32_t count, int64_t column,
                                         int64_t channels)
    {
        const int t = static_cast<int>(threadIdx.x);
        const int64_t c = column + t % ACROSS * W;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int32_t k = i * ROWS + t / ACROSS;
            if (k < count && c < channels)
                raw[i] = *reinterpret_cast<const words *>(d_out + row[k] * channels + c);
        }
    }

    __device__ __forceinline__ void write(float (*tile)[FREQUENT_COLUMNS]) const
    {
        const int t = static_cast<int>(threadIdx.x);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float x[W];
            load<W>(x, reinterpret_cast<const T *>(&raw[i]));
            store<W>(&tile[i * ROWS + t / ACROSS][t % ACROSS * W], x);
        }
    }
};

/* Block (i, j) sums columns from j * FREQUENT_COLUMNS on. Its token is the frequent one whose first multiple of
 * FREQUENT among the ordered rows is i * FREQUENT; most i have none. One warp adds a tile's rows in order, a column a
 * lane, while the loads of the next tile are under way. */
template <class T, int W>
__global__ void __launch_bounds__(THREADS)
    frequent_kernel(float *d_table, const T *d_out, const int32_t *end, const int32_t *row, const int32_t *tokens,
                    int64_t channels, int64_t padding, float factor, span part)
{
    __align__(16) __shared__ float tile[FREQUENT_TILE][FREQUENT_COLUMNS];
    const int32_t at = static_cast<int32_t>(blockIdx.x) * FREQUENT;
    if (at >= end[part.count - 1])
        return;
    const int64_t v = part.row_of(tokens[row[at]]);
    const int32_t first = v == 0 ? 0 : end[v - 1], count = end[v] - first;
    if (v == padding || count < FREQUENT || at - first >= FREQUENT)
        return;
    const int64_t column = static_cast<int64_t>(blockIdx.y) * FREQUENT_COLUMNS, c = column + threadIdx.x;
    tile_share<T, W> share = {};
    float sum = 0;
    share.read(d_out, row + first, count, column, channels);
    for (int32_t k = 0; k < count; k += FREQUENT_TILE) {
        share.write(tile);
        __syncthreads();
        const int32_t next = k + FREQUENT_TILE, rows = min(count - k, static_cast<int32_t>(FREQUENT_TILE));
        share.read(d_out, row + first + next, count - next, column, channels);
        if (threadIdx.x < FREQUENT_COLUMNS) {
#pragma unroll 16
            for (int32_t r = 0; r < rows; r++)
                sum = sum + tile[r][threadIdx.x];
        }
        __syncthreads();
    }
    if (threadIdx.x < FREQUENT_COLUMNS && c < channels)
        d_table[v * channels + c] = sum * factor;
}

template <class T, int W>
__global__ void position_kernel(float *d_position, const T *d_out, int64_t rows, int64_t sequence, int64_t first,
                                int64_t channels)
{
    const int64_t t = static_cast<int64_t>(blockIdx.x) - first;
    const int64_t count = t >= 0 && t < sequence && t < rows ? (rows - t + sequence - 1) / sequence : 0;
    sum_rows<T, W>(d_position + blockIdx.x * channels, d_out, channels, count, 1.0f,
                   [=](int64_t k) { return t + k * sequence; });
}

struct sorted { int32_t *end, *row, *unordered; };

dsc_status sort_rows(const dsc_cuda_launch *at, const dsc_embedding_bwd_args *a, const sorted &s, dsc_error *err)
{
    if (cudaMemsetAsync(s.end, 0, static_cast<size_t>(a->vocab) * sizeof(int32_t), at->stream) != cudaSuccess)
        return DSC_FAIL(err, DSC_ERR_DEVICE, "EMBEDDING_BWD", "cannot enqueue a fill");
    if (a->rows == 0)
        return DSC_OK; /* all ends are 0 */
    const unsigned blocks = grid_size(dsc_div_ceil(a->rows, THREADS));
    const span part = { a->first, a->vocab };
    DSC_CUDA_LAUNCH(count_kernel, blocks, THREADS, 0, at->stream, s.end, a->tokens, a->rows, part);
    DSC_CUDA_LAUNCH(starts_kernel, 1, threads_for(a->vocab, STARTS_THREADS), 0, at->stream, s.end, a->vocab);
    DSC_CUDA_LAUNCH(place_kernel, blocks, THREADS, 0, at->stream, s.end, s.unordered, a->tokens, a->rows, part);
    DSC_CUDA_LAUNCH(order_kernel, blocks, THREADS, 0, at->stream, s.row, s.end, s.unordered, a->tokens, part);
    return DSC_OK;
}

template <class T, int W> dsc_status bwd(const dsc_cuda_launch *at, const dsc_embedding_bwd_args *a, dsc_error *err)
{
    int32_t *scratch = static_cast<int32_t *>(a->scratch);
    const sorted s = { scratch, scratch + a->vocab, scratch + a->vocab + a->rows };
    const T *d_out = static_cast<const T *>(a->d_out);
    const unsigned threads = threads_for(a->channels / W, THREADS);
    if (a->d_table != NULL) {
        DSC_TRY(sort_rows(at, a, s, err));
        const int64_t padding = dsc_embedding_padding(a);
        const float factor = dsc_embedding_factor(a->factor);
        DSC_CUDA_LAUNCH((table_kernel<T, W>), grid_size(a->vocab), threads, 0, at->stream, a->d_table, d_out, s.end,
                        s.row, a->channels, padding, factor);
        if (a->rows >= FREQUENT) {
            const dim3 grid(grid_size(dsc_div_ceil(a->rows, FREQUENT)),
                            grid_size(dsc_div_ceil(a->channels, FREQUENT_COLUMNS)));
            DSC_CUDA_LAUNCH((frequent_kernel<T, W>), grid, THREADS, 0, at->stream, a->d_table, d_out, s.end, s.row,
                            a->tokens, a->channels, padding, factor, span { a->first, a->vocab });
        }
    }
    if (a->d_position != NULL && a->positions > 0)
        DSC_CUDA_LAUNCH((position_kernel<T, W>), grid_size(a->positions), threads, 0, at->stream, a->d_position, d_out,
                        a->rows, a->sequence, a->position_first, a->channels);
    return DSC_OK;
}

template <class T> dsc_status bwd_any(const dsc_cuda_launch *at, const dsc_embedding_bwd_args *a, dsc_error *err)
{
    const bool aligned = a->channels % 4 == 0 && is_aligned(a->d_out) && is_aligned(a->d_table) &&
                         is_aligned(a->d_position);
    return aligned ? bwd<T, 4>(at, a, err) : bwd<T, 1>(at, a, err);
}

} // namespace

dsc_status dsc_cuda_run_EMBEDDING_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_embedding_fwd_args *a = static_cast<const dsc_embedding_fwd_args *>(args);
    DSC_TRY(dtype_check("EMBEDDING_FWD", a->dtype, err));
    DSC_ASSERT(a->position == NULL || a->sequence >= 1);
    if (a->rows == 0)
        return DSC_OK;
    DSC_CUDA_FOR_DTYPE(a->dtype, T, fwd<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_EMBEDDING_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_embedding_bwd_args *a = static_cast<const dsc_embedding_bwd_args *>(args);
    DSC_TRY(dtype_check("EMBEDDING_BWD", a->dtype, err));
    DSC_ASSERT(a->rows >= 0 && a->rows <= INT32_MAX);
    DSC_ASSERT(a->d_position == NULL || a->sequence >= 1);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, return bwd_any<T>(at, a, err));
}
