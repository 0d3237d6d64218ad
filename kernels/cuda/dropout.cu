/* dropout.cu - see dropout.h. A thread makes the random words of its elements; they are one block where the first one
 * begins a block, as in matrices of a width that 4 divides. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/stochastic_round.h"

namespace
{

template <class T> struct dropout_op {
    T *out;
    const T *x;
    uint64_t seed, stream, first;
    uint32_t threshold;
    float factor;
    bool add;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float v[W], sum[W];
        uint32_t block[4];
        load<W>(v, x + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] = 0;
        if (add)
            load<W>(sum, out + i);
        uint64_t index = first + static_cast<uint64_t>(i);
#pragma unroll
        for (int j = 0; j < W; j++, index++) {
            if (j == 0 || index % 4 == 0)
                philox(block, seed, stream, index / 4);
            const uint32_t which = static_cast<uint32_t>(index % 4);
            const uint32_t word = which == 0 ? block[0] : which == 1 ? block[1] : which == 2 ? block[2] : block[3];
            const float kept = word >= threshold ? v[j] * factor : 0.0f;
            v[j] = add ? sum[j] + kept : kept;
        }
        store<W>(out + i, v);
    }
};

template <class T> void dropout(const dsc_cuda_launch *at, const dsc_dropout_args *a)
{
    const dropout_op<T> op = { static_cast<T *>(a->out),
                               static_cast<const T *>(a->x),
                               a->seed,
                               a->stream,
                               a->first,
                               a->threshold,
                               a->factor,
                               a->add };
    each<4>(at, op, a->count, is_aligned(a->out) && is_aligned(a->x));
}

} // namespace

dsc_status dsc_cuda_run_DROPOUT(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_dropout_args *a = static_cast<const dsc_dropout_args *>(args);
    DSC_TRY(dtype_check("DROPOUT", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, dropout<T>(at, a));
    return DSC_OK;
}
