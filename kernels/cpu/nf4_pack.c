/* nf4_pack.c - packs weights and their scales as bitsandbytes does (nf4.h). The loops over a block have no branch, so
 * that compilers make vector instructions of them. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/nf4.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/nf4_codes.h"

#define LEAST_SCALE 1e-38f /* instead of 0, which nothing is divided by */

const float dsc_nf4_values[16] = { DSC_NF4_VALUES };
const float dsc_nf4_scale_values[256] = { DSC_NF4_SCALE_VALUES };

static float largest(const float *x, int64_t count)
{
    float top = 0;
    for (int64_t i = 0; i < count; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top;
}

static float clamped(float x) { return x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x; }

static void pack_block(const float *x, float factor, uint8_t *codes)
{
    float scaled[DSC_NF4_BLOCK];
    int32_t q[DSC_NF4_BLOCK] = { 0 };
    for (int i = 0; i < DSC_NF4_BLOCK; i++)
        scaled[i] = clamped(x[i] * factor);
    for (int k = 0; k < 15; k++) {
        const float midpoint = (dsc_nf4_values[k] + dsc_nf4_values[k + 1]) / 2;
        for (int i = 0; i < DSC_NF4_BLOCK; i++)
            q[i] += scaled[i] > midpoint;
    }
    for (int i = 0; i < DSC_NF4_BLOCK / 2; i++)
        codes[i] = (uint8_t)(q[2 * i] << 4 | q[2 * i + 1]);
}

static uint8_t code_of(float scaled)
{
    uint8_t q = 0;
    for (int k = 0; k < 15; k++)
        q = (uint8_t)(q + (scaled > (dsc_nf4_values[k] + dsc_nf4_values[k + 1]) / 2));
    return q;
}

static void pack_short_block(const float *x, int64_t count, float scale, uint8_t *codes)
{
    for (int64_t i = 0; i < count; i += 2) {
        const float second = i + 1 < count ? clamped(x[i + 1] / scale) : 0.0f;
        codes[i / 2] = (uint8_t)(code_of(clamped(x[i] / scale)) << 4 | code_of(second));
    }
}

void dsc_nf4_pack(const float *x, int64_t count, uint8_t *codes, float *scales)
{
    DSC_ASSERT(count >= 0);
    for (int64_t first = 0; first < count; first += DSC_NF4_BLOCK) {
        const int64_t left = dsc_min_i64(DSC_NF4_BLOCK, count - first);
        const float top = largest(x + first, left), scale = top < LEAST_SCALE ? LEAST_SCALE : top;
        if (left == DSC_NF4_BLOCK)
            pack_block(x + first, 1.0f / scale, codes + first / 2);
        else
            pack_short_block(x + first, left, scale, codes + first / 2);
        scales[first / DSC_NF4_BLOCK] = left == DSC_NF4_BLOCK ? top : scale;
    }
}

/* ---- scales ---- */

/* bitsandbytes looks the code up by one of 65536 equal steps of -1..1: the code that is nearest to that step. */
static uint8_t scale_code_of(float scaled)
{
    const int32_t step = (int32_t)fmaf((clamped(scaled) + 1.0f) * 0.5f, 65535.0f, 0.5f);
    const float value = -1.0f + 2.0f * (float)step / 65535.0f;
    int low = 0, high = 255; /* of the first midpoint that is not below the value */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (0.5f * (dsc_nf4_scale_values[middle] + dsc_nf4_scale_values[middle + 1]) < value)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint8_t)low;
}

/* ---- the sum of all scales, in the order of torch's sum on one thread (SumKernel.cpp) ---- */

enum { LANES = 8, COLUMNS = 4, LEVELS = 4, ROW = LANES * COLUMNS };

static int ceil_log2(int64_t n)
{
    int power = 0;
    while (INT64_C(1) << power < n)
        power++;
    return power;
}

static void add_row(float *restrict to, const float *restrict from)
{
    for (int k = 0; k < ROW; k++)
        to[k] += from[k];
}

/* sum[ROW] <- the columns of rows of ROW numbers. Partial sums of 2^power rows are added to the next level. */
static void sum_rows(const float *x, int64_t rows, float *sum)
{
    const int power = ceil_log2(rows) / LEVELS > 4 ? ceil_log2(rows) / LEVELS : 4;
    const int64_t step = INT64_C(1) << power;
    float level[LEVELS][ROW] = { { 0 } };
    int64_t i = 0;
    while (i + step <= rows) {
        for (int64_t end = i + step; i < end; i++)
            add_row(level[0], x + i * ROW);
        for (int j = 1; j < LEVELS; j++) {
            add_row(level[j], level[j - 1]);
            memset(level[j - 1], 0, sizeof level[j - 1]);
            if ((i & (step - 1) << (j * power)) != 0)
                break;
        }
    }
    for (; i < rows; i++)
        add_row(level[0], x + i * ROW);
    for (int j = 1; j < LEVELS; j++)
        add_row(level[0], level[j]);
    memcpy(sum, level[0], sizeof level[0]);
}

static float sum_of(const float *x, int64_t count)
{
    const int64_t rows = count / ROW, vectors = count / LANES;
    float sum[ROW], total = 0;
    sum_rows(x, rows, sum);
    for (int64_t v = rows * COLUMNS; v < vectors; v++)
        for (int k = 0; k < LANES; k++)
            sum[k] += x[v * LANES + k];
    for (int c = 1; c < COLUMNS; c++)
        for (int k = 0; k < LANES; k++)
            sum[k] += sum[c * LANES + k];
    for (int64_t i = vectors * LANES; i < count; i++)
        total += x[i];
    for (int k = 0; k < LANES; k++)
        total += sum[k];
    return total;
}

float dsc_nf4_scale(uint8_t code, float top, float offset)
{
    const float product = dsc_nf4_scale_values[code] * top;
    return product + offset;
}

void dsc_nf4_pack_scales(const float *scales, int64_t count, uint8_t *codes, float *tops, float *offset)
{
    DSC_ASSERT(count >= 1);
    *offset = sum_of(scales, count) / (float)count;
    for (int64_t first = 0; first < count; first += DSC_NF4_NESTED_BLOCK) {
        const int64_t end = dsc_min_i64(first + DSC_NF4_NESTED_BLOCK, count);
        float top = 0;
        for (int64_t i = first; i < end; i++)
            top = fabsf(scales[i] - *offset) > top ? fabsf(scales[i] - *offset) : top;
        const float factor = top > 0 ? 1.0f / top : 0.0f;
        for (int64_t i = first; i < end; i++)
            codes[i] = top > 0 ? scale_code_of((scales[i] - *offset) * factor) : 0;
        tops[first / DSC_NF4_NESTED_BLOCK] = top;
    }
}
