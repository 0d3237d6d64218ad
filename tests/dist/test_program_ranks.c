/* test_program_ranks.c - programs that several ranks compute together: their outputs and gradients are those of one
 * rank, and the slopes that finite differences give. Sums have the same bits on all ranks.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "kernels/device.h"
#include "kernels/scalar.h"
#include "models/program.h"
#include "tests/support/ranks.h"

enum { TOKENS = 8, COLUMNS = 6, INNER = 12, BATCH = 2, PARAMS = 6, ROWS = BATCH * TOKENS };
#define BOUND 2e-5 /* fp32 sums of 12 terms in other orders, through a norm */

typedef struct variant {
    bool by_rows;  /* the norm and the sum have a rank's rows */
    bool in_place; /* d_in is the memory of d_out */
} variant;

static double value_at(int which, int64_t i) { return sin((double)(which * 7919 + i * 31 + 1)); }

/* x + down(silu(up(norm(x)))), whose inner columns ranks share out. */
static dsc_program *make(const variant *v, int32_t ranks, int32_t own, dsc_error *err)
{
    const dsc_param_part share = {
        .count = ranks > 1 ? ranks : 0, .index = own, .run_count = 1, .run = { INNER }
    };
    const dsc_op_norm norm = { .kind = DSC_NORM_LAYER, .groups = 1, .eps = 1e-5, .summed = v->by_rows };
    const dsc_program_linear_args up = {
        .name = "up", .shape = { COLUMNS, INNER / ranks, true }, .bias = true, .out_split = true, .share = share
    };
    const dsc_program_linear_args down = {
        .name = "down", .shape = { INNER / ranks, COLUMNS, false }, .bias = true, .share = share
    };
    dsc_program *p = calloc(1, sizeof *p);
    DSC_ASSERT(p != NULL);
    dsc_program_begin(p, v->by_rows ? TOKENS / ranks : TOKENS, COLUMNS, DSC_PROGRAM_NONE);
    p->ranks = (dsc_program_ranks) { ranks, own };
    int16_t x = dsc_program_norm(p, p->input, "norm", &norm);
    x = v->by_rows ? dsc_program_exchange_gather(p, x) : dsc_program_exchange_share(p, x, 0);
    x = dsc_program_linear(p, x, &up);
    x = dsc_program_activation(p, x, DSC_SILU);
    x = dsc_program_linear(p, x, &down);
    x = v->by_rows ? dsc_program_exchange_scatter(p, x) : dsc_program_exchange_sum(p, x);
    dsc_program_end(p, dsc_program_add(p, x, p->input));
    if (dsc_program_compile(p, &(dsc_program_options) { .no_fusion = false }, err) == DSC_OK)
        return p;
    free(p);
    return NULL;
}

typedef struct session {
    dsc_program *program;
    dsc_module_plan plan;
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream;
    const dsc_exchange_group *group;
    int64_t rows, first_row; /* this rank's rows of the module's input */
    dsc_dtype dtype;
    char *param[PARAMS];
    float *grad[PARAMS];
    char *in, *out, *d_out, *d_in;
    bool in_place;
} session;

static int64_t count_of(const dsc_program_param *param)
{
    int64_t count = 1;
    for (int32_t i = 0; i < param->dim_count; i++)
        count *= param->dim[i];
    return count;
}

/* The place of an element of this rank's part in the whole parameter. */
static int64_t whole_at(const dsc_program_param *param, int64_t i)
{
    dsc_param_spec spec = { .dim_count = param->dim_count, .part = param->share };
    int64_t whole;
    memcpy(spec.dim, param->dim, sizeof spec.dim);
    (void)dsc_param_whole_run(&spec, i, 1, &whole);
    return whole;
}

static char *take(int64_t count) { return aligned_alloc(256, (size_t)dsc_align_up(count * 4 + 256, 256)); }

static dsc_status open_session(session *s, const variant *v, const dsc_exchange_group *group, dsc_dtype dtype,
                               dsc_error *err)
{
    const int32_t ranks = group != NULL ? group->size : 1, own = group != NULL ? group->rank : 0;
    const dsc_device_options options = { .threads = 1, .caps = 0xffffffffu };
    dsc_device_options with = options;
    *s = (session) { .group = group, .dtype = dtype, .in_place = v->in_place };
    s->program = make(v, ranks, own, err);
    if (s->program == NULL)
        return err->status;
    DSC_TRY(dsc_alloc_open(&s->alloc, err));
    with.alloc = s->alloc;
    DSC_TRY(dsc_device_open(&dsc_device_cpu, &s->device, &with, err));
    DSC_TRY(dsc_stream_open(s->device, DSC_STREAM_COMPUTE, "compute", &s->stream, err));
    dsc_param_spec specs[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        specs[i] = (dsc_param_spec) { .trainable = true };
    const dsc_module module = { .param_count = PARAMS, .params = specs };
    DSC_TRY(dsc_program_plan(s->program, &module, NULL, BATCH, dtype, NULL, &s->plan, err));
    s->rows = v->by_rows ? ROWS / ranks : ROWS;
    s->first_row = v->by_rows ? own * s->rows : 0;
    s->in = take(s->rows * COLUMNS), s->out = take(s->rows * COLUMNS);
    s->d_out = take(s->rows * COLUMNS), s->d_in = take(s->rows * COLUMNS);
    for (int64_t i = 0; i < s->rows * COLUMNS; i++)
        dsc_put(s->in, i, dtype, (float)value_at(20, s->first_row * COLUMNS + i));
    for (int i = 0; i < PARAMS; i++) {
        const dsc_program_param *param = &s->program->param[i];
        s->param[i] = take(count_of(param)), s->grad[i] = (float *)(void *)take(count_of(param));
        for (int64_t e = 0; e < count_of(param); e++)
            dsc_put(s->param[i], e, dtype, (float)value_at(i, whole_at(param, e)) * 0.5f);
    }
    return DSC_OK;
}

static void close_session(session *s)
{
    void *const all[] = { s->in, s->out, s->d_out, s->d_in, s->program };
    for (size_t i = 0; i < DSC_COUNT(all); i++)
        free(all[i]);
    for (int i = 0; i < PARAMS; i++) {
        free(s->param[i]);
        free(s->grad[i]);
    }
    dsc_stream_close(&s->stream);
    dsc_device_close(&s->device);
    dsc_alloc_close(&s->alloc);
}

static dsc_status run(session *s, dsc_error *err)
{
    char *const saved = take(s->plan.saved_bytes / 4), *const rebuilt = take(s->plan.rebuilt_bytes / 4);
    char *const scratch = take((s->plan.forward_scratch_bytes + s->plan.backward_scratch_bytes) / 4);
    const void *param[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        param[i] = s->param[i];
    for (int64_t i = 0; i < s->rows * COLUMNS; i++)
        dsc_put(s->d_out, i, s->dtype, (float)value_at(30, s->first_row * COLUMNS + i));
    dsc_module_ctx ctx = { .struct_bytes = sizeof ctx,
                           .stream = s->stream,
                           .dtype = s->dtype,
                           .batch = BATCH,
                           .save = true,
                           .param = param,
                           .grad = s->grad,
                           .in = s->in,
                           .out = s->out,
                           .saved = saved,
                           .rebuilt = rebuilt,
                           .scratch = scratch,
                           .training = true,
                           .group = s->group };
    dsc_status status = dsc_program_run(s->program, DSC_PASS_FORWARD, NULL, &ctx, err);
    ctx.out = NULL, ctx.d_out = s->d_out, ctx.d_in = s->in_place ? s->d_out : s->d_in;
    if (status == DSC_OK)
        status = dsc_program_run(s->program, DSC_PASS_BACKWARD, NULL, &ctx, err);
    free(saved);
    free(rebuilt);
    free(scratch);
    return status;
}

static const char *d_in_of(const session *s) { return s->in_place ? s->d_out : s->d_in; }

static int differs(const char *what, int64_t i, double got, double expected, double bound)
{
    if (fabs(got - expected) <= bound * (1 + fabs(expected)))
        return 0;
    fprintf(stderr, "# %s, element %lld: %.9g, and one rank has %.9g\n", what, (long long)i, got, expected);
    return 1;
}

/* This rank's part of the output and of all gradients, beside one rank's. */
static int compare(const session *parted, const session *whole, double bound)
{
    const int64_t first = parted->first_row * COLUMNS;
    int failures = 0;
    for (int64_t i = 0; i < parted->rows * COLUMNS && failures == 0; i++) {
        failures += differs("out", i, (double)dsc_get(parted->out, i, parted->dtype),
                            (double)dsc_get(whole->out, first + i, whole->dtype), bound);
        failures += differs("d_in", i, (double)dsc_get(d_in_of(parted), i, parted->dtype),
                            (double)dsc_get(d_in_of(whole), first + i, whole->dtype), bound);
    }
    for (int p = 0; p < PARAMS && failures == 0; p++)
        for (int64_t i = 0; i < count_of(&parted->program->param[p]) && failures == 0; i++)
            failures += differs(parted->program->param[p].name, i, (double)parted->grad[p][i],
                                (double)whole->grad[p][whole_at(&parted->program->param[p], i)], bound);
    return failures;
}

/* Equal bits on all ranks, of values that all of them have. */
static int all_have(dsc_comm *comm, const void *values, int64_t bytes)
{
    char *const first = malloc((size_t)bytes);
    DSC_ASSERT(first != NULL);
    memcpy(first, values, (size_t)bytes);
    RANKS_TRY(dsc_comm_broadcast(comm, 0, first, bytes, 0, NULL, err));
    const int differ = memcmp(first, values, (size_t)bytes) != 0;
    free(first);
    RANKS_CHECK(!differ);
    return 0;
}

static int together(dsc_comm *comm, const variant *v, dsc_dtype dtype, double bound)
{
    dsc_comm_group group;
    session parted, whole;
    dsc_comm_payload before, after;
    dsc_comm_group_init(&group, comm, 0);
    RANKS_TRY(open_session(&parted, v, &group.group, dtype, err));
    RANKS_TRY(open_session(&whole, &(variant) { .in_place = v->in_place }, NULL, dtype, err));
    dsc_comm_payload_get(comm, 0, &before);
    RANKS_TRY(run(&parted, err));
    dsc_comm_payload_get(comm, 0, &after);
    RANKS_CHECK(after.sent - before.sent == parted.plan.forward_sent_bytes + parted.plan.backward_sent_bytes);
    RANKS_TRY(run(&whole, err));
    RANKS_CHECK(compare(&parted, &whole, bound) == 0);
    for (int p = 0; p < PARAMS; p++)
        if (parted.program->param[p].share.count == 0)
            RANKS_CHECK(all_have(comm, parted.grad[p], count_of(&parted.program->param[p]) * 4) == 0);
    if (!v->by_rows)
        RANKS_CHECK(all_have(comm, parted.out, ROWS * COLUMNS * (int64_t)dsc_dtype_bytes(dtype)) == 0);
    close_session(&parted);
    close_session(&whole);
    return 0;
}

static int equals_one_rank(dsc_comm *comm, void *user)
{
    const bool divides = TOKENS % dsc_comm_size(comm) == 0;
    const variant variants[] = { { false, false }, { false, true }, { divides, false }, { divides, true } };
    (void)user;
    for (size_t i = 0; i < DSC_COUNT(variants); i++) {
        RANKS_CHECK(together(comm, &variants[i], DSC_F32, BOUND) == 0);
        RANKS_CHECK(together(comm, &variants[i], DSC_BF16, 0.05) == 0); /* a dozen roundings of 2^-9 */
    }
    return 0;
}

static void ranks_together_equal_one_rank(void **state)
{
    (void)state;
    for (int32_t size = 1; size <= 4; size++) {
        const ranks_run go = { .kind = size == 1 ? RANKS_SELF : RANKS_LOCAL, .size = size, .body = equals_one_rank };
        assert_int_equal(ranks_go(&go), 0);
    }
}

/* The sum of the outputs' products with their gradients, over the rows of all ranks. */
static double along(const session *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->rows * COLUMNS; i++)
        sum += (double)dsc_get(s->out, i, DSC_F32) * value_at(30, s->first_row * COLUMNS + i);
    return sum;
}

static int has_slopes(dsc_comm *comm, void *user)
{
    const variant v = { .by_rows = *(bool *)user };
    const float step = 1e-2f;
    dsc_comm_group group;
    session s;
    dsc_comm_group_init(&group, comm, 0);
    RANKS_TRY(open_session(&s, &v, &group.group, DSC_F32, err));
    for (int p = 0; p <= PARAMS; p++) { /* the last one is the input, of which rank 0's row 0 is all ranks' */
        float *const x = (float *)(void *)(p < PARAMS ? s.param[p] : s.in), at = x[1];
        const bool changes = p < PARAMS ? s.program->param[p].share.count == 0 || group.group.rank == 0
                                        : !v.by_rows || group.group.rank == 0;
        double sums[2], slope;
        RANKS_TRY(run(&s, err));
        double gradient = (double)(p < PARAMS ? s.grad[p] : (const float *)(const void *)s.d_in)[1];
        RANKS_TRY(dsc_comm_broadcast(comm, 0, &gradient, sizeof gradient, 0, NULL, err));
        for (int i = 0; i < 2; i++) {
            float all;
            x[1] = changes ? at + (i == 0 ? step : -step) : at;
            RANKS_TRY(run(&s, err));
            all = (float)along(&s);
            RANKS_TRY(dsc_comm_all_reduce(comm, 0, &all, 1, DSC_F32, NULL, err));
            sums[i] = v.by_rows ? (double)all : along(&s);
        }
        x[1] = at;
        slope = (sums[0] - sums[1]) / (2 * (double)step);
        RANKS_CHECK(differs("slope", p, slope, gradient, 5e-3) == 0);
    }
    close_session(&s);
    return 0;
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    for (int by_rows = 0; by_rows < 2; by_rows++) {
        bool user = by_rows == 1;
        const ranks_run go = { .kind = RANKS_LOCAL, .size = 2, .body = has_slopes, .user = &user };
        assert_int_equal(ranks_go(&go), 0);
    }
}

static void a_rank_alone_has_no_exchange(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    dsc_program *p = make(&(variant) { .by_rows = true }, 1, 0, &err);
    assert_non_null(p);
    for (int16_t i = 0; i < p->op_count; i++)
        assert_false(p->op[i].kind >= DSC_OP_EXCHANGE_SHARE && p->op[i].kind <= DSC_OP_EXCHANGE_SCATTER);
    free(p);
}

static void wrong_groups_are_refused(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    session s;
    dsc_program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    dsc_program_begin(p, TOKENS, COLUMNS, DSC_PROGRAM_NONE);
    p->ranks = (dsc_program_ranks) { 3, 0 };
    assert_int_equal(dsc_program_exchange_scatter(p, p->input), 1);
    assert_int_equal(p->status, DSC_ERR_INPUT);
    assert_non_null(strstr(p->err.message, "3 ranks do not divide the 8 rows of \"in\""));
    free(p);
    const dsc_exchange_group group = { .size = 2 };
    assert_int_equal(open_session(&s, &(variant) { false }, &group, DSC_F32, &err), DSC_OK);
    s.group = NULL;
    assert_int_equal(run(&s, &err), DSC_ERR_STATE);
    assert_non_null(strstr(err.message, "a module of 2 ranks was called in a group of 1"));
    close_session(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_together_equal_one_rank),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(a_rank_alone_has_no_exchange),
        cmocka_unit_test(wrong_groups_are_refused),
    };
    return cmocka_run_group_tests_name("programs of several ranks", tests, NULL, NULL);
}
