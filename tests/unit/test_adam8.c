/* test_adam8.c - AdamW with U8 states beside what bitsandbytes computed (tests/golden/make_adam8.py).
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/formats/safetensors.h"
#include "kernels/kernels.h"

static dsc_alloc *alloc;
static dsc_safetensors *golden;

static int setup(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_alloc_open(&alloc, NULL) != DSC_OK ||
        dsc_safetensors_open(&golden, NULL, alloc, "tests/golden/adam8.safetensors", &err) != DSC_OK) {
        printf("# %s: %s (run from the repository's root)\n", err.where, err.message);
        return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
    return 0;
}

/* All of a tensor, as it lies in the file; the test frees it. */
static void *take(const char *name, int64_t *count)
{
    const dsc_safetensors_entry *entry = dsc_safetensors_find(golden, name);
    assert_non_null(entry);
    void *data = malloc((size_t)entry->bytes);
    assert_non_null(data);
    assert_int_equal(dsc_safetensors_read_bytes(golden, entry, 0, entry->bytes, data, NULL), DSC_OK);
    *count = entry->count;
    return data;
}

/* The fp32 numbers of golden.py's hash. */
static float uniform(const char *name, int64_t i)
{
    uint32_t h = 0x811c9dc5u;
    for (; *name != 0; name++)
        h = (h ^ (unsigned char)*name) * 0x01000193u;
    h = (uint32_t)i * 2654435769u + h;
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    h ^= h >> 16;
    return (float)(h >> 8) * 0x1p-24f;
}

static void run(uint32_t caps, const dsc_update_args *args)
{
    dsc_kernel_table table;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_cpu_threads team = { .threads = 2, .caps = caps };
    dsc_kernel_table_init(&table, caps);
    if (table.fn[DSC_KERNEL_ADAMW](args, &team, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
}

static uint32_t caps_of(int level)
{
    return dsc_cpu_caps() & (level == 0 ? 0u : level == 1 ? (uint32_t)DSC_CPU_AVX2 : 0xffffffffu);
}

/* With these scalars the new states are the gradient and its square. */
static void codes_absmax_and_values_are_those_of_bitsandbytes(void **state)
{
    (void)state;
    static const char *const kind[2] = { "signed", "unsigned" };
    int64_t n, blocks;
    float *x = take("x", &n), *p = calloc((size_t)n, sizeof *p), *values = calloc((size_t)n, sizeof *values);
    for (int level = 0; level <= 2; level++) {
        uint8_t *code[2] = { calloc((size_t)n, 1), calloc((size_t)n, 1) };
        float *absmax[2] = { calloc((size_t)n, 4), calloc((size_t)n, 4) };
        const dsc_update_args args = {
            .master = p,
            .state = { code[0], code[1] },
            .absmax = { absmax[0], absmax[1] },
            .grad = x,
            .count = n,
            .state_dtype = DSC_U8,
            .scalars = { .grad_scale = 1, .one_minus_beta1 = 1, .one_minus_beta2 = 1, .decay = 1, .eps = 1 }
        };
        run(caps_of(level), &args);
        for (int k = 0; k < 2; k++) {
            char name[32];
            snprintf(name, sizeof name, "%s.codes", kind[k]);
            uint8_t *codes = take(name, &n);
            snprintf(name, sizeof name, "%s.absmax", kind[k]);
            float *scales = take(name, &blocks);
            snprintf(name, sizeof name, "%s.values", kind[k]);
            float *expected = take(name, &n);
            assert_memory_equal(codes, code[k], (size_t)n);
            assert_memory_equal(scales, absmax[k], (size_t)blocks * sizeof *scales);
            dsc_q8_values(k, code[k], absmax[k], n, values);
            assert_memory_equal(expected, values, (size_t)n * sizeof *values);
            free(codes);
            free(scales);
            free(expected);
            free(code[k]);
            free(absmax[k]);
        }
    }
    free(x);
    free(p);
    free(values);
}

/* The order of operations differs from PyTorch's, so a few codes are their neighbours. */
static void steps_are_those_of_bitsandbytes(void **state)
{
    (void)state;
    enum { STEPS = 12 };
    static const char *const names[2] = { "m", "v" };
    const double lr = 1e-3, beta1 = 0.9, beta2 = 0.95;
    int64_t n, other = 0;
    float *expected = take("p", &n), *size = take("size", &n), *p = calloc((size_t)n, 4), *g = calloc((size_t)n, 4);
    uint8_t *code[2] = { calloc((size_t)n, 1), calloc((size_t)n, 1) };
    float *absmax[2] = { calloc((size_t)n, 4), calloc((size_t)n, 4) };
    for (int64_t i = 0; i < n; i++)
        p[i] = uniform("adam8.p", i) - 0.5f;
    for (int step = 1; step <= STEPS; step++) {
        char name[32];
        snprintf(name, sizeof name, "adam8.g%d", step);
        for (int64_t i = 0; i < n; i++)
            g[i] = (uniform(name, i) - 0.5f) * size[i];
        const dsc_update_args args = { .master = p,
                                       .state = { code[0], code[1] },
                                       .absmax = { absmax[0], absmax[1] },
                                       .grad = g,
                                       .count = n,
                                       .state_dtype = DSC_U8,
                                       .scalars = { .grad_scale = 1,
                                                    .one_minus_beta1 = (float)(1 - beta1),
                                                    .beta2 = (float)beta2,
                                                    .one_minus_beta2 = (float)(1 - beta2),
                                                    .decay = (float)(1 - lr * 0.1),
                                                    .eps = 1e-8f,
                                                    .step_size = (float)(lr / (1 - pow(beta1, step))),
                                                    .inv_sqrt_bias2 = (float)(1 / sqrt(1 - pow(beta2, step))) } };
        run(caps_of(2), &args);
    }
    for (int64_t i = 0; i < n; i++)
        if (fabsf(p[i] - expected[i]) > 2e-4f) /* a step is about lr; a neighbour's code moves a few of them */
            fail_msg("weight %lld is %.9g, bitsandbytes has %.9g", (long long)i, (double)p[i], (double)expected[i]);
    for (int k = 0; k < 2; k++) {
        uint8_t *codes = take(names[k], &n);
        for (int64_t i = 0; i < n; i++) {
            other += codes[i] != code[k][i];
            assert_in_range(codes[i], code[k][i] > 0 ? code[k][i] - 1 : 0, code[k][i] < 255 ? code[k][i] + 1 : 255);
        }
        free(codes);
        free(code[k]);
        free(absmax[k]);
    }
    printf("# %lld of %lld codes are neighbours of bitsandbytes'\n", (long long)other, (long long)(2 * n));
    assert_true(other < n / 100);
    free(expected);
    free(size);
    free(p);
    free(g);
}

static void other_recipes_refuse_such_states(void **state)
{
    (void)state;
    dsc_kernel_table table;
    dsc_kernel_table_init(&table, dsc_cpu_caps());
    const dsc_cpu_threads team = { .threads = 1, .caps = dsc_cpu_caps() };
    const dsc_update_args args = { .state_dtype = DSC_U8 };
    for (int r = 0; r < DSC_RECIPE_COUNT; r++)
        if (dsc_recipes[r].step == (dsc_recipe)r && r != DSC_RECIPE_ADAMW)
            assert_int_equal(table.fn[dsc_recipe_kernel((dsc_recipe)r)](&args, &team, NULL), DSC_ERR_UNSUPPORTED);
    assert_int_equal(table.fn[DSC_KERNEL_ADAMW](&args, &team, NULL), DSC_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_absmax_and_values_are_those_of_bitsandbytes),
        cmocka_unit_test(steps_are_those_of_bitsandbytes),
        cmocka_unit_test(other_recipes_refuse_such_states),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
