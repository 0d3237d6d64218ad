/* program_reference.c - see program_reference.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "tests/support/program_reference_delta.h"
#include "tests/support/program_reference_lstm.h"
#include "tests/support/program_reference_maps.h"
#include "tests/support/program_reference_moe.h"

static int64_t rows_of(const program_reference *r, int16_t v)
{
    return r->program->value[v].rows * (r->program->value[v].per_sample ? r->batch : 1);
}

int64_t program_reference_elements(const program_reference *r, int16_t v)
{
    return rows_of(r, v) * r->program->value[v].columns;
}

static double *zeros(int64_t count)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    DSC_ASSERT(x != NULL);
    return x;
}

program_reference *program_reference_open(const dsc_program *program, int64_t batch, const int64_t *param_elements,
                                          int param_count)
{
    program_reference *r = calloc(1, sizeof *r);
    DSC_ASSERT(r != NULL);
    DSC_ASSERT(param_count <= PROGRAM_PARAMS_MAX);
    r->program = program;
    r->batch = batch;
    r->param_count = param_count;
    for (int i = 0; i < param_count; i++) {
        r->param_elements[i] = param_elements[i];
        r->param[i] = zeros(param_elements[i]);
        r->d_param[i] = zeros(param_elements[i]);
    }
    for (int16_t v = 0; v < program->value_count; v++) {
        r->value[v] = zeros(program_reference_elements(r, v));
        r->d_value[v] = zeros(program_reference_elements(r, v));
    }
    return r;
}

void program_reference_close(program_reference *r)
{
    for (int i = 0; i < r->param_count; i++) {
        free(r->param[i]);
        free(r->d_param[i]);
    }
    for (int16_t v = 0; v < r->program->value_count; v++) {
        free(r->value[v]);
        free(r->d_value[v]);
    }
    free(r);
}

/* ---- products ---- */

/* The weight's element of input i and output o. */
static int64_t weight_at(const dsc_linear *shape, int64_t i, int64_t o)
{
    return shape->out_in ? o * shape->in + i : i * shape->out + o;
}

static void linear_forward(program_reference *r, const dsc_op *op)
{
    const dsc_linear *shape = &op->linear.shape;
    const double *x = r->value[op->in[0]], *w = r->param[op->linear.weight];
    double *y = r->value[op->out[0]];
    for (int64_t row = 0; row < rows_of(r, op->in[0]); row++)
        for (int64_t o = 0; o < shape->out; o++) {
            double sum = op->linear.bias >= 0 ? r->param[op->linear.bias][o] : 0;
            for (int64_t i = 0; i < shape->in; i++)
                sum += x[row * shape->in + i] * w[weight_at(shape, i, o)];
            y[row * shape->out + o] = sum;
        }
}

static void linear_backward(program_reference *r, const dsc_op *op)
{
    const dsc_linear *shape = &op->linear.shape;
    const double *x = r->value[op->in[0]], *w = r->param[op->linear.weight], *dy = r->d_value[op->out[0]];
    double *dx = r->d_value[op->in[0]], *dw = r->d_param[op->linear.weight];
    for (int64_t row = 0; row < rows_of(r, op->in[0]); row++)
        for (int64_t o = 0; o < shape->out; o++) {
            const double d = dy[row * shape->out + o];
            if (op->linear.bias >= 0)
                r->d_param[op->linear.bias][o] += d;
            for (int64_t i = 0; i < shape->in; i++) {
                dx[row * shape->in + i] += d * w[weight_at(shape, i, o)];
                dw[weight_at(shape, i, o)] += d * x[row * shape->in + i];
            }
        }
}

/* ---- norms ---- */

static void norm_statistics(const dsc_op *op, const double *x, int64_t n, double *mean, double *rstd)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    *mean = op->norm.kind == DSC_NORM_LAYER ? sum / (double)n : 0;
    for (int64_t i = 0; i < n; i++)
        squares += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1 / sqrt(squares / (double)n + op->norm.eps);
}

/* The factor of channel i, and what is added to it. */
static double norm_weight(const program_reference *r, const dsc_op *op, int64_t i)
{
    return op->norm.weight < 0 ? 1 : r->param[op->norm.weight][i] + (op->norm.plus_one ? 1 : 0);
}

static double norm_bias(const program_reference *r, const dsc_op *op, int64_t i)
{
    return op->norm.kind == DSC_NORM_LAYER && op->norm.bias >= 0 ? r->param[op->norm.bias][i] : 0;
}

static void norm_forward(program_reference *r, const dsc_op *op)
{
    const int64_t n = r->program->value[op->in[0]].columns / op->norm.groups;
    for (int64_t row = 0; row < rows_of(r, op->in[0]) * op->norm.groups; row++) {
        const double *x = r->value[op->in[0]] + row * n;
        double mean, rstd, *y = r->value[op->out[0]] + row * n;
        norm_statistics(op, x, n, &mean, &rstd);
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * norm_weight(r, op, i) + norm_bias(r, op, i);
    }
}

static void norm_backward(program_reference *r, const dsc_op *op)
{
    const int64_t n = r->program->value[op->in[0]].columns / op->norm.groups;
    const bool layer = op->norm.kind == DSC_NORM_LAYER;
    for (int64_t row = 0; row < rows_of(r, op->in[0]) * op->norm.groups; row++) {
        const double *x = r->value[op->in[0]] + row * n, *dy = r->d_value[op->out[0]] + row * n;
        double mean, rstd, sum = 0, along = 0, *dx = r->d_value[op->in[0]] + row * n;
        norm_statistics(op, x, n, &mean, &rstd);
        for (int64_t i = 0; i < n; i++) {
            const double x_hat = (x[i] - mean) * rstd;
            if (op->norm.weight >= 0)
                r->d_param[op->norm.weight][i] += dy[i] * x_hat;
            if (layer && op->norm.bias >= 0)
                r->d_param[op->norm.bias][i] += dy[i];
            sum += dy[i] * norm_weight(r, op, i);
            along += dy[i] * norm_weight(r, op, i) * x_hat;
        }
        for (int64_t i = 0; i < n; i++)
            dx[i] += rstd * (dy[i] * norm_weight(r, op, i) - (layer ? sum / (double)n : 0) -
                             (x[i] - mean) * rstd * along / (double)n);
    }
}

/* ---- rotary positions and attention ---- */

/* to += from turned by its position, back for a gradient. */
static void rope(const program_reference *r, const dsc_op *op, const double *from, double *to, bool back)
{
    const dsc_op_rope *of = &op->rope;
    const int64_t columns = of->heads * of->head_size, pairs = of->rope->pairs;
    for (int64_t row = 0; row < rows_of(r, op->in[0]); row++)
        for (int64_t h = 0; h < of->heads; h++) {
            const double *x = from + row * columns + h * of->head_size + of->first;
            double *y = to + row * columns + h * of->head_size + of->first;
            for (int64_t i = -of->first; i < of->head_size - of->first; i++)
                y[i] += i < 0 || i >= 2 * pairs ? x[i] : 0;
            for (int64_t i = 0; i < pairs; i++) {
                const float angle = (float)(row % r->program->tokens) * of->rope->frequency[i];
                const double c = cos((double)angle) * (double)of->rope->scale;
                const double s = sin((double)angle) * (double)of->rope->scale * (back ? -1 : 1);
                const int64_t first = of->rope->neighbours ? 2 * i : i,
                              second = of->rope->neighbours ? 2 * i + 1 : i + pairs;
                y[first] += x[first] * c - x[second] * s;
                y[second] += x[second] * c + x[first] * s;
            }
        }
}

/* Heads up to a power of two have powers of one base, further ones the odd powers of its root. */
static double head_slope(const dsc_op_attention *of, int64_t h)
{
    const double whole = pow(2, floor(log2((double)of->heads)));
    if (of->alibi == 0)
        return 0;
    return h < (int64_t)whole ? pow(2, -of->alibi * (double)(h + 1) / whole)
                              : pow(2, -of->alibi / 2 * (2 * ((double)h - whole) + 1) / whole);
}

static double in_bf16(double x) { return (double)dsc_f32_from_bf16(dsc_bf16_from_f32((float)x)); }

static double bias_of(const dsc_op_attention *of, int64_t h, int64_t key, int64_t apart)
{
    if (of->alibi > 0 && of->alibi_of_key > 0)
        return of->alibi_of_key * in_bf16(in_bf16(head_slope(of, h)) * in_bf16((double)key));
    return -head_slope(of, h) * (double)apart;
}

/* One query: probabilities of the keys that it sees and then of the sink, and slopes of logits. */
static void probabilities(const program_reference *r, const dsc_op *op, int64_t row, int64_t h, double *p,
                          double *slope)
{
    const dsc_op_attention *of = &op->attention;
    const int64_t tokens = r->program->tokens, t = row % tokens, first = row - t, d = of->head_size;
    const double *q = r->value[op->in[0]] + (row * of->heads + h) * d;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < tokens; j++) {
        const double *k = r->value[op->in[1]] + ((first + j) * of->kv_heads + h / (of->heads / of->kv_heads)) * d;
        const int64_t apart = j < t ? t - j : j - t;
        const bool inside = of->window == 0 || (of->all ? apart <= of->window / 2 : apart < of->window);
        p[j] = 0;
        for (int64_t i = 0; i < d; i++)
            p[j] += q[i] * k[i] * of->scale;
        slope[j] = 1;
        if (of->softcap > 0) {
            const double c = tanh(p[j] / of->softcap);
            p[j] = of->softcap * c, slope[j] = 1 - c * c;
        }
        p[j] += bias_of(of, h, j, apart);
        p[j] = inside && (of->all || j <= t) ? p[j] : -INFINITY;
        most = fmax(most, p[j]);
    }
    sum = of->has_sinks ? exp(r->param[of->sinks][h] - most) : 0;
    p[tokens] = sum;
    for (int64_t j = 0; j < tokens; j++)
        sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j <= tokens; j++)
        p[j] /= sum;
}

static void attention(program_reference *r, const dsc_op *op, bool backward)
{
    const dsc_op_attention *of = &op->attention;
    const int64_t tokens = r->program->tokens, d = of->head_size;
    double *p = zeros(tokens + 1), *dp = zeros(tokens), *slope = zeros(tokens);
    for (int64_t row = 0; row < rows_of(r, op->in[0]); row++)
        for (int64_t h = 0; h < of->heads; h++) {
            const int64_t at = (row * of->heads + h) * d;
            const double *dy = r->d_value[op->out[0]] + at;
            double along = 0;
            probabilities(r, op, row, h, p, slope);
            for (int64_t j = 0; j < tokens; j++) {
                const int64_t key = ((row - row % tokens + j) * of->kv_heads + h / (of->heads / of->kv_heads)) * d;
                dp[j] = 0;
                for (int64_t i = 0; i < d && !backward; i++)
                    r->value[op->out[0]][at + i] += p[j] * r->value[op->in[2]][key + i];
                for (int64_t i = 0; i < d && backward; i++) {
                    dp[j] += dy[i] * r->value[op->in[2]][key + i];
                    r->d_value[op->in[2]][key + i] += p[j] * dy[i];
                }
                along += p[j] * dp[j];
            }
            if (backward && of->has_sinks)
                r->d_param[of->sinks][h] -= p[tokens] * along;
            for (int64_t j = 0; j < tokens && backward; j++) {
                const int64_t key = ((row - row % tokens + j) * of->kv_heads + h / (of->heads / of->kv_heads)) * d;
                for (int64_t i = 0; i < d; i++) {
                    const double ds = p[j] * (dp[j] - along) * slope[j] * of->scale;
                    r->d_value[op->in[0]][at + i] += ds * r->value[op->in[1]][key + i];
                    r->d_value[op->in[1]][key + i] += ds * r->value[op->in[0]][at + i];
                }
            }
        }
    free(p);
    free(dp);
    free(slope);
}

/* ---- element by element ---- */

static double activate(dsc_activation kind, double x, double *slope)
{
    const double pi = 3.14159265358979323846;
    const double s = 1 / (1 + exp(-x)), positive = x > 0 ? x : 0;
    switch (kind) {
    case DSC_RELU:
        *slope = x > 0;
        return positive;
    case DSC_HALF_SQUARE:
        *slope = x;
        return x * x / 2;
    case DSC_RELU2:
        *slope = 2 * positive;
        return positive * positive;
    case DSC_SILU:
        *slope = s + x * s * (1 - s);
        return x * s;
    case DSC_SIGMOID:
        *slope = s * (1 - s);
        return s;
    case DSC_RELU6:
        *slope = x > 0 && x < 6;
        return fmin(positive, 6);
    case DSC_HARD_SIGMOID:
        *slope = fabs(x) < 3 ? 1.0 / 6 : 0;
        return fmin(fmax(x + 3, 0), 6) / 6;
    case DSC_HARD_SWISH:
        *slope = x <= -3 ? 0 : x < 3 ? x / 3 + 0.5 : 1;
        return x * fmin(fmax(x + 3, 0), 6) / 6;
    default:
        break;
    }
    if (kind == DSC_GELU_ERF) {
        const double half = 0.5 * (1 + erf(x / sqrt(2)));
        *slope = half + x * exp(-x * x / 2) / sqrt(2 * pi);
        return x * half;
    }
    const double c = sqrt(2 / pi), t = tanh(c * (x + 0.044715 * x * x * x));
    *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + t);
}

/* The factor of element i of a dropout. */
static double dropout_factor(const program_reference *r, const dsc_op *op, int64_t i)
{
    const double p = op->dropout.probability;
    if (!r->training)
        return 1;
    const uint32_t word = dsc_rng_u32(r->seed, dsc_rng_stream(DSC_RNG_DROPOUT, op->dropout.stream), (uint64_t)i);
    return word >= (uint32_t)(p * 0x1p32) ? 1 / (1 - p) : 0;
}

static void columns(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t width = r->program->value[op->in[0]].columns;
    for (int64_t i = 0; i < program_reference_elements(r, op->in[0]); i++) {
        const double factor = r->param[op->columns][i % width], d = r->d_value[op->out[0]][i];
        if (!backward) {
            r->value[op->out[0]][i] = r->value[op->in[0]][i] * factor;
            continue;
        }
        r->d_value[op->in[0]][i] += d * factor;
        r->d_param[op->columns][i % width] += d * r->value[op->in[0]][i];
    }
}

static void element(program_reference *r, const dsc_op *op, int64_t i, bool backward)
{
    double *const x = &r->value[op->in[0]][i], *const y = &r->value[op->out[0]][i];
    double *const dx = &r->d_value[op->in[0]][i];
    double factor = 1, slope;
    if (op->kind == DSC_OP_SCALE)
        factor = op->factor;
    if (op->kind == DSC_OP_DROPOUT)
        factor = dropout_factor(r, op, i);
    if (op->kind == DSC_OP_GATED || op->kind == DSC_OP_ADD) {
        const double z = r->value[op->in[1]][i], d = r->d_value[op->out[0]][i];
        const bool gated = op->kind == DSC_OP_GATED;
        const double value = gated ? activate(op->activation, *x, &slope) : 0;
        if (!backward) {
            *y = gated ? value * z : *x + z;
            return;
        }
        const double slope_z = gated ? value : 1;
        *dx += d * (gated ? z * slope : 1);
        r->d_value[op->in[1]][i] += d * slope_z;
        return;
    }
    if (op->kind == DSC_OP_ACTIVATION || op->kind == DSC_OP_TANH) {
        double value = tanh(*x);
        slope = 1 - value * value;
        if (op->kind == DSC_OP_ACTIVATION)
            value = activate(op->activation, *x, &slope);
        if (backward)
            *dx += r->d_value[op->out[0]][i] * slope;
        else
            *y = value;
        return;
    }
    if (backward)
        *dx += factor * r->d_value[op->out[0]][i];
    else
        *y = factor * *x;
}

static void slice(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t in = r->program->value[op->in[0]].columns, out = r->program->value[op->out[0]].columns;
    for (int64_t row = 0; row < rows_of(r, op->in[0]); row++)
        for (int64_t i = 0; i < out; i++) {
            const int64_t head = i / op->slice.width;
            const int64_t from = row * in + op->slice.column + head * op->slice.apart + i % op->slice.width;
            if (backward)
                r->d_value[op->in[0]][from] += r->d_value[op->out[0]][row * out + i];
            else
                r->value[op->out[0]][row * out + i] = r->value[op->in[0]][from];
        }
}

/* Column c of head h of y is that of `own`, of `shared`, or none. */
static void heads(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t count = op->heads.heads, width = op->heads.width;
    const int64_t own = r->program->value[op->in[0]].columns / count;
    const int64_t shared = op->in[1] != DSC_PROGRAM_NONE ? r->program->value[op->in[1]].columns : 0;
    for (int64_t i = 0; i < program_reference_elements(r, op->out[0]); i++) {
        const int64_t c = i % width, row = i / width / count;
        const int16_t of = c < own ? op->in[0] : op->in[1];
        const int64_t from = c < own ? i / width * own + c : row * shared + c - own;
        if (c >= own + shared)
            continue;
        if (backward)
            r->d_value[of][from] += r->d_value[op->out[0]][i];
        else
            r->value[op->out[0]][i] = r->value[of][from];
    }
}

/* ---- rows of samples ---- */

/* d to += d from, or to += from. */
static void move(program_reference *r, const dsc_op *op, int64_t to, int64_t from, double factor, bool backward)
{
    if (backward)
        r->d_value[op->in[0]][from] += factor * r->d_value[op->out[0]][to];
    else
        r->value[op->out[0]][to] += factor * r->value[op->in[0]][from];
}

/* The rows of a parameter at the beginning of each sample: before those of x, or added to them. */
static void table(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t columns = r->program->value[op->out[0]].columns, param = op->table.rows * columns;
    const int64_t in = r->program->value[op->in[0]].rows * columns;
    const int64_t out = r->program->value[op->out[0]].rows * columns;
    for (int64_t b = 0; b < r->batch; b++) {
        for (int64_t i = 0; i < in; i++)
            move(r, op, (b + 1) * out - in + i, b * in + i, 1, backward);
        for (int64_t i = 0; i < param && !backward; i++)
            r->value[op->out[0]][b * out + i] += r->param[op->table.param][i];
        for (int64_t i = 0; i < param && backward; i++)
            r->d_param[op->table.param][i] += r->d_value[op->out[0]][b * out + i];
    }
}

static void pick(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t columns = r->program->value[op->out[0]].columns, count = op->pick.count;
    const int64_t in = r->program->value[op->in[0]].rows, out = r->program->value[op->out[0]].rows;
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t t = 0; t < count; t++)
            for (int64_t c = 0; c < columns; c++)
                move(r, op, (b * out + (op->pick.mean ? 0 : t)) * columns + c,
                     (b * in + op->pick.first + t) * columns + c, op->pick.mean ? 1 / (double)count : 1, backward);
}

/* Rows that a batch names, or the mean of those up to one. */
static void gather(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t columns = r->program->value[op->out[0]].columns, count = op->gather.count;
    const int64_t in = r->program->value[op->in[0]].rows;
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t k = 0; k < count; k++) {
            const int64_t place = program_reference_place(b, k, count, in);
            for (int64_t t = op->gather.mean ? 0 : place; t <= place; t++)
                for (int64_t c = 0; c < columns; c++)
                    move(r, op, (b * count + k) * columns + c, (b * in + t) * columns + c,
                         op->gather.mean ? 1 / (double)(place + 1) : 1, backward);
        }
}

/* A row of a parameter is added to each row: that of its place, or the first one. */
static void embed(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t columns = r->program->value[op->out[0]].columns;
    for (int64_t i = 0; i < program_reference_elements(r, op->out[0]); i++) {
        const int64_t place = op->embed.same ? 0 : i / columns % r->program->tokens;
        const int64_t at = (op->embed.first + place) * columns + i % columns;
        if (!backward)
            r->value[op->out[0]][i] += r->param[op->embed.position][at];
        else
            r->d_param[op->embed.position][at] += r->d_value[op->out[0]][i];
        move(r, op, i, i, 1, backward);
    }
}

static void regroup(program_reference *r, const dsc_op *op, bool backward)
{
    const int64_t size = op->regroup.head_size, queries = op->regroup.queries, groups = op->regroup.groups;
    const int64_t columns = r->program->value[op->in[0]].columns;
    for (int64_t i = 0; i < program_reference_elements(r, op->in[0]); i++) {
        const int64_t head = i % columns / size, group = head / (queries + 2), at = head % (queries + 2);
        const int64_t to = at < queries ? group * queries + at : groups * at + group; /* keys, then values */
        const int64_t y = i - i % columns + to * size + i % size;
        if (backward)
            r->d_value[op->in[0]][i] += r->d_value[op->out[0]][y];
        else
            r->value[op->out[0]][y] = r->value[op->in[0]][i];
    }
}

/* ---- pictures ---- */

static int64_t axis_at(const dsc_conv2d_shape *s, int axis, int64_t out, int64_t tap)
{
    return out * s->stride[axis] + tap * s->dilation[axis] - s->padding[axis];
}

/* One output pixel of picture b of the batch: each tap of each channel of its group. */
static void conv2d_pixel(program_reference *r, const dsc_op *op, int64_t b, int64_t i, int64_t j, int64_t o,
                         bool backward)
{
    const dsc_conv2d_shape *s = &op->conv2d.shape;
    const dsc_value *y = &r->program->value[op->out[0]];
    const int64_t each = s->in / s->groups, first = o / (s->out / s->groups) * each;
    const int64_t to = ((b * y->height + i) * y->width + j) * s->out + o;
    const double *x = r->value[op->in[0]], *w = r->param[op->conv2d.weight], d = r->d_value[op->out[0]][to];
    double sum = op->conv2d.bias >= 0 ? r->param[op->conv2d.bias][o] : 0;
    for (int64_t n = 0; n < each * s->kernel[0] * s->kernel[1]; n++) {
        const int64_t c = n / (s->kernel[0] * s->kernel[1]), v = n % s->kernel[1];
        const int64_t h = axis_at(s, 0, i, n / s->kernel[1] % s->kernel[0]), k = axis_at(s, 1, j, v);
        const int64_t from = ((b * s->height + h) * s->width + k) * s->in + first + c;
        if (h < 0 || h >= s->height || k < 0 || k >= s->width)
            continue;
        sum += x[from] * w[o * each * s->kernel[0] * s->kernel[1] + n];
        if (backward) {
            r->d_value[op->in[0]][from] += d * w[o * each * s->kernel[0] * s->kernel[1] + n];
            r->d_param[op->conv2d.weight][o * each * s->kernel[0] * s->kernel[1] + n] += d * x[from];
        }
    }
    if (backward && op->conv2d.bias >= 0)
        r->d_param[op->conv2d.bias][o] += d;
    if (!backward)
        r->value[op->out[0]][to] = sum;
}

static void conv2d(program_reference *r, const dsc_op *op, bool backward)
{
    const dsc_value *y = &r->program->value[op->out[0]];
    const int64_t pixels = y->height * y->width;
    for (int64_t i = 0; i < r->batch * y->rows; i++)
        for (int64_t o = 0; o < y->columns; o++)
            conv2d_pixel(r, op, i / pixels, i % pixels / y->width, i % y->width, o, backward);
}

/* ---- all ---- */

static void run(program_reference *r, const dsc_op *op, bool backward)
{
    if (program_reference_moe(r, op, backward) || program_reference_delta(r, op, backward) ||
        program_reference_maps(r, op, backward) || program_reference_lstm(r, op, backward))
        return;
    switch (op->kind) {
    case DSC_OP_LINEAR:
        backward ? linear_backward(r, op) : linear_forward(r, op);
        break;
    case DSC_OP_NORM:
        backward ? norm_backward(r, op) : norm_forward(r, op);
        break;
    case DSC_OP_ROPE_TABLE:
        break;
    case DSC_OP_ROPE:
        if (backward)
            rope(r, op, r->d_value[op->out[0]], r->d_value[op->in[0]], true);
        else
            rope(r, op, r->value[op->in[0]], r->value[op->out[0]], false);
        break;
    case DSC_OP_ATTENTION:
        attention(r, op, backward);
        break;
    case DSC_OP_COLUMNS:
        columns(r, op, backward);
        break;
    case DSC_OP_SLICE:
        slice(r, op, backward);
        break;
    case DSC_OP_HEADS:
        heads(r, op, backward);
        break;
    case DSC_OP_PREPEND:
    case DSC_OP_TABLE:
        table(r, op, backward);
        break;
    case DSC_OP_PICK:
        pick(r, op, backward);
        break;
    case DSC_OP_GATHER:
        gather(r, op, backward);
        break;
    case DSC_OP_EMBED:
        embed(r, op, backward);
        break;
    case DSC_OP_CONV2D:
        conv2d(r, op, backward);
        break;
    case DSC_OP_REGROUP:
        regroup(r, op, backward);
        break;
    default:
        for (int64_t i = 0; i < program_reference_elements(r, op->out[0]); i++)
            element(r, op, i, backward);
    }
}

void program_reference_forward(program_reference *r)
{
    for (int16_t i = 0; i < r->program->op_count; i++) {
        const int16_t out = r->program->op[i].out[0];
        memset(r->value[out], 0, (size_t)program_reference_elements(r, out) * sizeof(double));
        run(r, &r->program->op[i], false);
    }
}

void program_reference_backward(program_reference *r)
{
    for (int i = 0; i < r->param_count; i++)
        memset(r->d_param[i], 0, (size_t)r->param_elements[i] * sizeof(double));
    for (int16_t v = 0; v < r->program->value_count; v++)
        if (v != r->program->output)
            memset(r->d_value[v], 0, (size_t)program_reference_elements(r, v) * sizeof(double));
    for (int16_t i = (int16_t)(r->program->op_count - 1); i >= 0; i--)
        run(r, &r->program->op[i], true);
}
