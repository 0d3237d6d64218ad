/* columns.h - copies columns of rows that lie in a wider tensor, or into one: heads of `width` elements.
 * reference: cpu/conv.c   on a GPU: cuda/conv.cu   check: tests/checkkern/delta.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_COLUMNS_H
#define DSC_KERNELS_COLUMNS_H
#include <dsc/types.h>
#ifdef __CUDACC__
#define DSC_COLUMNS_FN static __host__ __device__ __forceinline__
#else
#define DSC_COLUMNS_FN static inline
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* A row's column c, of head c / width, is element c / width * apart + c % width of a row of `stride` elements. */
typedef struct dsc_columns {
    int64_t stride, width, apart;
} dsc_columns;

DSC_COLUMNS_FN int64_t dsc_columns_at(const dsc_columns *of, int64_t row, int64_t c)
{
    return row * of->stride + c / of->width * of->apart + c % of->width;
}

/* out[r,c] = in[r,c], both where their columns lie. The two do not meet. */
typedef struct dsc_copy_columns_args {
    void *out;
    const void *in;
    int64_t rows, cols;
    dsc_columns out_columns, in_columns;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_copy_columns_args;

#ifdef __cplusplus
}
#endif
#endif
