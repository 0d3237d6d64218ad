/* cuda_bf16.h - the simulator's: the part of CUDA's bf16 that kernels use, by integer round-to-nearest-even.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_SIM_CUDA_BF16_H
#define DSC_SIM_CUDA_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 { unsigned short __x; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
struct __nv_bfloat16_raw { unsigned short x; };

static inline float __bfloat162float(__nv_bfloat16 a)
{
    const unsigned bits = static_cast<unsigned>(a.__x) << 16;
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f;
}

static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    unsigned bits;
    __builtin_memcpy(&bits, &f, sizeof bits);
    __nv_bfloat16 r;
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        r.__x = 0x7fff; /* CUDA's canonical NaN */
    else
        r.__x = static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    return r;
}

static inline __nv_bfloat16 __float2bfloat16(float f) { return __float2bfloat16_rn(f); }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return { u }; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.__x; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return { __float2bfloat16_rn(a), __float2bfloat16_rn(b) };
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return { a, b }; }
static inline float2 __bfloat1622float2(__nv_bfloat162 a) { return { __bfloat162float(a.x), __bfloat162float(a.y) }; }
static inline float __low2float(__nv_bfloat162 a) { return __bfloat162float(a.x); }
static inline float __high2float(__nv_bfloat162 a) { return __bfloat162float(a.y); }

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#endif
