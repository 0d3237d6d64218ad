/* test_fp8_cache.c - which matrices kernels/fp8_cache.h casts, counted on a stream that runs nothing.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/fp8_cache.h"

enum { ROWS = 32, IN = 64, OUT = 48, PARAMS = 5, WEIGHT = 1, FIRST = 2 };

static int casts, others;
static dsc_cast_fp8_args last;

static dsc_status count_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t bytes, dsc_error *err)
{
    if (kernel == DSC_KERNEL_CAST_FP8)
        memcpy(&last, args, sizeof last);
    *(kernel == DSC_KERNEL_CAST_FP8 ? &casts : &others) += 1;
    return DSC_OK;
}

static dsc_device_ops ops;
static dsc_stream stream;
static dsc_fp8_cache cache;
static int64_t weight_at[PARAMS];
static bool is_cast[PARAMS];
static void *memory;
static uint16_t x[ROWS * IN], dy[4][ROWS * OUT], weight[IN * OUT];
static dsc_error err;

static dsc_fp8_matrix kept[PARAMS];
static _Alignas(256) char room[sizeof(dsc_fp8_scale) + 2 * ROWS * IN];

/* A call of the module; with room for its inputs, a forward that saves or the backward of one. */
static void begin(bool has_room, bool saves)
{
    const dsc_fp8_call call = { FIRST,
                                PARAMS - FIRST,
                                saves,
                                has_room ? kept : NULL,
                                has_room ? room : NULL,
                                has_room ? (int64_t)sizeof room : 0 };
    dsc_fp8_begin(&cache, &call);
}

/* A run with two layers of one input; the first one's weight is parameter FIRST + WEIGHT. */
static void open_cache(bool keeps_weights)
{
    dsc_fp8_plan plan = { .options = { .gradients = DSC_FP8_E5M2, .keeps_weights = keeps_weights },
                          .weight_at = weight_at,
                          .first = FIRST,
                          .count = PARAMS - FIRST };
    ops = (dsc_device_ops) { .launch = count_launch };
    stream = (dsc_stream) { &ops, 0 };
    for (int i = 0; i < PARAMS; i++)
        weight_at[i] = -1;
    dsc_fp8_plan_module(&plan, FIRST, PARAMS - FIRST);
    for (int i = 1; i <= 2; i++) { /* again, with longer samples */
        dsc_fp8_plan_layer(&plan, &(dsc_fp8_layer) { WEIGHT, i * ROWS, IN, OUT, true });
        dsc_fp8_plan_layer(&plan, &(dsc_fp8_layer) { WEIGHT + 1, i * ROWS, IN, OUT, false }); /* the same input */
    }
    assert_int_equal(plan.input_bytes, sizeof(dsc_fp8_scale) + 2 * ROWS * IN);
    assert_int_equal(plan.operand_elements, 2 * ROWS * IN);
    assert_int_equal(weight_at[FIRST + WEIGHT], keeps_weights ? 0 : -1);
    free(memory);
    memory = aligned_alloc(256, (size_t)dsc_fp8_plan_bytes(&plan));
    dsc_fp8_cache_open(&cache, &plan, memory, is_cast);
    dsc_fp8_new_weights(&cache, PARAMS);
    begin(false, false);
    casts = others = 0;
}

static dsc_fp8_matrix operand(const void *from, int64_t cols, dsc_fp8 format, dsc_fp8_side side)
{
    dsc_fp8_matrix out;
    const dsc_cast_fp8_args what = { .from = from, .row_count = ROWS, .col_count = cols, .format = format };
    assert_int_equal(dsc_fp8_operand(&cache, &stream, &what, side, &out, &err), DSC_OK);
    return out;
}

static dsc_fp8_matrix weights(dsc_fp8_side side)
{
    dsc_fp8_matrix out;
    const dsc_cast_fp8_args what = { .from = weight, .row_count = OUT, .col_count = IN, .format = DSC_FP8_E4M3 };
    assert_int_equal(dsc_fp8_weight(&cache, &stream, WEIGHT, &what, side, &out, &err), DSC_OK);
    return out;
}

static void product(void *to, int64_t bytes)
{
    const dsc_gemm_args args = { .m = 1 };
    assert_int_equal(DSC_RUN(&stream, GEMM, &args, &err), DSC_OK);
    dsc_fp8_wrote(&cache, &stream, to, bytes);
}

static void other_kernel(void)
{
    const dsc_colsum_args args = { .rows = 0 };
    assert_int_equal(DSC_RUN(&stream, COLSUM, &args, &err), DSC_OK);
}

static void layers_of_one_input_share_its_cast(void **state)
{
    uint16_t y[3][ROWS * OUT];
    open_cache(true);
    for (int i = 0; i < 3; i++) {
        const dsc_fp8_matrix a = operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS);
        assert_non_null(a.rows);
        (void)weights(DSC_FP8_ROWS);
        product(y[i], sizeof y[i]);
    }
    assert_int_equal(casts, 2); /* x, and the weight once */
}

static void other_work_on_the_stream_ends_the_sharing(void **state)
{
    open_cache(true);
    (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS);
    other_kernel();
    (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS);
    assert_int_equal(casts, 2);
    /* A weight's cast between the two is not a reason to trust x. */
    other_kernel();
    (void)weights(DSC_FP8_ROWS);
    (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS);
    assert_int_equal(casts, 4);
    begin(false, false); /* another module's call */
    (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS);
    assert_int_equal(casts, 5);
}

static void a_matrix_that_was_written_is_cast_again(void **state)
{
    open_cache(true);
    (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_BOTH);
    product(x + ROWS * IN - 1, 2); /* its last number */
    (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS);
    assert_int_equal(casts, 2);
    product(x + ROWS * IN, 2); /* behind it */
    (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS);
    assert_int_equal(casts, 2);
}

/* As a block does it: the gradients of three weights, then those of their input. */
static void gradients_are_cast_once_for_both_products(void **state)
{
    float dw[OUT * IN];
    uint16_t dx[ROWS * IN];
    open_cache(true);
    for (int i = 0; i < 3; i++) {
        (void)operand(x, IN, DSC_FP8_E4M3, DSC_FP8_COLUMNS);
        (void)operand(dy[i], OUT, DSC_FP8_E5M2, DSC_FP8_BOTH);
        product(dw, sizeof dw);
    }
    for (int i = 0; i < 3; i++) {
        assert_non_null(operand(dy[i], OUT, DSC_FP8_E5M2, DSC_FP8_BOTH).rows);
        (void)weights(DSC_FP8_COLUMNS);
        product(dx, sizeof dx);
    }
    assert_int_equal(casts, 5);
    (void)operand(dy[3], OUT, DSC_FP8_E5M2, DSC_FP8_ROWS); /* takes the place of x, the oldest */
    (void)operand(dy[0], OUT, DSC_FP8_E5M2, DSC_FP8_ROWS);
    assert_int_equal(casts, 6);
}

static void a_side_or_format_that_is_missing_is_cast(void **state)
{
    open_cache(true);
    assert_null(operand(x, IN, DSC_FP8_E4M3, DSC_FP8_ROWS).columns);
    assert_non_null(operand(x, IN, DSC_FP8_E4M3, DSC_FP8_COLUMNS).columns);
    assert_int_equal(casts, 2);
    assert_int_equal(operand(x, IN, DSC_FP8_E5M2, DSC_FP8_COLUMNS).format, DSC_FP8_E5M2);
    assert_int_equal(casts, 3);
}

static void a_kept_weight_is_cast_once_for_an_update(void **state)
{
    open_cache(true);
    for (int i = 0; i < 2; i++) {
        const dsc_fp8_matrix first = weights(DSC_FP8_ROWS), again = weights(DSC_FP8_COLUMNS);
        assert_ptr_equal(first.rows, again.rows);
        assert_ptr_equal(last.columns, again.columns);
        assert_int_equal(casts, i + 1);
        begin(false, false);
        (void)weights(DSC_FP8_ROWS);
        assert_int_equal(casts, i + 1);
        dsc_fp8_new_weights(&cache, PARAMS);
    }
    open_cache(false);
    assert_null(weights(DSC_FP8_ROWS).columns);
    (void)weights(DSC_FP8_ROWS);
    assert_int_equal(casts, 2);
    free(memory);
    memory = NULL;
}

static dsc_fp8_matrix input(int32_t weight_number, const void *from)
{
    dsc_fp8_matrix out;
    const dsc_cast_fp8_args what = { .from = from, .row_count = 2 * ROWS, .col_count = IN, .format = DSC_FP8_E4M3 };
    assert_int_equal(dsc_fp8_input(&cache, &stream, weight_number, &what, &out, &err), DSC_OK);
    return out;
}

static void inputs_are_kept_for_backward_where_there_is_room(void **state)
{
    static uint16_t first[2 * ROWS * IN], second[2 * ROWS * IN];
    uint16_t y[ROWS * OUT];
    dsc_fp8_matrix one, two;
    open_cache(true);
    begin(true, true);
    one = input(WEIGHT, first);
    product(y, sizeof y);
    (void)input(WEIGHT + 1, first);
    assert_int_equal(casts, 1);
    other_kernel();
    assert_null(input(0, second).columns); /* there is no room for another one */
    assert_int_equal(casts, 2);
    begin(true, false);
    assert_false(dsc_fp8_kept_input(&cache, 0, &two));
    assert_true(dsc_fp8_kept_input(&cache, WEIGHT + 1, &two));
    assert_true(dsc_fp8_kept_input(&cache, WEIGHT, &two));
    assert_ptr_equal(two.columns, one.columns);
    assert_ptr_equal(two.columns, room + sizeof(dsc_fp8_scale));
    assert_ptr_equal(two.scale, room);
    begin(false, false); /* an evaluation */
    assert_null(input(WEIGHT, first).columns);
    assert_false(dsc_fp8_kept_input(&cache, WEIGHT, &two));
    begin(true, true); /* the next forward forgets */
    assert_false(dsc_fp8_kept_input(&cache, WEIGHT, &two));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_one_input_share_its_cast),
        cmocka_unit_test(other_work_on_the_stream_ends_the_sharing),
        cmocka_unit_test(a_matrix_that_was_written_is_cast_again),
        cmocka_unit_test(gradients_are_cast_once_for_both_products),
        cmocka_unit_test(a_side_or_format_that_is_missing_is_cast),
        cmocka_unit_test(inputs_are_kept_for_backward_where_there_is_room),
        cmocka_unit_test(a_kept_weight_is_cast_once_for_an_update),
    };
    return cmocka_run_group_tests_name("fp8 cache", tests, NULL, NULL);
}
