/* nf4.cu - NF4_UNPACK (nf4.h): a thread has eight elements that follow each other, four bytes of codes. Every lane has
 * a copy of the sixteen numbers in its own bank of the shared memory, so that a warp reads them without conflicts.
 * Compiled as exact.cu is, whose first lines say why. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/nf4.h"
#include "kernels/nf4_codes.h"

namespace
{

enum { THREADS = 256, EACH = 8, ROUNDS = 4, VALUES = 16, BANKS = 32 };

__device__ const float values[VALUES] = { DSC_NF4_VALUES };
__device__ const float scale_values[256] = { DSC_NF4_SCALE_VALUES };

/* Scale of the block of element `i` after the first one. */
__device__ __forceinline__ float scale_of(const dsc_nf4_unpack_args &a, const uint8_t *unit, int64_t at, int64_t i)
{
    const int b = static_cast<int>(at % DSC_NF4_UNIT) / DSC_NF4_BLOCK;
    const uint8_t *scales = unit + DSC_NF4_CODE_BYTES;
    if (a.tops == NULL)
        return reinterpret_cast<const float *>(scales)[b];
    const float product = scale_values[scales[b]] * a.tops[(a.block + i / DSC_NF4_BLOCK) / DSC_NF4_NESTED_BLOCK];
    return product + a.offset;
}

template <class T, bool ALIGNED> __global__ void unpack_kernel(const dsc_nf4_unpack_args a, int64_t unit_bytes)
{
    __shared__ float shared[VALUES * BANKS];
    const int lane = static_cast<int>(threadIdx.x % BANKS);
    for (int k = static_cast<int>(threadIdx.x); k < VALUES * BANKS; k += THREADS)
        shared[k] = values[k / BANKS];
    __syncthreads();
    T *to = static_cast<T *>(a.to);
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t i = ((static_cast<int64_t>(blockIdx.x) * ROUNDS + round) * THREADS + threadIdx.x) * EACH;
        if (i >= a.count)
            return;
        const int64_t at = a.first + i;
        const uint8_t *unit = static_cast<const uint8_t *>(a.units) + at / DSC_NF4_UNIT * unit_bytes;
        const uint32_t codes = *reinterpret_cast<const uint32_t *>(unit + at % DSC_NF4_UNIT / 2);
        const float scale = scale_of(a, unit, at, i);
        float x[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int shift = j / 2 * 8 + (j % 2 == 0 ? 4 : 0); /* the even one is in the upper half */
            x[j] = shared[(codes >> shift & 15u) * BANKS + lane] * scale;
        }
        if (ALIGNED && i + EACH <= a.count) {
            store<EACH>(to + i, x);
        } else {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (i + j < a.count)
                    to[i + j] = element<T>::from(x[j]);
        }
    }
}

template <class T> void unpack(const dsc_cuda_launch *at, const dsc_nf4_unpack_args *a)
{
    if (a->count == 0)
        return;
    const int64_t unit_bytes = dsc_nf4_unit_bytes(a->tops != NULL ? DSC_NF4_NESTED : DSC_NF4_PLAIN);
    const unsigned blocks = grid_size(dsc_div_ceil(a->count, THREADS * EACH * ROUNDS));
    if (is_aligned(a->to))
        DSC_CUDA_LAUNCH((unpack_kernel<T, true>), blocks, THREADS, 0, at->stream, *a, unit_bytes);
    else
        DSC_CUDA_LAUNCH((unpack_kernel<T, false>), blocks, THREADS, 0, at->stream, *a, unit_bytes);
}

} // namespace

dsc_status dsc_cuda_run_NF4_UNPACK(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_nf4_unpack_args *a = static_cast<const dsc_nf4_unpack_args *>(args);
    DSC_ASSERT(a->count >= 0 && a->first >= 0 && a->first % DSC_NF4_BLOCK == 0);
    DSC_TRY(dtype_check("NF4_UNPACK", a->to_dtype, err));
    DSC_CUDA_FOR_DTYPE(a->to_dtype, T, unpack<T>(at, a));
    return DSC_OK;
}
