/* label_loss.cu - a warp has a row of logits. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/label_loss.h"

namespace
{

enum { LANES = 32 };

template <class T> struct label_rows {
    T *logits;
    float *losses;
    const void *labels;
    int64_t classes, stride;
    float scale, smoothing, mixed;
    const int32_t *label_before;
    int32_t *places;
    bool write_gradient, mark_wrong;
};

template <class T> __device__ __forceinline__ void give(const label_rows<T> &a, T *x, int64_t c, float gradient)
{
    if (a.write_gradient)
        x[c] = element<T>::from(gradient * a.scale);
}

__device__ __forceinline__ double sum_of_lanes(double x)
{
#pragma unroll
    for (int width = LANES / 2; width > 0; width /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, width);
    return x;
}

/* The largest logit of the row, and its column, the first of equal ones. */
struct largest {
    float value;
    int32_t column;
};

template <class T> __device__ __forceinline__ largest find_largest(const T *x, int64_t classes)
{
    largest best = { -INFINITY, INT32_MAX };
    for (int64_t c = threadIdx.x; c < classes; c += LANES)
        if (to_f32(x[c]) > best.value || best.column == INT32_MAX)
            best = { to_f32(x[c]), static_cast<int32_t>(c) };
#pragma unroll
    for (int width = LANES / 2; width > 0; width /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, width);
        const int32_t column = __shfl_xor_sync(0xffffffffu, best.column, width);
        if (value > best.value || (value == best.value && column < best.column))
            best = { value, column };
    }
    return best;
}

template <class T> __global__ void __launch_bounds__(LANES) class_kernel(const label_rows<T> a)
{
    const int64_t row = blockIdx.x;
    T *const x = a.logits + row * a.stride;
    const int32_t label = static_cast<const int32_t *>(a.labels)[row];
    const largest best = find_largest(x, a.classes);
    const double most = static_cast<double>(best.value);
    double sum = 0;
    for (int64_t c = threadIdx.x; c < a.classes; c += LANES)
        sum += exp(static_cast<double>(to_f32(x[c])) - most);
    sum = sum_of_lanes(sum);
    /* The label of the row before, with the share `mixed`. */
    const int32_t other =
        a.mixed > 0.0f ? (row > 0 ? static_cast<const int32_t *>(a.labels)[row - 1] : *a.label_before) : label;
    const double mixed = static_cast<double>(a.mixed);
    const double own = label >= 0 ? static_cast<double>(to_f32(x[label])) : 0.0;
    const double smoothing = static_cast<double>(a.smoothing), share = smoothing / static_cast<double>(a.classes);
    double all = 0;
    if (a.smoothing != 0.0f) {
        for (int64_t c = threadIdx.x; c < a.classes; c += LANES)
            all += log(sum) + most - static_cast<double>(to_f32(x[c]));
        all = sum_of_lanes(all);
    }
    const double its = label >= 0 && other >= 0 ? static_cast<double>(to_f32(x[other])) : own;
    int32_t before = 0;
    if (a.places != NULL && label >= 0) {
        for (int64_t c = threadIdx.x; c < a.classes; c += LANES) {
            const double value = static_cast<double>(to_f32(x[c]));
            before += value > own || (value == own && c < label) ? 1 : 0;
        }
#pragma unroll
        for (int width = LANES / 2; width > 0; width /= 2)
            before += __shfl_xor_sync(0xffffffffu, before, width);
    }
    __syncwarp();
    for (int64_t c = threadIdx.x; c < a.classes; c += LANES) {
        const double softmax = exp(static_cast<double>(to_f32(x[c])) - most) / sum;
        const double target = (c == label ? 1.0 - mixed : 0.0) + (c == other ? mixed : 0.0);
        const double kept = a.mixed > 0.0f ? target * (1.0 - smoothing) : (c == label ? 1.0 - smoothing : 0.0);
        const double d = softmax - kept - share;
        give(a, x, c, label >= 0 ? static_cast<float>(d) : 0.0f);
    }
    if (threadIdx.x != 0)
        return;
    if (a.places != NULL)
        a.places[row] = before;
    double of_row = log(sum) + (a.mixed > 0.0f ? (1.0 - mixed) * (most - own) + mixed * (most - its) : most - own);
    if (a.smoothing != 0.0f)
        of_row = (1.0 - smoothing) * of_row + smoothing * (all / static_cast<double>(a.classes));
    const float loss = label >= 0 ? static_cast<float>(of_row) : 0.0f;
    a.losses[row] = a.mark_wrong && label >= 0 && best.column != label ? -loss : loss;
}

template <class T, bool SET> __global__ void __launch_bounds__(LANES) numbers_kernel(const label_rows<T> a)
{
    const int64_t row = blockIdx.x;
    T *const x = a.logits + row * a.stride;
    const float *const labels = static_cast<const float *>(a.labels) + row * a.classes;
    const double share = 1 / static_cast<double>(a.classes);
    double loss = 0;
    bool wrong = false;
    for (int64_t c = threadIdx.x; c < a.classes; c += LANES) {
        const double value = static_cast<double>(to_f32(x[c])), y = static_cast<double>(labels[c]), off = value - y;
        if (SET) {
            loss += (fmax(value, 0.0) + log1p(exp(-fabs(value))) - value * y) * share;
            wrong = wrong || (value > 0) != (y > 0.5);
            give(a, x, c, static_cast<float>((1 / (1 + exp(-value)) - y) * share));
        } else {
            loss += off * off * share;
            give(a, x, c, static_cast<float>(2 * off * share));
        }
    }
    loss = sum_of_lanes(loss);
    wrong = __any_sync(0xffffffffu, wrong) != 0;
    if (threadIdx.x == 0)
        a.losses[row] = static_cast<float>(a.mark_wrong && wrong ? -loss : loss);
}

template <class T> void run(const dsc_cuda_launch *at, const dsc_label_loss_args *a)
{
    const label_rows<T> rows = { static_cast<T *>(a->logits),
                                 a->losses,
                                 a->labels,
                                 a->classes,
                                 a->stride,
                                 a->scale,
                                 a->smoothing,
                                 a->mixed,
                                 a->label_before,
                                 a->places,
                                 a->write_gradient,
                                 a->mark_wrong };
    const unsigned blocks = grid_size(a->rows);
    if (a->kind == DSC_LABELS_CLASS)
        DSC_CUDA_LAUNCH((class_kernel<T>), blocks, LANES, 0, at->stream, rows);
    else if (a->kind == DSC_LABELS_NUMBERS)
        DSC_CUDA_LAUNCH((numbers_kernel<T, false>), blocks, LANES, 0, at->stream, rows);
    else
        DSC_CUDA_LAUNCH((numbers_kernel<T, true>), blocks, LANES, 0, at->stream, rows);
}

} // namespace

dsc_status dsc_cuda_run_LABEL_LOSS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_label_loss_args *a = static_cast<const dsc_label_loss_args *>(args);
    DSC_TRY(dtype_check("LABEL_LOSS", a->dtype, err));
    DSC_ASSERT(a->kind != DSC_LABELS_NONE && a->classes >= 1 && a->stride >= a->classes);
    if (a->rows > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, run<T>(at, a));
    return DSC_OK;
}
