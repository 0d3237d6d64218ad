/* conv2d_micro_v16.h - conv2d_micro.h on 16 lanes: sums of some pixels and 16 to 64 columns stay in registers. A file
 * compiles it after its v16 words with MICRO_VECS (vectors of a panel), MICRO_ROWS(vecs), and MICRO_PAIRS where bf16
 * is multiplied in pairs. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/conv2d_micro.h"
#include "kernels/scalar.h"

#define MICRO_INLINE static inline __attribute__((always_inline))

enum { ROWS_MAX = 12 };

/* Whether units are pairs of bf16. */
MICRO_INLINE bool is_pairs(dsc_dtype dtype) { return MICRO_PAIRS && dtype == DSC_BF16; }

/* One unit of a pixel in all lanes. */
MICRO_INLINE v16 spread(const void *row, int64_t unit, dsc_dtype dtype)
{
    float x;
    if (dtype == DSC_F32 || is_pairs(dtype)) {
        memcpy(&x, (const char *)row + 4 * unit, sizeof x);
        return v16_set(x);
    }
    return v16_set(dsc_get(row, unit, dtype));
}

/* The last unit of an odd depth has one element. */
MICRO_INLINE v16 spread_half(const void *row, int64_t unit)
{
    uint32_t bits = ((const uint16_t *)row)[2 * unit];
    float x;
    memcpy(&x, &bits, sizeof x);
    return v16_set(x);
}

MICRO_INLINE v16 add_product(v16 a, v16 b, v16 sum, dsc_dtype dtype)
{
#if MICRO_PAIRS
    if (is_pairs(dtype))
        return v16_dot(a, b, sum);
#endif
    return v16_fma(a, b, sum);
}

/* ---- tiles of pixels ---- */

MICRO_INLINE void finish_row(const dsc_conv2d_tile *t, int64_t pixel, const v16 *sum, int vecs)
{
    for (int v = 0; v < vecs; v++) {
        const int64_t c = t->column + 16 * v, left = t->columns - 16 * v < 16 ? t->columns - 16 * v : 16;
        v16 x = sum[v];
        if (left <= 0)
            return;
        if (t->add != NULL)
            x = v16_add(x, v16_load(t->add, t->adds_bias ? c : t->at[pixel] + c, left, t->dtype));
        v16_store(t->out, t->at[pixel] + c, left, t->dtype, x);
    }
}

MICRO_INLINE void block(const dsc_conv2d_tile *t, int64_t first, int rows, int vecs, dsc_dtype dtype)
{
    const int64_t units = is_pairs(dtype) ? t->depth / 2 : t->depth;
    const char *weight = t->panel;
    v16 s[ROWS_MAX][MICRO_VECS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++)
            s[i][v] = t->is_first ? v16_set(0) : v16_load(t->sum, (first + i) * DSC_CONV2D_PANEL + 16 * v, 16, DSC_F32);
    for (int64_t tap = 0; tap < t->taps; tap++) {
        const void *row[ROWS_MAX];
        for (int i = 0; i < rows; i++)
            row[i] = t->row[tap * DSC_CONV2D_TILE + first + i];
        for (int64_t k = 0; k < units; k++, weight += 64 * vecs) {
            v16 w[MICRO_VECS];
            for (int v = 0; v < vecs; v++)
                w[v] = v16_load(weight, 16 * v, 16, DSC_F32);
            for (int i = 0; i < rows; i++) {
                const v16 x = spread(row[i], k, dtype);
                for (int v = 0; v < vecs; v++)
                    s[i][v] = add_product(x, w[v], s[i][v], dtype);
            }
        }
        if (is_pairs(dtype) && t->depth % 2 != 0) {
            for (int i = 0; i < rows; i++)
                for (int v = 0; v < vecs; v++)
                    s[i][v] =
                        add_product(spread_half(row[i], units), v16_load(weight, 16 * v, 16, DSC_F32), s[i][v], dtype);
            weight += 64 * vecs;
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs && !t->is_last; v++)
            v16_store(t->sum, (first + i) * DSC_CONV2D_PANEL + 16 * v, 16, DSC_F32, s[i][v]);
    for (int i = 0; i < rows && t->is_last && first + i < t->pixels; i++)
        finish_row(t, first + i, s[i], vecs);
}

MICRO_INLINE void blocks(const dsc_conv2d_tile *t, int rows, int vecs)
{
    for (int64_t first = 0; first < t->pixels; first += rows) {
        if (t->dtype == DSC_F32)
            block(t, first, rows, vecs, DSC_F32);
        else
            block(t, first, rows, vecs, DSC_BF16);
    }
}

static void tile(const dsc_conv2d_tile *t)
{
    switch ((t->columns + 15) / 16) {
#if MICRO_VECS == 4
    case 4:
        blocks(t, MICRO_ROWS(4), 4);
        break;
    case 3:
        blocks(t, MICRO_ROWS(3), 3);
        break;
    case 2:
        blocks(t, MICRO_ROWS(2), 2);
        break;
#endif
    default:
        blocks(t, MICRO_ROWS(1), 1);
        break;
    }
}

/* ---- gradients of the weight ---- */

MICRO_INLINE void gradient_block(const dsc_conv2d_gradient_tile *t, int64_t first, int64_t column, int rows, int vecs,
                                 dsc_dtype dtype)
{
    const float *x = (const float *)t->x + first, *d = (const float *)t->d + column;
    float *sum = t->sum + first * DSC_CONV2D_PANEL + column;
    v16 s[ROWS_MAX][MICRO_VECS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++)
            s[i][v] = t->is_first ? v16_set(0) : v16_load(sum, i * DSC_CONV2D_PANEL + 16 * v, 16, DSC_F32);
    for (int64_t u = 0; u < t->units; u++, x += DSC_CONV2D_INPUTS, d += DSC_CONV2D_PANEL) {
        v16 w[MICRO_VECS];
        for (int v = 0; v < vecs; v++)
            w[v] = v16_load(d, 16 * v, 16, DSC_F32);
        for (int i = 0; i < rows; i++) {
            const v16 one = v16_set(x[i]);
            for (int v = 0; v < vecs; v++)
                s[i][v] = add_product(one, w[v], s[i][v], dtype);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++)
            v16_store(sum, i * DSC_CONV2D_PANEL + 16 * v, 16, DSC_F32, s[i][v]);
}

MICRO_INLINE void gradient_blocks(const dsc_conv2d_gradient_tile *t, int64_t column, int rows, int vecs,
                                  dsc_dtype dtype)
{
    for (int64_t first = 0; first < t->inputs; first += rows)
        gradient_block(t, first, column, rows, vecs, dtype);
}

MICRO_INLINE void gradient_columns(const dsc_conv2d_gradient_tile *t, dsc_dtype dtype)
{
    int64_t column = 0;
    for (; column + 16 * MICRO_VECS <= t->outputs; column += 16 * MICRO_VECS)
        gradient_blocks(t, column, MICRO_ROWS(MICRO_VECS), MICRO_VECS, dtype);
    switch ((t->outputs - column + 15) / 16) {
#if MICRO_VECS == 4
    case 3:
        gradient_blocks(t, column, MICRO_ROWS(3), 3, dtype);
        break;
    case 2:
        gradient_blocks(t, column, MICRO_ROWS(2), 2, dtype);
        break;
#endif
    case 1:
        gradient_blocks(t, column, MICRO_ROWS(1), 1, dtype);
        break;
    default:
        break;
    }
}

static void gradient(const dsc_conv2d_gradient_tile *t, dsc_dtype dtype)
{
    if (is_pairs(dtype))
        gradient_columns(t, DSC_BF16);
    else
        gradient_columns(t, DSC_F32);
}

/* ---- packing ---- */

MICRO_INLINE v16 row_load(const void *row, int64_t c, int64_t left, dsc_dtype dtype)
{
    return row != NULL && left > 0 ? v16_load(row, c, left < 16 ? left : 16, dtype) : v16_set(0);
}

MICRO_INLINE void pack_rows(const dsc_conv2d_pack *p, dsc_dtype dtype)
{
    for (int64_t u = 0; u < p->units; u++)
        for (int64_t c = 0; c < p->filled; c += 16) {
            const void *row = u < p->pixels ? p->row[u] : NULL;
            v16_store(p->to, u * p->width + c, p->width - c < 16 ? p->width - c : 16, DSC_F32,
                      row_load(row, c, p->columns - c, dtype));
        }
}

static void pack(const dsc_conv2d_pack *p)
{
#if MICRO_PAIRS
    if (p->dtype == DSC_BF16) {
        for (int64_t u = 0; u < p->units; u++)
            for (int64_t c = 0; c < p->filled; c += 16) {
                const void *low = 2 * u < p->pixels ? p->row[2 * u] : NULL;
                const void *high = 2 * u + 1 < p->pixels ? p->row[2 * u + 1] : NULL;
                v16_store(p->to, u * p->width + c, 16, DSC_F32, v16_pairs(low, high, c, p->columns - c));
            }
        return;
    }
#endif
    if (p->dtype == DSC_F32)
        pack_rows(p, DSC_F32);
    else
        pack_rows(p, p->dtype);
}

/* ---- transforms of tiles ---- */

MICRO_INLINE v16 add_times(v16 x, float factor, v16 y) { return v16_fma(v16_set(factor), x, y); } /* factor x + y */

/* B' of F(4, 3) on six values that are `step` apart. */
MICRO_INLINE void six_points(v16 *x, int step)
{
    const v16 a = add_times(x[2 * step], -4, x[4 * step]), b = add_times(x[step], -4, x[3 * step]);
    const v16 c = add_times(x[2 * step], -1, x[4 * step]), d = add_times(x[step], -1, x[3 * step]);
    x[0] = add_times(x[0], 4, add_times(x[2 * step], -5, x[4 * step]));
    x[5 * step] = add_times(x[step], 4, add_times(x[3 * step], -5, x[5 * step]));
    x[step] = v16_add(a, b), x[2 * step] = add_times(b, -1, a);
    x[3 * step] = add_times(d, 2, c), x[4 * step] = add_times(d, -2, c);
}

MICRO_INLINE void to_points_of(float *to, int64_t step, const void *const *row, int64_t depth, dsc_dtype dtype)
{
    for (int64_t c = 0; c < depth; c += 16) {
        v16 x[36];
        for (int i = 0; i < 36; i++)
            x[i] = row_load(row[i], c, depth - c, dtype);
        for (int i = 0; i < 6; i++)
            six_points(x + i, 6);
        for (int i = 0; i < 6; i++)
            six_points(x + 6 * i, 1);
        for (int i = 0; i < 36; i++)
            v16_store(to + i * step, c, depth - c < 16 ? depth - c : 16, DSC_F32, x[i]);
    }
}

static void to_points(float *to, int64_t step, const void *const *row, int64_t depth, dsc_dtype dtype)
{
    if (dtype == DSC_F32)
        to_points_of(to, step, row, depth, DSC_F32);
    else
        to_points_of(to, step, row, depth, DSC_BF16);
}

/* A' of F(4, 3): four values of six, in the places of the first four. */
MICRO_INLINE void four_outputs(v16 *x, int step)
{
    const v16 near = v16_add(x[step], x[2 * step]), d_near = add_times(x[2 * step], -1, x[step]);
    const v16 far = v16_add(x[3 * step], x[4 * step]), d_far = add_times(x[4 * step], -1, x[3 * step]);
    x[0] = v16_add(x[0], v16_add(near, far));
    x[step] = add_times(d_far, 2, d_near);
    x[2 * step] = add_times(far, 4, near);
    x[3 * step] = v16_add(add_times(d_far, 8, d_near), x[5 * step]);
}

MICRO_INLINE void from_points_of(const dsc_conv2d_points *p, dsc_dtype dtype)
{
    for (int64_t c = 0; c < p->columns; c += 16) {
        const int64_t left = p->columns - c < 16 ? p->columns - c : 16, column = p->column + c;
        v16 x[36];
        for (int i = 0; i < 36; i++)
            x[i] = v16_load(p->from + i * p->step, c, left, DSC_F32);
        for (int i = 0; i < 6; i++)
            four_outputs(x + i, 6);
        for (int i = 0; i < 4; i++)
            four_outputs(x + 6 * i, 1);
        for (int i = 0; i < 16; i++) {
            v16 y = x[i / 4 * 6 + i % 4];
            if (p->at[i] < 0)
                continue;
            if (p->add != NULL)
                y = v16_add(y, v16_load(p->add, p->adds_bias ? column : p->at[i] + column, left, dtype));
            v16_store(p->out, p->at[i] + column, left, dtype, y);
        }
    }
}

static void from_points(const dsc_conv2d_points *p)
{
    if (p->dtype == DSC_F32)
        from_points_of(p, DSC_F32);
    else
        from_points_of(p, DSC_BF16);
}

const dsc_conv2d_micro MICRO_NAME = { .panel = 16 * MICRO_VECS,
                                      .bf16_pairs = MICRO_PAIRS,
                                      .tile = tile,
                                      .gradient = gradient,
                                      .pack = pack,
                                      .to_points = to_points,
                                      .from_points = from_points };
