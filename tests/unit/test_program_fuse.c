/* test_program_fuse.c - fusions of programs: which ops become one, that bits stay, and faults that tests must find.
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
#include "kernels/device.h"
#include "tests/support/program_random.h"

#define SEEDS 50
#define BOUND 3e-3 /* fp32 through up to 40 ops, of which norms of nearly equal values magnify roundings */

static program_random random_program;
static dsc_program compiled;

static void compile(const program_random *r, bool no_fusion)
{
    const dsc_program_options options = { .no_fusion = no_fusion };
    dsc_error err = DSC_ERROR_INIT;
    compiled = r->source;
    if (dsc_program_compile(&compiled, &options, &err) != DSC_OK)
        fail_msg("seed %d: %s", (int)r->seed, err.message);
}

static program_reference *reference_of(program_random *r)
{
    program_reference *reference = program_reference_open(&r->source, r->batch, r->param_elements, r->param_count);
    program_random_fill(r, reference);
    program_reference_forward(reference);
    program_reference_backward(reference);
    return reference;
}

static int seeds(void) { return getenv("DSC_TEST_NIGHT") != NULL ? 1000 : SEEDS; }

static double error_of(const program_random *r, const program_reference *reference, program_mode mode)
{
    program_result *result = program_random_run(r, &compiled, reference, mode);
    const double error = program_result_error(r, result, reference);
    program_result_free(result);
    return error;
}

/* ---- fusions that keep bits ---- */

static int16_t sibling(dsc_program *p, int16_t x, const char *name, int64_t out, bool bias)
{
    return dsc_program_linear(
        p, x, &(dsc_program_linear_args) { .name = name, .shape = { 0, out, true }, .bias = bias, .late_bias = bias });
}

/* q, k and v of one input, gate and up of one input, and norms of sums that no product makes. The library sums products
 * of these widths in one order; with fewer rows and columns it has others. */
typedef enum joined_norms { NO_NORMS, NORMS_OF_HEADS, NORMS_BEHIND_ROPE } joined_norms;

/* q or k as the attention reads it: turned, and with norms of its heads before that or of whole rows behind it. */
static int16_t joined_heads(program_random *r, int16_t x, dsc_program_tables tables, joined_norms norms, int64_t heads)
{
    dsc_program *p = &r->source;
    const dsc_op_rope rope = { &r->rope, heads, 16, 0 };
    const dsc_op_norm of_heads = { .kind = DSC_NORM_RMS, .groups = heads, .eps = 1e-5 };
    const dsc_op_norm of_rows = { .kind = DSC_NORM_LAYER, .groups = 1, .eps = 1e-5 };
    if (norms == NORMS_OF_HEADS)
        x = dsc_program_norm(p, x, heads == 4 ? "q_norm" : "k_norm", &of_heads);
    x = dsc_program_rope(p, x, tables, &rope);
    return norms == NORMS_BEHIND_ROPE ? dsc_program_norm(p, x, heads == 4 ? "q_norm" : "k_norm", &of_rows) : x;
}

static void make_joined(program_random *r, bool bias, joined_norms norms)
{
    dsc_program *p = &r->source;
    const dsc_op_norm rms = { .kind = DSC_NORM_RMS, .groups = 1, .eps = 1e-5 }, layer = { .groups = 1, .eps = 1e-5 };
    const dsc_op_attention attention = { .heads = 4, .kv_heads = 2, .head_size = 16, .scale = 0.25 };
    *r = (program_random) { .seed = 5, .batch = 2, .rope = { .theta = 100 } };
    dsc_rope_set(&r->rope, 16);
    dsc_program_begin(p, 40, 64, DSC_PROGRAM_NONE);
    const int16_t q = sibling(p, p->input, "q", 64, bias), k = sibling(p, p->input, "k", 32, bias),
                  v = sibling(p, p->input, "v", 32, bias);
    const dsc_program_tables tables = dsc_program_rope_tables(p, &r->rope);
    const int16_t q_turned = joined_heads(r, q, tables, norms, 4), k_turned = joined_heads(r, k, tables, norms, 2);
    const int16_t seen = dsc_program_attention(p, q_turned, k_turned, v, &attention);
    const int16_t sum = dsc_program_add(p, seen, p->input), in = dsc_program_norm(p, sum, "first", &rms);
    const int16_t gate = sibling(p, in, "gate", 64, bias), up = sibling(p, in, "up", 64, bias);
    const int16_t gated = dsc_program_gated(p, gate, up, DSC_SILU);
    dsc_program_end(p, dsc_program_norm(p, dsc_program_add(p, gated, sum), "second", &layer));
    assert_int_equal(p->status, DSC_OK);
    program_random_take_params(r);
    for (int i = 0; i < r->param_count; i++)
        r->spec[i].trainable = true;
}

static int count_ops(dsc_pass pass, dsc_op_kind kind)
{
    int count = 0;
    for (int16_t i = 0; i < compiled.list[pass].count; i++)
        count += compiled.op[compiled.list[pass].op[i]].kind == kind;
    return count;
}

static void check_joined(bool bias, joined_norms norms)
{
    static const program_mode modes[] = { { 0 }, { .rebuild = true }, { .keep = true }, { .recompute = true } };
    program_random *r = &random_program;
    make_joined(r, bias, norms);
    program_reference *reference = reference_of(r);
    for (size_t i = 0; i < 2 * DSC_COUNT(modes); i++) {
        program_mode mode = modes[i / 2];
        mode.dtype = i % 2 == 0 ? DSC_F32 : DSC_BF16;
        compile(r, true);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_LINEAR), 5);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_ADD), 2);
        program_result *apart = program_random_run(r, &compiled, reference, mode);
        compile(r, false);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_LINEAR), 2);
        assert_int_equal(count_ops(DSC_PASS_BACKWARD, DSC_OP_LINEAR_DW), 2);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_NORM), norms == NO_NORMS ? 2 : 4);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_ADD), 0);
        program_result *joined = program_random_run(r, &compiled, reference, mode);
        if (!program_result_equals(r, apart, joined))
            fail_msg("norms %d, mode %d, %s: other bits", (int)norms, (int)i / 2,
                     mode.dtype == DSC_F32 ? "fp32" : "bf16");
        program_result_free(apart);
        program_result_free(joined);
    }
    program_reference_close(reference);
}

static void joined_ops_keep_their_bits(void **state)
{
    (void)state;
    for (joined_norms norms = NO_NORMS; norms <= NORMS_BEHIND_ROPE; norms++) {
        check_joined(false, norms);
        check_joined(true, norms);
    }
}

/* A product, an activation, and a product that alone reads it. */
static void make_activated(program_random *r, dsc_activation kind, bool bias)
{
    dsc_program *p = &r->source;
    *r = (program_random) { .seed = 6, .batch = 2 };
    dsc_program_begin(p, 40, 64, DSC_PROGRAM_NONE);
    const int16_t fc = dsc_program_linear(
        p, p->input, &(dsc_program_linear_args) { .name = "fc", .shape = { 0, 200, true }, .bias = bias });
    const int16_t act = dsc_program_activation(p, fc, kind);
    dsc_program_end(
        p, dsc_program_linear(p, act, &(dsc_program_linear_args) { .name = "proj", .shape = { 0, 64, true } }));
    assert_int_equal(p->status, DSC_OK);
    program_random_take_params(r);
    for (int i = 0; i < r->param_count; i++)
        r->spec[i].trainable = true;
}

static void check_activated(dsc_activation kind, bool bias)
{
    static const program_mode modes[] = { { 0 }, { .rebuild = true }, { .keep = true }, { .recompute = true } };
    program_random *r = &random_program;
    make_activated(r, kind, bias);
    program_reference *reference = reference_of(r);
    for (size_t i = 0; i < 2 * DSC_COUNT(modes); i++) {
        program_mode mode = modes[i / 2];
        mode.dtype = i % 2 == 0 ? DSC_F32 : DSC_BF16;
        compile(r, true);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_ACTIVATION), 1);
        assert_int_equal(count_ops(DSC_PASS_BACKWARD, DSC_OP_ACTIVATION_BWD), 1);
        program_result *apart = program_random_run(r, &compiled, reference, mode);
        compile(r, false);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_ACTIVATION), 0);
        assert_int_equal(count_ops(DSC_PASS_BACKWARD, DSC_OP_ACTIVATION_BWD), 0);
        program_result *fused = program_random_run(r, &compiled, reference, mode);
        const bool other_slope = kind == DSC_GELU_TANH && bias; /* rounded once less */
        if (!other_slope && !program_result_equals(r, apart, fused))
            fail_msg("activation %d%s, mode %d, %s: other bits", (int)kind, bias ? " with bias" : "", (int)i / 2,
                     mode.dtype == DSC_F32 ? "fp32" : "bf16");
        program_result_free(apart);
        program_result_free(fused);
    }
    program_reference_close(reference);
}

static void fused_activations_keep_their_bits(void **state)
{
    (void)state;
    for (int kind = 0; kind < DSC_ACTIVATIONS; kind++)
        for (int bias = 0; bias < 2; bias++)
            check_activated((dsc_activation)kind, bias == 1);
}

/* Where the parameters stand otherwise, layers stay apart: other biases than behind each weight, or some without. */
static void layers_that_do_not_follow_stay_apart(void **state)
{
    (void)state;
    static const struct {
        bool bias[3], late[3];
    } cases[] = { { { true, true, true }, { true, true, false } },
                  { { true, true, true }, { false, false, false } },
                  { { true, false, true }, { true, false, true } },
                  { { false, true, true }, { false, true, true } } };
    const dsc_op_attention attention = { .heads = 2, .kv_heads = 2, .head_size = 16, .scale = 0.25 };
    static const char *const names[] = { "q", "k", "v" };
    program_random *r = &random_program;
    dsc_program *p = &r->source;
    for (size_t c = 0; c < DSC_COUNT(cases); c++) {
        int16_t qkv[3];
        *r = (program_random) { .seed = 7, .batch = 1 };
        dsc_program_begin(p, 8, 32, DSC_PROGRAM_NONE);
        for (int i = 0; i < 3; i++)
            qkv[i] = dsc_program_linear(p, p->input,
                                        &(dsc_program_linear_args) { .name = names[i],
                                                                     .shape = { 0, 32, true },
                                                                     .bias = cases[c].bias[i],
                                                                     .late_bias = cases[c].late[i] });
        dsc_program_end(p, dsc_program_attention(p, qkv[0], qkv[1], qkv[2], &attention));
        compile(r, false);
        assert_int_equal(count_ops(DSC_PASS_FORWARD, DSC_OP_LINEAR), 3);
    }
}

/* The text names the activation of an epilogue, and each kind by its own name. */
static void a_shown_program_names_its_activations(void **state)
{
    (void)state;
    static const char *const names[DSC_ACTIVATIONS] = { "gelu tanh",    "gelu erf",   "relu",        "silu",
                                                        "relu squared", "sigmoid",    "half square", "relu6",
                                                        "hard sigmoid", "hard swish" };
    static char text[8192];
    program_random *r = &random_program;
    for (int kind = 0; kind < DSC_ACTIVATIONS; kind++)
        for (int no_fusion = 0; no_fusion < 2; no_fusion++) {
            char expected[64];
            make_activated(r, (dsc_activation)kind, false);
            compile(r, no_fusion == 1);
            assert_true(dsc_program_show(&compiled, 2, DSC_BF16, text, sizeof text) < (int)sizeof text);
            snprintf(expected, sizeof expected, no_fusion == 1 ? "(%s)" : "slope of %s ", names[kind]);
            if (strstr(text, expected) == NULL)
                fail_msg("\"%s\" is not in: %s", expected, text);
        }
}

/* ---- planted faults ---- */

static int16_t *backward_list(int16_t *count)
{
    *count = compiled.list[DSC_PASS_BACKWARD].count;
    return compiled.list[DSC_PASS_BACKWARD].op;
}

/* A gradient that is made of two is made of the last one alone. */
static bool forget_a_sum(void)
{
    int16_t count, *list = backward_list(&count);
    for (int16_t i = 0; i < count; i++) {
        dsc_op *op = &compiled.op[list[i]];
        if (op->kind == DSC_OP_LINEAR_DX && op->linear.backward == DSC_EPILOGUE_ADD) {
            op->linear.backward = DSC_EPILOGUE_NONE;
            return true;
        }
        if (op->kind == DSC_OP_NORM_BWD && op->in[1] != DSC_PROGRAM_NONE) {
            op->in[1] = DSC_PROGRAM_NONE;
            return true;
        }
        if (op->kind == DSC_OP_ADD && op->in[0] != op->in[1] && !op->unless_kept) {
            op->kind = DSC_OP_COPY;
            return true;
        }
    }
    return false;
}

/* A weight's gradient is made with another value of the same shape than its product read. */
static bool read_a_wrong_value(void)
{
    int16_t count, *list = backward_list(&count);
    for (int16_t i = 0; i < count; i++) {
        dsc_op *op = &compiled.op[list[i]];
        if (op->kind != DSC_OP_LINEAR_DW || !random_program.spec[op->linear.weight].trainable)
            continue;
        for (int16_t v = 0; v < compiled.value_count; v++) {
            const dsc_value *value = &compiled.value[v], *right = &compiled.value[op->in[0]];
            if (v == op->in[0] || (value->store != DSC_STORE_SAVED && value->store != DSC_STORE_INPUT) ||
                value->columns != right->columns || value->f32 ||
                compiled.place[1][v].width != compiled.place[1][v].stride || compiled.place[1][v].stride == 0)
                continue;
            op->in[0] = v;
            return true;
        }
    }
    return false;
}

/* Whether a value is all of a buffer of backward's own. */
static bool is_own(int16_t value)
{
    const dsc_place *place = &compiled.place[1][value];
    return value >= compiled.d_output && place->stride > 0 && place->width == place->stride &&
           compiled.buffer[1][place->buffer].region == DSC_REGION_SCRATCH;
}

/* The output of op `at` goes to the memory of a gradient that a later op reads. */
static bool overwrite_before(int16_t reader, int16_t at)
{
    const int16_t *list = compiled.list[DSC_PASS_BACKWARD].op, victim = compiled.op[list[reader]].in[0];
    const dsc_op *between = &compiled.op[list[at]];
    const int16_t made = between->out[0];
    if (made == DSC_PROGRAM_NONE || made == victim || between->unless_kept ||
        compiled.value[victim].maker == list[at] || !is_own(made) ||
        compiled.value[made].columns != compiled.value[victim].columns ||
        compiled.value[made].rows != compiled.value[victim].rows || compiled.value[made].f32 ||
        compiled.place[1][made].buffer == compiled.place[1][victim].buffer)
        return false;
    compiled.place[1][made] = compiled.place[1][victim];
    return true;
}

/* A lifetime is cut short by one op or a few. */
static bool cut_a_lifetime_short(void)
{
    int16_t count, *list = backward_list(&count);
    for (int16_t i = 2; i < count; i++) {
        const dsc_op *reader = &compiled.op[list[i]];
        if (reader->kind != DSC_OP_LINEAR_DX || !is_own(reader->in[0]))
            continue;
        for (int16_t at = (int16_t)(i - 1); at >= 0 && list[at] != compiled.value[reader->in[0]].maker; at--)
            if (overwrite_before(i, at))
                return true;
    }
    return false;
}

/* Backward of a gated activation takes each of its inputs for the other one. */
static bool swap_gate_and_up(void)
{
    int16_t count, *list = backward_list(&count);
    for (int16_t i = 0; i < count; i++) {
        dsc_op *op = &compiled.op[list[i]];
        const int16_t gate = op->in[1], up = op->in[2];
        if (op->kind != DSC_OP_GATED_BWD || gate == up)
            continue;
        op->in[1] = up, op->in[2] = gate;
        return true;
    }
    return false;
}

/* A product of several layers leaves the last one out. */
static bool forget_a_layer(void)
{
    const dsc_op_list *list = &compiled.list[DSC_PASS_FORWARD];
    for (int16_t i = 0; i < list->count; i++) {
        dsc_op *op = &compiled.op[list->op[i]];
        if (op->kind == DSC_OP_LINEAR && op->linear.part_count > 0) {
            op->linear.part_count--;
            return true;
        }
    }
    return false;
}

/* The norm of a sum adds the same term twice. */
static bool add_a_term_twice(void)
{
    const dsc_op_list *list = &compiled.list[DSC_PASS_FORWARD];
    for (int16_t i = 0; i < list->count; i++) {
        dsc_op *op = &compiled.op[list->op[i]];
        if (op->kind == DSC_OP_NORM && op->in[1] != DSC_PROGRAM_NONE) {
            op->in[1] = op->in[0];
            return true;
        }
    }
    return false;
}

/* Biases of several layers are left out of their product. */
static bool forget_the_biases(void)
{
    const dsc_op_list *list = &compiled.list[DSC_PASS_FORWARD];
    for (int16_t i = 0; i < list->count; i++) {
        dsc_linear_layer *layer = &compiled.op[list->op[i]].linear;
        if (compiled.op[list->op[i]].kind == DSC_OP_LINEAR && layer->part_count > 0 && layer->bias >= 0) {
            *layer = (dsc_linear_layer) { .shape = layer->shape,
                                          .weight = layer->weight,
                                          .bias = -1,
                                          .part_count = layer->part_count,
                                          .part = { layer->part[0], layer->part[1], layer->part[2] } };
            return true;
        }
    }
    return false;
}

/* An activation in a product's epilogue is another one: half the square. */
static bool take_another_activation(void)
{
    const dsc_op_list *list = &compiled.list[DSC_PASS_FORWARD];
    for (int16_t i = 0; i < list->count; i++) {
        dsc_op *op = &compiled.op[list->op[i]];
        if (op->kind == DSC_OP_LINEAR && op->linear.forward >= DSC_EPILOGUE_BIAS_ACTIVATION) {
            op->linear.activation = op->linear.activation == DSC_HALF_SQUARE ? DSC_SIGMOID : DSC_HALF_SQUARE;
            return true;
        }
    }
    return false;
}

/* And so is the slope in backward's. */
static bool take_another_slope(void)
{
    int16_t count, *list = backward_list(&count);
    for (int16_t i = 0; i < count; i++) {
        dsc_op *op = &compiled.op[list[i]];
        if (op->kind == DSC_OP_LINEAR_DX && op->linear.backward == DSC_EPILOGUE_SLOPE) {
            op->linear.slope = op->linear.slope == DSC_HALF_SQUARE ? DSC_SIGMOID : DSC_HALF_SQUARE;
            return true;
        }
    }
    return false;
}

static void planted_faults_are_caught(void **state)
{
    (void)state;
    static bool (*const plant[])(void) = { forget_a_sum,      read_a_wrong_value,      cut_a_lifetime_short,
                                           swap_gate_and_up,  forget_a_layer,          add_a_term_twice,
                                           forget_the_biases, take_another_activation, take_another_slope };
    int planted[DSC_COUNT(plant)] = { 0 }, caught[DSC_COUNT(plant)] = { 0 };
    program_random *r = &random_program;
    for (int seed = 1; seed <= seeds(); seed++) {
        program_random_make(r, (uint64_t)seed);
        program_reference *reference = reference_of(r);
        for (size_t i = 0; i < DSC_COUNT(plant); i++) {
            compile(r, false);
            if (!plant[i]())
                continue;
            planted[i]++;
            caught[i] += !(error_of(r, reference, (program_mode) { .dtype = DSC_F32 }) < BOUND);
        }
        program_reference_close(reference);
    }
    for (size_t i = 0; i < DSC_COUNT(plant); i++)
        printf("# fault %d: %d planted, %d caught\n", (int)i, planted[i], caught[i]);
    for (size_t i = 0; i < DSC_COUNT(plant); i++) {
        /* Some change nothing: behind a ReLU of negative values, or in scores of a single token. */
        assert_true(planted[i] >= 3);
        assert_true(planted[i] - caught[i] <= 1 + planted[i] / 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joined_ops_keep_their_bits),
        cmocka_unit_test(fused_activations_keep_their_bits),
        cmocka_unit_test(layers_that_do_not_follow_stay_apart),
        cmocka_unit_test(a_shown_program_names_its_activations),
        cmocka_unit_test(planted_faults_are_caught),
    };
    return cmocka_run_group_tests_name("program_fuse", tests, NULL, NULL);
}
