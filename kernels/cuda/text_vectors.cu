/* text_vectors.cu - a block has a text; losses by a warp for each sample, that of an order by one block.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/text_vectors.h"

namespace
{

enum { THREADS = 256, LANES = 32 };

template <class T> struct texts {
    T *rows;
    float *vectors, *lengths;
    const float *d_vectors;
    const int32_t *place;
    int64_t tokens, channels;
    bool mean, unit;
};

struct plus {
    __device__ double operator()(double a, double b) const { return a + b; }
};
struct larger {
    __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

/* The numbers of all threads of a block as one, in every thread; `lane` is shared memory of THREADS numbers. */
template <class Join> __device__ double block_join(double x, double *lane, Join join)
{
    const int t = static_cast<int>(threadIdx.x);
    __syncthreads();
    lane[t] = x;
    __syncthreads();
#pragma unroll 1
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (t < half)
            lane[t] = join(lane[t], lane[t + half]);
        __syncthreads();
    }
    return lane[0];
}

__device__ double block_sum(double x, double *lane) { return block_join(x, lane, plus()); }
__device__ double block_max(double x, double *lane) { return block_join(x, lane, larger()); }

/* ---- Vectors ---- */

template <class T> __global__ void __launch_bounds__(THREADS) vectors_kernel(const texts<T> a)
{
    __shared__ double lane[THREADS];
    const int64_t b = blockIdx.x, count = a.place[b] + static_cast<int64_t>(1), first = a.mean ? 0 : count - 1;
    const T *const rows = a.rows + b * a.tokens * a.channels;
    float *const out = a.vectors + b * a.channels;
    double squares = 0;
    for (int64_t c = threadIdx.x; c < a.channels; c += THREADS) {
        float sum = 0;
        for (int64_t t = first; t < count; t++)
            sum += to_f32(rows[t * a.channels + c]);
        if (a.mean)
            sum /= static_cast<float>(count);
        out[c] = sum;
        squares += static_cast<double>(sum) * static_cast<double>(sum);
    }
    if (!a.unit)
        return;
    const double length = fmax(sqrt(block_sum(squares, lane)), DSC_VECTOR_LENGTH_MIN);
    if (threadIdx.x == 0)
        a.lengths[b] = static_cast<float>(length);
    for (int64_t c = threadIdx.x; c < a.channels; c += THREADS)
        out[c] = static_cast<float>(static_cast<double>(out[c]) / length);
}

template <class T> __global__ void __launch_bounds__(THREADS) spread_kernel(const texts<T> a)
{
    __shared__ double lane[THREADS];
    const int64_t b = blockIdx.x, end = a.place[b] + static_cast<int64_t>(1), begin = a.mean ? 0 : end - 1;
    T *const rows = a.rows + b * a.tokens * a.channels;
    const float *const v = a.vectors + b * a.channels, *const d = a.d_vectors + b * a.channels;
    double along = 0;
    for (int64_t c = threadIdx.x; c < a.channels; c += THREADS)
        along += static_cast<double>(v[c]) * static_cast<double>(d[c]);
    along = block_sum(along, lane);
    const double share = 1 / (static_cast<double>(a.lengths[b]) * static_cast<double>(end - begin));
    for (int64_t c = threadIdx.x; c < a.channels; c += THREADS) {
        const double part = (static_cast<double>(d[c]) - static_cast<double>(v[c]) * along) * share;
        const T inside = element<T>::from(static_cast<float>(part)), outside = element<T>::from(0.0f);
        for (int64_t t = 0; t < a.tokens; t++)
            rows[t * a.channels + c] = t >= begin && t < end ? inside : outside;
    }
}

template <class T> void run_vectors(const dsc_cuda_launch *at, const dsc_text_vectors_args *a, bool back)
{
    const texts<T> all = { static_cast<T *>(a->rows),
                           a->vectors,
                           a->lengths,
                           a->d_vectors,
                           a->place,
                           a->tokens,
                           a->channels,
                           a->mean,
                           a->unit };
    if (back)
        DSC_CUDA_LAUNCH((spread_kernel<T>), grid_size(a->batch), THREADS, 0, at->stream, all);
    else
        DSC_CUDA_LAUNCH((vectors_kernel<T>), grid_size(a->batch), THREADS, 0, at->stream, all);
}

/* ---- Losses ---- */

struct compared {
    float *matrix, *losses;
    const float *targets;
    int64_t samples, stride;
    double scale, factor;
    bool write_gradient, evaluate;
};

__device__ __forceinline__ float place_of(const compared &a, int64_t i) { return a.targets[2 * i]; }
__device__ __forceinline__ float score_of(const compared &a, int64_t i) { return a.targets[2 * i + 1]; }

__device__ __forceinline__ bool begins_row(const compared &a, int64_t i)
{
    return i + 1 < a.samples && place_of(a, i) == 0 && place_of(a, i + 1) == 1;
}

__device__ __forceinline__ double cosine_of(const compared &a, int64_t i)
{
    return static_cast<double>(a.matrix[i * a.stride + i + 1]);
}

/* One thread: the losses of a row's samples. The matrix still has cosines where these are asked for. */
__device__ void give_losses(const compared &a, int64_t anchor, double loss)
{
    a.losses[anchor] = static_cast<float>(loss);
    for (int64_t k = 1; anchor + k < a.samples && place_of(a, anchor + k) == static_cast<float>(k); k++)
        a.losses[anchor + k] = a.evaluate ? a.matrix[anchor * a.stride + anchor + k] : static_cast<float>(loss);
}

__device__ __forceinline__ double sum_of_lanes(double x)
{
#pragma unroll
    for (int width = LANES / 2; width > 0; width /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, width);
    return x;
}

__device__ __forceinline__ double most_of_lanes(double x)
{
#pragma unroll
    for (int width = LANES / 2; width > 0; width /= 2)
        x = fmax(x, __shfl_xor_sync(0xffffffffu, x, width));
    return x;
}

/* N, in every lane. */
__device__ double count_rows(const compared &a)
{
    double count = 0;
    for (int64_t j = threadIdx.x; j < a.samples; j += LANES)
        count += begins_row(a, j) ? 1.0 : 0.0;
    return sum_of_lanes(count);
}

__global__ void __launch_bounds__(LANES) rank_kernel(const compared a)
{
    const int64_t i = blockIdx.x;
    float *const s = a.matrix + i * a.stride;
    const bool begins = begins_row(a, i);
    const double count = count_rows(a), own = begins ? static_cast<double>(s[i + 1]) : 0.0;
    double most = own, sum = 0;
    bool wrong = false;
    for (int64_t j = threadIdx.x; begins && j < a.samples; j += LANES) {
        if (place_of(a, j) < 1)
            continue;
        most = fmax(most, static_cast<double>(s[j]));
        wrong = wrong || (j != i + 1 && static_cast<double>(s[j]) >= own);
    }
    most = most_of_lanes(most);
    wrong = __any_sync(0xffffffffu, wrong) != 0;
    for (int64_t j = threadIdx.x; begins && j < a.samples; j += LANES)
        sum += place_of(a, j) >= 1 ? exp(a.scale * (static_cast<double>(s[j]) - most)) : 0.0;
    sum = sum_of_lanes(sum);
    const double loss = begins ? log(sum) + a.scale * (most - own) : 0.0;
    if (threadIdx.x == 0 && begins)
        give_losses(a, i, a.evaluate && wrong ? -loss : loss);
    else if (threadIdx.x == 0 && place_of(a, i) == 0)
        a.losses[i] = 0;
    __syncwarp();
    const double share = begins ? a.scale * a.factor / count : 0.0;
    for (int64_t j = threadIdx.x; a.write_gradient && j < a.samples; j += LANES) {
        const bool seen = begins && place_of(a, j) >= 1;
        const double p = seen ? exp(a.scale * (static_cast<double>(s[j]) - most)) / sum : 0.0;
        s[j] = static_cast<float>((p - (begins && j == i + 1 ? 1.0 : 0.0)) * share);
    }
}

__global__ void __launch_bounds__(LANES) score_kernel(const compared a)
{
    const int64_t i = blockIdx.x;
    float *const s = a.matrix + i * a.stride;
    const bool begins = begins_row(a, i);
    const double count = count_rows(a);
    const double off = begins ? static_cast<double>(s[i + 1]) - static_cast<double>(score_of(a, i)) : 0.0;
    if (threadIdx.x == 0 && begins)
        give_losses(a, i, a.evaluate ? 0.0 : off * off);
    else if (threadIdx.x == 0 && place_of(a, i) == 0)
        a.losses[i] = 0;
    __syncwarp();
    for (int64_t j = threadIdx.x; a.write_gradient && j < a.samples; j += LANES)
        s[j] = begins && j == i + 1 ? static_cast<float>(2 * off * a.factor / count) : 0.0f;
}

/* One block: the loss of all rows, and their gradients in their places of the matrix. */
__global__ void __launch_bounds__(THREADS) order_kernel(const compared a)
{
    __shared__ double lane[THREADS];
    double most = 0, sum = 0;
    for (int64_t i = threadIdx.x; i < a.samples; i += THREADS)
        for (int64_t j = 0; begins_row(a, i) && j < a.samples; j++)
            if (begins_row(a, j) && score_of(a, i) < score_of(a, j))
                most = fmax(most, a.scale * (cosine_of(a, i) - cosine_of(a, j)));
    most = block_max(most, lane);
    for (int64_t i = threadIdx.x; i < a.samples; i += THREADS)
        for (int64_t j = 0; begins_row(a, i) && j < a.samples; j++)
            if (begins_row(a, j) && score_of(a, i) < score_of(a, j))
                sum += exp(a.scale * (cosine_of(a, i) - cosine_of(a, j)) - most);
    sum = block_sum(sum, lane) + exp(-most);
    for (int64_t i = threadIdx.x; a.write_gradient && i < a.samples; i += THREADS) {
        double d = 0;
        for (int64_t j = 0; begins_row(a, i) && j < a.samples; j++) {
            if (!begins_row(a, j) || score_of(a, i) == score_of(a, j))
                continue;
            const bool less = score_of(a, i) < score_of(a, j);
            const double apart = a.scale * (cosine_of(a, i) - cosine_of(a, j));
            d += less ? exp(apart - most) : -exp(-apart - most);
        }
        a.losses[i] = static_cast<float>(d / sum * a.scale * a.factor);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; a.write_gradient && i < a.samples; i += THREADS)
        if (begins_row(a, i))
            a.matrix[i * a.stride + i + 1] = a.losses[i];
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a.samples; i += THREADS) {
        if (begins_row(a, i))
            give_losses(a, i, a.evaluate ? 0.0 : log(sum) + most);
        else if (place_of(a, i) == 0)
            a.losses[i] = 0;
    }
}

/* All places of a row but that of the pair's cosine. */
__global__ void __launch_bounds__(LANES) clear_kernel(const compared a)
{
    const int64_t i = blockIdx.x;
    for (int64_t j = threadIdx.x; j < a.samples; j += LANES)
        if (j != i + 1 || !begins_row(a, i))
            a.matrix[i * a.stride + j] = 0;
}

} // namespace

dsc_status dsc_cuda_run_TEXT_VECTORS_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_text_vectors_args *a = static_cast<const dsc_text_vectors_args *>(args);
    DSC_TRY(dtype_check("TEXT_VECTORS_FWD", a->dtype, err));
    DSC_ASSERT(a->tokens >= 1 && a->channels >= 1);
    if (a->batch > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, run_vectors<T>(at, a, false));
    return DSC_OK;
}

dsc_status dsc_cuda_run_TEXT_VECTORS_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_text_vectors_args *a = static_cast<const dsc_text_vectors_args *>(args);
    DSC_TRY(dtype_check("TEXT_VECTORS_BWD", a->dtype, err));
    DSC_ASSERT(a->tokens >= 1 && a->channels >= 1 && a->unit);
    if (a->batch > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, run_vectors<T>(at, a, true));
    return DSC_OK;
}

dsc_status dsc_cuda_run_TEXT_LOSS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_text_loss_args *a = static_cast<const dsc_text_loss_args *>(args);
    const compared all = { a->matrix,
                           a->losses,
                           a->targets,
                           a->samples,
                           a->stride,
                           static_cast<double>(a->scale),
                           static_cast<double>(a->factor),
                           a->write_gradient,
                           a->evaluate };
    DSC_ASSERT(dsc_label_kind_pairs(a->kind) && a->stride >= a->samples && !(a->evaluate && a->write_gradient));
    (void)err;
    if (a->samples == 0)
        return DSC_OK;
    if (a->kind == DSC_LABELS_RANKED)
        DSC_CUDA_LAUNCH(rank_kernel, grid_size(a->samples), LANES, 0, at->stream, all);
    else if (a->kind == DSC_LABELS_COSINE)
        DSC_CUDA_LAUNCH(score_kernel, grid_size(a->samples), LANES, 0, at->stream, all);
    else
        DSC_CUDA_LAUNCH(order_kernel, 1u, THREADS, 0, at->stream, all);
    if (a->kind == DSC_LABELS_ORDER && a->write_gradient)
        DSC_CUDA_LAUNCH(clear_kernel, grid_size(a->samples), LANES, 0, at->stream, all);
    return DSC_OK;
}
