/* randaugment.c - RandAugment (Cubuk et al. 2019) with the 14 operations, magnitudes and roundings of torchvision's
 * RandAugment on a Pillow image: nearest pixels, black outside. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "engine/data/images/augment.h"

enum { RAND = 64, KINDS = 14, LEVELS = 31, VALUES = 256 };

typedef enum rand_op {
    OP_IDENTITY,
    OP_SHEAR_X,
    OP_SHEAR_Y,
    OP_TRANSLATE_X,
    OP_TRANSLATE_Y,
    OP_ROTATE,
    OP_BRIGHTNESS,
    OP_COLOR,
    OP_CONTRAST,
    OP_SHARPNESS,
    OP_POSTERIZE,
    OP_SOLARIZE,
    OP_AUTOCONTRAST,
    OP_EQUALIZE
} rand_op;

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

/* Pixel (x, y) <- (m0 x + m1 y + m2, m3 x + m4 y + m5), taken at centres of pixels. */
static void warp(const dsc_image *from, const double m[6], dsc_image *out)
{
    uint8_t *to = out->pixels;
    for (int32_t y = 0; y < from->height; y++)
        for (int32_t x = 0; x < from->width; x++, to += DSC_IMAGE_CHANNELS) {
            const double u = floor(m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2]);
            const double v = floor(m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5]);
            if (u >= 0 && u < from->width && v >= 0 && v < from->height)
                memcpy(to, from->pixels + ((int64_t)v * from->width + (int64_t)u) * DSC_IMAGE_CHANNELS,
                       DSC_IMAGE_CHANNELS);
            else
                memset(to, 0, DSC_IMAGE_CHANNELS);
        }
}

static void find_matrix(rand_op op, double size, int32_t width, int32_t height, double m[6])
{
    const double angle = -size * (3.14159265358979323846 / 180), cx = width / 2.0, cy = height / 2.0;
    memcpy(m, (const double[]) { 1, 0, 0, 0, 1, 0 }, 6 * sizeof *m);
    switch (op) {
    case OP_SHEAR_X:
        m[1] = size;
        break;
    case OP_SHEAR_Y:
        m[3] = size;
        break;
    case OP_TRANSLATE_X:
        m[2] = -trunc(size);
        break;
    case OP_TRANSLATE_Y:
        m[5] = -trunc(size);
        break;
    default:
        m[0] = m[4] = cos(angle);
        m[1] = sin(angle);
        m[3] = -m[1];
        m[2] = cx - m[0] * cx - m[1] * cy;
        m[5] = cy - m[3] * cx - m[4] * cy;
        break;
    }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void apply_table(dsc_image *image, int channel, const uint8_t table[VALUES])
{
    const int64_t pixels = (int64_t)image->width * image->height;
    for (int64_t i = 0; i < pixels; i++) {
        uint8_t *p = image->pixels + i * DSC_IMAGE_CHANNELS + channel;
        *p = table[*p];
    }
}

static void apply_to_all(dsc_image *image, const uint8_t table[VALUES])
{
    for (int c = 0; c < DSC_IMAGE_CHANNELS; c++)
        apply_table(image, c, table);
}

/* The upper `bits` of each value stay. */
static void posterize(dsc_image *image, int bits)
{
    uint8_t table[VALUES];
    DSC_ASSERT(bits >= 0 && bits <= 8);
    for (int v = 0; v < VALUES; v++)
        table[v] = (uint8_t)(v >> (8 - bits) << (8 - bits));
    apply_to_all(image, table);
}

/* Values from `threshold` on are inverted. */
static void solarize(dsc_image *image, double threshold)
{
    uint8_t table[VALUES];
    for (int v = 0; v < VALUES; v++)
        table[v] = (uint8_t)(v < threshold ? v : 255 - v);
    apply_to_all(image, table);
}

static void count_values(const dsc_image *image, int channel, int64_t count[VALUES])
{
    const int64_t pixels = (int64_t)image->width * image->height;
    memset(count, 0, VALUES * sizeof *count);
    for (int64_t i = 0; i < pixels; i++)
        count[image->pixels[i * DSC_IMAGE_CHANNELS + channel]]++;
}

/* The smallest value becomes 0 and the largest 255. */
static void stretch_channel(dsc_image *image, int channel)
{
    int64_t count[VALUES];
    uint8_t table[VALUES];
    int low = 0, high = VALUES - 1;
    count_values(image, channel, count);
    while (low < VALUES - 1 && count[low] == 0)
        low++;
    while (high > 0 && count[high] == 0)
        high--;
    if (high <= low)
        return;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    for (int v = 0; v < VALUES; v++) {
        const int value = (int)(v * scale + offset);
        table[v] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
    apply_table(image, channel, table);
}

static void equalize_channel(dsc_image *image, int channel)
{
    int64_t count[VALUES], last = 0, kinds = 0;
    uint8_t table[VALUES];
    const int64_t pixels = (int64_t)image->width * image->height;
    count_values(image, channel, count);
    for (int v = 0; v < VALUES; v++) {
        kinds += count[v] > 0;
        last = count[v] > 0 ? count[v] : last;
    }
    const int64_t step = (pixels - last) / 255;
    if (kinds <= 1 || step == 0)
        return;
    int64_t n = step / 2;
    for (int v = 0; v < VALUES; n += count[v], v++)
        table[v] = (uint8_t)dsc_min_i64(255, n / step);
    apply_table(image, channel, table);
}

/* Towards a smoothed picture, or away from it: 3 by 3 weights of 1 and 5 in the middle, over 13; borders stay. */
static void sharpen(const dsc_image *from, float factor, dsc_image *out)
{
    const int64_t row = (int64_t)from->width * DSC_IMAGE_CHANNELS;
    memcpy(out->pixels, from->pixels, (size_t)(row * from->height));
    for (int32_t y = 1; y + 1 < from->height; y++)
        for (int64_t i = DSC_IMAGE_CHANNELS; i + DSC_IMAGE_CHANNELS < row; i++) {
            const uint8_t *p = from->pixels + y * row + i;
            int sum = 4 * p[0];
            for (int dy = -1; dy <= 1; dy++)
                for (int dx = -1; dx <= 1; dx++)
                    sum += p[dy * row + dx * DSC_IMAGE_CHANNELS];
            const int smooth = (int)((float)sum / 13 + 0.5f);
            const float value = (float)smooth + factor * (float)(p[0] - smooth);
            out->pixels[y * row + i] = (uint8_t)(value <= 0 ? 0 : value >= 255 ? 255 : (int)value);
        }
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

/* The size of an operation at a level from 0 to 30; *is_signed: its sign is random. */
static double size_of(rand_op op, int level, int32_t width, int32_t height, bool *is_signed)
{
    const double part = (double)level / (LEVELS - 1);
    *is_signed = op >= OP_SHEAR_X && op <= OP_SHARPNESS;
    switch (op) {
    case OP_SHEAR_X:
    case OP_SHEAR_Y:
        return 0.3 * part;
    case OP_TRANSLATE_X:
        return 150.0 / 331 * width * part;
    case OP_TRANSLATE_Y:
        return 150.0 / 331 * height * part;
    case OP_ROTATE:
        return 30 * part;
    case OP_POSTERIZE:
        return 8 - rint(4 * part);
    case OP_SOLARIZE:
        return 255 * (1 - part);
    default:
        return 0.9 * part;
    }
}

static void run_op(rand_op op, double size, dsc_image *spare, dsc_image *image)
{
    double m[6];
    if (op >= OP_SHEAR_X && op <= OP_ROTATE) {
        find_matrix(op, size, image->width, image->height, m);
        memcpy(spare->pixels, image->pixels, (size_t)image->width * (size_t)image->height * DSC_IMAGE_CHANNELS);
        warp(spare, m, image);
    } else if (op == OP_SHARPNESS) {
        memcpy(spare->pixels, image->pixels, (size_t)image->width * (size_t)image->height * DSC_IMAGE_CHANNELS);
        sharpen(spare, (float)(1 + size), image);
    } else if (op == OP_POSTERIZE) {
        posterize(image, (int)size);
    } else if (op == OP_SOLARIZE) {
        solarize(image, size);
    } else if (op == OP_AUTOCONTRAST || op == OP_EQUALIZE) {
        for (int c = 0; c < DSC_IMAGE_CHANNELS; c++)
            op == OP_EQUALIZE ? equalize_channel(image, c) : stretch_channel(image, c);
    } else if (op != OP_IDENTITY) {
        dsc_image_recolor(image, op == OP_BRIGHTNESS ? 0 : op == OP_CONTRAST ? 1 : 2, (float)(1 + size));
    }
}

dsc_status dsc_image_rand_augment(const dsc_image_transform *t, const dsc_image_key *key, const char *name,
                                  dsc_image *spare, dsc_image *image, dsc_error *err)
{
    DSC_ASSERT(t->rand_ops <= DSC_IMAGE_RAND_OPS_MAX && t->rand_level < LEVELS);
    DSC_TRY(dsc_image_resize(spare, name, image->width, image->height, err));
    for (int32_t i = 0; i < t->rand_ops; i++) {
        const rand_op op = (rand_op)(dsc_image_uniform(key, RAND + 2 * i) * KINDS);
        bool is_signed;
        const double size = size_of(op, t->rand_level, image->width, image->height, &is_signed);
        run_op(op, is_signed && dsc_image_uniform(key, RAND + 2 * i + 1) < 0.5 ? -size : size, spare, image);
    }
    return DSC_OK;
}
