/* colors.c - brightness, contrast, saturation and hue as torchvision's ColorJitter changes those of a Pillow image:
 * ImageEnhance for the first three, the hue of Pillow's 8-bit HSV for the last. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "engine/data/images/augment.h"

enum { ORDER = 48, FACTOR = 56, CHANGES = 4 }; /* places of random numbers */

/* ITU-R 601-2 with 16 bits, as Pillow's mode L. */
static int gray_of(const uint8_t *p) { return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16; }

/* Pillow's Image.blend: truncated between both, and bounded outside. */
static uint8_t blend(int from, int to, float factor)
{
    const float value = (float)from + factor * (float)(to - from);
    return (uint8_t)(value <= 0 ? 0 : value >= 255 ? 255 : (int)value);
}

static void change_brightness(dsc_image *image, float factor)
{
    const int64_t bytes = (int64_t)image->width * image->height * DSC_IMAGE_CHANNELS;
    for (int64_t i = 0; i < bytes; i++)
        image->pixels[i] = blend(0, image->pixels[i], factor);
}

/* Towards the mean of all gray values. */
static void change_contrast(dsc_image *image, float factor)
{
    const int64_t pixels = (int64_t)image->width * image->height;
    int64_t sum = 0;
    for (int64_t i = 0; i < pixels; i++)
        sum += gray_of(image->pixels + i * DSC_IMAGE_CHANNELS);
    const int mean = (int)((double)sum / (double)pixels + 0.5);
    for (int64_t i = 0; i < pixels * DSC_IMAGE_CHANNELS; i++)
        image->pixels[i] = blend(mean, image->pixels[i], factor);
}

static void change_saturation(dsc_image *image, float factor)
{
    const int64_t pixels = (int64_t)image->width * image->height;
    for (int64_t i = 0; i < pixels; i++) {
        uint8_t *p = image->pixels + i * DSC_IMAGE_CHANNELS;
        const int gray = gray_of(p);
        for (int c = 0; c < DSC_IMAGE_CHANNELS; c++)
            p[c] = blend(gray, p[c], factor);
    }
}

typedef struct hsv {
    uint8_t hue, saturation, value;
} hsv;

static hsv to_hsv(const uint8_t *p)
{
    const int r = p[0], g = p[1], b = p[2];
    const int most = r > g ? (r > b ? r : b) : (g > b ? g : b), least = r < g ? (r < b ? r : b) : (g < b ? g : b);
    hsv out = { 0, 0, (uint8_t)most };
    if (most == least)
        return out;
    const float range = (float)(most - least);
    const float rc = (float)(most - r) / range, gc = (float)(most - g) / range, bc = (float)(most - b) / range;
    /* The roundings to float are Pillow's. */
    const float turn = r == most ? bc - gc : (float)(g == most ? 2.0 + rc - bc : 4.0 + gc - rc);
    const float part = (float)fmod(turn / 6.0 + 1.0, 1.0);
    out.hue = (uint8_t)(int)(part * 255.0);
    out.saturation = (uint8_t)(int)((double)(range / (float)most) * 255.0);
    return out;
}

static void from_hsv(hsv from, uint8_t *p)
{
    const double turn = (float)from.hue * 6.0 / 255.0;
    const int sector = (int)floor(turn);
    const float v = from.value, s = (float)(from.saturation / 255.0), f = (float)(turn - sector);
    const uint8_t full = from.value, none = (uint8_t)round(v * (1.0 - s)), falls = (uint8_t)round(v * (1.0 - s * f)),
                  rises = (uint8_t)round(v * (1.0 - s * (1.0 - f)));
    const uint8_t colors[6][DSC_IMAGE_CHANNELS] = {
        { full, rises, none }, { falls, full, none }, { none, full, rises },
        { none, falls, full }, { rises, none, full }, { full, none, falls }
    };
    for (int c = 0; c < DSC_IMAGE_CHANNELS; c++)
        p[c] = from.saturation == 0 ? full : colors[sector % 6][c];
}

static void change_hue(dsc_image *image, float factor)
{
    const int64_t pixels = (int64_t)image->width * image->height;
    const int shift = (int)(factor * 255);
    for (int64_t i = 0; i < pixels; i++) {
        hsv color = to_hsv(image->pixels + i * DSC_IMAGE_CHANNELS);
        color.hue = (uint8_t)(color.hue + shift);
        from_hsv(color, image->pixels + i * DSC_IMAGE_CHANNELS);
    }
}

void dsc_image_recolor(dsc_image *image, int kind, float factor)
{
    static void (*const changes[CHANGES])(dsc_image *, float) = { change_brightness, change_contrast, change_saturation,
                                                                  change_hue };
    changes[kind](image, factor);
}

void dsc_image_jitter(const dsc_image_transform *t, const dsc_image_key *key, dsc_image *image)
{
    const double width[CHANGES] = { t->brightness, t->contrast, t->saturation, t->hue };
    int order[CHANGES] = { 0, 1, 2, 3 };
    for (int i = CHANGES - 1; i > 0; i--) { /* Fisher and Yates */
        const int k = (int)(dsc_image_uniform(key, ORDER + i) * (i + 1)), kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
    for (int i = 0; i < CHANGES; i++) {
        const int kind = order[i];
        const double middle = kind == 3 ? 0 : 1;
        double low = middle - width[kind];
        if (width[kind] <= 0)
            continue;
        if (kind < 3 && low < 0)
            low = 0;
        dsc_image_recolor(image, kind,
                          (float)(low + (middle + width[kind] - low) * dsc_image_uniform(key, FACTOR + kind)));
    }
}
