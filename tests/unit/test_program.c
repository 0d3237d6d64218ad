/* test_program.c - programs of models: what the compiler makes of them, against the same ops one by one in double.
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
#include "tests/support/program_dump.h"
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

/* ---- the reference ---- */

static double output_along(program_reference *reference)
{
    const int16_t out = reference->program->output;
    double sum = 0;
    program_reference_forward(reference);
    for (int64_t i = 0; i < program_reference_elements(reference, out); i++)
        sum += reference->value[out][i] * reference->d_value[out][i];
    return sum;
}

/* Changes *x a little both ways. */
static void expect_slope(program_reference *reference, double *x, double expected, const char *what, int seed)
{
    const double at = *x, step = 1e-5;
    *x = at + step;
    const double above = output_along(reference);
    *x = at - step;
    const double below = output_along(reference);
    *x = at;
    const double slope = (above - below) / (2 * step);
    if (!(fabs(slope - expected) <= 1e-5 * (1 + fabs(expected))))
        fail_msg("seed %d: the slope of %s is %.9g, its gradient %.9g", seed, what, slope, expected);
}

/* ReLU has none at 0, which random values do not meet. */
static void reference_has_slopes(void **state)
{
    (void)state;
    program_random *r = &random_program;
    for (int seed = 1; seed <= SEEDS; seed++) {
        program_random_make(r, (uint64_t)seed);
        program_reference *reference = reference_of(r);
        double *in = reference->value[r->source.input], *d_in = reference->d_value[r->source.input];
        for (int i = 0; i < 3; i++) {
            const int64_t at = program_random_draw(r, program_reference_elements(reference, r->source.input));
            expect_slope(reference, &in[at], d_in[at], "an input", seed);
        }
        for (int i = 0; i < r->param_count; i++) {
            const int64_t at = program_random_draw(r, r->param_elements[i]);
            expect_slope(reference, &reference->param[i][at], reference->d_param[i][at], "a parameter", seed);
        }
        program_reference_close(reference);
    }
}

/* ---- compiled programs ---- */

static double error_of(const program_random *r, const program_reference *reference, program_mode mode)
{
    program_result *result = program_random_run(r, &compiled, reference, mode);
    const double error = program_result_error(r, result, reference);
    program_result_free(result);
    return error;
}

static void random_programs_agree(void **state)
{
    (void)state;
    program_random *r = &random_program;
    for (int seed = 1; seed <= seeds(); seed++) {
        program_random_make(r, (uint64_t)seed);
        program_reference *reference = reference_of(r);
        for (int no_fusion = 0; no_fusion < 2; no_fusion++) {
            compile(r, no_fusion == 1);
            const double error = error_of(r, reference, (program_mode) { .dtype = DSC_F32 });
            if (!(error < BOUND))
                fail_msg("seed %d, %d ops%s: off by %.3g", seed, (int)r->source.op_count,
                         no_fusion == 1 ? ", not fused" : "", error);
        }
        program_reference_close(reference);
    }
}

static void levels_have_the_same_bits(void **state)
{
    (void)state;
    static const program_mode modes[] = { { .recompute = true },
                                          { .rebuild = true },
                                          { .keep = true },
                                          { .in_place = true },
                                          { .in_place = true, .keep = true, .recompute = true },
                                          { .in_place = true, .rebuild = true } };
    program_random *r = &random_program;
    for (int seed = 1; seed <= seeds(); seed++) {
        program_random_make(r, (uint64_t)seed);
        program_reference *reference = reference_of(r);
        compile(r, false);
        for (int half = 0; half < 2; half++) {
            const dsc_dtype dtype = half == 1 ? DSC_BF16 : DSC_F32;
            program_result *plain = program_random_run(r, &compiled, reference, (program_mode) { .dtype = dtype });
            for (size_t i = 0; i < DSC_COUNT(modes); i++) {
                program_mode mode = modes[i];
                mode.dtype = dtype;
                program_result *other = program_random_run(r, &compiled, reference, mode);
                if (!program_result_equals(r, plain, other))
                    fail_msg("seed %d, way %d, %s: other bits", seed, (int)i, half == 1 ? "bf16" : "fp32");
                program_result_free(other);
            }
            program_result_free(plain);
        }
        program_reference_close(reference);
    }
}

/* Layouts that are kept between calls are as long as their program needs, and give the bits of those of one call. */
static void kept_layouts_are_as_long_as_the_program_needs(void **state)
{
    enum { ZONE = 256 };
    program_random *r = &random_program;
    (void)state;
    for (int seed = 1; seed <= 10; seed++) {
        program_random_make(r, (uint64_t)seed);
        program_reference *reference = reference_of(r);
        compile(r, false);
        const program_mode mode = { .dtype = DSC_BF16, .rebuild = true };
        const size_t bytes = dsc_program_layouts_bytes(&compiled), offsets = 8 * 2 * sizeof(int64_t);
        unsigned char *memory = calloc(1, bytes + ZONE);
        assert_non_null(memory);
        assert_true(bytes < 4096 + offsets * (size_t)(compiled.value_count + compiled.op_count));
        memset(memory + bytes, 0xa5, ZONE);
        program_result *plain = program_random_run(r, &compiled, reference, mode);
        compiled.layouts = (struct dsc_layouts *)(void *)memory;
        for (int again = 0; again < 2; again++) {
            program_result *kept = program_random_run(r, &compiled, reference, mode);
            assert_true(program_result_equals(r, plain, kept));
            program_result_free(kept);
        }
        compiled.layouts = NULL;
        for (int i = 0; i < ZONE; i++)
            assert_int_equal(memory[bytes + (size_t)i], 0xa5);
        free(memory);
        program_result_free(plain);
        program_reference_close(reference);
    }
}

/* ---- PyTorch ---- */

static void write_program(program_random *r, int seed, const char *folder)
{
    char path[256];
    program_random_make(r, (uint64_t)seed);
    program_reference *reference = reference_of(r);
    compile(r, false);
    program_result *result = program_random_run(r, &compiled, reference, (program_mode) { .dtype = DSC_F32 });
    snprintf(path, sizeof path, "%s/%d.json", folder, seed);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    program_dump(file, r, reference, result);
    assert_int_equal(fclose(file), 0);
    program_result_free(result);
    program_reference_close(reference);
}

static void autograd_agrees(void **state)
{
    (void)state;
    const char *python = getenv("DSC_TEST_PYTHON");
    char folder[] = "/tmp/dsc_program_XXXXXX", command[512];
    if (python == NULL) {
        print_message("DSC_TEST_PYTHON, a Python with torch, is not set\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    for (int seed = 1; seed <= seeds(); seed++)
        write_program(&random_program, seed, folder);
    snprintf(command, sizeof command, "%s tests/support/program_torch.py %s %g; r=$?; rm -r %s; exit $r", python,
             folder, BOUND, folder);
    assert_int_equal(system(command), 0);
}

/* ---- values by name ---- */

typedef struct seen_values {
    int count, bad; /* `bad`: values that are not finite in some element */
    char first[64]; /* name of the first one */
    int number;
} seen_values;

static float traced_element(const dsc_traced_value *value, int64_t row, int64_t column)
{
    const int64_t head = value->apart > 0 ? column / value->width : 0;
    const float *at = value->at;
    return at[row * value->stride + (head > 0 ? head * value->apart + column % value->width : column)];
}

static dsc_status look_at(void *user, dsc_stream *stream, const dsc_traced_value *value, dsc_error *err)
{
    seen_values *seen = user;
    bool bad = false;
    DSC_TRY(dsc_stream_sync(stream, err));
    for (int64_t row = 0; row < value->rows; row++)
        for (int64_t column = 0; column < value->columns; column++)
            bad |= !isfinite(traced_element(value, row, column));
    seen->count++;
    if (bad && seen->bad++ == 0) {
        snprintf(seen->first, sizeof seen->first, "%s", value->name);
        seen->number = value->number;
    }
    return DSC_OK;
}

/* The first product of forward, and what it writes. */
static const dsc_op *first_product(void)
{
    const dsc_op_list *list = &compiled.list[DSC_PASS_FORWARD];
    for (int16_t i = 0; i < list->count; i++)
        if (compiled.op[list->op[i]].kind == DSC_OP_LINEAR)
            return &compiled.op[list->op[i]];
    return NULL;
}

/* Whether a value is columns of what a product of several layers makes. */
static bool is_layer_of(const dsc_op *product, int number)
{
    const dsc_op *op = number >= 0 ? &compiled.op[compiled.value[number].maker] : product;
    return product->linear.part_count > 0 && op->kind == DSC_OP_SLICE && op->in[0] == product->out[0];
}

/* Memory is full of NaN before an op writes it, so a value that is reported too early or at a wrong place is not
 * finite. A NaN in a weight then shows the product that reads it first. */
static void the_first_value_that_is_not_finite_is_reported(void **state)
{
    (void)state;
    program_random *r = &random_program;
    for (int seed = 1; seed <= SEEDS; seed++) {
        seen_values seen = { 0 };
        const dsc_value_sink sink = { look_at, &seen };
        const program_mode traced = { .dtype = DSC_F32, .values = &sink };
        program_random_make(r, (uint64_t)seed);
        program_reference *reference = reference_of(r);
        compile(r, false);
        program_result *plain = program_random_run(r, &compiled, reference, (program_mode) { .dtype = DSC_F32 });
        program_result *result = program_random_run(r, &compiled, reference, traced);
        if (!program_result_equals(r, plain, result))
            fail_msg("seed %d: other bits with a trace", seed);
        program_result_free(plain);
        program_result_free(result);
        if (seen.count < compiled.list[DSC_PASS_BACKWARD].count / 2 || seen.bad > 0)
            fail_msg("seed %d: %d values, of which %d are not finite, first %s.%d", seed, seen.count, seen.bad,
                     seen.first, seen.number);
        const dsc_op *product = first_product();
        if (product != NULL) {
            reference->param[product->linear.weight][0] = (double)NAN;
            seen = (seen_values) { 0 };
            program_result_free(program_random_run(r, &compiled, reference, traced));
            if (seen.number != product->out[0] && seen.number != product->out[1] && !is_layer_of(product, seen.number))
                fail_msg("seed %d: the first is %s.%d, expected a value of the product %s", seed, seen.first,
                         seen.number, product->name);
        }
        program_reference_close(reference);
    }
}

/* ---- what the builder refuses ---- */

static void expect_refusal(dsc_program *program, const char *text)
{
    const dsc_program_options options = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    assert_int_not_equal(dsc_program_compile(program, &options, &err), DSC_OK);
    if (strstr(err.message, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, err.message);
}

static void refusals_name_op_and_shapes(void **state)
{
    (void)state;
    dsc_program *p = &compiled;
    const dsc_program_linear_args linear = { .name = "q_proj", .shape = { 8, 8, true } };
    dsc_program_begin(p, 4, 12, DSC_PROGRAM_NONE);
    dsc_program_end(p, dsc_program_linear(p, p->input, &linear));
    expect_refusal(p, "op \"q_proj\" (linear): its input \"in\" is [4,12], and its weight takes 8 columns");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    expect_refusal(p, "without an output");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    dsc_program_end(p, dsc_program_gated(p, p->input, dsc_program_slice(p, p->input, 0, 4), DSC_SILU));
    expect_refusal(p, "op \"gated\": its inputs \"in\" [4,8] and \"slice\" [4,4] differ in shape");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    dsc_program_end(p, dsc_program_activation(p, p->input, DSC_ACTIVATIONS));
    expect_refusal(p, "op \"activation\": activation 10 is not one of the 10 kinds");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    const int16_t wide =
        dsc_program_linear(p, p->input, &(dsc_program_linear_args) { .name = "wide", .shape = { 8, 16, true } });
    dsc_program_end(p, dsc_program_add(p, wide, p->input));
    expect_refusal(p, "\"wide\" [4,16] and \"in\" [4,8] differ in shape");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    (void)dsc_program_activation(p, p->input, DSC_RELU);
    dsc_program_end(p, dsc_program_scale(p, p->input, 2));
    expect_refusal(p, "op \"activation\" (activation): nothing reads its output");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    dsc_program_end(
        p, dsc_program_gated(p, dsc_program_slice(p, p->input, 0, 4), dsc_program_slice(p, p->input, 3, 4), DSC_SILU));
    expect_refusal(p, "the slices of \"in\" cover 4 of 8 columns");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    dsc_program_end(p, dsc_program_gated(p, p->input, p->input, (dsc_activation)77));
    expect_refusal(p, "op \"gated\": activation 77 is not one of the 10 kinds");
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    int16_t x = p->input;
    for (int i = 0; i < 200; i++)
        x = dsc_program_scale(p, x, 2);
    dsc_program_end(p, x);
    expect_refusal(p, "at most 128 ops");
}

/* A delta rule of two heads of keys and these operands, 4 tokens. */
static void delta_program(dsc_program *p, int64_t columns, int64_t gates, int64_t a_log)
{
    dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
    const dsc_program_param rate = { .name = "a_log", .part = "", .dim_count = 1, .dim = { a_log } };
    const dsc_program_param bias = { .name = "dt_bias", .part = "", .dim_count = 1, .dim = { 4 } };
    const dsc_op_delta args = { 2, 4, 3, 2, dsc_program_declare(p, &rate), dsc_program_declare(p, &bias) };
    const dsc_program_linear_args qkv = { .name = "qkv", .shape = { 8, columns, true } };
    const dsc_program_linear_args b = { .name = "b", .shape = { 8, gates, true } };
    const int16_t gate = dsc_program_linear(p, p->input, &b);
    dsc_program_end(p, dsc_program_delta(p, dsc_program_linear(p, p->input, &qkv), gate, gate, &args));
}

static void linear_attention_is_refused_by_its_shapes(void **state)
{
    (void)state;
    dsc_program *p = &compiled;
    delta_program(p, 19, 4, 4);
    expect_refusal(p, "op \"delta\": its input \"qkv\" has 19 columns; expected two times 2 heads of 3 elements");
    delta_program(p, 20, 3, 4);
    expect_refusal(p, "op \"delta\": its input \"b\" has 3 columns; expected 4");
    delta_program(p, 20, 4, 5);
    expect_refusal(p, "op \"delta\": parameters 0 and 1; expected two declared ones of 4 elements");
    const dsc_program_param weight = { .name = "conv", .part = "", .dim_count = 3, .dim = { 8, 1, 3 } };
    for (int32_t width = 4; width < 20; width += 5) {
        dsc_program_begin(p, 4, 8, DSC_PROGRAM_NONE);
        const dsc_op_conv args = { width, dsc_program_declare(p, &weight) };
        const int16_t x = p->input;
        dsc_program_end(p, dsc_program_conv(p, &x, 1, &args));
        expect_refusal(p, width == 4 ? "op \"conv\": its weight is parameter 0; expected a declared one [8,1,4]"
                                     : "op \"conv\": a width of");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_has_slopes),
        cmocka_unit_test(random_programs_agree),
        cmocka_unit_test(levels_have_the_same_bits),
        cmocka_unit_test(kept_layouts_are_as_long_as_the_program_needs),
        cmocka_unit_test(autograd_agrees),
        cmocka_unit_test(refusals_name_op_and_shapes),
        cmocka_unit_test(linear_attention_is_refused_by_its_shapes),
        cmocka_unit_test(the_first_value_that_is_not_finite_is_reported),
    };
    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}
