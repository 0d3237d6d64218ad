/* swiglu_pairs.cu - the clamped SwiGLU on neighbours, forward and backward. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

/* A pair after the clamp; comparisons are such that NaN stays NaN. */
struct clamped {
    float gate, up, sigmoid, value; /* value: gate * sigmoid */
};

/* Below -88 the sigmoid of alpha g is as good as 0, and the bound keeps Inf times 0 away. */
__device__ __forceinline__ clamped clamp_pair(float gate, float up, const dsc_swiglu_clamp &clamp)
{
    clamped p;
    p.gate = gate > clamp.limit ? clamp.limit : gate;
    p.up = up > clamp.limit ? clamp.limit : up < -clamp.limit ? -clamp.limit : up;
    const float x = clamp.alpha * p.gate, bounded = x < -88.0f ? -88.0f : x;
    p.sigmoid = 1.0f / (1.0f + expf(-bounded));
    p.value = (x < -88.0f ? -88.0f / clamp.alpha : p.gate) * p.sigmoid;
    return p;
}

/* W pairs; one alone has the alignment of an element. */
template <int W, class T> __device__ __forceinline__ void load_pairs(float (&both)[2 * W], const T *p)
{
    if constexpr (W > 1) {
        load<2 * W>(both, p);
        return;
    }
    both[0] = to_f32(p[0]);
    both[1] = to_f32(p[1]);
}

template <int W, class T> __device__ __forceinline__ void store_pairs(T *p, const float (&both)[2 * W])
{
    if constexpr (W > 1) {
        store_fast<2 * W>(p, both);
        return;
    }
    const float gate[1] = { both[0] }, up[1] = { both[1] };
    store_fast<1>(p, gate);
    store_fast<1>(p + 1, up);
}

template <class T> struct pairs_fwd_op {
    T *out;
    const T *in;
    dsc_swiglu_clamp clamp;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float both[2 * W], y[W];
        load_pairs<W>(both, in + 2 * i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const clamped p = clamp_pair(both[2 * j], both[2 * j + 1], clamp);
            y[j] = (p.up + 1.0f) * p.value;
        }
        store_fast<W>(out + i, y);
    }
};

template <class T> struct pairs_bwd_op {
    T *d_in;
    const T *d_out, *in;
    dsc_swiglu_clamp clamp;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float both[2 * W], d[W];
        load_pairs<W>(both, in + 2 * i);
        load<W>(d, d_out + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float gate = both[2 * j], up = both[2 * j + 1];
            const clamped p = clamp_pair(gate, up, clamp);
            const float slope = fmaf(clamp.alpha * p.value, 1.0f - p.sigmoid, p.sigmoid);
            both[2 * j] = gate <= clamp.limit ? d[j] * (p.up + 1.0f) * slope : 0.0f;
            both[2 * j + 1] = up <= clamp.limit && up >= -clamp.limit ? d[j] * p.value : 0.0f;
        }
        store_pairs<W>(d_in + 2 * i, both);
    }
};

template <class T> void forward(const dsc_cuda_launch *at, const dsc_swiglu_pairs_fwd_args *a)
{
    const pairs_fwd_op<T> op = { static_cast<T *>(a->out), static_cast<const T *>(a->in), a->clamp };
    each<4>(at, op, a->rows * a->cols, is_aligned(a->out) && is_aligned(a->in));
}

template <class T> void backward(const dsc_cuda_launch *at, const dsc_swiglu_pairs_bwd_args *a)
{
    const pairs_bwd_op<T> op = { static_cast<T *>(a->d_in), static_cast<const T *>(a->d_out),
                                 static_cast<const T *>(a->in), a->clamp };
    each<4>(at, op, a->rows * a->cols, is_aligned(a->d_in) && is_aligned(a->d_out) && is_aligned(a->in));
}

} // namespace

dsc_status dsc_cuda_run_SWIGLU_PAIRS_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_swiglu_pairs_fwd_args *a = static_cast<const dsc_swiglu_pairs_fwd_args *>(args);
    DSC_TRY(dtype_check("SWIGLU_PAIRS_FWD", a->dtype, err));
    DSC_ASSERT(a->cols >= 1 && a->clamp.limit > 0);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, forward<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SWIGLU_PAIRS_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_swiglu_pairs_bwd_args *a = static_cast<const dsc_swiglu_pairs_bwd_args *>(args);
    DSC_TRY(dtype_check("SWIGLU_PAIRS_BWD", a->dtype, err));
    DSC_ASSERT(a->cols >= 1 && a->clamp.limit > 0);
    DSC_CUDA_FOR_DTYPE(a->dtype, T, backward<T>(at, a));
    return DSC_OK;
}
