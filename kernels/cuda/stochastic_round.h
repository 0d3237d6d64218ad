/* stochastic_round.h - random bits and rounding by them, as base/rng.c and CAST_STOCHASTIC (exact.h) have them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_STOCHASTIC_ROUND_H
#define DSC_KERNELS_CUDA_STOCHASTIC_ROUND_H

#include "kernels/cuda/elements.h"

/* Philox4x32-10 (base/rng.c): block `counter` of (seed, stream). */
__device__ __forceinline__ void philox(uint32_t (&c)[4], uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    c[0] = static_cast<uint32_t>(counter);
    c[1] = static_cast<uint32_t>(counter >> 32);
    c[2] = static_cast<uint32_t>(stream);
    c[3] = static_cast<uint32_t>(stream >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0], p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
        c[1] = static_cast<uint32_t>(p1);
        c[3] = static_cast<uint32_t>(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* A result that CAST does not change: a bf16 as fp32, or NaN. */
__device__ __forceinline__ float up_or_down(float x, uint32_t random_bits)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return x;
    return __uint_as_float((u + random_bits) & 0xffff0000u);
}

#endif
