/* binned_sum.cu - sums of squares along rows and columns (binned_sum.h), an operation a line as in binned_sum_ref.c.
 * They are exact, so the order that threads add them in is nobody's business. Compiled as exact.cu is, whose first
 * lines say why. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/binned_sum.h"

namespace
{

enum { ROW_THREADS = 256, WARP = 32, ROWS_EACH = ROW_THREADS / WARP };
enum { COLS_EACH = 32, LINES = 16 };

__device__ __forceinline__ void add(double (&bin)[DSC_BINS], const dsc_matrix_squares_args &a, float x)
{
    const float g = x * a.scale;
    double q = static_cast<double>(g) * static_cast<double>(g);
#pragma unroll
    for (int k = 0; k < DSC_BINS; k++) {
        const double r = (q + a.grid.magic[k]) - a.grid.magic[k];
        bin[k] = bin[k] + r;
        q = q - r;
    }
}

/* A warp has a row. */
__global__ void row_squares(const dsc_matrix_squares_args a)
{
    const int64_t row = a.at / a.cols + static_cast<int64_t>(blockIdx.x) * ROWS_EACH + threadIdx.x / WARP;
    const int64_t first = row * a.cols, next = first + a.cols, last = a.at + a.count;
    const int64_t begin = first > a.at ? first : a.at, end = next < last ? next : last;
    double bin[DSC_BINS] = { 0, 0, 0 };
    for (int64_t n = begin + threadIdx.x % WARP; n < end; n += WARP)
        add(bin, a, a.x[n - a.at]);
#pragma unroll
    for (int k = 0; k < DSC_BINS; k++) {
        for (int width = WARP / 2; width >= 1; width /= 2)
            bin[k] = bin[k] + __shfl_down_sync(0xffffffffu, bin[k], static_cast<unsigned>(width), WARP);
        if (threadIdx.x % WARP == 0 && begin < end)
            a.row[row].bin[k] = a.row[row].bin[k] + bin[k];
    }
}

/* A block has some columns, a line of its threads every LINES-th row. */
__global__ void col_squares(const dsc_matrix_squares_args a)
{
    __shared__ double part[LINES][DSC_BINS][COLS_EACH];
    const int line = static_cast<int>(threadIdx.x) / COLS_EACH, j = static_cast<int>(threadIdx.x) % COLS_EACH;
    const int64_t col = static_cast<int64_t>(blockIdx.x) * COLS_EACH + j, end = a.at + a.count;
    double bin[DSC_BINS] = { 0, 0, 0 };
    for (int64_t n = (a.at / a.cols + line) * a.cols + col; n < end && col < a.cols; n += LINES * a.cols)
        if (n >= a.at)
            add(bin, a, a.x[n - a.at]);
#pragma unroll
    for (int k = 0; k < DSC_BINS; k++)
        part[line][k][j] = bin[k];
    __syncthreads();
    if (line >= DSC_BINS || col >= a.cols)
        return;
    double sum = a.col[col].bin[line];
    for (int l = 0; l < LINES; l++)
        sum = sum + part[l][line][j];
    a.col[col].bin[line] = sum;
}

} // namespace

dsc_status dsc_cuda_run_MATRIX_SQUARES(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_matrix_squares_args *a = static_cast<const dsc_matrix_squares_args *>(args);
    DSC_ASSERT(a->count >= 0 && a->at >= 0 && a->cols >= 1);
    if (a->count == 0)
        return DSC_OK;
    const int64_t rows = dsc_div_ceil(a->at + a->count, a->cols) - a->at / a->cols;
    DSC_CUDA_LAUNCH(row_squares, grid_size(dsc_div_ceil(rows, ROWS_EACH)), ROW_THREADS, 0, at->stream, *a);
    DSC_CUDA_LAUNCH(col_squares, grid_size(dsc_div_ceil(a->cols, COLS_EACH)), COLS_EACH * LINES, 0, at->stream, *a);
    return DSC_OK;
}
