/* shapes.c - see shapes.h. Only sums, products and quotients of doubles, which every CPU rounds alike.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/shapes.h"

#include <string.h>

#include "base/rng.h"

enum { TRAIN_COUNT = 1024, TEST_COUNT = 256, CHANNELS_DRAWN = 64, NOISE = 24 };
#define SEED UINT64_C(0x5348415045533031)

static double magnitude(double value) { return value < 0 ? -value : value; }

/* ---- shapes, within the circle of radius 1 ------------------------------------------------------------------------
 */

static bool in_circle(double x, double y) { return x * x + y * y < 1; }
static bool in_square(double x, double y) { return magnitude(x) < 0.8 && magnitude(y) < 0.8; }
static bool in_triangle(double x, double y) { return y < 0.5 && 1.7320508 * magnitude(x) - y < 1; }
static bool in_ring(double x, double y) { return in_circle(x, y) && x * x + y * y > 0.36; }
static bool in_bar(double x, double y) { return magnitude(x) < 1 && magnitude(y) < 0.28; }

static bool in_cross(double x, double y)
{
    return (magnitude(x) < 1 && magnitude(y) < 0.28) || (magnitude(y) < 1 && magnitude(x) < 0.28);
}

static bool in_moon(double x, double y)
{
    const double beside = x - 0.55;
    return in_circle(x, y) && beside * beside + y * y > 0.7;
}

/* A point of a star with five tips is on the inner side of four of its five lines, or of all. */
static bool in_star(double x, double y)
{
    static const double normal[5][2] = { { 0, 1 },
                                         { 0.95105652, 0.30901699 },
                                         { 0.58778525, -0.80901699 },
                                         { -0.58778525, -0.80901699 },
                                         { -0.95105652, 0.30901699 } };
    int inside = 0;
    for (int i = 0; i < 5; i++)
        inside += normal[i][0] * x + normal[i][1] * y < 0.30901699;
    return inside >= 4 && in_circle(x, y);
}

static bool in_stripes(double x, double y) { return in_circle(x, y) && (int)((y + 1) * 3.5) % 2 == 0; }

static bool in_checkers(double x, double y)
{
    return magnitude(x) < 0.8 && magnitude(y) < 0.8 && ((int)((x + 0.8) * 2.5) + (int)((y + 0.8) * 2.5)) % 2 == 0;
}

static bool (*const inside[DSC_SHAPES_CLASSES])(double x, double y) = {
    in_circle, in_square, in_triangle, in_ring, in_cross, in_star, in_moon, in_bar, in_stripes, in_checkers,
};
static const char *const names[DSC_SHAPES_CLASSES] = {
    "circle", "square", "triangle", "ring", "cross", "star", "moon", "bar", "stripes", "checkers",
};

const char *const *dsc_shapes_names(void) { return names; }

dsc_shapes_set dsc_shapes_find(const char *name)
{
    return strcmp(name, DSC_SHAPES_TRAIN_NAME) == 0  ? DSC_SHAPES_TRAIN
           : strcmp(name, DSC_SHAPES_TEST_NAME) == 0 ? DSC_SHAPES_TEST
                                                     : DSC_SHAPES_NONE;
}

int64_t dsc_shapes_count(dsc_shapes_set set)
{
    return set == DSC_SHAPES_TRAIN ? TRAIN_COUNT : set == DSC_SHAPES_TEST ? TEST_COUNT : 0;
}

/* ---- a picture ----------------------------------------------------------------------------------------------------
 */

typedef struct drawing {
    uint64_t stream;
    uint64_t next; /* number of the stream */
    double x, y, radius, cos, sin;
    double ground[CHANNELS_DRAWN], colour[CHANNELS_DRAWN]; /* levels of a pixel */
} drawing;

static double between(drawing *d, double low, double high)
{
    return low + (high - low) * (double)dsc_rng_u32(SEED, d->stream, d->next++) / 4294967296.0;
}

/* The shape differs from the ground by 70 levels or more in each channel. */
static void choose(drawing *d, int64_t channels)
{
    const double t = between(d, -0.2, 0.2); /* tangent of half the angle, which is at most 22 degrees */
    d->cos = (1 - t * t) / (1 + t * t);
    d->sin = 2 * t / (1 + t * t);
    d->radius = between(d, 0.55, 0.85);
    d->x = between(d, d->radius - 1, 1 - d->radius);
    d->y = between(d, d->radius - 1, 1 - d->radius);
    for (int64_t c = 0; c < channels && c < CHANNELS_DRAWN; c++) {
        d->ground[c] = between(d, 0, 255);
        d->colour[c] = d->ground[c] < 127.5 ? between(d, d->ground[c] + 70, 255) : between(d, 0, d->ground[c] - 70);
    }
}

/* Share of a pixel that the shape covers, by four points. */
static double cover(const drawing *d, int shape, int64_t row, int64_t column, int64_t height, int64_t width)
{
    const double side = (double)dsc_min_i64(height, width);
    int covered = 0;
    for (int k = 0; k < 4; k++) {
        const double down = (double)row + (k < 2 ? 0.25 : 0.75) - (double)height / 2;
        const double right = (double)column + (k % 2 == 0 ? 0.25 : 0.75) - (double)width / 2;
        const double x = 2 * right / side - d->x, y = 2 * down / side - d->y;
        covered += inside[shape]((x * d->cos + y * d->sin) / d->radius, (y * d->cos - x * d->sin) / d->radius);
    }
    return covered / 4.0;
}

static uint8_t level(double value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5); }

int32_t dsc_shapes_draw(dsc_shapes_set set, int64_t i, int64_t height, int64_t width, int64_t channels, int64_t classes,
                        uint8_t *pixels)
{
    DSC_ASSERT(i >= 0 && i < dsc_shapes_count(set));
    DSC_ASSERT(classes >= 1 && classes <= DSC_SHAPES_CLASSES);
    DSC_ASSERT(channels <= CHANNELS_DRAWN);
    drawing d = { .stream = dsc_rng_stream(DSC_RNG_SHAPES, (uint32_t)(i * 2 + (set == DSC_SHAPES_TEST))) };
    const int32_t shape = (int32_t)(i % classes);
    choose(&d, channels);
    for (int64_t row = 0; row < height; row++)
        for (int64_t column = 0; column < width; column++) {
            const double share = cover(&d, shape, row, column, height, width);
            for (int64_t c = 0; c < channels; c++)
                *pixels++ = level(d.ground[c] + share * (d.colour[c] - d.ground[c]) + between(&d, -NOISE, NOISE));
        }
    return shape;
}
