/* test_device.c - opening and closing of a GPU: kernels are loaded, queues requested, slices of cards described, and
 * the wait for a stream whose work never ends is given up. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/clock.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "tests/sim/cusim.h"

#define ELEMENTS 64

typedef struct gpu {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_device_props props;
} gpu;

static void open_gpu_with(gpu *g, dsc_gemm_choice plans, dsc_cudnn_use cudnn)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_device_ops *ops = NULL;
    int32_t count = 0;
    memset(g, 0, sizeof *g);
    assert_int_equal(dsc_alloc_open(&g->alloc, &err), DSC_OK);
    assert_int_equal(dsc_device_find("cuda", &ops, &count, &err), DSC_OK);
    const dsc_device_options options = {
        .alloc = g->alloc, .threads = 1, .plans = plans, .attention = cudnn, .convolutions = cudnn
    };
    assert_int_equal(dsc_device_open(ops, &g->device, &options, &err), DSC_OK);
    dsc_device_props_get(g->device, &g->props);
}

static void open_gpu(gpu *g) { open_gpu_with(g, DSC_GEMM_SAME_BITS, DSC_CUDNN_AUTO); }

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
    gpu g;
    open_gpu(&g); /* the plugin sets the variable when it is opened */
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    assert_non_null(queues);
    assert_true(atoi(queues) > 0);
    close_gpu(&g);
}

static void a_whole_card_has_the_peak_of_its_data_sheet(void **state)
{
    (void)state;
    skip_real_ones();
    gpu g;
    cusim_set_name("NVIDIA H100 80GB HBM3");
    open_gpu(&g);
    assert_true(g.props.peak_flops == 989e12);
    assert_string_equal(g.props.pci, "0000:01:00.0");
    close_gpu(&g);
}

static void a_slice_has_the_share_of_its_multiprocessors_and_no_sensors(void **state)
{
    (void)state;
    skip_real_ones();
    gpu g;
    cusim_set_name("NVIDIA H100 80GB HBM3 MIG 1g.10gb");
    open_gpu(&g);
    assert_true(g.props.peak_flops == 989e12 * ((double)g.props.multiprocessors / 132));
    assert_true(g.props.peak_bytes == 0);
    assert_string_equal(g.props.pci, "");
    close_gpu(&g);
}

/* A kernel of warpgroups that never ends does not matter where it is not taken. */
static void the_first_choice_multiplies_rows_of_experts_by_the_kernel_of_all_gpus(void **state)
{
    (void)state;
    skip_real_ones();
    enum { SIDE = 8, ROWS_BYTES = 2 * SIDE * SIDE };
    static const int32_t starts[2] = { 0, SIDE };
    gpu g;
    dsc_buf rows = { 0 }, places = { 0 };
    dsc_stream *stream = NULL;
    dsc_error err = DSC_ERROR_INIT;
    open_gpu_with(&g, DSC_GEMM_FIRST, DSC_CUDNN_AUTO);
    cusim_set_endless("grouped_sm90");
    assert_int_equal(dsc_mem_open(g.device, DSC_TAG_CONTROL, DSC_TIER_DEVICE, 3 * ROWS_BYTES, &rows, &err), DSC_OK);
    assert_int_equal(dsc_mem_open(g.device, DSC_TAG_CONTROL, DSC_TIER_DEVICE, sizeof starts, &places, &err), DSC_OK);
    assert_int_equal(dsc_stream_open(g.device, DSC_STREAM_COMPUTE, "compute", &stream, &err), DSC_OK);
    assert_int_equal(dsc_copy(stream, places.ptr, starts, sizeof starts, &err), DSC_OK);
    char *const first = rows.ptr;
    const dsc_grouped_gemm_args args = { .a = first,
                                         .b = first + ROWS_BYTES,
                                         .c = first + 2 * ROWS_BYTES,
                                         .starts = places.ptr,
                                         .rows = SIDE,
                                         .in = SIDE,
                                         .out = SIDE,
                                         .experts = 1,
                                         .kind = DSC_GROUPED_FORWARD,
                                         .dtype = DSC_BF16 };
    assert_int_equal(DSC_RUN(stream, GROUPED_GEMM, &args, &err), DSC_OK);
    assert_int_equal(dsc_stream_sync(stream, &err), DSC_OK);
    cusim_set_endless(NULL);
    dsc_stream_close(&stream);
    dsc_mem_close(g.device, &rows);
    dsc_mem_close(g.device, &places);
    close_gpu(&g);
}

/* cuDNN is asked for the attention, then for the convolution, whose work space is larger than the card. */
static void a_work_space_without_memory_leaves_the_other_part_its_own(void **state)
{
    (void)state;
    skip_real_ones();
    enum { SIZE = 64 };
    static const dsc_attention_fwd_args attention = { .q_stride = 3 * SIZE,
                                                      .k_stride = 3 * SIZE,
                                                      .v_stride = 3 * SIZE,
                                                      .out_stride = SIZE,
                                                      .batch = 1,
                                                      .tokens = 16,
                                                      .heads = 1,
                                                      .kv_heads = 1,
                                                      .head_size = SIZE,
                                                      .scale = 0.125f,
                                                      .dtype = DSC_BF16 };
    static const dsc_conv2d_args convolution = { .pass = DSC_CONV2D_Y,
                                                 .shape = { 1, 8, 8, 8, 8, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
                                                 .dtype = DSC_BF16 };
    gpu g;
    dsc_stream *stream = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_gemm_measured found = { 0 };
    open_gpu_with(&g, DSC_GEMM_FIRST, DSC_CUDNN_ALWAYS);
    assert_int_equal(dsc_stream_open(g.device, DSC_STREAM_COMPUTE, "compute", &stream, &err), DSC_OK);
    cusim_set_cudnn(CUSIM_CUDNN_WORKS);
    assert_int_equal(dsc_attention_prepare(g.device, &attention, &err), DSC_OK);
    cusim_set_cudnn(CUSIM_CUDNN_LARGE);
    assert_int_equal(dsc_conv2d_prepare(g.device, &convolution, &err), DSC_OK);
    assert_int_equal(dsc_gemm_measure(stream, DSC_GEMM_FIRST, 0, &found, &err), DSC_OK);
    assert_int_equal(found.attention.cudnn.taken, 2);
    assert_string_equal(found.attention.cudnn.note, "");
    assert_int_equal(found.convolutions.shapes, 0);
    assert_string_equal(found.convolutions.note, "the GPU has no memory for its work space");
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
    dsc_stream_close(&stream);
    close_gpu(&g);
}

/* The memory has space for some rows of windows, and not for all of them. */
static void a_trial_of_a_convolution_gathers_windows_as_a_step_does(void **state)
{
    (void)state;
    skip_real_ones();
    static const dsc_conv2d_args args = { .pass = DSC_CONV2D_Y,
                                          .shape = { 1, 32, 32, 16, 16, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
                                          .dtype = DSC_BF16 };
    gpu g;
    dsc_stream *stream = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_gemm_measured found = { 0 };
    open_gpu_with(&g, DSC_GEMM_SAME_BITS, DSC_CUDNN_ALWAYS);
    cusim_set_cudnn(CUSIM_CUDNN_WORKS);
    assert_int_equal(dsc_stream_open(g.device, DSC_STREAM_COMPUTE, "compute", &stream, &err), DSC_OK);
    assert_int_equal(dsc_conv2d_prepare(g.device, &args, &err), DSC_OK);
    assert_int_equal(dsc_device_reserve(g.device, 192 << 10, &err), DSC_OK);
    assert_int_equal(dsc_gemm_measure(stream, DSC_GEMM_SAME_BITS, 32 << 10, &found, &err), DSC_OK);
    assert_int_equal(found.convolutions.untried, 0);
    assert_int_equal(found.convolutions.taken, 1);
    cusim_set_cudnn(CUSIM_CUDNN_NONE);
    dsc_stream_close(&stream);
    close_gpu(&g);
}

/* Last, since its work stays. */
static void a_stream_that_never_ends_is_given_up(void **state)
{
    (void)state;
    skip_real_ones();
    gpu g;
    dsc_buf from = { 0 }, to = { 0 };
    dsc_stream *stream = NULL;
    dsc_error err = DSC_ERROR_INIT;
    open_gpu(&g);
    assert_int_equal(dsc_mem_open(g.device, DSC_TAG_CONTROL, DSC_TIER_DEVICE, ELEMENTS * 4, &from, &err), DSC_OK);
    assert_int_equal(dsc_mem_open(g.device, DSC_TAG_CONTROL, DSC_TIER_DEVICE, ELEMENTS * 4, &to, &err), DSC_OK);
    assert_int_equal(dsc_stream_open(g.device, DSC_STREAM_COMPUTE, "compute", &stream, &err), DSC_OK);
    cusim_set_endless("each_kernel");
    const dsc_cast_args args = {
        .to = to.ptr, .from = from.ptr, .to_dtype = DSC_BF16, .from_dtype = DSC_F32, .count = ELEMENTS
    };
    assert_int_equal(DSC_RUN(stream, CAST, &args, &err), DSC_OK);
    const int64_t start_ns = dsc_clock_ns();
    dsc_stream_close(&stream);
    assert_true(dsc_clock_ns() - start_ns >= INT64_C(10000000000));
    dsc_mem_close(g.device, &from);
    dsc_mem_close(g.device, &to);
    close_gpu(&g);
    assert_true(cusim_left() > 0); /* the stream and its memory are the process's */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_loads_every_kernel),
        cmocka_unit_test(streams_have_a_queue_each_unless_the_user_says_otherwise),
        cmocka_unit_test(a_whole_card_has_the_peak_of_its_data_sheet),
        cmocka_unit_test(a_slice_has_the_share_of_its_multiprocessors_and_no_sensors),
        cmocka_unit_test(the_first_choice_multiplies_rows_of_experts_by_the_kernel_of_all_gpus),
        cmocka_unit_test(a_work_space_without_memory_leaves_the_other_part_its_own),
        cmocka_unit_test(a_trial_of_a_convolution_gathers_windows_as_a_step_does),
        cmocka_unit_test(a_stream_that_never_ends_is_given_up),
    };
    return cmocka_run_group_tests_name("opening and closing a GPU", tests, NULL, NULL);
}
