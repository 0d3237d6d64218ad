/* gemm.cu - matrix products. cuBLASLt computes those that it supports correctly. Our own plain kernel computes the
 * others: odd alignments, fp32 rounded to 16 bits, and products that the library gets wrong (gemm_cublaslt.cu).
 * Epilogues and sums that the library does not compute with the product are here too: those it does not have, and those
 * that dsc_gemm_fuse or a trial leaves apart.
 *
 * BIAS_GELU apart is a product with bias, then GELU of the rounded result, with and without `aux`. So a forward that
 * saves the GELU's input and one that does not give the same bits. The library's own takes GELU of the sum before that
 * is rounded, and always stores `aux`.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/gemm/gemm_cublaslt.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/exact_gemm.h"

namespace {

/* ---- epilogues on what is stored ---- */

template <class TC, class TB> struct epilogue_arrays {
    TC *c;
    const TB *bias;
    const TC *aux;
    int64_t ldc;
    dsc_epilogue epilogue;

    __device__ __forceinline__ float apply(float x, int64_t row, int64_t col) const
    {
        if (bias != NULL)
            x += to_f32(bias[col]);
        if (epilogue == DSC_EPILOGUE_BIAS_ADD || epilogue == DSC_EPILOGUE_ADD)
            x += to_f32(aux[row * ldc + col]);
        else if (epilogue == DSC_EPILOGUE_DGELU)
            x *= gelu_slope<sizeof(TC) == 2>(to_f32(aux[row * ldc + col]));
        return x;
    }
};

/* Grids are one-dimensional, since only that dimension goes beyond 65535. */
enum { ROW_THREADS = 256 };

struct rows_place { int64_t row, col; };

/* A row's blocks are neighbours. */
__device__ __forceinline__ rows_place row_place(int64_t cols)
{
    const int64_t each = (cols + ROW_THREADS - 1) / ROW_THREADS, row = blockIdx.x / each;
    return { row, (blockIdx.x - row * each) * ROW_THREADS + threadIdx.x };
}

template <class TC, class TB>
__global__ void epilogue_kernel(const epilogue_arrays<TC, TB> e, int64_t cols)
{
    const rows_place at = row_place(cols);
    const int64_t row = at.row, col = at.col;
    if (col >= cols)
        return;
    TC *c = e.c + row * e.ldc + col;
    *c = element<TC>::from(e.apply(to_f32(*c), row, col));
}

template <class T> __global__ void gelu_rows_kernel(T *out, const T *in, int64_t cols, int64_t ld)
{
    const rows_place at = row_place(cols);
    const int64_t i = at.row * ld + at.col;
    if (at.col < cols)
        out[i] = element<T>::from(gelu_of<sizeof(T) == 2>(to_f32(in[i])));
}

unsigned rows_grid(const dsc_gemm_args *a) { return grid_size(a->m * dsc_div_ceil(a->n, ROW_THREADS)); }

/* c = gelu(from), both with row stride ldc. */
dsc_status gelu_rows(const dsc_cuda_launch *at, const dsc_gemm_args *a, const void *from, dsc_error *err)
{
    const dsc_gelu_fwd_args flat = { a->c, from, a->m * a->n, a->c_dtype, DSC_GELU_TANH };
    if (a->ldc == a->n)
        return dsc_cuda_run_GELU_FWD(at, &flat, err);
    DSC_CUDA_FOR_DTYPE(a->c_dtype, T,
                       DSC_CUDA_LAUNCH(gelu_rows_kernel<T>, rows_grid(a), ROW_THREADS, 0, at->stream,
                                       static_cast<T *>(a->c), static_cast<const T *>(from), a->n, a->ldc));
    return DSC_OK;
}

/* ---- our own product (exact_gemm.h) ---- */

template <class TC, class TA>
__global__ void __launch_bounds__(TILE_THREADS)
    plain_gemm_kernel(const exact_gemm_arrays<TA> p, const epilogue_arrays<TC, TA> e, bool accumulate)
{
    float sum[EACH][EACH] = {};
    const exact_gemm_position at = exact_gemm_tile(p, sum);
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t r = at.row + STEP * i, c = at.col + STEP * j;
            if (r >= p.m || c >= p.n)
                continue;
            TC *to = e.c + r * e.ldc + c;
            *to = element<TC>::from(e.apply(sum[i][j] + (accumulate ? to_f32(*to) : 0.0f), r, c));
        }
}

template <class TC, class TA> void plain_gemm_run(const dsc_cuda_launch *at, const dsc_gemm_args *a)
{
    const exact_gemm_arrays<TA> p = { static_cast<const TA *>(a->a), static_cast<const TA *>(a->b), a->m, a->n, a->k,
                                      a->a_transposed ? 1 : a->lda, a->a_transposed ? a->lda : 1,
                                      a->b_transposed ? 1 : a->ldb, a->b_transposed ? a->ldb : 1 };
    const epilogue_arrays<TC, TA> e = { static_cast<TC *>(a->c), static_cast<const TA *>(a->bias),
                                        static_cast<const TC *>(a->aux), a->ldc, a->epilogue };
    DSC_CUDA_LAUNCH((plain_gemm_kernel<TC, TA>), exact_gemm_grid(a->m, a->n), TILE_THREADS, 0, at->stream, p, e,
                    a->accumulate);
}

void plain_gemm_any(const dsc_cuda_launch *at, const dsc_gemm_args *a)
{
    if (a->c_dtype == DSC_F32)
        DSC_CUDA_FOR_DTYPE(a->ab_dtype, T, plain_gemm_run<float, T>(at, a));
    else if (a->ab_dtype == DSC_F32)
        DSC_CUDA_FOR_DTYPE(a->c_dtype, T, plain_gemm_run<T, float>(at, a));
    else
        DSC_CUDA_FOR_DTYPE(a->c_dtype, T, plain_gemm_run<T, T>(at, a));
}

/* The product first, then what is added or multiplied to it. */
template <class TC, class TB> void epilogue_after(const dsc_cuda_launch *at, const dsc_gemm_args *a)
{
    const epilogue_arrays<TC, TB> e = { static_cast<TC *>(a->c), static_cast<const TB *>(a->bias),
                                        static_cast<const TC *>(a->aux), a->ldc, a->epilogue };
    DSC_CUDA_LAUNCH((epilogue_kernel<TC, TB>), rows_grid(a), ROW_THREADS, 0, at->stream, e, a->n);
}

/* c *= the slope of GELU at aux, for 16-bit C. */
dsc_status slope_rows(const dsc_cuda_launch *at, const dsc_gemm_args *a, dsc_error *err)
{
    const dsc_gelu_bwd_args flat = { a->c, a->c, a->aux, a->m * a->n, a->c_dtype, DSC_GELU_TANH };
    if (a->ldc == a->n)
        return dsc_cuda_run_GELU_BWD(at, &flat, err);
    DSC_CUDA_FOR_DTYPE(a->c_dtype, T, epilogue_after<T, T>(at, a));
    return DSC_OK;
}

/* Products that the library does not compute as a whole. */
dsc_status run_others(const dsc_cuda_launch *at, const dsc_gemm_args *a, dsc_error *err)
{
    bool done = false;
    const bool blocks = a->a_blocks != DSC_FP8_BLOCKS_NONE;
    if ((a->c_dtype == DSC_F32 || blocks) && a->epilogue != DSC_EPILOGUE_NONE && a->c != a->aux) {
        dsc_gemm_args bare = *a;
        bare.epilogue = DSC_EPILOGUE_NONE;
        bare.bias = NULL;
        DSC_TRY(dsc_cuda_gemm_try(at, &bare, &done, err));
    }
    if (!done && a->a_fp8 != DSC_FP8_NONE)
        return dsc_cuda_gemm_no_fp8(a, err);
    if (done && a->c_dtype != DSC_F32) /* rounded before its epilogue, as gemm.h lets a GPU do */
        DSC_CUDA_FOR_DTYPE(a->c_dtype, T, epilogue_after<T, T>(at, a));
    else if (done)
        DSC_CUDA_FOR_DTYPE(a->ab_dtype, T, epilogue_after<float, T>(at, a));
    else
        plain_gemm_any(at, a);
    return DSC_OK;
}

/* A product without sums and GELU. The same choice each time, since it follows from shape and alignment. */
dsc_status run(const dsc_cuda_launch *at, const dsc_gemm_args *a, dsc_error *err)
{
    bool done = false;
    DSC_TRY(dsc_cuda_gemm_try(at, a, &done, err));
    return done ? DSC_OK : run_others(at, a, err);
}

/* Without the library's epilogue. The product rounds to 16 bits before the slope, as some of the library's do. */
dsc_status run_slope(const dsc_cuda_launch *at, const dsc_gemm_args *a, dsc_error *err)
{
    bool done = false;
    dsc_gemm_args bare = *a;
    if (a->c_dtype == DSC_F32 || a->ab_dtype == DSC_F32 || a->c == a->aux)
        return run_others(at, a, err);
    bare.epilogue = DSC_EPILOGUE_NONE;
    DSC_TRY(dsc_cuda_gemm_try(at, &bare, &done, err));
    if (done)
        return slope_rows(at, a, err);
    if (a->a_fp8 != DSC_FP8_NONE)
        return dsc_cuda_gemm_no_fp8(a, err);
    plain_gemm_any(at, a);
    return DSC_OK;
}

dsc_status run_gelu(const dsc_cuda_launch *at, const dsc_gemm_args *args, dsc_error *err)
{
    dsc_gemm_args a = *args;
    void *const out = a.c;
    a.epilogue = DSC_EPILOGUE_BIAS;
    a.c = a.aux != NULL ? a.aux : out;
    a.aux = NULL;
    const void *const before = a.c;
    DSC_TRY(run(at, &a, err));
    a.c = out;
    return gelu_rows(at, &a, before, err);
}

/* Products and activations that are two kernels everywhere: C has no gaps, and `aux` is not C. */
dsc_status run_activation(const dsc_cuda_launch *at, const dsc_gemm_args *args, dsc_error *err)
{
    dsc_gemm_args a = *args;
    a.epilogue = args->epilogue == DSC_EPILOGUE_BIAS_ACTIVATION ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE;
    a.c = args->aux != NULL ? args->aux : args->c;
    a.aux = NULL;
    const dsc_gelu_fwd_args fwd = { args->c, a.c, a.m * a.n, a.c_dtype, args->activation };
    DSC_TRY(run(at, &a, err));
    return dsc_cuda_run_GELU_FWD(at, &fwd, err);
}

dsc_status run_slope_of(const dsc_cuda_launch *at, const dsc_gemm_args *args, dsc_error *err)
{
    dsc_gemm_args a = *args;
    const dsc_gelu_bwd_args bwd = { a.c, a.c, a.aux, a.m * a.n, a.c_dtype, a.activation };
    a.epilogue = DSC_EPILOGUE_NONE;
    a.aux = NULL;
    DSC_TRY(run(at, &a, err));
    return dsc_cuda_run_GELU_BWD(at, &bwd, err);
}

dsc_status run_sums(const dsc_cuda_launch *at, const dsc_gemm_args *a, dsc_error *err)
{
    dsc_gemm_args bare = *a;
    const dsc_colsum_args sums = dsc_gemm_sums_args(a);
    bare.sums_of = DSC_GEMM_NO_SUMS;
    bare.sums = NULL;
    DSC_TRY(run(at, &bare, err));
    return dsc_cuda_run_COLSUM(at, &sums, err);
}

void check(const dsc_gemm_args *a)
{
    const bool sums = a->sums_of != DSC_GEMM_NO_SUMS;
    DSC_ASSERT(a->m >= 0 && a->n >= 0 && a->k >= 1);
    DSC_ASSERT(a->ab_dtype == DSC_F32 || a->c_dtype == DSC_F32 || a->c_dtype == a->ab_dtype);
    DSC_ASSERT(!a->accumulate || (a->c_dtype == DSC_F32 && a->epilogue == DSC_EPILOGUE_NONE));
    DSC_ASSERT(!sums || (a->c_dtype == DSC_F32 && a->epilogue == DSC_EPILOGUE_NONE && !a->accumulate));
    DSC_ASSERT(a->sums_of == DSC_GEMM_NO_SUMS || (a->m > 0 && a->n > 0));
    DSC_ASSERT(a->sums_of != DSC_GEMM_SUMS_OF_A || a->a_transposed);
    DSC_ASSERT(a->sums_of != DSC_GEMM_SUMS_OF_B || !a->b_transposed);
    DSC_ASSERT(static_cast<uint32_t>(a->activation) < DSC_ACTIVATIONS);
    DSC_ASSERT(a->epilogue < DSC_EPILOGUE_BIAS_ACTIVATION || a->ldc == a->n);
    DSC_ASSERT(a->epilogue != DSC_EPILOGUE_SLOPE || (a->aux != NULL && a->aux != a->c));
    DSC_ASSERT((a->a_fp8 == DSC_FP8_NONE) == (a->b_fp8 == DSC_FP8_NONE));
    if (a->a_fp8 == DSC_FP8_NONE)
        return;
    DSC_ASSERT(!a->a_transposed && a->b_transposed && !sums && a->ab_dtype == DSC_BF16);
    DSC_ASSERT(a->a_fp8 == DSC_FP8_E4M3 || a->b_fp8 == DSC_FP8_E4M3);
    DSC_ASSERT((a->m | a->n | a->k | a->lda | a->ldb | a->ldc) % DSC_FP8_UNIT == 0);
    DSC_ASSERT((a->a_blocks == DSC_FP8_BLOCKS_NONE) == (a->b_blocks == DSC_FP8_BLOCKS_NONE));
}

} // namespace

dsc_status dsc_cuda_run_GEMM(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    bool done = false;
    dsc_gemm_args a = *static_cast<const dsc_gemm_args *>(args);
    DSC_TRY(dtype_check("GEMM", a.ab_dtype, err));
    DSC_TRY(dtype_check("GEMM", a.c_dtype, err));
    check(&a);
    if (a.m == 0 || a.n == 0)
        return DSC_OK;
    if (!dsc_epilogue_has_bias(a.epilogue))
        a.bias = NULL;
    DSC_TRY(dsc_cuda_gemm_try(at, &a, &done, err));
    if (done)
        return DSC_OK;
    if (a.sums_of != DSC_GEMM_NO_SUMS)
        return run_sums(at, &a, err);
    if (a.epilogue == DSC_EPILOGUE_BIAS_GELU)
        return run_gelu(at, &a, err);
    if (a.epilogue == DSC_EPILOGUE_SLOPE)
        return run_slope_of(at, &a, err);
    if (dsc_epilogue_activates(a.epilogue))
        return run_activation(at, &a, err);
    return a.epilogue == DSC_EPILOGUE_DGELU ? run_slope(at, &a, err) : run_others(at, &a, err);
}
