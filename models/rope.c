/* rope.c - the frequencies of rotary positions, with the scalings for long contexts.
 *
 * Steps are rounded to fp32 where the code that the models were trained with rounds.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/device.h"
#include "models/rope.h"

#define PI 3.14159265358979323846

static float lerp(float from, float to, float share)
{
    return from * (1 - share) + to * share;
}

/* Llama 3: slow frequencies are divided, fast ones kept, and those between are mixed. */
static float llama3(const dsc_rope *rope, float frequency)
{
    const double wave = (double)((float)(2 * PI) / frequency);
    if (wave < rope->original_positions / rope->high_freq_factor)
        return frequency;
    if (wave > rope->original_positions / rope->low_freq_factor)
        return frequency / (float)rope->factor;
    const double share = (rope->original_positions / wave - rope->low_freq_factor) /
                         (rope->high_freq_factor - rope->low_freq_factor);
    return lerp(frequency / (float)rope->factor, frequency, (float)share);
}

/* YaRN (Peng et al. 2023): the pair that turns `rotations` times over the original positions. */
static double yarn_pair(const dsc_rope *rope, int64_t size, double rotations)
{
    return (double)size * log(rope->original_positions / (rotations * 2 * PI)) / (2 * log(rope->theta));
}

static float yarn(const dsc_rope *rope, int64_t size, int64_t pair, float frequency)
{
    double low = yarn_pair(rope, size, rope->beta_fast), high = yarn_pair(rope, size, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(size - 1));
    if (low == high)
        high += 0.001;
    const double ramp = ((double)pair - low) / (high - low);
    return lerp(frequency, frequency / (float)rope->factor, (float)fmin(fmax(ramp, 0), 1));
}

/* Factor of the attention's temperature, with the logarithm of the factor weighted by `weight`. */
static double yarn_temperature(const dsc_rope *rope, double weight)
{
    return rope->factor > 1 ? 0.1 * weight * log(rope->factor) + 1 : 1;
}

static double yarn_scale(const dsc_rope *rope)
{
    if (rope->attention_factor > 0)
        return rope->attention_factor;
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return yarn_temperature(rope, rope->mscale) / yarn_temperature(rope, rope->mscale_all_dim);
    return yarn_temperature(rope, 1);
}

/* LongRoPE (Ding et al. 2024). */
static double long_scale(const dsc_rope *rope)
{
    if (rope->attention_factor > 0)
        return rope->attention_factor;
    return rope->factor > 1 ? sqrt(1 + log(rope->factor) / log(rope->original_positions)) : 1;
}

void dsc_rope_set(dsc_rope *rope, int64_t size)
{
    rope->pairs = (int32_t)(size / 2);
    rope->scale = 1;
    if (rope->kind == DSC_ROPE_YARN)
        rope->scale = (float)yarn_scale(rope);
    if (rope->kind == DSC_ROPE_LONG)
        rope->scale = (float)long_scale(rope);
    const int64_t turning = (int64_t)(rope->proportion * (double)size / 2); /* PROPORTIONAL */
    for (int64_t i = 0; i < rope->pairs; i++) {
        const float share = (float)(2 * i) / (float)size;
        const float plain = 1 / (float)pow(rope->theta, (double)share);
        switch (rope->kind) {
        case DSC_ROPE_DEFAULT:
        case DSC_ROPE_DYNAMIC: rope->frequency[i] = plain; break; /* dynamic: scaled past `positions` only */
        case DSC_ROPE_LINEAR: rope->frequency[i] = plain / (float)rope->factor; break;
        case DSC_ROPE_LLAMA3: rope->frequency[i] = llama3(rope, plain); break;
        case DSC_ROPE_YARN: rope->frequency[i] = yarn(rope, size, i, plain); break;
        case DSC_ROPE_LONG:
            rope->frequency[i] = 1 / (rope->divisor[0][i] * (float)pow(rope->theta, (double)share));
            rope->long_frequency[i] = 1 / (rope->divisor[1][i] * (float)pow(rope->theta, (double)share));
            break;
        case DSC_ROPE_PROPORTIONAL: rope->frequency[i] = i < turning ? plain / (float)rope->factor : 0; break;
        }
    }
}

dsc_status dsc_rope_make_tables(const dsc_call *call, const dsc_rope *rope, dsc_rope_tables tables, int64_t tokens)
{
    const int64_t short_positions = dsc_rope_short_positions(rope);
    DSC_ASSERT(short_positions == 0 || call->ctx->past == 0 || call->ctx->past + tokens <= short_positions);
    const bool is_long = short_positions > 0 && tokens > short_positions;
    const dsc_rope_table_args args = { .cos = tables.cos, .sin = tables.sin,
                                       .frequency = is_long ? rope->long_frequency : rope->frequency,
                                       .first = call->ctx->past, .positions = tokens, .pairs = rope->pairs,
                                       .factor = rope->scale };
    return DSC_RUN(call->ctx->stream, ROPE_TABLE, &args, call->err);
}
