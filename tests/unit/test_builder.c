/* test_builder.c - the public builder: models, gradients of custom ops, and a message for each wrong call.
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
#include "tests/support/built_models.h"
#include "tests/support/lmrun.h"

/* ---- models ---- */

static void a_built_llama_is_the_built_in_one(void **state)
{
    (void)state;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_model *known = NULL, *built = built_llama_nano(128);
    assert_int_equal(dsc_model_open(&known, "llama-nano", &options, NULL), DSC_OK);
    assert_int_equal(dsc_model_check(built, NULL), DSC_OK);
    assert_int_equal(built->module_count, known->module_count);
    for (int32_t m = 0; m < known->module_count; m++) {
        dsc_module_plan x, y;
        const dsc_module *a = &known->modules[m], *b = &built->modules[m];
        assert_int_equal(a->param_count, b->param_count);
        for (int32_t p = 0; p < a->param_count; p++) {
            assert_int_equal(a->params[p].dim_count, b->params[p].dim_count);
            assert_memory_equal(a->params[p].dim, b->params[p].dim, sizeof a->params[p].dim);
            assert_int_equal(a->params[p].init, b->params[p].init);
            assert_true(a->params[p].init_std == b->params[p].init_std);
        }
        assert_int_equal(a->plan(a, 2, DSC_F32, NULL, &x, NULL), DSC_OK);
        assert_int_equal(b->plan(b, 2, DSC_F32, NULL, &y, NULL), DSC_OK);
        assert_int_equal(x.saved_bytes, y.saved_bytes);
        assert_int_equal(x.backward_scratch_bytes, y.backward_scratch_bytes);
        assert_true(x.backward_flops == y.backward_flops);
    }
    dsc_model_close(&known);
    dsc_model_close(&built);
}

static void parameters_are_named_by_block_and_op(void **state)
{
    (void)state;
    static const char *const names[] = { "embedding.weight",
                                         "positions.weight",
                                         "blocks.0.norm.weight",
                                         "blocks.0.norm.bias",
                                         "blocks.0.qkv.weight",
                                         "blocks.0.qkv.bias",
                                         "blocks.0.out.weight",
                                         "blocks.0.out.bias",
                                         "blocks.1.norm.weight",
                                         "blocks.1.up.weight",
                                         "blocks.1.down.weight",
                                         "blocks.1.down.bias",
                                         "blocks.1.swish.weight",
                                         "norm.weight",
                                         "norm.bias",
                                         "head.weight" };
    dsc_model *model = built_mixed(0);
    size_t count = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            assert_string_equal(model->modules[m].params[p].name, names[count++]);
    assert_int_equal(count, DSC_COUNT(names));
    assert_int_equal(model->modules[2].params[4].init, DSC_INIT_ONES);
    char text[8000];
    assert_true(model->show_module(model, 2, 1, DSC_F32, text, sizeof text) < (int)sizeof text);
    assert_non_null(strstr(text, "custom         norm.1, down."));
    assert_non_null(strstr(text, "custom_bwd"));
    dsc_model_close(&model);
}

static void bits_do_not_depend_on_threads_and_recomputation(void **state)
{
    (void)state;
    dsc_model *model = built_mixed(0.25);
    lmrun_keeps_its_bits(model, DSC_F32);
    lmrun_keeps_its_bits(model, DSC_BF16);
    dsc_model_close(&model);
}

/* Custom ops among the others, their own parameter too. */
static void gradients_are_slopes(void **state)
{
    (void)state;
    dsc_model *model = built_mixed(0);
    lmrun_gradient_is_the_slope(model);
    dsc_model_close(&model);
}

/* The longest names, and layers of more names than adapters could have. */
static dsc_node named_block(dsc_builder *b, dsc_node x, int64_t block, void *user)
{
    char name[33];
    dsc_custom_op op = *(const dsc_custom_op *)user;
    snprintf(name, sizeof name, "a_name_of_thirty_two_bytes.%05lld", (long long)block);
    op.param[0].name = name;
    const dsc_node in[2] = { x, dsc_build_linear(b, x, name, 24, true) };
    op.name = "a_name_of_thirty_two_bytes.swish";
    return dsc_build_custom(b, in, &op);
}

static void many_blocks_with_long_names(void **state)
{
    (void)state;
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    const dsc_build_head_options head = DSC_BUILD_HEAD_OPTIONS_INIT;
    dsc_custom_op op = built_swish;
    dsc_builder *b = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    options.name = "many", options.tokens = 6, options.vocabulary = 10, options.channels = 24;
    assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
    dsc_build_blocks(b, 100, named_block, &op);
    if (dsc_build_finish(&b, &head, &model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    assert_string_equal(model->modules[100].params[2].name,
                        "blocks.99.a_name_of_thirty_two_bytes.swish.a_name_of_thirty_two_bytes.00099");
    dsc_model_close(&model);
}

/* ---- refusals ---- */

typedef struct refusal_case {
    const char *message;
    dsc_node (*block)(dsc_builder *b, dsc_node x);
} refusal_case;

static dsc_status failing(void *user, const dsc_custom_call *call, dsc_error *err)
{
    (void)user, (void)call, (void)err;
    return DSC_ERR_NUMERIC;
}

static dsc_custom_op custom(void)
{
    dsc_custom_op op = DSC_CUSTOM_OP_INIT;
    op.name = "own";
    op.forward = op.backward = failing;
    return op;
}

static dsc_node linear(dsc_builder *b, dsc_node x, const char *name, int64_t columns)
{
    return dsc_build_linear(b, x, name, columns, false);
}

static dsc_node attention_of(dsc_builder *b, dsc_node x, int64_t heads, int64_t kv_heads, double scale, int64_t window)
{
    dsc_build_attention_options options = DSC_BUILD_ATTENTION_OPTIONS_INIT;
    options.heads = heads, options.kv_heads = kv_heads, options.scale = scale, options.window = window;
    return dsc_build_attention(b, x, x, x, &options);
}

#define CASE(name, ...)                                                                                                \
    static dsc_node name(dsc_builder *b, dsc_node x) { __VA_ARGS__; }
CASE(no_output, (void)x; (void)b; return DSC_NODE_NONE)
CASE(far_node, return dsc_build_scale(b, x + 500, 2))
CASE(other_block, return dsc_build_scale(b, x + 4096, 2))
CASE(wide_output, return linear(b, x, "wide", 20))
CASE(bad_name, return linear(b, x, "a b", 8))
CASE(long_name, return linear(b, x, "a23456789012345678901234567890123", 8))
CASE(no_columns, return linear(b, x, "q", 0))
CASE(two_names, return linear(b, linear(b, x, "q", 8), "q", 8))
CASE(bad_norm, return dsc_build_norm(b, x, "n", (dsc_build_norm_kind)7, 1, 1e-5))
CASE(bad_groups, return dsc_build_norm(b, x, "n", DSC_BUILD_RMS_NORM, 3, 1e-5))
CASE(bad_eps, return dsc_build_norm(b, x, "n", DSC_BUILD_RMS_NORM, 1, 0))
CASE(bad_heads, return dsc_build_rope(b, x, 3, 2, 100))
CASE(odd_turn, return dsc_build_rope(b, x, 2, 3, 100))
CASE(bad_theta, return dsc_build_rope(b, x, 2, 4, 0))
CASE(attention_heads, return attention_of(b, x, 3, 0, 0, 0))
CASE(attention_kv, return attention_of(b, x, 4, 2, 0, 0))
CASE(attention_scale, return attention_of(b, x, 4, 0, NAN, 0))
CASE(attention_window, return attention_of(b, x, 4, 0, 0, -1))
CASE(bad_activation, return dsc_build_activation(b, x, (dsc_build_activation_kind)9))
CASE(gated_shapes, return dsc_build_gated(b, x, linear(b, x, "up", 12)))
CASE(add_shapes, return dsc_build_add(b, linear(b, x, "up", 12), x))
CASE(bad_factor, return dsc_build_scale(b, x, INFINITY))
CASE(bad_dropout, return dsc_build_dropout(b, x, 1))
CASE(bad_slice, return dsc_build_slice(b, x, 4, 8))
CASE(half_slice, return linear(b, dsc_build_gated(b, dsc_build_slice(b, x, 0, 4), dsc_build_slice(b, x, 0, 4)), "q", 8))
CASE(unused, (void)linear(b, x, "q", 8); return dsc_build_scale(b, x, 2))
CASE(constant, return x)
CASE(many_ops, for (int i = 0; i < 200; i++) x = dsc_build_scale(b, x, 2); return x)
CASE(nested, (void)dsc_build_begin(b); return x)
CASE(custom_none, dsc_custom_op op = custom(); op.forward = NULL; return dsc_build_custom(b, &x, &op))
CASE(custom_inputs, dsc_custom_op op = custom(); op.input_count = 4; return dsc_build_custom(b, &x, &op))
CASE(custom_params, dsc_custom_op op = custom(); op.param_count = -1; return dsc_build_custom(b, &x, &op))
CASE(custom_columns, dsc_custom_op op = custom(); op.out_columns = -1; return dsc_build_custom(b, &x, &op))
CASE(custom_scratch, dsc_custom_op op = custom(); op.scratch_bytes = -1; return dsc_build_custom(b, &x, &op))
CASE(custom_flops, dsc_custom_op op = custom(); op.flops_per_row = NAN; return dsc_build_custom(b, &x, &op))
CASE(custom_size, dsc_custom_op op = custom(); op.struct_bytes = 8; return dsc_build_custom(b, &x, &op))
CASE(custom_shape, dsc_custom_op op = custom(); op.param_count = 1; op.param[0] = (dsc_custom_param) { .name = "w" };
     return dsc_build_custom(b, &x, &op))
CASE(custom_std, dsc_custom_op op = custom(); op.param_count = 1;
     op.param[0] = (dsc_custom_param) { .name = "w", .columns = 8, .init_std = -1 };
     return dsc_build_custom(b, &x, &op))
CASE(custom_slice, dsc_custom_op op = custom(); const dsc_node s = dsc_build_slice(b, x, 0, 4);
     const dsc_node y = dsc_build_custom(b, &s, &op);
     return linear(b, dsc_build_add(b, y, linear(b, dsc_build_slice(b, x, 4, 4), "p", 4)), "q", 8))

static const refusal_case cases[] = {
    { "op \"end\": its input is DSC_NODE_NONE", no_output },
    { "op \"scale\": node 500 is not a value of this block", far_node },
    { "op \"scale\": node 4096 is not a value of this block", other_block },
    { "its output \"wide\" is [6,20]; expected 8 columns, those of the model", wide_output },
    { "a name of 3 bytes, \"a b\"; expected 1 to 32 letters", bad_name },
    { "a name of 33 bytes", long_name },
    { "op \"q\" (linear): 0 columns; expected 1 to 1048576", no_columns },
    { "two parameters are named \"q.weight\"", two_names },
    { "op \"n\" (norm): kind 7", bad_norm },
    { "op \"n\" (norm): its input \"in\" is [6,8], which 3 groups do not divide", bad_groups },
    { "op \"n\" (norm): eps 0; expected above 0", bad_eps },
    { "op \"rope\": 3 heads do not divide its input, which has 8 columns", bad_heads },
    { "op \"rope\": 3 elements of a head turn; expected an even number from 2 to 4", odd_turn },
    { "op \"rope\": theta 0", bad_theta },
    { "op \"attention\": 3 heads of q, which has 8 columns", attention_heads },
    { "op \"attention\": its input \"in\" is [6,8]; expected 6 rows of 2 heads of 2 elements", attention_kv },
    { "op \"attention\": scale nan", attention_scale },
    { "op \"attention\": kv_heads 0, window -1", attention_window },
    { "op \"activation\": kind 9 is not one of the 8", bad_activation },
    { "op \"gated\": its inputs \"in\" [6,8] and \"up\" [6,12] differ in shape", gated_shapes },
    { "op \"add\": its inputs \"up\" [6,12] and \"in\" [6,8] differ in shape", add_shapes },
    { "op \"scale\": factor inf", bad_factor },
    { "op \"dropout\": the probability 1 is not in [0, 1)", bad_dropout },
    { "op \"slice\": 1 times 8 columns from 4 on", bad_slice },
    { "cover 4 of 8 columns", half_slice },
    { "op \"q\" (linear): nothing reads its output", unused },
    { "a program without an output", constant },
    { "a program has at most 128 ops", many_ops },
    { "a block begins before the one in hand ends", nested },
    { "op \"own\" (custom): no forward callback", custom_none },
    { "op \"own\" (custom): 4 inputs; expected 1 to 3", custom_inputs },
    { "op \"own\" (custom): -1 parameters; expected 0 to 4", custom_params },
    { "op \"own\" (custom): -1 columns", custom_columns },
    { "op \"own\" (custom): scratch of -1 bytes", custom_scratch },
    { "op \"own\" (custom): nan FLOPs", custom_flops },
    { "dsc_custom_op.struct_bytes is 8", custom_size },
    { "op \"own\" (custom): parameter 0 is [0,0]", custom_shape },
    { "op \"own\" (custom): init_std -1 of parameter 0", custom_std },
    { "op \"own\" (custom) reads or writes columns of a wider value", custom_slice },
};

static dsc_builder *begin(void)
{
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    dsc_builder *b = NULL;
    options.name = "refused", options.tokens = 6, options.vocabulary = 10, options.channels = 8;
    assert_int_equal(dsc_build_open(&b, &options, NULL), DSC_OK);
    return b;
}

static void expect_refusal(dsc_builder *b, const char *where, const char *message)
{
    const dsc_build_head_options head = DSC_BUILD_HEAD_OPTIONS_INIT;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_not_equal(dsc_build_finish(&b, &head, &model, &err), DSC_OK);
    assert_null(model);
    assert_null(b);
    if (strstr(err.message, message) == NULL)
        fail_msg("\"%s\" is not in: %s: %s", message, err.where, err.message);
    assert_string_equal(err.where, where);
}

/* The block before is a good one, so that messages name the second. */
static void each_wrong_op_has_its_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_builder *b = begin();
        dsc_build_end(b, cases[i].block(b, dsc_build_begin(b)));
        dsc_build_end(b, linear(b, dsc_build_begin(b), "late", 8)); /* does nothing after a failure */
        expect_refusal(b, "block 0", cases[i].message);
    }
}

static void wrong_options_and_orders(void **state)
{
    (void)state;
    dsc_build_options options = DSC_BUILD_OPTIONS_INIT;
    dsc_build_head_options head = DSC_BUILD_HEAD_OPTIONS_INIT;
    dsc_builder *b = NULL;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_build_open(&b, &options, &err), DSC_ERR_STATE);
    assert_non_null(strstr(err.message, "name must have 1 to 200"));
    options.name = "m";
    assert_int_equal(dsc_build_open(&b, &options, &err), DSC_ERR_STATE);
    assert_non_null(strstr(err.message, "dsc_build_options.tokens is 0; expected 1 to"));
    options.tokens = 4, options.vocabulary = 10, options.channels = 8, options.init_std = NAN;
    assert_int_equal(dsc_build_open(&b, &options, &err), DSC_ERR_STATE);
    assert_non_null(strstr(err.message, "init_std is nan"));
    options.struct_bytes = 4;
    assert_int_equal(dsc_build_open(&b, &options, &err), DSC_ERR_STATE);
    assert_non_null(strstr(err.message, "struct_bytes is 4"));
    assert_null(b);
    expect_refusal(begin(), "", "a model without blocks");
    b = begin();
    dsc_build_end(b, 0);
    expect_refusal(b, "", "dsc_build_end without a block");
    b = begin();
    (void)dsc_build_scale(b, 0, 2);
    expect_refusal(b, "", "op \"scale\" stands outside of a block");
    b = begin();
    dsc_build_blocks(b, 1, NULL, NULL);
    expect_refusal(b, "", "without a function");
    b = begin();
    (void)dsc_build_begin(b);
    expect_refusal(b, "block 0", "the model is finished before this block ends");
    b = begin();
    dsc_build_end(b, linear(b, dsc_build_begin(b), "q", 8));
    head.eps = 0;
    assert_int_equal(dsc_build_finish(&b, &head, &model, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "the head's eps is 0"));
    b = begin();
    dsc_build_close(&b);
    dsc_build_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_built_llama_is_the_built_in_one),
        cmocka_unit_test(parameters_are_named_by_block_and_op),
        cmocka_unit_test(bits_do_not_depend_on_threads_and_recomputation),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(many_blocks_with_long_names),
        cmocka_unit_test(each_wrong_op_has_its_message),
        cmocka_unit_test(wrong_options_and_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
