/* quant_ref.c - the recipes of quant.h, one operation a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/quant_unit.h"
#include "kernels/scalar.h"

/* Elements of 16 bits. */
static void pack_half(uint16_t *to, const float *x, float *error, dsc_dtype half)
{
    for (int64_t i = 0; i < DSC_QUANT_BLOCK; i++) {
        to[i] = dsc_half_from_f32(x[i], half);
        const float rounded = dsc_f32_from_half(to[i], half);
        if (error != NULL)
            error[i] = isfinite(rounded) ? x[i] - rounded : 0.0f;
    }
}

static int packed_at(const uint8_t *q, int64_t i, dsc_quant quant)
{
    if (quant == DSC_QUANT_INT4)
        return (q[i / 2] >> i % 2 * 4 & 15) - 8;
    return (int8_t)q[i];
}

static void put_packed(uint8_t *q, int64_t i, int value, dsc_quant quant)
{
    if (quant != DSC_QUANT_INT4)
        q[i] = (uint8_t)value;
    else if (i % 2 == 0)
        q[i / 2] = (uint8_t)(value + 8);
    else
        q[i / 2] |= (uint8_t)((value + 8) << 4);
}

static void pack_block(uint16_t *scale, uint8_t *q, const float *x, float *error, dsc_quant quant)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < DSC_QUANT_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    const float inverse = dsc_quant_inverse(top, quant, scale), step = dsc_f32_from_bf16(*scale);
    for (int64_t i = 0; i < DSC_QUANT_BLOCK; i++) {
        const int value = inverse == 0.0f ? 0 : (int)rintf(x[i] * inverse);
        put_packed(q, i, value, quant);
        if (error != NULL)
            error[i] = top >= 0x7f800000u ? 0.0f : x[i] - (float)value * step;
    }
}

static void pack(const dsc_quant_unit *to, const void *from, float *error, dsc_dtype dtype, dsc_quant quant)
{
    for (int64_t b = 0; b < DSC_QUANT_UNIT_BLOCKS; b++) {
        float x[DSC_QUANT_BLOCK], *block_error = error != NULL ? error + b * DSC_QUANT_BLOCK : NULL;
        for (int64_t i = 0; i < DSC_QUANT_BLOCK; i++) {
            x[i] = dsc_get(from, b * DSC_QUANT_BLOCK + i, dtype);
            if (error != NULL)
                x[i] = x[i] + block_error[i];
        }
        if (dsc_quant_is_half(quant))
            pack_half((uint16_t *)(void *)to->q + b * DSC_QUANT_BLOCK, x, block_error, dsc_quant_half(quant));
        else
            pack_block(&to->scale[b], to->q + b * dsc_quant_block_bytes(quant), x, block_error, quant);
    }
}

static float value_at(const dsc_quant_unit *unit, int64_t i, dsc_quant quant)
{
    if (dsc_quant_is_half(quant))
        return dsc_get(unit->q, i, dsc_quant_half(quant));
    return (float)packed_at(unit->q, i, quant) * dsc_f32_from_bf16(unit->scale[i / DSC_QUANT_BLOCK]);
}

static void unpack(void *to, const dsc_quant_unit *from, dsc_dtype dtype, dsc_quant quant)
{
    for (int64_t i = 0; i < DSC_QUANT_UNIT; i++)
        dsc_put(to, i, dtype, value_at(from, i, quant));
}

static void ordered_reduce(float *acc, const dsc_quant_unit *leaf, dsc_quant quant, bool overwrite)
{
    for (int64_t i = 0; i < DSC_QUANT_UNIT; i++) {
        const float x = value_at(leaf, i, quant);
        acc[i] = overwrite ? x : acc[i] + x;
    }
}

const dsc_quant_ops dsc_quant_ref = { pack, unpack, ordered_reduce };
