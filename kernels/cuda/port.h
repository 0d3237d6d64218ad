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

/* Every kernel that a launch names, in one list, so that a device can load all of them when it is opened. The list is
 * made while the program or plugin is loaded, and only read after that. */
struct dsc_cuda_listed {
    const void *kernel;
    const dsc_cuda_listed *next;
    explicit dsc_cuda_listed(const void *which);
};
template <auto Kernel> struct dsc_cuda_lister {
    static const dsc_cuda_listed entry;
};
template <auto Kernel>
const dsc_cuda_listed dsc_cuda_lister<Kernel>::entry{ reinterpret_cast<const void *>(Kernel) };

#define DSC_CUDA_LAUNCH(kernel, ...) \
    (static_cast<void>(&dsc_cuda_lister<(kernel)>::entry), DSC_CUDA_START(kernel, __VA_ARGS__))

#ifdef __CUDACC__
#define DSC_CUDA_START(kernel, grid, block, smem_bytes, stream, ...) \
    kernel<<<(grid), (block), (smem_bytes), (stream)>>>(__VA_ARGS__)
#define DSC_CUDA_ALLOW(ptr, bytes) ((void)0)
#define DSC_CUDA_FORBID(ptr, bytes) ((void)0)
#define DSC_CUDA_SHARED(type, name)                        \
    extern __shared__ __align__(1024) unsigned char smem[]; \
    type *name = reinterpret_cast<type *>(smem)
#else
#define DSC_CUDA_ALLOW(ptr, bytes) cusim_allow((ptr), (size_t)(bytes))
#define DSC_CUDA_FORBID(ptr, bytes) cusim_forbid((ptr), (size_t)(bytes))
#define DSC_CUDA_START(kernel, grid, block, smem_bytes, stream, ...) \
    CUSIM_LAUNCH(kernel, grid, block, smem_bytes, stream, __VA_ARGS__)
#define DSC_CUDA_SHARED(type, name) CUSIM_SHARED(type, name)
#endif

#endif
