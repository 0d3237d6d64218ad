/* test_update_places.c - optimizer kernels of CPUs whose results go to another place than their inputs, or whose
 * sums are in bf16. The bits are those of an update in place, of the widened sums.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "kernels/kernels.h"

#define LONG ((int64_t)1 << 20) /* from here on results go around the caches */
#define MOST (LONG + 64 + 37)

typedef struct states { float *master; void *state[2]; uint16_t *half; } states;

static float number(int64_t i, uint32_t salt)
{
    return (float)((double)dsc_rng_u32(7, dsc_rng_stream(DSC_RNG_TEST, salt), (uint64_t)i) / 4294967296.0 - 0.5);
}

static void *bytes(int64_t count)
{
    void *ptr = NULL;
    assert_int_equal(posix_memalign(&ptr, 64, (size_t)count), 0);
    memset(ptr, 0x5a, (size_t)count);
    return ptr;
}

static states open_states(void)
{
    return (states) { bytes(4 * MOST), { bytes(4 * MOST), bytes(4 * MOST) }, bytes(2 * MOST) };
}

static void close_states(states *s)
{
    free(s->master);
    free(s->state[0]);
    free(s->state[1]);
    free(s->half);
}

static void fill(states *s, dsc_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const float m = 0.1f * number(i, 2), v = 0.01f * (number(i, 3) + 0.5f);
        s->master[i] = number(i, 1);
        if (dtype == DSC_F32) {
            ((float *)s->state[0])[i] = m;
            ((float *)s->state[1])[i] = v;
        } else {
            ((uint16_t *)s->state[0])[i] = dsc_bf16_from_f32(m);
            ((uint16_t *)s->state[1])[i] = dsc_bf16_from_f32(v);
        }
    }
}

static dsc_update_args args_of(const states *s, const float *grad, int64_t count, dsc_dtype dtype)
{
    return (dsc_update_args) {
        .master = s->master, .state = { s->state[0], s->state[1] }, .grad = grad, .param_half = s->half,
        .count = count, .half_dtype = DSC_BF16, .state_dtype = dtype, .seed = 3, .stream = 5, .first = 4093,
        .scalars = { .grad_scale = 0.5f, .beta1 = 0.9f, .beta2 = 0.95f, .one_minus_beta1 = 0.1f,
                     .one_minus_beta2 = 0.05f, .decay = 0.999f, .step_size = 0.01f, .inv_sqrt_bias2 = 1.5f,
                     .eps = 1e-8f }
    };
}

static dsc_status run(uint32_t caps, dsc_kernel kernel, const dsc_update_args *args, dsc_error *err)
{
    dsc_kernel_table table;
    const dsc_cpu_threads team = { .threads = 2, .caps = caps };
    dsc_kernel_table_init(&table, caps);
    return table.fn[kernel](args, &team, err);
}

/* Every caps mask that this machine can run: 0, 1, 3, ... */
#define FOR_EACH_CAPS(caps) for (uint32_t caps = 0; caps <= dsc_cpu_caps(); caps = caps * 2 + 1)

static void expect_equal(const states *a, const states *b, int64_t count, dsc_dtype dtype, int state_count)
{
    assert_memory_equal(a->master, b->master, (size_t)count * 4);
    assert_memory_equal(a->half, b->half, (size_t)count * 2);
    for (int k = 0; k < state_count; k++)
        assert_memory_equal(a->state[k], b->state[k], (size_t)count * dsc_dtype_bytes(dtype));
}

static void results_elsewhere_and_bf16_sums_give_the_bits_of_an_update_in_place(void **state)
{
    static const struct { dsc_kernel kernel; int states; } recipes[] = {
        { DSC_KERNEL_ADAMW, 2 }, { DSC_KERNEL_SGD, 0 }, { DSC_KERNEL_LION, 1 }, { DSC_KERNEL_RMSPROP_C, 2 }
    };
    static const int64_t counts[] = { 1, 37, 4096 + 5, LONG + 64 + 37 };
    states in_place = open_states(), from = open_states(), to = open_states();
    float *wide = bytes(4 * MOST);
    uint16_t *narrow = bytes(2 * MOST);
    for (int64_t i = 0; i < MOST; i++) {
        narrow[i] = dsc_bf16_from_f32(number(i, 4));
        wide[i] = dsc_f32_from_bf16(narrow[i]);
    }
    FOR_EACH_CAPS(caps)
        for (size_t r = 0; r < DSC_COUNT(recipes); r++)
            for (size_t n = 0; n < DSC_COUNT(counts); n++)
                for (int bf16 = 0; bf16 < 2; bf16++) {
                    const dsc_dtype dtype = bf16 != 0 ? DSC_BF16 : DSC_F32;
                    if (n == 3 && r > 0)
                        continue;
                    fill(&in_place, dtype, counts[n]);
                    fill(&from, dtype, counts[n]);
                    dsc_update_args args = args_of(&in_place, wide, counts[n], dtype);
                    assert_int_equal(run(caps, recipes[r].kernel, &args, NULL), DSC_OK);
                    args = args_of(&to, NULL, counts[n], dtype);
                    args.grad_bf16 = narrow;
                    args.grad_dtype = DSC_BF16;
                    args.master_from = from.master;
                    args.state_from[0] = from.state[0];
                    args.state_from[1] = from.state[1];
                    assert_int_equal(run(caps, recipes[r].kernel, &args, NULL), DSC_OK);
                    expect_equal(&in_place, &to, counts[n], dtype, recipes[r].states);
                    fill(&in_place, dtype, counts[n]); /* and what is read stays */
                    assert_memory_equal(in_place.master, from.master, (size_t)counts[n] * 4);
                }
    close_states(&in_place);
    close_states(&from);
    close_states(&to);
    free(wide);
    free(narrow);
}

static void recipes_that_cannot_write_elsewhere_are_refused(void **state)
{
    states a = open_states(), b = open_states();
    dsc_error err;
    float grad = 1;
    dsc_update_args args = args_of(&a, &grad, 1, DSC_F32);
    args.master_from = b.master;
    args.state_from[0] = args.state_from[1] = b.state[0];
    assert_int_equal(run(dsc_cpu_caps(), DSC_KERNEL_LAMB, &args, &err), DSC_ERR_UNSUPPORTED);
    assert_int_equal(run(dsc_cpu_caps(), DSC_KERNEL_RMSPROP_CM, &args, &err), DSC_ERR_UNSUPPORTED);
    args.state_dtype = DSC_U8;
    assert_int_equal(run(dsc_cpu_caps(), DSC_KERNEL_ADAMW, &args, &err), DSC_ERR_UNSUPPORTED);
    args = args_of(&a, &grad, 1, DSC_F32);
    args.grad_dtype = DSC_F16;
    assert_int_equal(run(dsc_cpu_caps(), DSC_KERNEL_ADAMW, &args, &err), DSC_ERR_UNSUPPORTED);
    close_states(&a);
    close_states(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_elsewhere_and_bf16_sums_give_the_bits_of_an_update_in_place),
        cmocka_unit_test(recipes_that_cannot_write_elsewhere_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
