/* test_blocks.c - parts of blocks: their parameters in order, their ops, and their results beside the same ops in
 * double. SPDX-License-Identifier: Apache-2.0 */
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
#include "models/blocks.h"
#include "tests/support/program_random.h"

enum { TOKENS = 5, CHANNELS = 8, SIZE = 4, HEADS = 4, INNER = 12, SEEDS = 60 };
#define BOUND 3e-3 /* fp32, as in test_program.c */

/* ---- a block of every switch ---- */

typedef struct switches {
    dsc_block block;
    dsc_block_attention attention;
    dsc_block_mlp mlp;
    dsc_step_norms norms[2];
    bool parallel;
} switches;

static program_random drawn;
static dsc_program compiled;

static switches plain(void)
{
    return (switches) {
        .block = { .norm = { .kind = DSC_NORM_RMS, .eps = 1e-2 }, .out_in = true, .std = 0.02 },
        .attention = { .qkv = { "q", "k", "v" },
                       .out = "o",
                       .op = { .heads = HEADS, .kv_heads = HEADS, .head_size = SIZE, .scale = 0.5 } },
        .mlp = { .up = "up", .down = "down", .inner = INNER, .activation = DSC_GELU_TANH },
        .norms = { { .before = "n1" }, { .before = "n2" } },
    };
}

static void emit(program_random *r, const switches *s, uint64_t seed)
{
    dsc_program *program = &r->source;
    dsc_block block = s->block;
    dsc_block_attention attention = s->attention;
    *r = (program_random) { .seed = seed, .batch = 2, .rope = { .theta = 100 } };
    dsc_rope_set(&r->rope, SIZE - 2);
    attention.rope.rope = s->attention.rope.rope != NULL ? &r->rope : NULL;
    block.program = program;
    dsc_program_begin(program, TOKENS, CHANNELS, DSC_PROGRAM_NONE);
    dsc_step step = dsc_block_begin(&block, program->input, &s->norms[0]);
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    step = dsc_block_begin(&block, s->parallel ? program->input : x, &s->norms[1]);
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &s->mlp), x));
    program_random_take_params(r);
}

static void compile(const program_random *r)
{
    const dsc_program_options options = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    compiled = r->source;
    if (dsc_program_compile(&compiled, &options, &err) != DSC_OK)
        fail_msg("seed %d: %s", (int)r->seed, err.message);
}

/* ---- parameters and ops ---- */

static void expect(const switches *s, const char *params, const char *ops)
{
    static const char *const kinds[] = {
        [DSC_OP_LINEAR] = "linear",       [DSC_OP_NORM] = "norm",
        [DSC_OP_ROPE_TABLE] = "tables",   [DSC_OP_ROPE] = "rope",
        [DSC_OP_ATTENTION] = "attention", [DSC_OP_ACTIVATION] = "act",
        [DSC_OP_GATED] = "gated",         [DSC_OP_ADD] = "add",
        [DSC_OP_SCALE] = "scale",         [DSC_OP_DROPOUT] = "drop",
        [DSC_OP_SLICE] = "slice",         [DSC_OP_COPY] = "copy",
    };
    char text[2000] = "";
    size_t used = 0;
    emit(&drawn, s, 1);
    assert_int_equal(drawn.source.status, DSC_OK);
    for (int32_t i = 0; i < drawn.source.param_count; i++) {
        const dsc_program_param *p = &drawn.source.param[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s.%c[%d", i > 0 ? " " : "", p->name, p->part[0],
                                 (int)p->dim[0]);
        if (p->dim_count == 2)
            used += (size_t)snprintf(text + used, sizeof text - used, ",%d", (int)p->dim[1]);
        used += (size_t)snprintf(text + used, sizeof text - used, "]");
    }
    assert_string_equal(text, params);
    text[used = 0] = 0;
    for (int16_t i = 0; i < drawn.source.op_count; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? " " : "", kinds[drawn.source.op[i].kind]);
    assert_string_equal(text, ops);
    compile(&drawn);
}

static void parameters_are_in_the_order_of_the_parts(void **state)
{
    (void)state;
    switches s = plain();
    expect(&s, "n1.w[8] q.w[16,8] k.w[16,8] v.w[16,8] o.w[8,16] n2.w[8] up.w[12,8] down.w[8,12]",
           "norm linear linear linear attention linear add norm linear act linear add");
    s.attention.q_norm = "qn", s.attention.k_norm = "kn"; /* as in Qwen3: behind those of the products */
    s.attention.op.kv_heads = 2;
    s.attention.qkv_bias = s.attention.out_bias = true;
    s.attention.rope.rope = &drawn.rope;
    s.mlp = (dsc_block_mlp) { .gate = "gate", .up = "up", .down = "down", .down_bias = true, .inner = INNER };
    expect(&s,
           "n1.w[8] q.w[16,8] q.b[16] k.w[8,8] k.b[8] v.w[8,8] v.b[8] o.w[8,16] o.b[8] qn.w[4] kn.w[4] n2.w[8] "
           "gate.w[12,8] up.w[12,8] down.w[8,12] down.b[8]",
           "norm linear linear linear tables norm rope norm rope attention linear add norm linear linear gated linear "
           "add");
    s.attention.norm_whole = s.attention.norm_turned = true;
    s.block.residual = 0.25;
    s.norms[0] = (dsc_step_norms) { .behind = "b1" };
    s.norms[1] = (dsc_step_norms) { .before = "n2", .behind = "b2" };
    expect(&s,
           "b1.w[8] q.w[16,8] q.b[16] k.w[8,8] k.b[8] v.w[8,8] v.b[8] o.w[8,16] o.b[8] qn.w[16] kn.w[8] n2.w[8] "
           "b2.w[8] gate.w[12,8] up.w[12,8] down.w[8,12] down.b[8]",
           "linear linear linear tables rope norm rope norm attention linear norm scale add norm linear linear gated "
           "linear norm scale add");
}

static void one_product_has_its_outputs_cut(void **state)
{
    (void)state;
    switches s = plain();
    s.block.norm.kind = DSC_NORM_LAYER;
    s.block.out_in = false;
    s.attention.kind = DSC_QKV_PARTS;
    s.attention.qkv[0] = "qkv";
    s.attention.op.kv_heads = 2;
    s.mlp.gate_in_up = true;
    s.parallel = true;
    expect(&s, "n1.w[8] n1.b[8] qkv.w[8,32] o.w[16,8] n2.w[8] n2.b[8] up.w[8,24] down.w[12,8]",
           "norm linear slice slice slice attention linear add norm linear slice slice gated linear add");
    s.norms[0] = (dsc_step_norms) { .sum = "s1" };
    s.norms[1] = (dsc_step_norms) { .sum = "s2" };
    s.attention.kind = DSC_QKV_HEADS;
    s.attention.op.kv_heads = HEADS;
    s.mlp.gate_in_up = s.parallel = false;
    expect(&s, "s1.w[8] s1.b[8] qkv.w[8,48] o.w[16,8] s2.w[8] s2.b[8] up.w[8,12] down.w[12,8]",
           "linear slice slice slice attention linear add norm linear act linear add norm");
}

static void standard_deviations_and_splits(void **state)
{
    (void)state;
    switches s = plain();
    s.block.out_std = 0.01;
    emit(&drawn, &s, 1);
    const dsc_program *p = &drawn.source;
    for (int32_t i = 0; i < p->layer_count; i++) {
        const dsc_program_layer *layer = &p->layer[i];
        const bool last = strcmp(layer->name, "o") == 0 || strcmp(layer->name, "down") == 0;
        assert_true(p->param[layer->weight].std == (last ? 0.01 : 0.02));
        assert_int_equal(layer->out_split, !last);
        assert_int_equal(p->param[layer->weight].split, last ? DSC_SPLIT_COLUMN : DSC_SPLIT_ROW);
    }
    assert_int_equal(p->layer_count, 6);
}

/* ---- results ---- */

static switches any(uint64_t seed)
{
    program_random r = { .seed = seed };
    switches s = plain();
    s.block.norm.kind = program_random_draw(&r, 2) == 0 ? DSC_NORM_LAYER : DSC_NORM_RMS;
    s.block.out_in = program_random_draw(&r, 2) == 0;
    s.block.residual = program_random_draw(&r, 3) == 0 ? 0.25 : 0;
    s.attention.kind = (dsc_qkv_kind)program_random_draw(&r, 4);
    if (s.attention.kind != DSC_QKV_HEADS)
        s.attention.op.kv_heads = HEADS >> program_random_draw(&r, 3);
    s.attention.qkv_bias = program_random_draw(&r, 2) == 0;
    s.attention.out_bias = program_random_draw(&r, 2) == 0;
    s.attention.op.window = program_random_draw(&r, 3) == 0 ? 3 : 0;
    s.attention.rope.rope = program_random_draw(&r, 2) == 0 ? &drawn.rope : NULL;
    s.attention.norm_whole = program_random_draw(&r, 2) == 0;
    s.attention.norm_turned = program_random_draw(&r, 2) == 0;
    if (s.attention.kind == DSC_QKV_APART && program_random_draw(&r, 2) == 0)
        s.attention.q_norm = "qn", s.attention.k_norm = "kn";
    if (program_random_draw(&r, 2) == 0)
        s.mlp.gate = "gate";
    s.mlp.gate_in_up = program_random_draw(&r, 3) == 0;
    s.mlp.up_bias = program_random_draw(&r, 2) == 0;
    s.mlp.down_bias = program_random_draw(&r, 2) == 0;
    for (int i = 0; i < 2; i++)
        s.norms[i] = (dsc_step_norms) { program_random_draw(&r, 3) > 0 ? "before" : NULL,
                                        program_random_draw(&r, 3) == 0 ? "behind" : NULL,
                                        program_random_draw(&r, 3) == 0 ? "sum" : NULL,
                                        program_random_draw(&r, 3) == 0 ? "scale" : NULL };
    s.parallel = program_random_draw(&r, 3) == 0;
    return s;
}

static program_reference *reference_of(program_random *r)
{
    program_reference *reference = program_reference_open(&r->source, r->batch, r->param_elements, r->param_count);
    program_random_fill(r, reference);
    program_reference_forward(reference);
    program_reference_backward(reference);
    return reference;
}

static void blocks_of_any_switches_agree(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const switches s = any(seed);
        emit(&drawn, &s, seed);
        compile(&drawn);
        program_reference *reference = reference_of(&drawn);
        program_result *result = program_random_run(&drawn, &compiled, reference, (program_mode) { .dtype = DSC_F32 });
        const double error = program_result_error(&drawn, result, reference);
        if (!(error < BOUND))
            fail_msg("seed %d: off by %.3g", (int)seed, error);
        program_result_free(result);
        program_reference_close(reference);
    }
}

/* The weights of q, k and v, and of gate and up, one behind the other are those of the one product. */
static void one_product_equals_several(void **state)
{
    (void)state;
    static program_random one;
    switches s = plain();
    s.attention.op.kv_heads = 2;
    s.mlp.gate = "gate";
    emit(&drawn, &s, 3);
    program_reference *several = reference_of(&drawn);
    s.attention.kind = DSC_QKV_PARTS;
    s.mlp.gate_in_up = true;
    emit(&one, &s, 3);
    program_reference *whole = reference_of(&one);
    int from = 0;
    for (int i = 0; i < one.param_count; i++)
        for (int64_t at = 0; at < one.param_elements[i]; at += drawn.param_elements[from++])
            memcpy(whole->param[i] + at, several->param[from], (size_t)drawn.param_elements[from] * sizeof(double));
    assert_int_equal(from, drawn.param_count);
    memcpy(whole->value[one.source.input], several->value[drawn.source.input],
           (size_t)program_reference_elements(whole, one.source.input) * sizeof(double));
    program_reference_forward(whole);
    for (int64_t i = 0; i < program_reference_elements(whole, one.source.output); i++)
        assert_true(fabs(whole->value[one.source.output][i] - several->value[drawn.source.output][i]) < 1e-12);
    program_reference_close(several);
    program_reference_close(whole);
}

/* ---- refusals ---- */

static void expect_refusal(const dsc_program *program, const char *text)
{
    assert_int_not_equal(program->status, DSC_OK);
    if (strstr(program->err.message, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, program->err.message);
}

static void refusals_name_parameters(void **state)
{
    (void)state;
    dsc_program *p = &compiled;
    const dsc_op_norm norm = { .kind = DSC_NORM_RMS, .groups = 1, .eps = 1e-5 };
    dsc_op_norm other = norm;
    dsc_program_begin(p, TOKENS, CHANNELS, DSC_PROGRAM_NONE);
    (void)dsc_program_linear_of(p, p->input, 0);
    expect_refusal(p, "layer 0 is not one of the program's 0");
    dsc_program_begin(p, TOKENS, CHANNELS, DSC_PROGRAM_NONE);
    (void)dsc_program_norm_of(p, p->input, &norm);
    expect_refusal(p, "parameter 0 is not one of the program's 0");
    dsc_program_begin(p, TOKENS, CHANNELS, DSC_PROGRAM_NONE);
    dsc_program_declare_norm(p, "n", 6, &other);
    (void)dsc_program_norm_of(p, p->input, &other);
    expect_refusal(p, "op \"n\" (norm): its input has 8 columns a group, and its weight has 6 elements");
    dsc_program_begin(p, TOKENS, CHANNELS, DSC_PROGRAM_NONE);
    (void)dsc_program_declare_linear(p, &(dsc_program_linear_args) { .name = "q", .shape = { 8, 0, true } });
    expect_refusal(p, "op \"q\" (linear): a weight of 8 inputs and 0 outputs");
    dsc_program_begin(p, TOKENS, CHANNELS, DSC_PROGRAM_NONE);
    for (int i = 0; i < 100; i++)
        (void)dsc_program_declare_linear(p, &(dsc_program_linear_args) { .name = "q", .shape = { 8, 8, true } });
    expect_refusal(p, "at most 64 linear layers");
    dsc_program_begin(p, TOKENS, CHANNELS, DSC_PROGRAM_NONE);
    for (int i = 0; i < 300; i++)
        dsc_program_declare_norm(p, "n", 6, &other);
    expect_refusal(p, "parameter \"n\": a program has at most 160 parameters");
    /* After a failure all parts give no value, and the message stays. */
    switches s = plain();
    s.block.program = p;
    assert_int_equal(dsc_block_attend(&s.block, DSC_PROGRAM_NONE, &s.attention), DSC_PROGRAM_NONE);
    assert_int_equal(dsc_block_feed(&s.block, DSC_PROGRAM_NONE, &s.mlp), DSC_PROGRAM_NONE);
    expect_refusal(p, "at most 160 parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_in_the_order_of_the_parts),
        cmocka_unit_test(one_product_has_its_outputs_cut),
        cmocka_unit_test(standard_deviations_and_splits),
        cmocka_unit_test(blocks_of_any_switches_agree),
        cmocka_unit_test(one_product_equals_several),
        cmocka_unit_test(refusals_name_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
