/* shared.h - dynamic shared memory of kernels that take more than the 48 KiB that every block may have. The most that a
 * block may have is 99 KiB (sm_86, 89, 120), 163 KiB (sm_80) or 227 KiB: shared_bytes of a launch. A multiprocessor has
 * 1 KiB more, and each of its blocks takes 1 KiB more than it asks for. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_SHARED_H
#define DSC_KERNELS_CUDA_SHARED_H

#include "base/base.h"
#include "kernels/cuda/port.h"

namespace {

enum { SHARED_BYTES_ALWAYS = 48 << 10 };

/* The kernel may have `bytes` of dynamic shared memory, and multiprocessors give it as much as they have. `of`: what is
 * launched. */
template <class Kernel> dsc_status shared_allow(const char *of, Kernel *kernel, int64_t bytes, dsc_error *err)
{
    const void *const entry = reinterpret_cast<const void *>(kernel);
    if (bytes <= SHARED_BYTES_ALWAYS)
        return DSC_OK;
    if (cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)) ==
            cudaSuccess &&
        cudaFuncSetAttribute(entry, cudaFuncAttributePreferredSharedMemoryCarveout, 100) == cudaSuccess)
        return DSC_OK;
    (void)cudaGetLastError();
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, of, "this GPU's blocks cannot have %lld bytes of shared memory",
                    static_cast<long long>(bytes));
}

} // namespace

#endif
