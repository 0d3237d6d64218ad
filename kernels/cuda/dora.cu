/* dora.cu - see dora.h. Compiled as exact.cu is, whose first lines say why.
 *
 * A warp makes the weights of two outputs, four inputs a lane, so that an element of A serves both: A, which all warps
 * read, is the kernel's traffic. Sums of columns are cut as colsum.cu cuts them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    OUTPUTS = 2,
    EACH = DSC_DORA_LANES / 32,
    PART_ROWS_MIN = 64,
    PARTS_MAX = 256
};
constexpr int64_t PARTIAL_BYTES_MAX = DSC_CUDA_WORKSPACE_BYTES_MIN;

/* Four elements `step` apart, of which `left` exist; 0 for the others. */
template <class T> __device__ __forceinline__ void load_apart(float (&x)[EACH], const T *p, int64_t step, int64_t left)
{
#pragma unroll
    for (int j = 0; j < EACH; j++)
        x[j] = j < left ? to_f32(p[j * step]) : 0.0f;
}

/* Four elements side by side. With VECTOR all of them exist. */
template <bool VECTOR, class T> __device__ __forceinline__ void load_some(float (&x)[EACH], const T *p, int64_t left)
{
    if (VECTOR)
        load<EACH>(x, p);
    else
        load_apart(x, p, 1, left);
}

template <class T> struct dora_layer {
    float *factors, *norms;
    const T *weight, *a, *b, *magnitude;
    int64_t in, out, rank;
    float scale;
    bool in_out;
};

/* Sums of squares: the lanes 4 l .. 4 l + 3 of lane l of the warp, for each output. */
typedef double lane_sums[OUTPUTS][EACH];

template <class T, bool VECTOR>
__device__ __forceinline__ void add_squares(lane_sums &sum, const dora_layer<T> &layer, int64_t o, int64_t i)
{
    const int64_t left = layer.in - i;
    float d[OUTPUTS][EACH] = {}, a[EACH], w[EACH];
    for (int64_t k = 0; k < layer.rank; k++) {
        load_some<VECTOR>(a, layer.a + k * layer.in + i, left);
#pragma unroll
        for (int n = 0; n < OUTPUTS; n++) {
            const float b = o + n < layer.out ? to_f32(layer.b[(o + n) * layer.rank + k]) : 0.0f;
#pragma unroll
            for (int j = 0; j < EACH; j++)
                d[n][j] = fmaf(b, a[j], d[n][j]);
        }
    }
#pragma unroll
    for (int n = 0; n < OUTPUTS; n++) {
        if (o + n >= layer.out)
            return;
        if (layer.in_out)
            load_apart(w, layer.weight + i * layer.out + o + n, layer.out, left);
        else
            load_some<VECTOR>(w, layer.weight + (o + n) * layer.in + i, left);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const double v = static_cast<double>(fmaf(layer.scale, d[n][j], w[j]));
            sum[n][j] = sum[n][j] + v * v;
        }
    }
}

template <class T, bool VECTOR>
__global__ void __launch_bounds__(THREADS) dora_factors_kernel(const dora_layer<T> layer)
{
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t o = (static_cast<int64_t>(blockIdx.x) * WARPS + warp) * OUTPUTS;
    lane_sums sum = {};
    if (o >= layer.out)
        return;
    for (int64_t i = lane * EACH; i < layer.in; i += DSC_DORA_LANES)
        add_squares<T, VECTOR>(sum, layer, o, i);
#pragma unroll
    for (int n = 0; n < OUTPUTS; n++) {
        for (unsigned width = 16; width >= 1; width /= 2)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                sum[n][j] = sum[n][j] + __shfl_down_sync(0xffffffffu, sum[n][j], width);
        if (lane != 0 || o + n >= layer.out)
            continue;
        const double even = sum[n][0] + sum[n][2], odd = sum[n][1] + sum[n][3];
        const float norm = to_f32(element<T>::from(static_cast<float>(sqrt(even + odd))));
        layer.norms[o + n] = norm;
        layer.factors[o + n] = norm == 0 ? 0.0f : to_f32(layer.magnitude[o + n]) / norm;
    }
}

template <class T> void factors(const dsc_cuda_launch *at, const dsc_dora_factors_args *a)
{
    const dora_layer<T> layer = { a->factors,
                                  a->norms,
                                  static_cast<const T *>(a->weight),
                                  static_cast<const T *>(a->a),
                                  static_cast<const T *>(a->b),
                                  static_cast<const T *>(a->magnitude),
                                  a->in,
                                  a->out,
                                  a->rank,
                                  a->scale,
                                  a->in_out };
    const unsigned blocks = grid_size(dsc_div_ceil(a->out, WARPS * OUTPUTS));
    if (is_aligned(a->weight) && is_aligned(a->a) && a->in % EACH == 0)
        DSC_CUDA_LAUNCH((dora_factors_kernel<T, true>), blocks, THREADS, 0, at->stream, layer);
    else
        DSC_CUDA_LAUNCH((dora_factors_kernel<T, false>), blocks, THREADS, 0, at->stream, layer);
}

/* ---- rows times factors ---- */

template <class T> struct dora_scale_op {
    T *out;
    const T *x, *bias, *add;
    const float *factors;
    int64_t cols;
    float offset;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const int64_t c = i % cols; /* W divides the columns, or is 1 */
        float v[W], factor[W], other[W];
        load<W>(v, x + i);
        load<W>(factor, factors + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            v[j] = v[j] * (factor[j] + offset);
        if (bias != nullptr) {
            load<W>(other, bias + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                v[j] = v[j] + other[j];
        }
        if (add != nullptr) {
            load<W>(other, add + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                v[j] = v[j] + other[j];
        }
        store<W>(out + i, v);
    }
};

template <class T> void scale(const dsc_cuda_launch *at, const dsc_dora_scale_args *a)
{
    const dora_scale_op<T> op = { static_cast<T *>(a->out),
                                  static_cast<const T *>(a->x),
                                  static_cast<const T *>(a->bias),
                                  static_cast<const T *>(a->add),
                                  a->factors,
                                  a->cols,
                                  a->offset };
    const bool aligned = is_aligned(a->out) && is_aligned(a->x) && is_aligned(a->bias) && is_aligned(a->add) &&
                         is_aligned(a->factors) && a->cols % 8 == 0;
    each<8>(at, op, a->rows * a->cols, aligned);
}

/* ---- the gradient ---- */

template <class T, int W>
__global__ void __launch_bounds__(THREADS)
    dora_part_kernel(float *partial, const T *d, const T *z, int64_t rows, int64_t cols, int64_t part_rows)
{
    __shared__ float shared[WARPS][W][32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * 32 + lane) * W;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * part_rows;
    const int64_t last = first + part_rows < rows ? first + part_rows : rows;
    float sum[W] = {};
    if (c < cols)
#pragma unroll 4
        for (int64_t r = first + warp; r < last; r += WARPS) {
            float x[W], y[W];
            load<W>(x, d + r * cols + c);
            load<W>(y, z + r * cols + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] = sum[j] + x[j] * y[j];
        }
#pragma unroll
    for (int j = 0; j < W; j++)
        shared[warp][j][lane] = sum[j];
    __syncthreads();
    if (warp >= W || c >= cols)
        return;
    float total = shared[0][warp][lane]; /* warp j adds the j-th column of each lane's W */
#pragma unroll
    for (int k = 1; k < WARPS; k++)
        total = total + shared[k][warp][lane];
    partial[blockIdx.y * cols + c + warp] = total;
}

__global__ void dora_gradient_kernel(float *out, const float *partial, const float *norms, int64_t parts, int64_t cols)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    float sum = 0;
    if (c >= cols)
        return;
#pragma unroll 8
    for (int64_t p = 0; p < parts; p++)
        sum = sum + partial[p * cols + c];
    out[c] = norms[c] == 0 ? 0.0f : sum / norms[c];
}

template <class T> void gradient(const dsc_cuda_launch *at, const dsc_dora_gradient_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const int64_t parts_most = dsc_min_i64(PARTS_MAX, PARTIAL_BYTES_MAX / (4 * a->cols));
    const int64_t part_rows = dsc_max_i64(PART_ROWS_MIN, dsc_div_ceil(a->rows, parts_most));
    const int64_t parts = dsc_div_ceil(a->rows, part_rows);
    float *partial = static_cast<float *>(at->workspace);
    const T *d = static_cast<const T *>(a->d), *z = static_cast<const T *>(a->z);
    const bool aligned = is_aligned(d) && is_aligned(z) && a->cols % W == 0;
    const dim3 grid(grid_size(dsc_div_ceil(a->cols, 32 * (aligned ? W : 1))), static_cast<unsigned>(parts));
    if (parts > 0 && aligned)
        DSC_CUDA_LAUNCH((dora_part_kernel<T, W>), grid, THREADS, 0, at->stream, partial, d, z, a->rows, a->cols,
                        part_rows);
    else if (parts > 0)
        DSC_CUDA_LAUNCH((dora_part_kernel<T, 1>), grid, THREADS, 0, at->stream, partial, d, z, a->rows, a->cols,
                        part_rows);
    DSC_CUDA_LAUNCH(dora_gradient_kernel, grid_size(dsc_div_ceil(a->cols, 128)), 128, 0, at->stream, a->out, partial,
                    a->norms, parts, a->cols);
}

} // namespace

dsc_status dsc_cuda_run_DORA_FACTORS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_dora_factors_args *a = static_cast<const dsc_dora_factors_args *>(args);
    DSC_TRY(dtype_check("DORA_FACTORS", a->dtype, err));
    DSC_ASSERT(a->in >= 1 && a->out >= 1 && a->rank >= 1);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, factors<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_DORA_SCALE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_dora_scale_args *a = static_cast<const dsc_dora_scale_args *>(args);
    DSC_TRY(dtype_check("DORA_SCALE", a->dtype, err));
    DSC_ASSERT(a->rows >= 0 && a->cols >= 1);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, scale<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_DORA_GRADIENT(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_dora_gradient_args *a = static_cast<const dsc_dora_gradient_args *>(args);
    DSC_TRY(dtype_check("DORA_GRADIENT", a->dtype, err));
    DSC_ASSERT(a->rows >= 0 && a->cols >= 1);
    DSC_ASSERT(at->workspace_bytes >= DSC_CUDA_WORKSPACE_BYTES_MIN);
    if (a->cols > PARTIAL_BYTES_MAX / 4)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "DORA_GRADIENT", "%lld columns; at most %lld on a GPU",
                        static_cast<long long>(a->cols), static_cast<long long>(PARTIAL_BYTES_MAX / 4));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, gradient<T>(at, a));
    return DSC_OK;
}
