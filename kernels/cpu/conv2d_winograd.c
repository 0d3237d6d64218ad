/* conv2d_winograd.c - windows of 3 by 3 at stride 1 by transforms: 4 by 4 outputs take 36 products instead of 144.
 *
 * F(4x4, 3x3) of Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), in fp32 for every dtype. 24
 * tiles of outputs are transformed together, so that 36 products of 24 rows stay in cache. The scratch has places for
 * 16 runs of tiles, which follow from the shape. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/conv2d_micro.h"
#include "kernels/cpu/range.h"

enum {
    POINTS = 36,
    TOGETHER = 24, /* tiles */
    RUNS = 16,
    LEAST_CHANNELS = 16,
    LEAST_TILES = 64,
    MOST_WEIGHTS = 1 << 16, /* transformed they are 9 MB, which are read for every 24 tiles */
    ALIGN = 256
};

typedef struct tiling {
    int64_t size[2], other[2], padding[2]; /* of the map that is written; the map that is read; before it */
    int64_t tiles[2], all;                 /* in a map, and of all samples */
    int64_t depth, columns;
    bool back;
} tiling;

static tiling tiling_of(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
{
    tiling t = { .back = pass == DSC_CONV2D_DX };
    const int64_t x[2] = { s->height, s->width }, y[2] = { dsc_conv2d_out(s, 0), dsc_conv2d_out(s, 1) };
    for (int i = 0; i < 2; i++) {
        t.size[i] = t.back ? x[i] : y[i];
        t.other[i] = t.back ? y[i] : x[i];
        t.padding[i] = t.back ? 2 - s->padding[i] : s->padding[i];
        t.tiles[i] = dsc_div_ceil(t.size[i], 4);
    }
    t.all = s->batch * t.tiles[0] * t.tiles[1];
    t.depth = t.back ? s->out : s->in;
    t.columns = t.back ? s->in : s->out;
    return t;
}

bool dsc_conv2d_is_transformed(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
{
    const tiling t = tiling_of(s, pass);
    for (int i = 0; i < 2; i++)
        if (s->kernel[i] != 3 || s->stride[i] != 1 || s->dilation[i] != 1 || s->padding[i] > 2)
            return false;
    return pass != DSC_CONV2D_DW && dsc_min_i64(s->in, s->out) >= LEAST_CHANNELS && s->in * s->out <= MOST_WEIGHTS &&
           t.all >= LEAST_TILES && t.tiles[0] * t.tiles[1] * POINTS * 3 < 9 * 2 * t.size[0] * t.size[1];
}

static int64_t weight_floats(const tiling *t) { return POINTS * t->depth * dsc_align_up(t->columns, 16); }

static int64_t place_floats(const tiling *t) { return POINTS * TOGETHER * (t->depth + DSC_CONV2D_PANEL); }

int64_t dsc_conv2d_transformed_scratch(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
{
    const tiling t = tiling_of(s, pass);
    return (weight_floats(&t) + RUNS * place_floats(&t)) * 4 + ALIGN;
}

typedef struct job {
    const dsc_conv2d_args *args;
    const dsc_conv2d_micro *micro;
    tiling t;
    float *weight, *places;
} job;

/* ---- the weight: G g G' of every window -------------------------------------------------------------------------- */

/* G: 6 by 3. */
static void six_of_three(const float *a, const float *b, const float *c, float to[6][DSC_CONV2D_PANEL])
{
    for (int i = 0; i < DSC_CONV2D_PANEL; i++) {
        const float even = (a[i] + c[i]) * (-1.0f / 6), far = a[i] * (1.0f / 24) + c[i] * (1.0f / 6);
        to[0][i] = a[i] * 0.25f;
        to[1][i] = even - b[i] * (1.0f / 6);
        to[2][i] = even + b[i] * (1.0f / 6);
        to[3][i] = far + b[i] * (1.0f / 12);
        to[4][i] = far - b[i] * (1.0f / 12);
        to[5][i] = c[i];
    }
}

/* Block: one place of the depth and a panel of columns. */
static void weight_block(const job *j, int64_t block)
{
    const dsc_conv2d_args *a = j->args;
    const int64_t k = block % j->t.depth, first = block / j->t.depth * j->micro->panel;
    const int64_t columns = dsc_min_i64(j->micro->panel, j->t.columns - first), width = dsc_align_up(columns, 16);
    float g[9][DSC_CONV2D_PANEL] = { { 0 } }, half[3][6][DSC_CONV2D_PANEL], whole[6][DSC_CONV2D_PANEL];
    for (int64_t c = 0; c < columns; c++) {
        const int64_t o = j->t.back ? k : first + c, i = j->t.back ? first + c : k;
        for (int tap = 0; tap < 9; tap++)
            g[j->t.back ? 8 - tap : tap][c] = dsc_get(a->with, (o * a->shape.in + i) * 9 + tap, a->dtype);
    }
    for (int v = 0; v < 3; v++)
        six_of_three(g[v], g[3 + v], g[6 + v], half[v]);
    for (int u = 0; u < 6; u++) {
        six_of_three(half[0][u], half[1][u], half[2][u], whole);
        for (int v = 0; v < 6; v++)
            memcpy(j->weight + first * j->t.depth * POINTS + ((u * 6 + v) * j->t.depth + k) * width, whole[v],
                   (size_t)width * sizeof(float));
    }
}

static void weight_blocks(const void *args, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        weight_block(args, i);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Tile `number`: its sample, and its first output. */
static void tile_at(const tiling *t, int64_t number, int64_t *b, int64_t *y, int64_t *x)
{
    *x = number % t->tiles[1] * 4;
    *y = number / t->tiles[1] % t->tiles[0] * 4;
    *b = number / t->tiles[1] / t->tiles[0];
}

static void read_tile(const job *j, int64_t number, float *to)
{
    const tiling *t = &j->t;
    const int64_t bytes = t->depth * (int64_t)dsc_dtype_bytes(j->args->dtype);
    int64_t b, top, left;
    const void *row[POINTS];
    tile_at(t, number, &b, &top, &left);
    for (int i = 0; i < POINTS; i++) {
        const int64_t y = top - t->padding[0] + i / 6, x = left - t->padding[1] + i % 6;
        const bool inside = y >= 0 && y < t->other[0] && x >= 0 && x < t->other[1];
        row[i] = inside ? (const char *)j->args->in + ((b * t->other[0] + y) * t->other[1] + x) * bytes : NULL;
    }
    j->micro->to_points(to, TOGETHER * t->depth, row, t->depth, j->args->dtype);
}

static void write_tile(const job *j, int64_t number, const float *from, int64_t column, int64_t columns)
{
    const tiling *t = &j->t;
    dsc_conv2d_points args = { .from = from,
                               .step = TOGETHER * DSC_CONV2D_PANEL,
                               .out = j->args->out,
                               .add = j->args->add,
                               .column = column,
                               .columns = columns,
                               .adds_bias = !t->back,
                               .dtype = j->args->dtype };
    int64_t b, top, left;
    tile_at(t, number, &b, &top, &left);
    for (int i = 0; i < 16; i++) {
        const int64_t y = top + i / 4, x = left + i % 4;
        args.at[i] = y < t->size[0] && x < t->size[1] ? ((b * t->size[0] + y) * t->size[1] + x) * t->columns : -1;
    }
    j->micro->from_points(&args);
}

/* The products of all points of some tiles with a panel. */
static void multiply(const job *j, const float *points, float *products, int64_t count, int64_t column, int64_t columns)
{
    const int64_t width = dsc_align_up(columns, 16);
    const void *row[TOGETHER];
    int64_t at[TOGETHER];
    dsc_conv2d_tile tile = { .row = row,
                             .at = at,
                             .taps = 1,
                             .depth = j->t.depth,
                             .pixels = count,
                             .columns = columns,
                             .is_first = true,
                             .is_last = true,
                             .dtype = DSC_F32 };
    for (int64_t point = 0; point < POINTS; point++) {
        for (int64_t i = 0; i < TOGETHER; i++) {
            row[i] = points + (point * TOGETHER + dsc_min_i64(i, count - 1)) * j->t.depth;
            at[i] = i * DSC_CONV2D_PANEL;
        }
        tile.panel = j->weight + column * j->t.depth * POINTS + point * j->t.depth * width;
        tile.out = products + point * TOGETHER * DSC_CONV2D_PANEL;
        j->micro->tile(&tile);
    }
}

/* Block: a run of tiles. */
static void run_tiles(const void *args, int64_t first_run, int64_t last_run)
{
    const job *j = args;
    for (int64_t run = first_run; run < last_run; run++) {
        const int64_t groups = dsc_div_ceil(j->t.all, TOGETHER);
        float *points = j->places + run * place_floats(&j->t), *products = points + POINTS * TOGETHER * j->t.depth;
        for (int64_t group = run * groups / RUNS; group < (run + 1) * groups / RUNS; group++) {
            const int64_t first = group * TOGETHER, count = dsc_min_i64(TOGETHER, j->t.all - first);
            for (int64_t i = 0; i < count; i++)
                read_tile(j, first + i, points + i * j->t.depth);
            for (int64_t column = 0; column < j->t.columns; column += j->micro->panel) {
                const int64_t columns = dsc_min_i64(j->micro->panel, j->t.columns - column);
                multiply(j, points, products, count, column, columns);
                for (int64_t i = 0; i < count; i++)
                    write_tile(j, first + i, products + i * DSC_CONV2D_PANEL, column, columns);
            }
        }
    }
}

void dsc_conv2d_transformed(const dsc_conv2d_args *a, const dsc_cpu_threads *pool, const dsc_conv2d_micro *micro)
{
    job j = { .args = a, .micro = micro, .t = tiling_of(&a->shape, a->pass) };
    j.weight = (float *)(void *)dsc_align_up((int64_t)(uintptr_t)a->scratch, ALIGN);
    j.places = j.weight + weight_floats(&j.t);
    dsc_range_run(pool, dsc_div_ceil(j.t.columns, micro->panel) * j.t.depth, weight_blocks, &j);
    dsc_range_run(pool, RUNS, run_tiles, &j);
}
