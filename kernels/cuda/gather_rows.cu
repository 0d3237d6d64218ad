/* gather_rows.cu - some rows of each sample and back, a block a row. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256 };

/* V is what one access moves, `width` of them a row. */
template <class V>
__global__ void gather_rows_kernel(V *some, V *all, const int32_t *positions, int64_t tokens, int64_t gathered,
                                   int64_t width, bool back)
{
    const int64_t r = blockIdx.x;
    V *one = some + r * width, *other = all + (r / gathered * tokens + positions[r]) * width;
    V *to = back ? other : one;
    const V *from = back ? one : other;
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
        to[c] = from[c];
}

template <class V> void run(const dsc_cuda_launch *at, const dsc_gather_rows_args *a, bool back, int64_t width)
{
    DSC_CUDA_LAUNCH((gather_rows_kernel<V>), grid_size(a->batch * a->gathered), threads_for(width, THREADS), 0,
                    at->stream, static_cast<V *>(a->some), static_cast<V *>(a->all), a->positions, a->tokens,
                    a->gathered, width, back);
}

dsc_status gather_rows(const dsc_cuda_launch *at, const dsc_gather_rows_args *a, bool back, const char *name,
                       dsc_error *err)
{
    const int64_t bytes = a->channels * static_cast<int64_t>(dsc_dtype_bytes(a->dtype));
    DSC_TRY(dtype_check(name, a->dtype, err));
    DSC_ASSERT(a->gathered >= 1 && a->gathered <= a->tokens);
    if (a->batch == 0)
        return DSC_OK;
    const size_t all_bytes = static_cast<size_t>(a->batch * a->tokens * bytes);
    if (back && cudaMemsetAsync(a->all, 0, all_bytes, at->stream) != cudaSuccess)
        return DSC_FAIL(err, DSC_ERR_DEVICE, name, "cannot enqueue a fill");
    if (bytes % 16 == 0 && is_aligned(a->all) && is_aligned(a->some))
        run<uint4>(at, a, back, bytes / 16);
    else
        run<uint16_t>(at, a, back, bytes / 2);
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_GATHER_ROWS_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return gather_rows(at, static_cast<const dsc_gather_rows_args *>(args), false, "GATHER_ROWS_FWD", err);
}

dsc_status dsc_cuda_run_GATHER_ROWS_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return gather_rows(at, static_cast<const dsc_gather_rows_args *>(args), true, "GATHER_ROWS_BWD", err);
}
