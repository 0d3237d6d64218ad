/* test_program_maps.c - batch norms, pools and ops on whole samples in programs of models.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "tests/support/program_random.h"

enum { HEIGHT = 4, WIDTH = 6, COLUMNS = 8, BATCH = 3 };

static program_random random_program;
static dsc_program compiled;

static void compile(const program_random *r, bool no_fusion)
{
    const dsc_program_options options = { .no_fusion = no_fusion };
    dsc_error err = DSC_ERROR_INIT;
    compiled = r->source;
    if (dsc_program_compile(&compiled, &options, &err) != DSC_OK)
        fail_msg("%s", err.message);
}

static dsc_program *begin(program_random *r, uint64_t seed)
{
    *r = (program_random) { .seed = seed, .batch = BATCH };
    dsc_program_begin_picture(&r->source, HEIGHT, WIDTH, COLUMNS);
    return &r->source;
}

static void end(program_random *r, int16_t output)
{
    dsc_program_end(&r->source, output);
    if (r->source.status != DSC_OK)
        fail_msg("%s", r->source.err.message);
    program_random_take_params(r);
    for (int i = 0; i < r->param_count; i++)
        r->spec[i].trainable = !r->source.param[i].frozen;
}

static program_reference *reference_of(program_random *r)
{
    program_reference *reference = program_reference_open(&r->source, r->batch, r->param_elements, r->param_count);
    program_random_fill(r, reference);
    return reference;
}

static int16_t linear(dsc_program *p, int16_t x, const char *name, int64_t out)
{
    return dsc_program_linear(p, x, &(dsc_program_linear_args) { .name = name, .shape = { 0, out, true } });
}

static int16_t batch_norm(dsc_program *p, int16_t x, const char *name)
{
    return dsc_program_batch_norm(p, x, &(dsc_program_batch_norm_args) { .name = name, .eps = 1e-3, .momentum = 0.1 });
}

static int count_ops(dsc_pass pass, dsc_op_kind kind)
{
    int count = 0;
    for (int16_t i = 0; i < compiled.list[pass].count; i++)
        count += compiled.op[compiled.list[pass].op[i]].kind == kind;
    return count;
}

/* ---- fusions ---- */

/* A residual block with a norm on both ways, as ResNet's first of a stage, and one whose residual is its input. */
static void make_blocks(program_random *r, dsc_activation kind)
{
    dsc_program *p = begin(r, 3);
    int16_t y = dsc_program_activation(p, batch_norm(p, linear(p, p->input, "conv1", 16), "bn1"), kind);
    y = batch_norm(p, linear(p, y, "conv2", COLUMNS), "bn2");
    y = dsc_program_add(p, y, batch_norm(p, linear(p, p->input, "downsample.0", COLUMNS), "downsample.1"));
    const int16_t x = dsc_program_activation(p, y, kind);
    y = dsc_program_activation(p, batch_norm(p, linear(p, x, "conv3", 16), "bn3"), kind);
    y = dsc_program_add(p, batch_norm(p, linear(p, y, "conv4", COLUMNS), "bn4"), x);
    end(r, linear(p, dsc_program_activation(p, y, kind), "conv5", COLUMNS));
}

static void fused_batch_norms_keep_their_bits(void **state)
{
    (void)state;
    static const program_mode modes[] = { { 0 }, { .rebuild = true }, { .keep = true }, { .recompute = true } };
    program_random *r = &random_program;
    for (int kind = 0; kind < 2; kind++) {
        make_blocks(r, kind == 0 ? DSC_RELU : DSC_RELU6);
        program_reference *reference = reference_of(r);
        for (size_t i = 0; i < 2 * DSC_COUNT(modes); i++) {
            program_mode mode = modes[i / 2];
            mode.dtype = i % 2 == 0 ? DSC_F32 : DSC_BF16;
            compile(r, true);
            assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_ACTIVATION), 4);
            program_result *apart = program_random_run(r, &compiled, reference, mode);
            compile(r, false);
            assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_BATCH_NORM), 5);
            assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_ACTIVATION), 0);
            assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_ADD), 0);
            assert_int_equal(count_ops(DSC_PASS_BACKWARD, DSC_OP_ACTIVATION_BWD), 0);
            assert_int_equal(count_ops(DSC_PASS_BACKWARD, DSC_OP_BATCH_STATS), 0);
            program_result *fused = program_random_run(r, &compiled, reference, mode);
            if (!program_result_equals(r, apart, fused))
                fail_msg("kind %d, mode %d, %s: other bits", kind, (int)i / 2, i % 2 == 0 ? "fp32" : "bf16");
            program_result_free(apart);
            program_result_free(fused);
        }
        program_reference_close(reference);
    }
}

/* ---- buffers ---- */

static float running[2][COLUMNS], statistic[2][COLUMNS];

static program_result *run_norm(bool frozen, program_mode mode, program_reference **out)
{
    static const float *buffer[3] = { running[0], running[1], NULL };
    static float *statistics[3] = { statistic[0], statistic[1], NULL };
    program_random *r = &random_program;
    dsc_program *p = begin(r, 8);
    const dsc_program_batch_norm_args args = { .name = "bn", .eps = 1e-5, .momentum = 0.25, .frozen = frozen };
    end(r, dsc_program_batch_norm(p, p->input, &args));
    assert_int_equal(p->module_buffer_count, frozen ? 2 : 3);
    *out = reference_of(r);
    compile(r, false);
    mode.buffer = buffer, mode.statistic = statistics;
    for (int c = 0; c < COLUMNS; c++) {
        running[0][c] = 0.25f * (float)c - 1, running[1][c] = 0.5f + 0.125f * (float)c;
        statistic[0][c] = statistic[1][c] = -77;
    }
    return program_random_run(r, &compiled, *out, mode);
}

static double mean_of(const program_reference *reference, int c, double *unbiased)
{
    const double *x = reference->value[reference->program->input];
    const int rows = BATCH * HEIGHT * WIDTH;
    double sum = 0, squares = 0;
    for (int i = 0; i < rows; i++)
        sum += x[i * COLUMNS + c];
    for (int i = 0; i < rows; i++)
        squares += (x[i * COLUMNS + c] - sum / rows) * (x[i * COLUMNS + c] - sum / rows);
    *unbiased = squares / (rows - 1);
    return sum / rows;
}

static void training_gives_the_mean_and_the_unbiased_variance(void **state)
{
    (void)state;
    program_reference *reference;
    for (int recompute = 0; recompute < 2; recompute++) {
        program_result *result = run_norm(false, (program_mode) { .recompute = recompute == 1 }, &reference);
        for (int c = 0; c < COLUMNS; c++) {
            double variance;
            const double mean = mean_of(reference, c, &variance);
            assert_true(fabs((double)statistic[0][c] - mean) < 1e-6);
            assert_true(fabs((double)statistic[1][c] - variance) < 1e-6);
        }
        program_result_free(result);
        program_reference_close(reference);
    }
}

/* y = (x - mean) / sqrt(variance + eps) * weight + bias, whose gradient is that of a linear function. */
static void expect_running(bool frozen)
{
    program_reference *reference;
    program_result *result = run_norm(frozen, (program_mode) { .evaluate = !frozen }, &reference);
    const double *x = reference->value[reference->program->input];
    const double *d = reference->d_value[reference->program->output];
    for (int i = 0; i < BATCH * HEIGHT * WIDTH * COLUMNS; i++) {
        const int c = i % COLUMNS;
        const double rstd = 1 / sqrt((double)running[1][c] + 1e-5), weight = reference->param[0][c];
        const double y = (x[i] - (double)running[0][c]) * rstd * weight + reference->param[1][c];
        assert_true(fabs((double)result->out[i] - y) < 1e-5);
        assert_true(fabs((double)result->d_in[i] - d[i] * rstd * weight) < 1e-5);
    }
    program_result_free(result);
    program_reference_close(reference);
}

static void evaluation_reads_the_buffers(void **state)
{
    (void)state;
    expect_running(false);
    for (int c = 0; c < COLUMNS; c++)
        assert_true(statistic[0][c] == -77 && statistic[1][c] == -77);
}

/* The statistics are the buffers' own, so that these stay what they are. */
static void a_frozen_norm_reads_the_buffers_in_training(void **state)
{
    (void)state;
    expect_running(true);
    assert_memory_equal(statistic, running, sizeof running);
}

static void buffers_have_the_names_of_torch(void **state)
{
    (void)state;
    static const char *const parts[] = { "running_mean", "running_var", "num_batches_tracked" };
    dsc_program *p = begin(&random_program, 1);
    dsc_program_end(p, batch_norm(p, p->input, "bn1"));
    for (int i = 0; i < 3; i++) {
        const dsc_program_buffer *of = &p->module_buffer[i];
        assert_string_equal(of->name, "bn1");
        assert_string_equal(of->part, parts[i]);
        assert_int_equal(of->kind, i < 2 ? DSC_BUFFER_AVERAGE : DSC_BUFFER_STEPS);
        assert_int_equal(of->count, i < 2 ? COLUMNS : 1);
        assert_true(of->init == (i == 1 ? 1 : 0));
        assert_true(of->momentum == (i < 2 ? 0.1 : 0));
    }
}

/* ---- shapes ---- */

static void pools_have_the_shapes_of_torch(void **state)
{
    (void)state;
    static const struct {
        dsc_op_pool args;
        int64_t height, width;
    } cases[] = { { { .kernel = 3, .stride = 2, .padding = 1 }, 2, 3 },
                  { { .kernel = 2, .stride = 2 }, 2, 3 },
                  { { .kernel = 4, .stride = 3 }, 1, 1 },
                  { { .kernel = 1, .stride = 5 }, 1, 2 } };
    dsc_program *p = begin(&random_program, 1);
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const dsc_value *y = &p->value[dsc_program_max_pool(p, p->input, &cases[i].args)];
        assert_int_equal(y->height, cases[i].height);
        assert_int_equal(y->width, cases[i].width);
        assert_int_equal(y->rows, cases[i].height * cases[i].width);
    }
    const dsc_value *y = &p->value[dsc_program_mean_pool(p, p->input, 7, 7)];
    assert_int_equal(y->rows, 49);
    assert_int_equal(p->status, DSC_OK);
}

/* Each picture of a sample by itself. */
static void samples_have_several_pictures(void **state)
{
    (void)state;
    dsc_program *p = &random_program.source;
    const dsc_op_pool half = { .kernel = 2, .stride = 2 };
    const dsc_program_conv2d_args conv = { .name = "conv", .out = 5, .kernel = { 3, 3 } };
    dsc_program_begin_pictures(p, 3, HEIGHT, WIDTH, COLUMNS);
    const int16_t pool = dsc_program_max_pool(p, p->input, &half), map = dsc_program_conv2d(p, p->input, &conv);
    assert_int_equal(p->value[pool].rows, 3 * 2 * 3);
    assert_int_equal(p->value[pool].height, 2);
    assert_int_equal(p->value[map].rows, 3 * 2 * 4);
    assert_int_equal(p->value[map].height, 2);
    const int16_t mean = dsc_program_mean_pool(p, map, 1, 1);
    assert_int_equal(p->value[mean].rows, 3);
    const int16_t y = dsc_program_lstm(p, mean, &(dsc_program_lstm_args) { .name = "lstm", .hidden = 7, .layers = 2 });
    assert_int_equal(p->value[y].rows, 3);
    assert_int_equal(p->value[y].columns, 7);
    assert_int_equal(p->value[y].height, 0);
    assert_int_equal(p->status, DSC_OK);
    dsc_program_begin_first(p, 18);
    const int16_t frames = dsc_program_patches(p, &(dsc_op_data) { 0, 1, 6, 3, 1, 2 });
    assert_int_equal(p->value[frames].rows, 18);
    assert_int_equal(p->value[frames].height, 3);
    assert_int_equal(dsc_program_patches(p, &(dsc_op_data) { 0, 1, 6, 3, 1, 4 }), DSC_PROGRAM_NONE);
    assert_non_null(strstr(p->err.message, "4 frames do not divide the 6 rows"));
}

static void expect_refusal(dsc_program *p, int16_t value, const char *expected)
{
    assert_int_equal(value, DSC_PROGRAM_NONE);
    assert_int_equal(p->status, DSC_ERR_INPUT);
    if (strstr(p->err.message, expected) == NULL)
        fail_msg("\"%s\" is not in: %s", expected, p->err.message);
}

static void wrong_shapes_are_refused(void **state)
{
    (void)state;
    program_random *r = &random_program;
    dsc_program *p = begin(r, 1);
    const dsc_op_pool wide = { .kernel = 7, .stride = 1 }, padded = { .kernel = 2, .stride = 1, .padding = 2 };
    expect_refusal(p, dsc_program_max_pool(p, p->input, &wide), "pictures of 4 by 6 pixels with windows of 7");
    p = begin(r, 1);
    expect_refusal(p, dsc_program_average_pool(p, p->input, &padded), "a padding of half a window at most");
    p = begin(r, 1);
    expect_refusal(p, dsc_program_mean_pool(p, p->input, 0, 3), "a mean of 0 by 3 windows; expected 1 to 4096");
    p = begin(r, 1);
    const int16_t some = dsc_program_pick(p, p->input, 0, 4, false);
    expect_refusal(p, dsc_program_mean_pool(p, some, 1, 1), "[4,8] are not a picture of 0 by 0 pixels");
    p = begin(r, 1);
    expect_refusal(p, dsc_program_scale_rows(p, p->input, p->input), "expected one row as wide for each sample");
    p = begin(r, 1);
    expect_refusal(p, dsc_program_drop_path(p, p->input, 1, 0), "the probability 1 is not in [0, 1)");
    dsc_program_begin(p, 4, 8, 0);
    const dsc_program_lstm_args lstm = { .name = "lstm", .hidden = 4, .layers = 1 };
    expect_refusal(p, dsc_program_lstm(p, p->input, &lstm), "each step of a sample, which is one document");
    p = begin(r, 1);
    const dsc_program_batch_norm_args args = { .name = "bn", .eps = 0, .momentum = 0.1 };
    expect_refusal(p, dsc_program_batch_norm(p, p->input, &args), "op \"bn\" (batch_norm): eps 0 and momentum 0.1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_batch_norms_keep_their_bits),
        cmocka_unit_test(training_gives_the_mean_and_the_unbiased_variance),
        cmocka_unit_test(evaluation_reads_the_buffers),
        cmocka_unit_test(a_frozen_norm_reads_the_buffers_in_training),
        cmocka_unit_test(buffers_have_the_names_of_torch),
        cmocka_unit_test(pools_have_the_shapes_of_torch),
        cmocka_unit_test(samples_have_several_pictures),
        cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
