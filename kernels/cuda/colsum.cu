/* colsum.cu - sums of columns, as bias gradients are.
 *
 * Rows are cut into parts, at least 64 rows each and few enough that their sums fit a fixed part of the workspace.
 * Eight warps of a block share a part: warp w adds its rows w, w + 8, ...; warps are added in order. Parts are added by
 * 32 warps, so that all loads of up to 256 parts are under way at once. Each adds p, p + 32, ...; these 32 sums are
 * added in order.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, PART_ROWS_MIN = 64, PARTS_MAX = 256, SUM_WIDTH = 32, SUM_WARPS = 32 };
constexpr int64_t PARTIAL_BYTES_MAX = DSC_CUDA_WORKSPACE_BYTES_MIN;

template <class T, int W>
__global__ void __launch_bounds__(THREADS)
    part_kernel(float *partial, const T *x, int64_t rows, int64_t cols, int64_t ld, int64_t part_rows)
{
    __shared__ float shared[WARPS][W][32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * 32 + lane) * W;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * part_rows;
    const int64_t last = first + part_rows < rows ? first + part_rows : rows;
    float sum[W] = {};
    if (c < cols)
#pragma unroll 8
        for (int64_t r = first + warp; r < last; r += WARPS) {
            float v[W];
            load<W>(v, x + r * ld + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] += v[j];
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
        total += shared[k][warp][lane];
    partial[blockIdx.y * cols + c + warp] = total;
}

__global__ void __launch_bounds__(SUM_WIDTH *SUM_WARPS)
    parts_kernel(float *out, const float *partial, int64_t parts, int64_t cols, bool accumulate)
{
    __shared__ float shared[SUM_WARPS][SUM_WIDTH];
    const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    const int64_t c = static_cast<int64_t>(blockIdx.x) * SUM_WIDTH + x;
    float sum = 0;
    if (c < cols)
#pragma unroll 8
        for (int64_t p = y; p < parts; p += SUM_WARPS)
            sum += partial[p * cols + c];
    shared[y][x] = sum;
    __syncthreads();
    if (y != 0 || c >= cols)
        return;
#pragma unroll
    for (int k = 1; k < SUM_WARPS; k++)
        sum += shared[k][x];
    out[c] = accumulate ? out[c] + sum : sum;
}

template <class T> void colsum(const dsc_cuda_launch *at, const dsc_colsum_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const int64_t parts_fit = PARTIAL_BYTES_MAX / (4 * a->cols), parts_most = dsc_min_i64(PARTS_MAX, parts_fit);
    const int64_t part_rows = dsc_max_i64(PART_ROWS_MIN, dsc_div_ceil(a->rows, parts_most));
    const int64_t parts = dsc_div_ceil(a->rows, part_rows);
    float *partial = static_cast<float *>(at->workspace);
    const T *x = static_cast<const T *>(a->x);
    const bool aligned = is_aligned(x) && a->ld % W == 0 && a->cols % W == 0;
    const dim3 grid(grid_size(dsc_div_ceil(a->cols, 32 * (aligned ? W : 1))), static_cast<unsigned>(parts));
    if (parts > 0 && aligned)
        DSC_CUDA_LAUNCH((part_kernel<T, W>), grid, THREADS, 0, at->stream, partial, x, a->rows, a->cols, a->ld,
                        part_rows);
    else if (parts > 0)
        DSC_CUDA_LAUNCH((part_kernel<T, 1>), grid, THREADS, 0, at->stream, partial, x, a->rows, a->cols, a->ld,
                        part_rows);
    const dim3 block(SUM_WIDTH, SUM_WARPS);
    DSC_CUDA_LAUNCH(parts_kernel, grid_size(dsc_div_ceil(a->cols, SUM_WIDTH)), block, 0, at->stream, a->out, partial,
                    parts, a->cols, a->accumulate);
}

} // namespace

dsc_status dsc_cuda_run_COLSUM(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_colsum_args *a = static_cast<const dsc_colsum_args *>(args);
    DSC_TRY(dtype_check("COLSUM", a->x_dtype, err));
    DSC_ASSERT(a->cols >= 1 && a->rows >= 0);
    DSC_ASSERT(at->workspace_bytes >= DSC_CUDA_WORKSPACE_BYTES_MIN);
    if (a->cols > PARTIAL_BYTES_MAX / 4)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "COLSUM", "%lld columns; at most %lld on a GPU",
                        static_cast<long long>(a->cols), static_cast<long long>(PARTIAL_BYTES_MAX / 4));
    DSC_CUDA_FOR_DTYPE(a->x_dtype, T, colsum<T>(at, a));
    return DSC_OK;
}
