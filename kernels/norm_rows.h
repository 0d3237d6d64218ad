/* norm_rows.h - rows of a norm's input that are parts of wider rows, such as the heads of q beside those of k and v.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_NORM_ROWS_H
#define DSC_KERNELS_NORM_ROWS_H
#include <stdbool.h>
#include <stdint.h>
#ifdef __CUDACC__
#define DSC_NORM_ROWS_FN static __host__ __device__ __forceinline__
#else
#define DSC_NORM_ROWS_FN static inline
#endif

/* Row r is part r % parts of wide row r / parts. Parts lie side by side, and wide rows are `stride` elements apart.
 * stride 0: rows lie one behind another. */
typedef struct dsc_norm_rows {
    int64_t stride;
    int32_t parts;
} dsc_norm_rows;

/* The first element of row r, which has `channels` elements. */
DSC_NORM_ROWS_FN int64_t dsc_norm_row_at(const dsc_norm_rows *of, int64_t r, int64_t channels)
{
    if (of->stride == 0)
        return r * channels;
    const uint32_t row = (uint32_t)r, parts = (uint32_t)of->parts;
    return (int64_t)(row / parts) * of->stride + (int64_t)(row % parts) * channels;
}

/* Whether so many rows lie apart from each other and can be numbered. */
static inline bool dsc_norm_rows_fit(const dsc_norm_rows *of, int64_t rows, int64_t channels)
{
    return of->stride == 0 || (of->parts >= 1 && of->stride >= of->parts * channels && rows <= UINT32_MAX);
}

#endif
