/* test_built_vision.c - models of the public builder on arrays of floats: equal bits of equal descriptions, the count
 * of an evaluation, and a message for each call out of order. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <dsc/dsc.h>
#include <dsc/program.h>

#include "base/base.h"

enum { SIDE = 4, WIDTH = 8, CLASSES = 3, STEPS = 6, SAMPLES = 40 };

static dsc_node block(dsc_builder *b, dsc_node x, int64_t number, void *user)
{
    dsc_build_attention_options attention = DSC_BUILD_ATTENTION_OPTIONS_INIT;
    (void)number, (void)user;
    attention.heads = 2, attention.all = true;
    const dsc_node q = dsc_build_linear(b, x, "q", WIDTH, true), k = dsc_build_linear(b, x, "k", WIDTH, true);
    return dsc_build_add(b, x, dsc_build_attention(b, q, k, dsc_build_linear(b, x, "v", WIDTH, true), &attention));
}

static dsc_build_options options_of(int32_t dims)
{
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    options.name = "rows";
    options.tokens = 2, options.vocabulary = CLASSES, options.channels = WIDTH, options.init_std = 0.3;
    options.data = (dsc_batch_spec) { DSC_BATCH_PIXELS, DSC_F32, 3, { 1, SIDE, SIDE } };
    if (dims == 2)
        options.data = (dsc_batch_spec) { "numbers", DSC_F32, 2, { 1, SIDE * SIDE } };
    return options;
}

/* One row of numbers, or one patch of a picture, which are the same. With `mean` the last module takes the mean of the
 * row and of the trained one before it. */
static dsc_model *build(int32_t dims, bool mean)
{
    const dsc_build_options options = options_of(dims);
    dsc_builder *b = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
    dsc_build_begin_first(b);
    dsc_node x = dims == 2 ? dsc_build_data(b) : dsc_build_patches(b, SIDE);
    x = dsc_build_prepend(b, dsc_build_linear(b, x, "in", WIDTH, true), "class", 1);
    dsc_build_end(b, dsc_build_positions(b, x, "place"));
    dsc_build_blocks(b, 2, block, NULL);
    x = dsc_build_begin_last(b);
    x = mean ? dsc_build_mean(b, x, 0, 2) : dsc_build_rows(b, x, 0, 1);
    dsc_build_end(b, dsc_build_linear(b, x, "out", CLASSES, true));
    if (dsc_build_finish(&b, NULL, &model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    return model;
}

/* The class is that of the largest of the first numbers. */
static dsc_status fill(void *user, int64_t first, int64_t count, void *const *batch, dsc_error *err)
{
    (void)user, (void)err;
    for (int64_t k = 0; k < count; k++) {
        float *x = (float *)batch[0] + k * SIDE * SIDE;
        int32_t *class = (int32_t *)batch[1] + k;
        for (int64_t i = 0; i < SIDE * SIDE; i++)
            x[i] = (float)((first + k) * 7919 % 101 * (i + 3) * 37 % 97) / 48 - 1;
        *class = 0;
        for (int32_t c = 1; c < CLASSES; c++)
            *class = x[c] > x[*class] ? c : *class;
    }
    return DSC_OK;
}

static void keep_accuracy(void *user, dsc_log_level level, const char *text)
{
    (void)level;
    if (strstr(text, "accuracy") != NULL)
        snprintf(user, 200, "%s", text);
}

/* The losses of the steps, and of an evaluation behind them, whose note is kept. */
static void train(dsc_model *model, double losses[STEPS + 1], char note[200])
{
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    note[0] = 0;
    options.config_text =
        "{ \"train_batch_size\": 8, \"optimizer\": { \"type\": \"AdamW\", \"params\": { \"lr\": 0.01 } } }";
    options.model = model;
    options.data = (dsc_data_source) { fill, NULL, 0 };
    options.log = (dsc_log) { keep_accuracy, note };
    if (dsc_engine_open(&engine, &options, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(dsc_engine_train_batch(engine, &result, NULL), DSC_OK);
        losses[i] = result.loss;
    }
    const dsc_data_source samples = { fill, NULL, SAMPLES + 1 };
    assert_int_equal(dsc_engine_evaluate(engine, &samples, 0, &losses[STEPS], NULL), DSC_OK);
    dsc_engine_close(&engine);
}

static void rows_and_a_patch_of_the_same_numbers_give_equal_bits(void **state)
{
    (void)state;
    for (int mean = 0; mean < 2; mean++) {
        dsc_model *rows = build(2, mean != 0), *picture = build(3, mean != 0);
        double a[STEPS + 1], b[STEPS + 1];
        char note[200];
        assert_int_equal(dsc_model_check(rows, NULL), DSC_OK);
        train(rows, a, note);
        train(picture, b, note);
        assert_memory_equal(a, b, sizeof a);
        assert_true(a[STEPS] < a[0] && a[STEPS] > 0);
        assert_non_null(strstr(note, " of 41 samples"));
        dsc_model_close(&rows);
        dsc_model_close(&picture);
    }
}

/* Convolutions: pictures of 4 x 4, then 2 x 2, in blocks of other columns than the model's. */
static dsc_model *build_convolutions(void)
{
    dsc_build_options options = options_of(3);
    dsc_build_conv2d_options plain = DSC_BUILD_CONV2D_OPTIONS_INIT, half = plain, deep = plain, point = plain;
    dsc_builder *b = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    plain.columns = 6, half.columns = 12, half.groups = 2, half.stride[0] = half.stride[1] = 2, half.bias = true;
    deep.columns = deep.groups = 12, deep.bias = true;
    point.columns = 12, point.kernel[0] = point.kernel[1] = 1, point.padding[0] = point.padding[1] = 0;
    assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_conv2d(b, dsc_build_patches(b, 1), "conv", &plain));
    dsc_node x = dsc_build_activation(b, dsc_build_begin_picture(b, 4, 4, 6), DSC_BUILD_RELU);
    dsc_build_end(b, dsc_build_conv2d(b, x, "conv", &half));
    for (int i = 0; i < 2; i++) {
        x = dsc_build_begin_picture(b, 2, 2, 12);
        const dsc_node y = dsc_build_activation(b, dsc_build_conv2d(b, x, "deep", &deep), DSC_BUILD_GELU);
        dsc_build_end(b, dsc_build_add(b, x, dsc_build_conv2d(b, y, "point", &point)));
    }
    x = dsc_build_begin_last(b);
    dsc_build_end(b, dsc_build_linear(b, dsc_build_mean(b, x, 0, 4), "out", CLASSES, true));
    if (dsc_build_finish(&b, NULL, &model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    return model;
}

static void convolutions_change_rows_and_columns_of_blocks(void **state)
{
    (void)state;
    dsc_model *model = build_convolutions();
    dsc_error err = DSC_ERROR_INIT;
    double losses[STEPS + 1];
    char note[200];
    const dsc_param_spec *weight = &model->modules[1].params[0];
    assert_string_equal(weight->name, "blocks.0.conv.weight");
    assert_int_equal(weight->dim_count, 4);
    assert_int_equal(weight->dim[0], 12);
    assert_int_equal(weight->dim[1], 3);
    if (dsc_model_check(model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    train(model, losses, note);
    assert_true(losses[STEPS] < losses[0] && losses[STEPS] > 0);
    dsc_model_close(&model);
}

/* The network of docs/own_model.md for pictures of 4 x 4. */
static dsc_model *build_maps(void)
{
    dsc_build_options options = options_of(3);
    dsc_build_conv2d_options c = DSC_BUILD_CONV2D_OPTIONS_INIT;
    dsc_builder *b = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    c.columns = 6;
    assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
    dsc_build_begin_first(b);
    dsc_node x = dsc_build_conv2d(b, dsc_build_patches(b, 1), "conv", &c);
    x = dsc_build_activation(b, dsc_build_batch_norm(b, x, "bn", 1e-5, 0.1), DSC_BUILD_RELU);
    dsc_build_end(b, dsc_build_max_pool(b, x, 2, 2, 0));
    c.columns = 12;
    x = dsc_build_conv2d(b, dsc_build_begin_picture(b, 2, 2, 6), "conv", &c);
    dsc_build_end(b, dsc_build_activation(b, dsc_build_batch_norm(b, x, "bn", 1e-5, 0.1), DSC_BUILD_RELU));
    x = dsc_build_mean_pool(b, dsc_build_begin_last(b), 1, 1);
    dsc_build_end(b, dsc_build_linear(b, x, "classifier", CLASSES, true));
    if (dsc_build_finish(&b, NULL, &model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    return model;
}

static void a_network_of_maps_learns(void **state)
{
    (void)state;
    dsc_model *model = build_maps();
    double losses[STEPS + 1];
    char note[200];
    train(model, losses, note);
    assert_true(losses[STEPS] < losses[0] && losses[STEPS] > 0);
    dsc_model_close(&model);
}

/* Rows of numbers in order, through two layers of an LSTM; the class is that behind the last row. */
static dsc_model *build_sequence(int64_t columns, int32_t layers, dsc_error *err)
{
    dsc_build_options options = options_of(2);
    dsc_builder *b = NULL;
    dsc_model *model = NULL;
    options.tokens = SIDE;
    options.data.dim[0] = options.data.dim[1] = SIDE;
    assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_linear(b, dsc_build_data(b), "in", WIDTH, true));
    dsc_node x = dsc_build_begin(b);
    x = dsc_build_add(b, x, dsc_build_linear(b, dsc_build_lstm(b, x, "lstm", columns, layers), "out", WIDTH, true));
    dsc_build_end(b, x);
    x = dsc_build_rows(b, dsc_build_begin_last(b), SIDE - 1, 1);
    dsc_build_end(b, dsc_build_linear(b, x, "out", CLASSES, true));
    return dsc_build_finish(&b, NULL, &model, err) == DSC_OK ? model : NULL;
}

static void an_lstm_learns_from_rows_in_order(void **state)
{
    (void)state;
    static const char *const names[] = { "weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0",
                                         "weight_ih_l1", "bias_ih_l1", "weight_hh_l1", "bias_hh_l1" };
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = build_sequence(5, 2, &err);
    double losses[STEPS + 1];
    char note[200], name[60];
    if (model == NULL || dsc_model_check(model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        snprintf(name, sizeof name, "blocks.0.lstm.%s", names[i]);
        assert_string_equal(model->modules[1].params[i].name, name);
        assert_int_equal(model->modules[1].params[i].dim[0], 20);
        assert_int_equal(model->modules[1].params[i].init, DSC_INIT_UNIFORM);
    }
    assert_int_equal(model->modules[1].params[0].dim[1], WIDTH);
    assert_int_equal(model->modules[1].params[4].dim[1], 5);
    train(model, losses, note);
    assert_true(losses[STEPS] < losses[0] && losses[STEPS] > 0);
    dsc_model_close(&model);
    assert_null(build_sequence(0, 1, &err));
    assert_non_null(strstr(err.message, "op \"lstm\" (lstm): 0 columns in 1 layers"));
    assert_null(build_sequence(5, 9, &err));
    assert_non_null(strstr(err.message, "1 to 8 layers"));
}

static void parameters_are_named_by_module(void **state)
{
    (void)state;
    static const char *const names[] = { "embedding.in.weight", "embedding.in.bias", "embedding.class.weight",
                                         "embedding.place.weight" };
    dsc_model *model = build(3, false);
    const dsc_module *first = &model->modules[0], *last = &model->modules[model->module_count - 1];
    assert_int_equal(first->param_count, DSC_COUNT(names));
    for (int32_t i = 0; i < first->param_count; i++)
        assert_string_equal(first->params[i].name, names[i]);
    assert_string_equal(last->params[0].name, "head.out.weight");
    assert_int_equal(model->losses_per_sample, 1);
    assert_int_equal(model->seq_length, 0);
    dsc_model_close(&model);
}

/* ---- wrong calls ---- */

static void first_of_tokens(dsc_builder *b) { dsc_build_begin_first(b); }
static void no_first(dsc_builder *b) { (void)dsc_build_begin(b); }
static void patches_in_a_last_one(dsc_builder *b)
{
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_prepend(b, dsc_build_linear(b, dsc_build_patches(b, SIDE), "in", WIDTH, true), "c", 1));
    (void)dsc_build_begin_last(b);
    (void)dsc_build_patches(b, SIDE);
}
static void large_patch(dsc_builder *b)
{
    dsc_build_begin_first(b);
    (void)dsc_build_patches(b, SIDE + 1);
}
static void rows_of_a_picture(dsc_builder *b)
{
    dsc_build_begin_first(b);
    (void)dsc_build_data(b);
}
static void too_few_rows(dsc_builder *b)
{
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_linear(b, dsc_build_patches(b, SIDE), "in", WIDTH, true));
}
static void rows_beyond(dsc_builder *b)
{
    dsc_build_begin_first(b);
    (void)dsc_build_rows(b, dsc_build_patches(b, SIDE), 1, 1);
}
static void no_rows(dsc_builder *b)
{
    dsc_build_begin_first(b);
    (void)dsc_build_prepend(b, dsc_build_patches(b, SIDE), "c", 0);
}
static void two_firsts(dsc_builder *b)
{
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_prepend(b, dsc_build_linear(b, dsc_build_patches(b, SIDE), "in", WIDTH, true), "c", 1));
    dsc_build_begin_first(b);
}
static void other_classes(dsc_builder *b)
{
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_prepend(b, dsc_build_linear(b, dsc_build_patches(b, SIDE), "in", WIDTH, true), "c", 1));
    dsc_build_blocks(b, 1, block, NULL);
    dsc_build_end(b, dsc_build_linear(b, dsc_build_rows(b, dsc_build_begin_last(b), 0, 1), "out", CLASSES + 1, true));
}

static void convolution_of_rows(dsc_builder *b)
{
    const dsc_build_conv2d_options options = DSC_BUILD_CONV2D_OPTIONS_INIT;
    dsc_build_begin_first(b);
    (void)dsc_build_conv2d(b, dsc_build_patches(b, 2), "conv", &options);
}
static void another_picture(dsc_builder *b)
{
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_patches(b, 1));
    (void)dsc_build_begin_picture(b, 2, 8, 1);
}
static void rows_behind_a_picture(dsc_builder *b)
{
    dsc_build_begin_first(b);
    dsc_build_end(b, dsc_build_patches(b, 1));
    (void)dsc_build_begin(b);
}
static void too_wide_a_window(dsc_builder *b)
{
    dsc_build_conv2d_options options = DSC_BUILD_CONV2D_OPTIONS_INIT;
    options.kernel[0] = SIDE + 3;
    dsc_build_begin_first(b);
    (void)dsc_build_conv2d(b, dsc_build_patches(b, 1), "conv", &options);
}

static void a_wrong_call_has_its_message(void **state)
{
    (void)state;
    static const struct {
        void (*call)(dsc_builder *b);
        const char *words;
        bool tokens;
    } wrong[] = { { first_of_tokens, "samples are tokens", true },
                  { no_first, "no first module reads them", false },
                  { patches_in_a_last_one, "op \"patches\" stands outside of a first module", false },
                  { large_patch, "have no window of 5 by 5", false },
                  { rows_of_a_picture, "op \"data\" reads data of 2 dimensions, and \"pixels\" has 3", false },
                  { too_few_rows, "expected 2 rows of a sample", false },
                  { rows_beyond, "rows 1 to 1 are not all in its input \"patches\" [1,16]", false },
                  { no_rows, "op \"prepend\": 0 rows", false },
                  { two_firsts, "the order of modules is: a first one, blocks, a last one", false },
                  { convolution_of_rows, "its input \"patches\" [4,4] is not a picture", false },
                  { another_picture, "its input is [16,1], a picture of 2 by 8, and the module before it gives",
                    false },
                  { rows_behind_a_picture, "begin it with dsc_build_begin_picture", false },
                  { too_wide_a_window, "its window of 7 by 3", false },
                  { other_classes, "expected 3 columns, those of the vocabulary", false } };
    for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
        dsc_build_options options = options_of(3);
        dsc_builder *b = NULL;
        dsc_model *model = NULL;
        dsc_error err = DSC_ERROR_INIT;
        if (wrong[i].tokens)
            options.data.dim_count = 0;
        assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
        wrong[i].call(b);
        assert_int_not_equal(dsc_build_finish(&b, NULL, &model, &err), DSC_OK);
        if (strstr(err.message, wrong[i].words) == NULL)
            fail_msg("\"%s\" is not in \"%s\"", wrong[i].words, err.message);
    }
}

static void data_of_no_possible_shape_is_refused(void **state)
{
    (void)state;
    static const dsc_batch_spec wrong[] = { { NULL, DSC_F32, 2, { 1, 1 } },
                                            { "x", DSC_I32, 2, { 1, 1 } },
                                            { "x", DSC_F32, 1, { 4 } },
                                            { "x", DSC_F32, 2, { 0, 4 } },
                                            { "x", DSC_F32, 3, { 3, 1 << 21, 4 } } };
    for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
        dsc_build_options options = options_of(3);
        dsc_builder *b = NULL;
        dsc_error err = DSC_ERROR_INIT;
        options.data = wrong[i];
        assert_int_equal(dsc_build_open(&b, &options, &err), DSC_ERR_STATE);
        assert_non_null(strstr(err.message, "dsc_build_options.data must have"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_a_patch_of_the_same_numbers_give_equal_bits),
        cmocka_unit_test(convolutions_change_rows_and_columns_of_blocks),
        cmocka_unit_test(a_network_of_maps_learns),
        cmocka_unit_test(an_lstm_learns_from_rows_in_order),
        cmocka_unit_test(parameters_are_named_by_module),
        cmocka_unit_test(a_wrong_call_has_its_message),
        cmocka_unit_test(data_of_no_possible_shape_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
