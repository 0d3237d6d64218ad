/* test_device.c - what opening and closing a GPU does: kernels are loaded and queues asked for. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/device.h"
#include "tests/sim/cusim.h"

typedef struct gpu {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_device_props props;
} gpu;

static void open_gpu(gpu *g)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_device_ops *ops = NULL;
    int32_t count = 0;
    memset(g, 0, sizeof *g);
    assert_int_equal(dsc_alloc_open(&g->alloc, &err), DSC_OK);
    assert_int_equal(dsc_device_find("cuda", &ops, &count, &err), DSC_OK);
    const dsc_device_options options = { .alloc = g->alloc, .threads = 1 };
    assert_int_equal(dsc_device_open(ops, &g->device, &options, &err), DSC_OK);
    dsc_device_props_get(g->device, &g->props);
}

static void close_gpu(gpu *g)
{
    dsc_device_close(&g->device);
    dsc_alloc_close(&g->alloc);
}

static void skip_real_ones(void)
{
    if (!cusim_present())
        skip();
}

static void opening_loads_every_kernel(void **state)
{
    (void)state;
    skip_real_ones();
    gpu g;
    open_gpu(&g);
    assert_true(cusim_kernels_loaded() > 100); /* the simulator refuses the launch of any other from now on */
    close_gpu(&g);
}

static void streams_have_a_queue_each_unless_the_user_says_otherwise(void **state)
{
    (void)state;
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    assert_non_null(queues);
    assert_true(atoi(queues) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_loads_every_kernel),
        cmocka_unit_test(streams_have_a_queue_each_unless_the_user_says_otherwise),
    };
    return cmocka_run_group_tests_name("opening and closing a GPU", tests, NULL, NULL);
}
