/* warpgroups.h - blocks of the kernels of sm_90a: two warpgroups that compute, and a third before them that gives its
 * registers away and copies boxes of 64 columns into shared memory. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_WARPGROUPS_H
#define DSC_KERNELS_CUDA_WARPGROUPS_H

#include "kernels/cuda/port.h"

namespace
{

enum {
    WARPGROUP = 128,
    CONSUMERS = 2,
    SM90_THREADS = WARPGROUP * (CONSUMERS + 1),
    CONSUMER_WARPS = CONSUMERS * WARPGROUP / 32,
    TILE = 64,
    BOX = 64,
    BOX_BYTES = TILE * BOX * 2, /* 64 rows and columns: rows of 128 bytes */
    EIGHT_ROWS = 8 * 128,
    /* All threads of a block start with an equal share of a multiprocessor's registers. The registers that some
     * threads give away are all that the others can take: with one more they would wait forever. */
    START_REGISTERS = 65536 / SM90_THREADS / 8 * 8
};

/* Whether the kernel starts with the registers that its warpgroups share out. Another compiler or its options may give
 * fewer, and registers_take would then wait for ever. A kernel shares out all of its own. */
template <class Kernel> bool starts_with_registers(Kernel *kernel)
{
    cudaFuncAttributes is;
    if (cudaFuncGetAttributes(&is, reinterpret_cast<const void *>(kernel)) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return is.numRegs >= START_REGISTERS;
}

/* This warp's number among those that compute. The shuffle tells the compiler that all lanes have the same. */
__device__ __forceinline__ int32_t computing_warp()
{
    return __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x - WARPGROUP) / 32, 0);
}

/* The next tile's place in a ring: its stage, and the parity of the phases of its round there. */
template <int STAGES> struct ring_turn {
    int32_t stage;
    unsigned parity;

    __device__ __forceinline__ void next()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

} // namespace

#endif
