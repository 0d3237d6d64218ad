/* f16.h - exact fp32 <-> fp16 (IEEE binary16): round to nearest even by integers, denormals kept, NaN quiet with its
 * sign and upper bits, as VCVTPS2PH and VCVTPH2PS do it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_F16_H
#define DSC_BASE_F16_H
#include <stdint.h>
#include <string.h>

static inline uint16_t dsc_f16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x477ff000u) /* from half a step above 65504 on */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* normal: the exponent's bias falls from 127 to 15 */
        const uint32_t rebiased = magnitude - (112u << 23);
        return (uint16_t)(sign | (rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13);
    }
    if (magnitude < 0x33000000u) /* below half of 2^-24 */
        return (uint16_t)sign;
    const uint32_t shift = 126u - (magnitude >> 23), mantissa = (magnitude & 0x7fffffu) | 0x800000u; /* 14..24 */
    const uint32_t half = (uint32_t)1 << (shift - 1);
    return (uint16_t)(sign | (mantissa + half - 1u + (mantissa >> shift & 1u)) >> shift);
}

static inline float dsc_f32_from_f16(uint16_t h)
{
    const uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    uint32_t u;
    if (exponent == 0) { /* zero or denormal: mantissa * 2^-24 is a normal fp32 */
        const float magnitude = (float)mantissa * 0x1p-24f;
        memcpy(&u, &magnitude, 4);
    } else if (exponent == 0x1f) {
        u = 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u);
    } else {
        u = (exponent + 112u) << 23 | mantissa << 13;
    }
    u |= (uint32_t)(h & 0x8000u) << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
#endif
