/* conv2d_direct.c - a convolution without a copy of its windows: tiles of pixels read their channels where they lie.
 *
 * A tile has up to 96 pixels, which need not be neighbours. For each tap there is a table of where the pixels' channels
 * are; pixels outside of the map have a row of zeros. The weight is packed in panels of columns. The gradient of the
 * input goes through its pixels by their remainder at the stride ("phase"), so that every tap of a phase reads an
 * output. Where the input has few channels, a line of the window is one tap: its pixels lie side by side in a copy of x
 * with the padding. The order of sums follows from the shape. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/conv2d_internal.h"
#include "kernels/cpu/conv2d_micro.h"
#include "kernels/cpu/range.h"
#include "kernels/kernels.h"

enum {
    FEW_CHANNELS = 8,              /* of an input whose windows' lines are taps */
    TAPS = 64,                     /* in a table of pixels */
    PANEL_BYTES = 384 << 10,       /* of a panel's taps that stay in L2 while a tile's pixels are multiplied */
    TILES = 16,                    /* at least, by smaller tiles and more strips */
    PACKED_UNITS = 8,              /* units of the depth that are packed together */
    PIXELS = 2 * DSC_CONV2D_UNITS, /* of a gradient's tile at most, and of a tile */
    ALIGN = 256
};
_Static_assert((int)DSC_CONV2D_TILE <= (int)PIXELS, "a tile's pixels fit into a list");

/* The convolution of a pass: pixels of the map that is written ("own") read the other map. */
typedef struct geometry {
    int64_t own[2], other[2], kernel[2], stride[2], padding[2], dilation[2];
    int64_t phases[2];    /* of own pixels */
    int64_t pixel, depth; /* elements of the other map's pixel, and of what a tap reads */
    int64_t columns, taps;
    bool merged, back;
} geometry;

typedef struct job {
    const dsc_conv2d_args *args;
    const dsc_conv2d_micro *micro;
    geometry g;
    const char *other, *zeros; /* the other map, perhaps padded */
    char *packed;
    int64_t element, units, tile;
    bool pairs;
} job;

static bool is_merged(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
{
    return pass != DSC_CONV2D_DX && s->in <= FEW_CHANNELS && s->kernel[1] > 1 && s->dilation[1] == 1;
}

static int64_t padded_width(const dsc_conv2d_shape *s) { return s->width + 2 * s->padding[1]; }

static geometry geometry_of(const dsc_conv2d_shape *s, dsc_conv2d_pass pass)
{
    geometry g = { .back = pass == DSC_CONV2D_DX, .merged = is_merged(s, pass) };
    const int64_t x[2] = { s->height, s->width }, y[2] = { dsc_conv2d_out(s, 0), dsc_conv2d_out(s, 1) };
    for (int i = 0; i < 2; i++) {
        g.own[i] = g.back ? x[i] : y[i];
        g.other[i] = g.back ? y[i] : x[i];
        g.kernel[i] = s->kernel[i], g.stride[i] = s->stride[i];
        g.padding[i] = s->padding[i], g.dilation[i] = s->dilation[i];
        g.phases[i] = g.back ? s->stride[i] : 1;
    }
    g.pixel = g.depth = g.back ? s->out : s->in;
    g.columns = g.back ? s->in : s->out;
    if (g.merged) {
        g.depth = s->kernel[1] * s->in;
        g.other[1] = padded_width(s);
        g.kernel[1] = 1, g.padding[1] = 0;
    }
    g.taps = g.kernel[0] * g.kernel[1];
    return g;
}

/* ---- phases and taps --------------------------------------------------------------------------------------------- */

/* Whether a tap of an axis is one of the phase's, and how far it is from the pixel's place in the other map. */
static bool tap_shift(const geometry *g, int axis, int64_t phase, int64_t tap, int64_t *shift)
{
    const int64_t place = phase + g->padding[axis] - tap * g->dilation[axis];
    *shift = g->back ? place / g->stride[axis] : tap * g->dilation[axis] - g->padding[axis];
    return !g->back || place % g->stride[axis] == 0;
}

static int64_t tap_count(const geometry *g, int axis, int64_t phase)
{
    int64_t count = 0, shift;
    for (int64_t tap = 0; tap < g->kernel[axis]; tap++)
        count += tap_shift(g, axis, phase, tap, &shift);
    return count;
}

/* Tap number `index` of a phase's taps on an axis. */
static int64_t tap_number(const geometry *g, int axis, int64_t phase, int64_t index, int64_t *shift)
{
    int64_t tap = 0;
    for (;; tap++)
        if (tap_shift(g, axis, phase, tap, shift) && index-- == 0)
            return tap;
}

/* A phase: its place, its pixels of a sample, and its taps, which lie together in a panel from `first` on. */
typedef struct phase {
    int64_t at[2], size[2], taps[2], first;
} phase;

static phase phase_of(const geometry *g, int64_t number)
{
    phase p = { .first = 0 };
    for (int64_t i = 0; i <= number; i++) {
        p.first += p.taps[0] * p.taps[1];
        p.at[0] = i / g->phases[1], p.at[1] = i % g->phases[1];
        for (int a = 0; a < 2; a++) {
            p.size[a] = p.at[a] < g->own[a] ? dsc_div_ceil(g->own[a] - p.at[a], g->phases[a]) : 0;
            p.taps[a] = tap_count(g, a, p.at[a]);
        }
    }
    return p;
}

/* ---- pixels ------------------------------------------------------------------------------------------------------ */

/* A run of a phase's pixels: places in the other map before a tap's shift. */
typedef struct pixels {
    int64_t count, y[PIXELS], x[PIXELS], place[PIXELS]; /* place: in the other map, in pixels */
} pixels;

static void pixels_from(const geometry *g, const phase *p, int64_t first, int64_t count, pixels *out)
{
    const int64_t step[2] = { g->back ? 1 : g->stride[0], g->back ? 1 : g->stride[1] };
    int64_t x = first % p->size[1], y = first / p->size[1] % p->size[0], b = first / p->size[1] / p->size[0];
    out->count = count;
    for (int64_t i = 0; i < count; i++) {
        out->y[i] = y * step[0], out->x[i] = x * step[1];
        out->place[i] = (b * g->other[0] + out->y[i]) * g->other[1] + out->x[i];
        if (++x == p->size[1]) {
            x = 0;
            if (++y == p->size[0])
                y = 0, b++;
        }
    }
}

/* Where the pixels' channels lie under a tap, or `outside`. */
static void point(const job *j, const pixels *of, int64_t down, int64_t across, const char *outside, const void **row)
{
    const int64_t shift = down * j->g.other[1] + across, bytes = j->g.pixel * j->element;
    const uint64_t height = (uint64_t)j->g.other[0], width = (uint64_t)j->g.other[1];
    for (int64_t i = 0; i < of->count; i++) {
        const bool inside = (uint64_t)(of->y[i] + down) < height && (uint64_t)(of->x[i] + across) < width;
        row[i] = inside ? j->other + (of->place[i] + shift) * bytes : outside;
    }
}

/* ---- y and dx ---------------------------------------------------------------------------------------------------- */

static int64_t tile_pixels(const dsc_conv2d_shape *s, const geometry *g)
{
    const int64_t all = s->batch * g->own[0] * g->own[1];
    int64_t most = DSC_CONV2D_TILE;
    while (most > 24 && dsc_div_ceil(all, most) < TILES)
        most /= 2;
    return most;
}

static int64_t phase_tiles(const job *j, const phase *p)
{
    return dsc_div_ceil(j->args->shape.batch * p->size[0] * p->size[1], j->tile);
}

/* Bytes of a panel's tap. */
static int64_t tap_bytes(const job *j, int64_t columns) { return j->units * dsc_align_up(columns, 16) * 4; }

/* Some pixels, the part of the map that they are. */
typedef struct tile_job {
    const job *job;
    phase phase;
    pixels pixels;
    int64_t at[DSC_CONV2D_TILE];
    const void *row[TAPS * DSC_CONV2D_TILE];
    float sum[DSC_CONV2D_TILE * DSC_CONV2D_PANEL];
} tile_job;

/* The table of taps first .. first + count - 1 of the phase. */
static void point_taps(tile_job *t, int64_t first, int64_t count)
{
    const job *j = t->job;
    for (int64_t i = 0; i < count; i++) {
        const void **row = t->row + i * DSC_CONV2D_TILE;
        int64_t down, across;
        tap_number(&j->g, 0, t->phase.at[0], (first + i) / t->phase.taps[1], &down);
        tap_number(&j->g, 1, t->phase.at[1], (first + i) % t->phase.taps[1], &across);
        point(j, &t->pixels, down, across, j->zeros, row);
        for (int64_t k = t->pixels.count; k < DSC_CONV2D_TILE; k++)
            row[k] = j->zeros;
    }
}

static void run_panel(tile_job *t, int64_t panel)
{
    const job *j = t->job;
    const int64_t taps = t->phase.taps[0] * t->phase.taps[1], first_column = panel * j->micro->panel;
    const int64_t columns = dsc_min_i64(j->micro->panel, j->g.columns - first_column), bytes = tap_bytes(j, columns);
    const int64_t most = dsc_min_i64(TAPS, dsc_max_i64(1, PANEL_BYTES / bytes));
    const char *weight = j->packed + first_column * j->units * j->g.taps * 4 + t->phase.first * bytes;
    dsc_conv2d_tile args = { .sum = t->sum,
                             .at = t->at,
                             .out = j->args->out,
                             .add = j->args->add,
                             .depth = j->g.depth,
                             .pixels = t->pixels.count,
                             .column = first_column,
                             .columns = columns,
                             .adds_bias = !j->g.back,
                             .dtype = j->args->dtype };
    for (int64_t first = 0; first == 0 || first < taps; first += most) {
        args.taps = dsc_min_i64(most, taps - first);
        args.is_first = first == 0, args.is_last = first + args.taps == taps;
        if (taps > TAPS)
            point_taps(t, first, args.taps);
        args.row = t->row + (taps > TAPS ? 0 : first * DSC_CONV2D_TILE);
        args.panel = weight + first * bytes;
        j->micro->tile(&args);
    }
}

static void run_tile(const job *j, int64_t number)
{
    tile_job t;
    t.job = j;
    int64_t of = 0;
    for (t.phase = phase_of(&j->g, 0); number >= phase_tiles(j, &t.phase); t.phase = phase_of(&j->g, ++of))
        number -= phase_tiles(j, &t.phase);
    const phase *p = &t.phase;
    const int64_t all = j->args->shape.batch * p->size[0] * p->size[1], first = number * j->tile;
    pixels_from(&j->g, p, first, dsc_min_i64(j->tile, all - first), &t.pixels);
    int64_t x = first % p->size[1], line = first / p->size[1];
    for (int64_t i = 0; i < t.pixels.count; i++) {
        const int64_t b = line / p->size[0], y = line % p->size[0] * j->g.phases[0] + p->at[0];
        t.at[i] = ((b * j->g.own[0] + y) * j->g.own[1] + x * j->g.phases[1] + p->at[1]) * j->g.columns;
        if (++x == p->size[1])
            x = 0, line++;
    }
    if (p->taps[0] * p->taps[1] <= TAPS)
        point_taps(&t, 0, p->taps[0] * p->taps[1]);
    for (int64_t panel = 0; panel * j->micro->panel < j->g.columns; panel++)
        run_panel(&t, panel);
}

static void run_tiles(const void *args, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        run_tile(args, i);
}

/* ---- packing the weight ------------------------------------------------------------------------------------------ */

/* The weight's element of a tap (u, v), a place of the depth and a column. */
static int64_t weight_at(const job *j, int64_t u, int64_t v, int64_t k, int64_t column)
{
    const dsc_conv2d_shape *s = &j->args->shape;
    if (j->g.merged)
        return ((column * s->in + k % s->in) * s->kernel[0] + u) * s->kernel[1] + k / s->in;
    const int64_t o = j->g.back ? k : column, c = j->g.back ? column : k;
    return ((o * s->in + c) * s->kernel[0] + u) * s->kernel[1] + v;
}

/* One unit of a tap: `width` columns, with zeros behind the last. */
static void pack_unit(const job *j, char *to, int64_t u, int64_t v, int64_t unit, int64_t first_column, int64_t columns)
{
    const dsc_dtype dtype = j->args->dtype;
    const int64_t stride = weight_at(j, u, v, 0, 1) - weight_at(j, u, v, 0, 0), width = dsc_align_up(columns, 16);
    memset(to, 0, (size_t)width * 4);
    for (int64_t half = 0; half < (j->pairs ? 2 : 1); half++) {
        const int64_t k = j->pairs ? 2 * unit + half : unit;
        if (k >= j->g.depth)
            return;
        const int64_t from = weight_at(j, u, v, k, first_column);
        for (int64_t c = 0; c < columns; c++) {
            if (j->pairs)
                ((uint16_t *)(void *)to)[2 * c + half] = ((const uint16_t *)j->args->with)[from + c * stride];
            else if (dtype == DSC_F32)
                ((float *)(void *)to)[c] = ((const float *)j->args->with)[from + c * stride];
            else
                ((float *)(void *)to)[c] = dsc_get(j->args->with, from + c * stride, dtype);
        }
    }
}

/* Some units of all taps of one panel. */
static void pack_block(const job *j, int64_t block)
{
    const int64_t blocks = dsc_div_ceil(j->units, PACKED_UNITS), panel = block / blocks;
    const int64_t first_column = panel * j->micro->panel, first = block % blocks * PACKED_UNITS;
    const int64_t columns = dsc_min_i64(j->micro->panel, j->g.columns - first_column);
    char *to = j->packed + first_column * j->units * j->g.taps * 4;
    for (int64_t n = 0; n < j->g.phases[0] * j->g.phases[1]; n++) {
        const phase p = phase_of(&j->g, n);
        for (int64_t tap = 0; tap < p.taps[0] * p.taps[1]; tap++) {
            int64_t shift;
            const int64_t u = tap_number(&j->g, 0, p.at[0], tap / p.taps[1], &shift);
            const int64_t v = tap_number(&j->g, 1, p.at[1], tap % p.taps[1], &shift);
            for (int64_t unit = first; unit < dsc_min_i64(j->units, first + PACKED_UNITS); unit++)
                pack_unit(j, to + ((p.first + tap) * j->units + unit) * dsc_align_up(columns, 16) * 4, u, v, unit,
                          first_column, columns);
        }
    }
}

static void pack_blocks(const void *args, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        pack_block(args, i);
}

/* ---- the copy with padding --------------------------------------------------------------------------------------- */

typedef struct padding_job {
    const job *job;
    char *to;
} padding_job;

static void pad_lines(const void *args, int64_t first, int64_t last)
{
    const padding_job *p = args;
    const dsc_conv2d_shape *s = &p->job->args->shape;
    const int64_t pixel = s->in * p->job->element, side = s->padding[1] * pixel, line = s->width * pixel;
    for (int64_t i = first; i < last; i++) {
        char *to = p->to + i * (line + 2 * side);
        memset(to, 0, (size_t)side);
        memcpy(to + side, (const char *)p->job->args->in + i * line, (size_t)line);
        memset(to + side + line, 0, (size_t)side);
    }
}

/* ---- dw ---------------------------------------------------------------------------------------------------------- */

/* Tiles of the gradient and strips of pixels: by the shape alone. */
typedef struct gradient_plan {
    int64_t strips, outputs, inputs; /* strips, and tiles of outputs and inputs */
    int64_t pixels, chunk;           /* all pixels, and those of a chunk: strips are whole chunks */
    int64_t rows;                    /* inputs with those that fill the last tile */
} gradient_plan;

static gradient_plan gradient_plan_of(const dsc_conv2d_shape *s, const geometry *g, bool pairs)
{
    gradient_plan p = { .outputs = dsc_div_ceil(s->out, DSC_CONV2D_PANEL),
                        .inputs = dsc_div_ceil(g->depth, DSC_CONV2D_INPUTS),
                        .pixels = s->batch * g->own[0] * g->own[1],
                        .chunk = DSC_CONV2D_UNITS * (pairs ? 2 : 1),
                        .rows = dsc_align_up(g->depth, 24) };
    p.strips = dsc_div_ceil(TILES, p.outputs * p.inputs);
    p.strips = dsc_max_i64(1, dsc_min_i64(p.strips, dsc_div_ceil(p.pixels, PIXELS)));
    return p;
}

typedef struct gradient_job {
    const job *job;
    gradient_plan plan;
    phase phase;
    float *sums; /* [strips, tiles of outputs, taps, rows, DSC_CONV2D_PANEL] */
} gradient_job;

typedef struct gradient_tile {
    pixels pixels;
    const void *row[PIXELS];
    _Alignas(64) float x[DSC_CONV2D_UNITS * DSC_CONV2D_INPUTS];
    _Alignas(64) float d[DSC_CONV2D_UNITS * DSC_CONV2D_PANEL];
} gradient_tile;

static float *sums_of(const gradient_job *g, int64_t strip, int64_t output)
{
    return g->sums + (strip * g->plan.outputs + output) * g->job->g.taps * g->plan.rows * DSC_CONV2D_PANEL;
}

static void pack_d(const gradient_job *g, gradient_tile *t, int64_t first, int64_t output, int64_t units)
{
    const job *j = g->job;
    const int64_t column = output * DSC_CONV2D_PANEL;
    for (int64_t i = 0; i < t->pixels.count; i++)
        t->row[i] = (const char *)j->args->with + ((first + i) * j->g.columns + column) * j->element;
    const dsc_conv2d_pack pack = { .to = t->d,
                                   .row = t->row,
                                   .pixels = t->pixels.count,
                                   .units = units,
                                   .columns = dsc_min_i64(DSC_CONV2D_PANEL, j->g.columns - column),
                                   .filled = DSC_CONV2D_PANEL,
                                   .width = DSC_CONV2D_PANEL,
                                   .dtype = j->args->dtype };
    j->micro->pack(&pack);
}

/* A chunk of pixels from `first` on. */
static void add_chunk(const gradient_job *g, gradient_tile *t, int64_t first, int64_t strip, int64_t output,
                      int64_t input, bool is_first)
{
    const job *j = g->job;
    const int64_t from = input * DSC_CONV2D_INPUTS, inputs = dsc_min_i64(DSC_CONV2D_INPUTS, j->g.depth - from);
    const int64_t units = j->pairs ? dsc_div_ceil(t->pixels.count, 2) : t->pixels.count;
    const dsc_conv2d_pack pack = { .to = t->x,
                                   .row = t->row,
                                   .pixels = t->pixels.count,
                                   .units = units,
                                   .columns = inputs,
                                   .filled = dsc_align_up(inputs, 24),
                                   .width = DSC_CONV2D_INPUTS,
                                   .dtype = j->args->dtype };
    dsc_conv2d_gradient_tile tile = { .x = t->x,
                                      .d = t->d,
                                      .units = units,
                                      .inputs = dsc_align_up(inputs, 24),
                                      .outputs =
                                          dsc_min_i64(DSC_CONV2D_PANEL, j->g.columns - output * DSC_CONV2D_PANEL),
                                      .is_first = is_first };
    pack_d(g, t, first, output, units);
    for (int64_t tap = 0; tap < j->g.taps; tap++) {
        int64_t down, across;
        tap_shift(&j->g, 0, 0, tap / j->g.kernel[1], &down);
        tap_shift(&j->g, 1, 0, tap % j->g.kernel[1], &across);
        point(j, &t->pixels, down, across, NULL, t->row);
        for (int64_t i = 0; i < t->pixels.count && from > 0; i++)
            t->row[i] = t->row[i] != NULL ? (const char *)t->row[i] + from * j->element : NULL;
        j->micro->pack(&pack);
        tile.sum = sums_of(g, strip, output) + (tap * g->plan.rows + from) * DSC_CONV2D_PANEL;
        j->micro->gradient(&tile, j->args->dtype);
    }
}

static void gradient_tiles(const void *args, int64_t first, int64_t last)
{
    const gradient_job *g = args;
    const gradient_plan *p = &g->plan;
    gradient_tile t;
    for (int64_t i = first; i < last; i++) {
        const int64_t strip = i / (p->outputs * p->inputs), output = i / p->inputs % p->outputs, input = i % p->inputs;
        const int64_t chunks = dsc_div_ceil(p->pixels, p->chunk);
        const int64_t begin = strip * chunks / p->strips * p->chunk, end = (strip + 1) * chunks / p->strips * p->chunk;
        for (int64_t at = begin; at < dsc_min_i64(end, p->pixels); at += p->chunk) {
            pixels_from(&g->job->g, &g->phase, at, dsc_min_i64(p->chunk, p->pixels - at), &t.pixels);
            add_chunk(g, &t, at, strip, output, input, at == begin);
        }
    }
}

/* The weight's gradient of some inputs of one tile of outputs. */
static void finish_gradient(const void *args, int64_t first, int64_t last)
{
    const gradient_job *g = args;
    const job *j = g->job;
    const dsc_conv2d_shape *s = &j->args->shape;
    for (int64_t i = first; i < last; i++) {
        const int64_t output = i / j->g.depth, k = i % j->g.depth, from = output * DSC_CONV2D_PANEL;
        for (int64_t o = from; o < dsc_min_i64(s->out, from + DSC_CONV2D_PANEL); o++)
            for (int64_t tap = 0; tap < j->g.taps; tap++) {
                float sum = 0;
                for (int64_t strip = 0; strip < g->plan.strips; strip++)
                    sum += sums_of(g, strip, output)[(tap * g->plan.rows + k) * DSC_CONV2D_PANEL + o - from];
                ((float *)j->args->out)[weight_at(j, tap / j->g.kernel[1], tap % j->g.kernel[1], k, o)] = sum;
            }
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Byte offsets in the scratch. */
typedef struct layout {
    int64_t zeros, packed, padded, bytes;
} layout;

static layout lay(const dsc_conv2d_shape *s, const geometry *g, dsc_conv2d_pass pass, dsc_dtype dtype)
{
    const gradient_plan p = gradient_plan_of(s, g, false);
    const int64_t element = (int64_t)dsc_dtype_bytes(dtype);
    layout at = { .zeros = 0 };
    at.packed = dsc_align_up(g->depth * element + 4, ALIGN);
    at.padded = at.packed + (pass == DSC_CONV2D_DW ? p.strips * p.outputs * g->taps * p.rows * DSC_CONV2D_PANEL * 4
                                                   : dsc_align_up(g->columns, 16) * g->depth * g->taps * 4);
    at.padded = dsc_align_up(at.padded, ALIGN);
    at.bytes =
        at.padded + (g->merged ? dsc_align_up(s->batch * s->height * padded_width(s) * s->in * element, ALIGN) : 0);
    return at;
}

int64_t dsc_conv2d_scratch(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype)
{
    const geometry g = geometry_of(s, pass);
    if (dsc_conv2d_is_transformed(s, pass))
        return dsc_conv2d_transformed_scratch(s, pass);
    return lay(s, &g, pass, dtype).bytes + ALIGN;
}

static void run_gradient(const job *j, const dsc_cpu_threads *pool)
{
    const dsc_conv2d_shape *s = &j->args->shape;
    gradient_job g = { .job = j,
                       .plan = gradient_plan_of(s, &j->g, j->pairs),
                       .phase = phase_of(&j->g, 0),
                       .sums = (float *)(void *)j->packed };
    dsc_range_run(pool, g.plan.strips * g.plan.outputs * g.plan.inputs, gradient_tiles, &g);
    dsc_range_run(pool, g.plan.outputs * j->g.depth, finish_gradient, &g);
}

static void run_map(const job *j, const dsc_cpu_threads *pool)
{
    const int64_t panels = dsc_div_ceil(j->g.columns, j->micro->panel);
    int64_t tiles = 0;
    for (int64_t n = 0; n < j->g.phases[0] * j->g.phases[1]; n++) {
        const phase p = phase_of(&j->g, n);
        tiles += phase_tiles(j, &p);
    }
    dsc_range_run(pool, panels * dsc_div_ceil(j->units, PACKED_UNITS), pack_blocks, j);
    dsc_range_run(pool, tiles, run_tiles, j);
}

dsc_status dsc_conv2d_direct(const dsc_conv2d_args *a, const dsc_cpu_threads *pool, const dsc_conv2d_micro *micro,
                             dsc_error *err)
{
    const geometry g = geometry_of(&a->shape, a->pass);
    const layout at = lay(&a->shape, &g, a->pass, a->dtype);
    char *scratch = (char *)dsc_align_up((int64_t)(uintptr_t)a->scratch, ALIGN);
    job j = { .args = a, .micro = micro, .g = g, .other = a->in, .zeros = scratch + at.zeros };
    if (a->dtype != DSC_F32 && a->dtype != DSC_BF16)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "CONV2D", "dtype %d; expected F32 or BF16", (int)a->dtype);
    if (a->shape.batch == 0) {
        if (a->pass == DSC_CONV2D_DW)
            memset(a->out, 0, (size_t)dsc_conv2d_weights(&a->shape) * sizeof(float));
        return DSC_OK;
    }
    if (dsc_conv2d_is_transformed(&a->shape, a->pass)) {
        dsc_conv2d_transformed(a, pool, micro);
        return DSC_OK;
    }
    j.element = (int64_t)dsc_dtype_bytes(a->dtype);
    j.packed = scratch + at.packed;
    j.pairs = a->dtype == DSC_BF16 && micro->bf16_pairs;
    j.units = j.pairs ? dsc_div_ceil(g.depth, 2) : g.depth;
    j.tile = tile_pixels(&a->shape, &g);
    memset(scratch + at.zeros, 0, (size_t)(at.packed - at.zeros));
    if (g.merged) {
        const padding_job padding = { &j, scratch + at.padded };
        dsc_range_run(pool, a->shape.batch * a->shape.height, pad_lines, &padding);
        j.other = scratch + at.padded;
    }
    if (a->pass == DSC_CONV2D_DW)
        run_gradient(&j, pool);
    else
        run_map(&j, pool);
    return DSC_OK;
}
