/* augment.c - see augment.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/augment.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

/* Places of a sample's numbers: CROP has 4 for each of its tries. */
enum { CROP = 0, CROP_TRIES = 10, FLIP = 40 };
#define SIDE_MAX (1 << 20)

double dsc_image_uniform(const dsc_image_key *key, int32_t draw)
{
    uint32_t words[4];
    DSC_ASSERT(draw >= 0 && draw < DSC_IMAGE_DRAWS);
    /* A block has the words of two draws. */
    dsc_rng_block(key->seed, dsc_rng_stream(DSC_RNG_AUGMENT, key->epoch),
                  key->sample * (DSC_IMAGE_DRAWS / 2) + (uint64_t)draw / 2, words);
    const uint64_t bits = (uint64_t)words[draw % 2 * 2] << 32 | words[draw % 2 * 2 + 1];
    return (double)(bits >> 11) * 0x1p-53;
}

static double between(const dsc_image_key *key, int32_t draw, double low, double high)
{
    return low + (high - low) * dsc_image_uniform(key, draw);
}

/* One of 0 .. most, each as likely. */
static int32_t one_of(const dsc_image_key *key, int32_t draw, int32_t most)
{
    const int32_t value = (int32_t)(dsc_image_uniform(key, draw) * ((double)most + 1));
    return value > most ? most : value;
}

/* The largest central part with a permitted ratio: after ten tries. */
static void central_box(const dsc_image_transform *t, int32_t width, int32_t height, dsc_box *out)
{
    const double ratio = (double)width / height;
    out->width = width, out->height = height;
    if (ratio < t->ratio[0])
        out->height = (int32_t)rint(width / t->ratio[0]);
    else if (ratio > t->ratio[1])
        out->width = (int32_t)rint(height * t->ratio[1]);
    out->width = (int32_t)dsc_max_i64(1, dsc_min_i64(out->width, width));
    out->height = (int32_t)dsc_max_i64(1, dsc_min_i64(out->height, height));
    out->x = (width - out->width) / 2;
    out->y = (height - out->height) / 2;
}

void dsc_image_random_box(const dsc_image_transform *t, const dsc_image_key *key, int32_t width, int32_t height,
                          dsc_box *out)
{
    const double area = (double)width * height, low = log(t->ratio[0]), high = log(t->ratio[1]);
    for (int32_t i = 0; i < CROP_TRIES; i++) {
        const int32_t draw = CROP + 4 * i;
        const double target = area * between(key, draw, t->scale[0], t->scale[1]);
        const double ratio = exp(between(key, draw + 1, low, high));
        const double w = rint(sqrt(target * ratio)), h = rint(sqrt(target / ratio)); /* to even, as Python's round */
        if (w < 1 || w > width || h < 1 || h > height)
            continue;
        out->width = (int32_t)w, out->height = (int32_t)h;
        out->y = one_of(key, draw + 2, height - out->height);
        out->x = one_of(key, draw + 3, width - out->width);
        return;
    }
    central_box(t, width, height, out);
}

bool dsc_image_is_mirrored(const dsc_image_transform *t, const dsc_image_key *key)
{
    return t->flip > 0 && dsc_image_uniform(key, FLIP) < t->flip;
}

void dsc_image_plan_cut(const dsc_image_transform *t, const dsc_image_key *key, int32_t width, int32_t height,
                        dsc_image_cut *out)
{
    *out = (dsc_image_cut) { { 0, 0, width, height }, width, height };
    if (t->random_crop) {
        dsc_image_random_box(t, key, width, height, &out->box);
        out->width = t->width, out->height = t->height;
    } else if (t->resize_width > 0) {
        out->width = t->resize_width, out->height = t->resize_height;
    } else if (t->resize > 0) {
        const int64_t side = t->resize, shorter = dsc_min_i64(width, height), longer = dsc_max_i64(width, height);
        const int64_t other = dsc_min_i64(side * longer / shorter, INT32_MAX);
        out->width = (int32_t)(width <= height ? side : other);
        out->height = (int32_t)(width <= height ? other : side);
    }
}

void dsc_augmenter_free(dsc_augmenter *a)
{
    dsc_resampler_free(&a->resampler);
    dsc_image_free(&a->resized);
}

/* The centre, with the offsets of torchvision's center_crop, rounded to even. */
static dsc_status take_centre(const dsc_image *from, int32_t width, int32_t height, dsc_image *out, dsc_error *err)
{
    const int32_t x = (int32_t)rint((from->width - width) / 2.0), y = (int32_t)rint((from->height - height) / 2.0);
    DSC_ASSERT(x >= 0 && y >= 0);
    DSC_TRY(dsc_image_resize(out, "data", width, height, err));
    for (int32_t row = 0; row < height; row++)
        memcpy(out->pixels + (int64_t)row * width * DSC_IMAGE_CHANNELS,
               from->pixels + ((int64_t)(y + row) * from->width + x) * DSC_IMAGE_CHANNELS,
               (size_t)width * DSC_IMAGE_CHANNELS);
    return DSC_OK;
}

static void mirror(dsc_image *image)
{
    for (int32_t y = 0; y < image->height; y++) {
        uint8_t *row = image->pixels + (int64_t)y * image->width * DSC_IMAGE_CHANNELS;
        for (int32_t left = 0, right = image->width - 1; left < right; left++, right--)
            for (int c = 0; c < DSC_IMAGE_CHANNELS; c++) {
                const uint8_t kept = row[left * DSC_IMAGE_CHANNELS + c];
                row[left * DSC_IMAGE_CHANNELS + c] = row[right * DSC_IMAGE_CHANNELS + c];
                row[right * DSC_IMAGE_CHANNELS + c] = kept;
            }
    }
}

dsc_status dsc_image_augment(dsc_augmenter *a, const dsc_image_transform *t, const dsc_image_key *key,
                             const dsc_image_cut *cut, const char *name, const dsc_image *from, dsc_image *out,
                             dsc_error *err)
{
    const bool whole = cut->width == t->width && cut->height == t->height;
    if (cut->width < t->width || cut->height < t->height)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "a picture of %d by %d, and the model takes %d by %d; set "
                        "dsc.images.resize",
                        (int)cut->width, (int)cut->height, (int)t->width, (int)t->height);
    if (cut->width > SIDE_MAX || cut->height > SIDE_MAX || (int64_t)cut->width * cut->height > DSC_IMAGE_PIXELS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "a picture of %d by %d would be resized to %d by %d; cut such long pictures to parts",
                        (int)from->width, (int)from->height, (int)cut->width, (int)cut->height);
    DSC_TRY(dsc_resample(&a->resampler, from, &cut->box, t->filter, cut->width, cut->height, whole ? out : &a->resized,
                         err));
    if (!whole)
        DSC_TRY(take_centre(&a->resized, t->width, t->height, out, err));
    if (dsc_image_is_mirrored(t, key))
        mirror(out);
    dsc_image_jitter(t, key, out);
    return t->rand_ops > 0 ? dsc_image_rand_augment(t, key, name, &a->resized, out, err) : DSC_OK;
}
