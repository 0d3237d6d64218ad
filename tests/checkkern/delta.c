/* delta.c - linear attention: columns copied bit by bit, the convolution against double within its roundings, and the
 * gated delta rule against double token by token. u = 2^-24. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>
#include <stdlib.h>

#include "tests/support/delta_reference.h"

static const double u = 0x1p-24;

/* ---- columns ----------------------------------------------------------------------------------------------------- */

static void verify_columns(const void *args)
{
    const dsc_copy_columns_args *a = args;
    ck_same(a->out);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < a->cols; c++)
            ck_near(a->out, dsc_columns_at(&a->out_columns, r, c), ck_get(a->in, dsc_columns_at(&a->in_columns, r, c)),
                    0);
}

static void check_columns(int64_t rows, int64_t heads, int64_t width, int64_t apart, bool back, dsc_dtype dtype)
{
    const int64_t wide = heads * apart, cols = heads * width;
    if (!ck_case("copy_columns %s %lld rows of %lld x %lld of %lld%s", ck_dtype_text(dtype), (long long)rows,
                 (long long)heads, (long long)width, (long long)apart, back ? " back" : ""))
        return;
    const dsc_columns lying = { wide, width, apart }, dense = { cols, cols, cols };
    void *in = ck_buf(CK_IN, dtype, rows * (back ? cols : wide), "in");
    void *out = ck_buf(back ? CK_INOUT : CK_OUT, dtype, rows * (back ? wide : cols), "out");
    ck_normal(in, 0, 1);
    if (back)
        ck_normal(out, 0, 1);
    const dsc_copy_columns_args a = { .out = out,
                                      .in = in,
                                      .rows = rows,
                                      .cols = cols,
                                      .out_columns = back ? lying : dense,
                                      .in_columns = back ? dense : lying,
                                      .dtype = dtype };
    ck_kernel(DSC_KERNEL_COPY_COLUMNS, &a, sizeof a, verify_columns);
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct conv_case {
    int64_t batch, tokens, channels;
    int32_t width;
    bool documents, apart;
} conv_case;

static int64_t before(const int32_t *positions, int64_t row, int64_t tokens, int64_t width)
{
    int64_t place = row % tokens;
    if (positions != NULL && positions[row] < place)
        place = positions[row];
    return place < width - 1 ? place : width - 1;
}

static double conv_input(const dsc_conv_fwd_args *a, int64_t row, int64_t c)
{
    if (row >= 0)
        return ck_get(a->in, dsc_columns_at(&a->in_columns, row, c));
    return a->resume ? ck_start(a->tail, (a->width - 1 + row) * a->channels + c) : 0;
}

static void verify_conv_fwd(const void *args)
{
    const dsc_conv_fwd_args *a = args;
    ck_same_on_cpu(a->out);
    for (int64_t t = 0; t < a->rows; t++)
        for (int64_t c = 0; c < a->channels; c++) {
            const int64_t last = a->resume ? a->width - 1 : before(a->positions, t, a->tokens, a->width);
            double sum = 0, size = 0;
            for (int64_t j = 0; j <= last; j++) {
                const double term = conv_input(a, t - j, c) * ck_get(a->weight, c * a->width + a->width - 1 - j);
                sum += term;
                size += fabs(term);
            }
            ck_near(a->out, t * a->out_stride + c, sum, (a->width + 2) * u * size + ck_rounding(a->dtype, sum));
        }
    for (int64_t i = 0; a->tail != NULL && i < a->width - 1; i++)
        for (int64_t c = 0; c < a->channels; c++)
            ck_near(a->tail, i * a->channels + c, conv_input(a, a->rows - (a->width - 1) + i, c), 0);
}

/* Documents of 1 to 9 tokens; a sample may begin within one. */
static int32_t *make_positions(int64_t batch, int64_t tokens)
{
    int32_t *positions = ck_buf(CK_IN, DSC_I32, batch * tokens, "positions");
    for (int64_t b = 0; b < batch; b++) {
        int32_t place = (int32_t)(b % 2) * 3;
        for (int64_t t = 0; t < tokens; t++) {
            positions[b * tokens + t] = place;
            place = ck_random() % 9 == 0 ? 0 : place + 1;
        }
    }
    return positions;
}

static dsc_columns columns_of(const conv_case *c)
{
    return c->apart ? (dsc_columns) { 3 * c->channels, c->channels / 2, c->channels + c->channels / 2 }
                    : (dsc_columns) { c->channels, c->channels, c->channels };
}

static void check_conv_fwd(const conv_case *c, dsc_dtype dtype, int tail)
{
    if (!ck_case("conv_fwd %s %lldx%lldx%lld width %d%s%s%s", ck_dtype_text(dtype), (long long)c->batch,
                 (long long)c->tokens, (long long)c->channels, (int)c->width, c->documents ? " documents" : "",
                 c->apart ? " apart" : "",
                 tail == 0   ? ""
                 : tail == 1 ? " first"
                             : " resumed"))
        return;
    const int64_t rows = c->batch * c->tokens, kept = (c->width - 1) * c->channels;
    dsc_conv_fwd_args a = { .rows = rows,
                            .tokens = c->tokens,
                            .channels = c->channels,
                            .out_stride = c->channels + 3,
                            .in_columns = columns_of(c),
                            .width = c->width,
                            .resume = tail == 2,
                            .dtype = dtype };
    void *out = ck_buf(CK_OUT, dtype, rows * a.out_stride, "out");
    void *in = ck_buf(CK_IN, dtype, rows * a.in_columns.stride, "in");
    void *weight = ck_buf(CK_IN, dtype, c->channels * c->width, "weight");
    a.out = out, a.in = in, a.weight = weight;
    ck_gaps(out, rows, c->channels, a.out_stride);
    ck_normal(in, 0, 1);
    ck_normal(weight, 0, 0.5);
    if (tail > 0 && kept > 0) {
        a.tail = ck_buf(CK_INOUT, dtype, kept, "tail");
        ck_normal(a.tail, 0, 1);
    }
    a.resume = a.resume && a.tail != NULL;
    if (c->documents)
        a.positions = make_positions(c->batch, c->tokens);
    ck_kernel(DSC_KERNEL_CONV_FWD, &a, sizeof a, verify_conv_fwd);
}

static void verify_conv_bwd(const void *args)
{
    const dsc_conv_bwd_args *a = args;
    ck_same_on_cpu(a->d_in);
    for (int64_t t = 0; t < a->rows; t++)
        for (int64_t c = 0; c < a->channels; c++) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < a->width && t % a->tokens + j < a->tokens; j++) {
                if (before(a->positions, t + j, a->tokens, a->width) < j)
                    continue;
                const double term =
                    ck_get(a->d_out, (t + j) * a->out_stride + c) * ck_get(a->weight, c * a->width + a->width - 1 - j);
                sum += term;
                size += fabs(term);
            }
            ck_near(a->d_in, dsc_columns_at(&a->d_in_columns, t, c), sum,
                    (a->width + 2) * u * size + ck_rounding(a->dtype, sum));
        }
    for (int64_t c = 0; c < a->channels && a->d_weight != NULL; c++)
        for (int64_t j = 0; j < a->width; j++) {
            double sum = 0, size = 0;
            for (int64_t t = 0; t < a->rows; t++) {
                if (before(a->positions, t, a->tokens, a->width) < j)
                    continue;
                const double term =
                    ck_get(a->d_out, t * a->out_stride + c) * ck_get(a->in, dsc_columns_at(&a->in_columns, t - j, c));
                sum += term;
                size += fabs(term);
            }
            ck_near(a->d_weight, c * a->width + a->width - 1 - j, sum, (double)(a->rows + 2) * u * size);
        }
}

static void check_conv_bwd(const conv_case *c, dsc_dtype dtype, bool frozen)
{
    if (!ck_case("conv_bwd %s %lldx%lldx%lld width %d%s%s%s", ck_dtype_text(dtype), (long long)c->batch,
                 (long long)c->tokens, (long long)c->channels, (int)c->width, c->documents ? " documents" : "",
                 c->apart ? " apart" : "", frozen ? " frozen" : ""))
        return;
    const int64_t rows = c->batch * c->tokens;
    dsc_conv_bwd_args a = { .rows = rows,
                            .tokens = c->tokens,
                            .channels = c->channels,
                            .out_stride = c->channels + 1,
                            .d_in_columns = columns_of(c),
                            .in_columns = columns_of(c),
                            .width = c->width,
                            .dtype = dtype };
    void *d_in = ck_buf(CK_INOUT, dtype, rows * a.in_columns.stride, "d_in");
    void *d_out = ck_buf(CK_IN, dtype, rows * a.out_stride, "d_out");
    void *in = ck_buf(CK_IN, dtype, rows * a.in_columns.stride, "in");
    void *weight = ck_buf(CK_IN, dtype, c->channels * c->width, "weight");
    a.d_in = d_in, a.d_out = d_out, a.in = in, a.weight = weight;
    ck_normal(d_in, 0, 1);
    ck_normal(d_out, 0, 1);
    ck_normal(in, 0, 1);
    ck_normal(weight, 0, 0.5);
    a.d_weight = frozen ? NULL : ck_buf(CK_OUT, DSC_F32, c->channels * c->width, "d_weight");
    if (c->documents)
        a.positions = make_positions(c->batch, c->tokens);
    ck_kernel(DSC_KERNEL_CONV_BWD, &a, sizeof a, verify_conv_bwd);
}

/* ---- gated delta rule -------------------------------------------------------------------------------------------- */

static double *doubles(const void *buf, int64_t count, bool start)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    DSC_ASSERT(x != NULL);
    for (int64_t i = 0; buf != NULL && i < count; i++)
        x[i] = start ? ck_start(buf, i) : ck_get(buf, i);
    return x;
}

/* Within `share` of the root mean square, and the dtype's rounding. */
static void near_all(const void *buf, const double *expected, int64_t count, dsc_dtype dtype, double share)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += expected[i] * expected[i];
    for (int64_t i = 0; i < count; i++)
        ck_near(buf, i, expected[i],
                share * (sqrt(squares / (double)count) + fabs(expected[i])) + ck_rounding(dtype, expected[i]));
}

static int64_t columns_of_qkv(const dsc_delta_shape *of)
{
    return 2 * (int64_t)of->key_heads * of->key_size + (int64_t)of->value_heads * of->value_size;
}

static void verify_delta_fwd(const void *args)
{
    const dsc_delta_fwd_args *a = args;
    const dsc_delta_shape *of = &a->shape;
    const int64_t rows = (int64_t)of->batch * of->tokens, outs = rows * of->value_heads * of->value_size;
    const int64_t states = (int64_t)of->batch * of->value_heads * of->key_size * of->value_size;
    double *own[] = { doubles(a->qkv, rows * columns_of_qkv(of), false),
                      doubles(a->b, rows * of->value_heads, false),
                      doubles(a->a, rows * of->value_heads, false),
                      doubles(a->a_log, of->value_heads, false),
                      doubles(a->dt_bias, of->value_heads, false),
                      doubles(NULL, outs, false),
                      doubles(a->state, states, true),
                      doubles(NULL, states, false) };
    const delta_reference r = { .shape = *of,
                                .positions = a->positions,
                                .qkv = own[0],
                                .b = own[1],
                                .a = own[2],
                                .a_log = own[3],
                                .dt_bias = own[4],
                                .out = own[5],
                                .first = a->resume ? own[6] : NULL,
                                .last = own[7] };
    delta_reference_run(&r);
    ck_same_on_cpu(a->out);
    ck_same_on_cpu(a->states);
    near_all(a->out, r.out, outs, a->dtype, 4e-6);
    if (a->state != NULL)
        near_all(a->state, r.last, states, DSC_F32, 4e-6);
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        free(own[i]);
}

typedef struct delta_buffers {
    void *qkv, *b, *a, *a_log, *dt_bias;
    int32_t *positions;
} delta_buffers;

static delta_buffers take(const dsc_delta_shape *of, dsc_dtype dtype, bool documents)
{
    const int64_t rows = (int64_t)of->batch * of->tokens;
    delta_buffers t = { .qkv = ck_buf(CK_IN, dtype, rows * columns_of_qkv(of), "qkv"),
                        .b = ck_buf(CK_IN, dtype, rows * of->value_heads, "b"),
                        .a = ck_buf(CK_IN, dtype, rows * of->value_heads, "a"),
                        .a_log = ck_buf(CK_IN, dtype, of->value_heads, "a_log"),
                        .dt_bias = ck_buf(CK_IN, dtype, of->value_heads, "dt_bias") };
    ck_normal(t.qkv, 0, 1);
    ck_normal(t.b, 0, 1);
    ck_normal(t.a, -1, 1);
    ck_normal(t.a_log, -1, 1);
    ck_normal(t.dt_bias, 0, 1);
    t.positions = documents ? make_positions(of->batch, of->tokens) : NULL;
    return t;
}

static bool delta_case(const char *kernel, const dsc_delta_shape *of, dsc_dtype dtype, const char *more)
{
    return ck_case("%s %s %dx%d heads %d of %d, %d of %d%s", kernel, ck_dtype_text(dtype), (int)of->batch,
                   (int)of->tokens, (int)of->key_heads, (int)of->key_size, (int)of->value_heads, (int)of->value_size,
                   more);
}

static void check_delta_fwd(const dsc_delta_shape *of, dsc_dtype dtype, bool documents, int state)
{
    static const char *const text[] = { "", " first", " resumed" };
    if (!delta_case("delta_fwd", of, dtype, documents ? " documents" : text[state]))
        return;
    const int64_t rows = (int64_t)of->batch * of->tokens;
    const int64_t states = (int64_t)of->batch * of->value_heads * of->key_size * of->value_size;
    const delta_buffers t = take(of, dtype, documents);
    dsc_delta_fwd_args a = { .out = ck_buf(CK_OUT, dtype, rows * of->value_heads * of->value_size, "out"),
                             .states = ck_buf(CK_OUT, DSC_F32, states * dsc_delta_chunks(of->tokens), "states"),
                             .qkv = t.qkv,
                             .b = t.b,
                             .a = t.a,
                             .a_log = t.a_log,
                             .dt_bias = t.dt_bias,
                             .positions = t.positions,
                             .resume = state == 2,
                             .scratch = ck_buf(CK_SCRATCH, DSC_F32, dsc_delta_fwd_scratch_bytes(of) / 4, "scratch"),
                             .shape = *of,
                             .dtype = dtype };
    if (state > 0) {
        a.state = ck_buf(CK_INOUT, DSC_F32, states, "state");
        ck_normal(a.state, 0, 1);
    }
    ck_kernel(DSC_KERNEL_DELTA_FWD, &a, sizeof a, verify_delta_fwd);
}

static void verify_delta_bwd(const void *args)
{
    const dsc_delta_bwd_args *a = args;
    const dsc_delta_shape *of = &a->shape;
    const int64_t rows = (int64_t)of->batch * of->tokens, outs = rows * of->value_heads * of->value_size;
    const int64_t gates = rows * of->value_heads, all = rows * columns_of_qkv(of), heads = of->value_heads;
    double *own[] = { doubles(a->qkv, all, false),       doubles(a->b, gates, false),
                      doubles(a->a, gates, false),       doubles(a->a_log, heads, false),
                      doubles(a->dt_bias, heads, false), doubles(a->d_out, outs, false),
                      doubles(NULL, all, false),         doubles(NULL, gates, false),
                      doubles(NULL, gates, false),       doubles(NULL, heads, false),
                      doubles(NULL, heads, false) };
    const delta_reference r = { .shape = *of,
                                .positions = a->positions,
                                .qkv = own[0],
                                .b = own[1],
                                .a = own[2],
                                .a_log = own[3],
                                .dt_bias = own[4],
                                .d_out = own[5],
                                .d_qkv = own[6],
                                .d_b = own[7],
                                .d_a = own[8],
                                .d_a_log = own[9],
                                .d_dt_bias = own[10] };
    delta_reference_run(&r);
    ck_same_on_cpu(a->d_qkv);
    near_all(a->d_qkv, r.d_qkv, all, a->dtype, 3e-5);
    near_all(a->d_b, r.d_b, gates, a->dtype, 3e-5);
    near_all(a->d_a, r.d_a, gates, a->dtype, 3e-5);
    if (a->d_a_log != NULL)
        near_all(a->d_a_log, r.d_a_log, heads, DSC_F32, 1e-4);
    if (a->d_dt_bias != NULL)
        near_all(a->d_dt_bias, r.d_dt_bias, heads, DSC_F32, 1e-4);
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        free(own[i]);
}

/* The states are those of a forward on the host, as a float each. */
static void set_states(const dsc_delta_bwd_args *a, float *states)
{
    const dsc_delta_shape *of = &a->shape;
    const int64_t rows = (int64_t)of->batch * of->tokens, chunks = dsc_delta_chunks(of->tokens),
                  heads = of->value_heads;
    const int64_t n = (int64_t)of->key_size * of->value_size;
    double *own[] = { doubles(a->qkv, rows * columns_of_qkv(of), false),
                      doubles(a->b, rows * heads, false),
                      doubles(a->a, rows * heads, false),
                      doubles(a->a_log, heads, false),
                      doubles(a->dt_bias, heads, false),
                      doubles(NULL, n, false),
                      doubles(NULL, 2 * of->value_size, false) };
    const delta_reference r = { .shape = *of,
                                .positions = a->positions,
                                .qkv = own[0],
                                .b = own[1],
                                .a = own[2],
                                .a_log = own[3],
                                .dt_bias = own[4] };
    for (int64_t unit = 0; unit < of->batch * heads; unit++) {
        memset(own[5], 0, (size_t)n * sizeof(double));
        for (int64_t t = 0; t < of->tokens; t++) {
            const delta_token at = delta_reference_token(&r, unit / heads, unit % heads, t);
            const int64_t to = ((unit / heads * chunks + t / DSC_DELTA_CHUNK) * heads + unit % heads) * n;
            for (int64_t i = 0; i < n && t % DSC_DELTA_CHUNK == 0; i++)
                ck_set(states, to + i, own[5][i]);
            delta_reference_step(&r, &at, own[5], own[6]);
        }
    }
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        free(own[i]);
}

static void check_delta_bwd(const dsc_delta_shape *of, dsc_dtype dtype, bool documents, bool frozen)
{
    if (!delta_case("delta_bwd", of, dtype, documents ? " documents" : frozen ? " frozen" : ""))
        return;
    const int64_t rows = (int64_t)of->batch * of->tokens, gates = rows * of->value_heads;
    const int64_t states = (int64_t)of->batch * of->value_heads * of->key_size * of->value_size;
    const delta_buffers t = take(of, dtype, documents);
    float *in_front = ck_buf(CK_IN, DSC_F32, states * dsc_delta_chunks(of->tokens), "states");
    void *d_out = ck_buf(CK_IN, dtype, gates * of->value_size, "d_out");
    const dsc_delta_bwd_args a = { .d_qkv = ck_buf(CK_OUT, dtype, rows * columns_of_qkv(of), "d_qkv"),
                                   .d_b = ck_buf(CK_OUT, dtype, gates, "d_b"),
                                   .d_a = ck_buf(CK_OUT, dtype, gates, "d_a"),
                                   .d_a_log = frozen ? NULL : ck_buf(CK_OUT, DSC_F32, of->value_heads, "d_a_log"),
                                   .d_dt_bias = frozen ? NULL : ck_buf(CK_OUT, DSC_F32, of->value_heads, "d_dt_bias"),
                                   .d_out = d_out,
                                   .states = in_front,
                                   .qkv = t.qkv,
                                   .b = t.b,
                                   .a = t.a,
                                   .a_log = t.a_log,
                                   .dt_bias = t.dt_bias,
                                   .positions = t.positions,
                                   .scratch =
                                       ck_buf(CK_SCRATCH, DSC_F32, dsc_delta_bwd_scratch_bytes(of) / 4, "scratch"),
                                   .shape = *of,
                                   .dtype = dtype };
    ck_normal(d_out, 0, 1);
    set_states(&a, in_front);
    ck_kernel(DSC_KERNEL_DELTA_BWD, &a, sizeof a, verify_delta_bwd);
}

static void bench(dsc_dtype dtype)
{
    const dsc_delta_shape of = { 1, (int32_t)ck_bench_size(256, 4096), 4, 8, 128, 128 };
    const int64_t work = 2 * (int64_t)of.tokens * of.value_heads * (3 * 128 * 128 + 32 * 4 * 128);
    for (int back = 0; back < 2; back++) {
        if (!delta_case(back ? "bench delta_bwd" : "bench delta_fwd", &of, dtype, ""))
            continue;
        const int64_t rows = of.tokens, outs = rows * of.value_heads * of.value_size;
        const delta_buffers t = take(&of, dtype, false);
        float *states = ck_buf(CK_INOUT, DSC_F32, dsc_delta_chunks(rows) * of.value_heads * 128 * 128, "states");
        void *out = ck_buf(CK_INOUT, dtype, outs, "out");
        ck_normal(states, 0, 0.1);
        ck_normal(out, 0, 1);
        if (!back) {
            const dsc_delta_fwd_args a = { out,
                                           states,
                                           t.qkv,
                                           t.b,
                                           t.a,
                                           t.a_log,
                                           t.dt_bias,
                                           NULL,
                                           NULL,
                                           false,
                                           ck_buf(CK_SCRATCH, DSC_F32, dsc_delta_fwd_scratch_bytes(&of) / 4, "scratch"),
                                           of,
                                           dtype };
            ck_bench(DSC_KERNEL_DELTA_FWD, &a, sizeof a, 3 * outs, work, CK_NO_REF | CK_F32_PEAK);
            continue;
        }
        const dsc_delta_bwd_args a = { .d_qkv = ck_buf(CK_OUT, dtype, rows * columns_of_qkv(&of), "d_qkv"),
                                       .d_b = ck_buf(CK_OUT, dtype, rows * of.value_heads, "d_b"),
                                       .d_a = ck_buf(CK_OUT, dtype, rows * of.value_heads, "d_a"),
                                       .d_out = out,
                                       .states = states,
                                       .qkv = t.qkv,
                                       .b = t.b,
                                       .a = t.a,
                                       .a_log = t.a_log,
                                       .dt_bias = t.dt_bias,
                                       .scratch =
                                           ck_buf(CK_SCRATCH, DSC_F32, dsc_delta_bwd_scratch_bytes(&of) / 4, "scratch"),
                                       .shape = of,
                                       .dtype = dtype };
        ck_bench(DSC_KERNEL_DELTA_BWD, &a, sizeof a, 6 * outs, 2 * work, CK_NO_REF | CK_F32_PEAK);
    }
}

void ck_delta(void)
{
    static const conv_case convs[] = { { 1, 1, 1, 4, false, false },  { 2, 5, 6, 4, true, true },
                                       { 1, 2, 4, 4, false, false },  { 2, 70, 34, 4, true, false },
                                       { 1, 7, 130, 2, false, true }, { 3, 9, 8, 1, true, false },
                                       { 2, 20, 16, 8, false, false } };
    static const dsc_delta_shape deltas[] = { { 1, 1, 1, 1, 1, 1 },  { 2, 7, 1, 2, 4, 3 },    { 1, 64, 2, 2, 8, 16 },
                                              { 2, 65, 1, 3, 5, 7 }, { 1, 130, 2, 4, 16, 8 }, { 1, 70, 1, 2, 20, 33 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        check_columns(3, 2, 5, 9, false, dtype);
        check_columns(7, 3, 16, 40, true, dtype);
        check_columns(1, 1, 1, 1, false, dtype);
        for (size_t i = 0; i < DSC_COUNT(convs); i++) {
            check_conv_fwd(&convs[i], dtype, 0);
            check_conv_bwd(&convs[i], dtype, i == 3);
            for (int tail = 1; tail < 3 && convs[i].batch == 1 && !convs[i].documents; tail++)
                check_conv_fwd(&convs[i], dtype, tail);
        }
        for (size_t i = 0; i < DSC_COUNT(deltas); i++) {
            check_delta_fwd(&deltas[i], dtype, false, (int)(i % 3));
            check_delta_fwd(&deltas[i], dtype, true, 0);
            check_delta_bwd(&deltas[i], dtype, false, i == 1);
            check_delta_bwd(&deltas[i], dtype, true, false);
        }
        if (ck_benching())
            bench(dtype);
    }
}
