/* exact_gemm.h - matrix products whose bits are a contract, as exact.h's are: each element is one chain of
 * multiply-adds in the order of k, on every device. They serve optimizers that work on whole matrices. Models use the
 * products of gemm.h, which are faster and differ from machine to machine.
 * reference: cpu/exact_gemm_ref.c   variants: exact_gemm_v16.h in exact_gemm_avx2.c and exact_gemm_avx512.c
 * check and bench: tests/checkkern/exact_gemm.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_EXACT_GEMM_H
#define DSC_KERNELS_EXACT_GEMM_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* C[m,n] = alpha * A[m,k] B[k,n] + beta * D[m,n], all fp32. Per element:
 *   s = 0;  s = fma(a[i,0], b[0,j], s), ... s = fma(a[i,k-1], b[k-1,j], s);  s = s + 0 (no negative zero)
 *   c = d == NULL ? alpha * s : fma(alpha, s, beta * d)
 * C and D are dense and row-major. Element (i, j) of A lies at i * a_row + j * a_col, that of B at i * b_row + j *
 * b_col. D may be A or B; C overlaps nothing. */
typedef struct dsc_exact_gemm_args {
    float *c;
    const float *a, *b, *d; /* d may be NULL */
    int64_t m, n, k;        /* k >= 1 */
    int64_t a_row, a_col, b_row, b_col;
    float alpha, beta;
} dsc_exact_gemm_args;

#ifdef __cplusplus
}
#endif
#endif
