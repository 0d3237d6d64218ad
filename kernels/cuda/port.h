/* port.h - the only header that includes CUDA's own, and the only file with a launch.
 *
 * Under nvcc these are the toolkit's headers; the simulator (tests/sim) puts its own of the same names in front and
 * runs these sources on the CPU. Dynamic shared memory is named once per kernel, by DSC_CUDA_SHARED. Code that cuts an
 * allocation into parts declares by DSC_CUDA_ALLOW and DSC_CUDA_FORBID which bytes have an owner: the simulator reports
 * accesses to others.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_PORT_H
#define DSC_KERNELS_CUDA_PORT_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#ifdef __CUDACC__
#define DSC_CUDA_LAUNCH(kernel, grid, block, smem_bytes, stream, ...) \
    kernel<<<(grid), (block), (smem_bytes), (stream)>>>(__VA_ARGS__)
#define DSC_CUDA_ALLOW(ptr, bytes) ((void)0)
#define DSC_CUDA_FORBID(ptr, bytes) ((void)0)
#define DSC_CUDA_SHARED(type, name)                        \
    extern __shared__ __align__(1024) unsigned char smem[]; \
    type *name = reinterpret_cast<type *>(smem)
#else
#define DSC_CUDA_ALLOW(ptr, bytes) cusim_allow((ptr), (size_t)(bytes))
#define DSC_CUDA_FORBID(ptr, bytes) cusim_forbid((ptr), (size_t)(bytes))
#define DSC_CUDA_LAUNCH(kernel, grid, block, smem_bytes, stream, ...) \
    CUSIM_LAUNCH(kernel, grid, block, smem_bytes, stream, __VA_ARGS__)
#define DSC_CUDA_SHARED(type, name) CUSIM_SHARED(type, name)
#endif

#endif
