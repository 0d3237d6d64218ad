/* conv2d_micro_ref.c - conv2d_micro_v16.h in portable C. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/scalar.h"

typedef struct v16 { float lane[16]; } v16;

#define WORD static inline
#define FOR_LANES for (int i = 0; i < 16; i++)

WORD v16 v16_set(float x)
{
    v16 out;
    FOR_LANES out.lane[i] = x;
    return out;
}

WORD v16 v16_add(v16 a, v16 b)
{
    FOR_LANES a.lane[i] += b.lane[i];
    return a;
}

WORD v16 v16_fma(v16 a, v16 b, v16 c)
{
    FOR_LANES c.lane[i] += a.lane[i] * b.lane[i];
    return c;
}

WORD v16 v16_load(const void *row, int64_t at, int64_t left, dsc_dtype dtype)
{
    v16 out;
    FOR_LANES out.lane[i] = i < left ? dsc_get(row, at + i, dtype) : 0;
    return out;
}

WORD void v16_store(void *row, int64_t at, int64_t left, dsc_dtype dtype, v16 x)
{
    for (int i = 0; i < 16 && i < left; i++)
        dsc_put(row, at + i, dtype, x.lane[i]);
}

#define MICRO_VECS 1
#define MICRO_ROWS(vecs) 6
#define MICRO_PAIRS 0
#define MICRO_NAME dsc_conv2d_micro_ref
#include "kernels/cpu/conv2d_micro_v16.h"
