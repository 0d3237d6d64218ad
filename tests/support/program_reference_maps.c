/* program_reference_maps.c - see program_reference_maps.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_reference_maps.h"

#include <math.h>

#include "base/rng.h"

static int64_t rows_of(const program_reference *r, int16_t v)
{
    return r->program->value[v].rows * (r->program->value[v].per_sample ? r->batch : 1);
}

/* ---- batch normalization ---- */

static void batch_stats(program_reference *r, const dsc_op *op)
{
    const int64_t rows = rows_of(r, op->in[0]), n = r->program->value[op->in[0]].columns;
    const double *x = r->value[op->in[0]];
    double *stats = r->value[op->out[0]];
    for (int64_t c = 0; c < n; c++) {
        double sum = 0, squares = 0;
        for (int64_t i = c; i < rows * n; i += n)
            sum += x[i];
        const double mean = sum / (double)rows;
        for (int64_t i = c; i < rows * n; i += n)
            squares += (x[i] - mean) * (x[i] - mean);
        stats[c] = mean;
        stats[n + c] = 1 / sqrt(squares / (double)rows + op->batch_norm.eps);
    }
}

static void batch_norm(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t rows = rows_of(r, op->in[0]), n = r->program->value[op->in[0]].columns;
    const double *x = r->value[op->in[0]], *stats = r->value[op->in[1]], *weight = r->param[op->batch_norm.weight];
    for (int64_t c = 0; c < n; c++) {
        double sum = 0, along = 0;
        for (int64_t i = c; i < rows * n && !backward; i += n)
            r->value[op->out[0]][i] = (x[i] - stats[c]) * stats[n + c] * weight[c] + r->param[op->batch_norm.bias][c];
        for (int64_t i = c; i < rows * n && backward; i += n) {
            sum += r->d_value[op->out[0]][i];
            along += r->d_value[op->out[0]][i] * (x[i] - stats[c]) * stats[n + c];
        }
        r->d_param[op->batch_norm.bias][c] += sum;
        r->d_param[op->batch_norm.weight][c] += along;
        for (int64_t i = c; i < rows * n && backward; i += n) {
            const double h = (x[i] - stats[c]) * stats[n + c], d = r->d_value[op->out[0]][i];
            r->d_value[op->in[0]][i] += weight[c] * stats[n + c] * (d - (sum + h * along) / (double)rows);
        }
    }
}

/* ---- windows ---- */

static void window(program_reference *r, const dsc_op *op, int64_t picture, int64_t o, int64_t c, bool backward)
{
    const dsc_op_pool *of = &op->pool;
    const int64_t n = r->program->value[op->in[0]].columns, outputs = of->out_height * of->out_width;
    const int64_t at = (picture * outputs + o) * n + c;
    int64_t top, bottom, left, right, best = -1;
    double sum = 0;
    dsc_pool_window(of, o / of->out_width, of->height, of->out_height, &top, &bottom);
    dsc_pool_window(of, o % of->out_width, of->width, of->out_width, &left, &right);
    const double count = (double)dsc_pool_count(of, bottom - top, right - left);
    for (int64_t p = 0; p < (bottom - top) * (right - left); p++) {
        const int64_t pixel = (top + p / (right - left)) * of->width + left + p % (right - left);
        const int64_t i = (picture * of->height * of->width + pixel) * n + c;
        best = best < 0 || r->value[op->in[0]][i] > r->value[op->in[0]][best] ? i : best;
        sum += r->value[op->in[0]][i];
        if (backward && of->kind != DSC_POOL_MAX)
            r->d_value[op->in[0]][i] += r->d_value[op->out[0]][at] / count;
    }
    if (!backward)
        r->value[op->out[0]][at] = of->kind == DSC_POOL_MAX ? r->value[op->in[0]][best] : sum / count;
    if (backward && of->kind == DSC_POOL_MAX)
        r->d_value[op->in[0]][best] += r->d_value[op->out[0]][at];
}

static void pool(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t pictures = rows_of(r, op->in[0]) / (op->pool.height * op->pool.width);
    for (int64_t b = 0; b < pictures; b++)
        for (int64_t o = 0; o < op->pool.out_height * op->pool.out_width; o++)
            for (int64_t c = 0; c < r->program->value[op->in[0]].columns; c++)
                window(r, op, b, o, c, backward);
}

/* ---- whole samples ---- */

static void sample_scale(program_reference *r, const dsc_op *op, bool backward)
{
    const dsc_value *x = &r->program->value[op->in[0]];
    for (int64_t i = 0; i < program_reference_elements(r, op->in[0]); i++) {
        const int64_t s = i / x->columns / x->rows * x->columns + i % x->columns;
        const double d = r->d_value[op->out[0]][i];
        if (!backward) {
            r->value[op->out[0]][i] = r->value[op->in[0]][i] * r->value[op->in[1]][s];
            continue;
        }
        r->d_value[op->in[0]][i] += d * r->value[op->in[1]][s];
        r->d_value[op->in[1]][s] += d * r->value[op->in[0]][i];
    }
}

static void drop_path(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t each = program_reference_elements(r, op->in[0]) / r->batch;
    const uint64_t stream = dsc_rng_stream(DSC_RNG_DROPOUT, op->dropout.stream);
    for (int64_t i = 0; i < each * r->batch; i++) {
        const double p = op->dropout.probability;
        const bool kept = dsc_rng_u32(r->seed, stream, (uint64_t)(i / each)) >= (uint32_t)(p * 0x1p32);
        const double factor = !r->training ? 1 : kept ? 1 / (1 - p) : 0;
        if (backward)
            r->d_value[op->in[0]][i] += factor * r->d_value[op->out[0]][i];
        else
            r->value[op->out[0]][i] = factor * r->value[op->in[0]][i];
    }
}

bool program_reference_maps(program_reference *r, const dsc_op *op, bool backward)
{
    switch (op->kind) {
    case DSC_OP_BATCH_STATS:
        if (!backward)
            batch_stats(r, op);
        return true;
    case DSC_OP_BATCH_NORM:
        batch_norm(r, op, backward);
        return true;
    case DSC_OP_POOL:
        pool(r, op, backward);
        return true;
    case DSC_OP_SAMPLE_SCALE:
        sample_scale(r, op, backward);
        return true;
    case DSC_OP_DROPOUT:
        if (op->dropout.per_sample)
            drop_path(r, op, backward);
        return op->dropout.per_sample;
    default:
        return false;
    }
}
