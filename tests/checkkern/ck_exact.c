/* ck_exact.c - shared by the checks of kernels whose bits are a contract. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_exact.h"

#include <math.h>
#include <string.h>

/* Around the widths of vectors (8, 16, 32, 64), of a chunk (1024) and of a pool's block (8192). */
const int64_t ck_lengths[CK_LENGTHS] = { 0,  1,  7,  8,    9,    15,   16,   17,   31,    32,
                                   33, 63, 65, 1023, 1025, 4095, 8191, 8193, 100003 };

void ck_same_or_nan(const void *buf, int64_t count)
{
    if (ck_has_ref_bits(buf))
        return;
    for (int64_t i = 0; i < count; i++) {
        const double got = ck_get(buf, i), expected = ck_ref(buf, i);
        if (memcmp(&got, &expected, sizeof got) != 0 && !(isnan(got) && isnan(expected)))
            ck_fail("[%lld] = %.9g, the reference has %.9g", (long long)i, got, expected);
    }
}

/* Inf, NaN and the largest numbers among the elements. */
void ck_wild(const void *buf, int64_t count)
{
    static const double value[] = { (double)INFINITY, -(double)INFINITY, (double)NAN, 3.4028234e38, -3.4028234e38,
                                    1e-45 };
    for (int64_t i = 0; i < count; i++)
        if (ck_random() % 32 == 0)
            ck_set(buf, i, value[ck_random() % DSC_COUNT(value)]);
}

double ck_half_value(uint16_t h, dsc_dtype dtype)
{
    return (double)(dtype == DSC_F16 ? dsc_f32_from_f16(h) : dsc_f32_from_bf16(h));
}

/* As nearest_bf16, where neighbours are found by halving: values of the same sign grow with their bits. */
static uint16_t nearest_f16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const double size = fabs((double)x);
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x1ff));
    uint16_t low = 0, high = 0x7c00; /* stands for 2^16 when it comes to what is nearer */
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (ck_half_value(middle, DSC_F16) <= size)
            low = middle;
        else
            high = middle;
    }
    const double above = high == 0x7c00 ? 65536 : ck_half_value(high, DSC_F16);
    const double up = above - size, down = size - ck_half_value(low, DSC_F16);
    return sign | (up < down || (up == down && (low & 1) != 0) ? high : low);
}

/* Nearest of the two neighbours in double, the even one when both are as near: rounding told in another way. */
static uint16_t nearest_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t low = (uint16_t)(bits >> 16); /* towards zero */
    if (isnan(x))
        return low | 0x40;
    if (isinf(x))
        return low;
    const double below = fabs((double)dsc_f32_from_bf16(low));
    const double above = (low & 0x7fff) == 0x7f7f ? 0x1p128 : fabs((double)dsc_f32_from_bf16((uint16_t)(low + 1)));
    const double up = above - fabs((double)x), down = fabs((double)x) - below;
    return (uint16_t)(up < down || (up == down && (low & 1) != 0) ? low + 1 : low);
}

uint16_t ck_nearest_half(float x, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? nearest_f16(x) : nearest_bf16(x);
}

/* Told in another way: up when the random bits reach what is left of a step. Adds to *error what that is off, in steps
 * of bf16. */
uint16_t ck_round_stochastic(float x, uint32_t random_bits, double *error)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t part = bits & 0xffff;
    const bool up = part != 0 && random_bits >= 0x10000 - part;
    if (isnan(x) || isinf(x))
        return nearest_bf16(x);
    *error += up - (double)part / 65536;
    return (uint16_t)((bits >> 16) + up);
}

/* The sum of all errors is that of independent numbers of variance at most 1/4, so within 6 of its deviations. */
void ck_check_mean(double error, int64_t count)
{
    if (fabs(error) > 3 * sqrt((double)count) + 1)
        ck_fail("the mean is off: %g steps over %lld elements", error, (long long)count);
}
