/* exact_gemm.cu - exact products of kernels/exact_gemm.h. Compiled as exact.cu is. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/exact_gemm.h"

#include "kernels/cuda/launchers.h"

namespace
{

__global__ void __launch_bounds__(TILE_THREADS)
    exact_gemm_kernel(const exact_gemm_arrays<float> p, float *c, const float *d, float alpha, float beta)
{
    float sum[EACH][EACH] = {};
    const exact_gemm_position at = exact_gemm_tile(p, sum);
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t row = at.row + STEP * i, col = at.col + STEP * j, to = row * p.n + col;
            if (row >= p.m || col >= p.n)
                continue;
            const float s = sum[i][j] + 0.0f;
            c[to] = d == NULL ? alpha * s : fmaf(alpha, s, beta * d[to]);
        }
}

} // namespace

dsc_status dsc_cuda_run_EXACT_GEMM(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_exact_gemm_args *a = static_cast<const dsc_exact_gemm_args *>(args);
    const exact_gemm_arrays<float> p = { a->a, a->b, a->m, a->n, a->k, a->a_row, a->a_col, a->b_row, a->b_col };
    DSC_ASSERT(a->m >= 0 && a->n >= 0 && a->k >= 1);
    if (a->m > 0 && a->n > 0)
        DSC_CUDA_LAUNCH(exact_gemm_kernel, exact_gemm_grid(a->m, a->n), TILE_THREADS, 0, at->stream, p, a->c, a->d,
                        a->alpha, a->beta);
    return DSC_OK;
}
