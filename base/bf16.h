/* bf16.h - exact fp32 <-> bf16: round to nearest even by integers, denormals kept, NaN quiet.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_BF16_H
#define DSC_BASE_BF16_H
#include <stdint.h>
#include <string.h>

static inline uint16_t dsc_bf16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u); /* quiet the NaN: rounding could make it an Inf */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float dsc_f32_from_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
#endif
