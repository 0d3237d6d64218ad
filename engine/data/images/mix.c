/* mix.c - see mix.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/mix.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

/* Draws: whether and which; the corner of a rectangle; from TRIES on the numbers of Beta. */
enum { CHOICE = 0, PLACE = 1, TRIES = 2, TRIES_MAX = 100000 };
enum { BLOCK = 4096 }; /* elements that are kept of the last picture while the others change */

/* Two numbers in (0,1) with 53 bits. */
static void draw(uint64_t seed, uint64_t first, uint32_t number, double out[2])
{
    uint32_t words[4];
    dsc_rng_block(seed, dsc_rng_stream(DSC_RNG_MIX, number), first, words);
    for (int i = 0; i < 2; i++) {
        const uint64_t bits = (uint64_t)words[2 * i] << 32 | words[2 * i + 1];
        out[i] = ((double)(bits >> 11) + 0.5) * 0x1p-53;
    }
}

/* Powers of small alphas have logarithms where they are 0 themselves. */
static bool try_johnk(double alpha, const double u[2], double *out)
{
    const double x = log(u[0]) / alpha, y = log(u[1]) / alpha, most = x > y ? x : y;
    const double sum = exp(x - most) + exp(y - most);
    *out = exp(x - most) / sum;
    return most + log(sum) <= 0;
}

static bool try_cheng(double alpha, const double u[2], double *out)
{
    const double beta = sqrt(1 / alpha), gamma = alpha + 1 / beta;
    const double v = beta * log(u[0] / (1 - u[0])), w = alpha * exp(v), z = u[0] * u[0] * u[1];
    const double r = gamma * v - log(4.0), s = alpha + r - w;
    *out = w / (alpha + w);
    return r + 2 * alpha * log(2 * alpha / (alpha + w)) >= log(z) || s + 1 + log(5.0) >= 5 * z;
}

double dsc_mix_beta(double alpha, uint64_t seed, uint64_t first)
{
    double u[2], out = 0.5;
    DSC_ASSERT(alpha > 0);
    for (uint32_t i = 0; i < TRIES_MAX; i++) {
        draw(seed, first, TRIES + i, u);
        if (alpha <= 1 ? try_johnk(alpha, u, &out) : try_cheng(alpha, u, &out))
            break;
    }
    return out;
}

/* The rectangle of CutMix.make_params: its centre is any pixel, and its sides are cut at those of the picture. */
static void cut(double kept, const double place[2], int64_t height, int64_t width, dsc_mix *out)
{
    const double ratio = 0.5 * sqrt(1 - kept);
    const int64_t x = (int64_t)(place[0] * (double)width), y = (int64_t)(place[1] * (double)height);
    const int64_t half_width = (int64_t)(ratio * (double)width), half_height = (int64_t)(ratio * (double)height);
    out->cut = true;
    out->left = (int32_t)dsc_max_i64(x - half_width, 0);
    out->top = (int32_t)dsc_max_i64(y - half_height, 0);
    out->right = (int32_t)dsc_min_i64(x + half_width, width);
    out->bottom = (int32_t)dsc_min_i64(y + half_height, height);
    const double area = (double)(out->right - out->left) * (double)(out->bottom - out->top);
    out->share = area / ((double)height * (double)width);
}

void dsc_mix_choose(const dsc_mix_options *options, uint64_t seed, uint64_t first, int64_t height, int64_t width,
                    dsc_mix *out)
{
    double choice[2], place[2];
    *out = (dsc_mix) { .share = 0 };
    if (!dsc_mix_is_wanted(options))
        return;
    draw(seed, first, CHOICE, choice);
    if (choice[0] >= options->probability)
        return;
    const bool cuts = options->cutmix > 0 && (options->mixup <= 0 || choice[1] < options->switch_probability);
    const double kept = dsc_mix_beta(cuts ? options->cutmix : options->mixup, seed, first);
    if (cuts) {
        draw(seed, first, PLACE, place);
        cut(kept, place, height, width, out);
    } else {
        out->share = 1 - kept;
    }
}

/* Elements `at` to `at + length` of a picture in each; the last picture is needed behind its own change. */
static void mix_block(const dsc_mix *mix, int64_t count, int64_t each, int64_t at, int64_t length, float *pixels)
{
    float last[BLOCK];
    const float share = (float)mix->share, kept = (float)(1 - mix->share);
    DSC_ASSERT(length <= BLOCK);
    memcpy(last, pixels + (count - 1) * each + at, (size_t)length * sizeof *last);
    for (int64_t n = count - 1; n >= 0; n--) {
        const float *const before = n > 0 ? pixels + (n - 1) * each + at : last;
        float *const own = pixels + n * each + at;
        if (mix->cut)
            memcpy(own, before, (size_t)length * sizeof *own);
        for (int64_t i = 0; i < length && !mix->cut; i++) {
            const float of_own = own[i] * kept, of_before = before[i] * share;
            own[i] = of_before + of_own;
        }
    }
}

void dsc_mix_run(const dsc_mix *mix, int64_t count, int64_t planes, int64_t height, int64_t width, float *pixels)
{
    const int64_t each = planes * height * width;
    if (mix->share <= 0 || count < 1)
        return;
    if (!mix->cut) {
        for (int64_t at = 0; at < each; at += BLOCK)
            mix_block(mix, count, each, at, dsc_min_i64(BLOCK, each - at), pixels);
        return;
    }
    for (int64_t row = 0; row < planes * height; row++) {
        const int64_t y = row % height;
        for (int64_t x = mix->left; x < mix->right && y >= mix->top && y < mix->bottom; x += BLOCK)
            mix_block(mix, count, each, row * width + x, dsc_min_i64(BLOCK, mix->right - x), pixels);
    }
}
