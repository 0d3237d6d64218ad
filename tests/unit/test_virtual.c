/* test_virtual.c - the clocks of a virtual GPU: what shares the card, what runs beside it, and who waits for whom.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/virtual/replay.h"

/* Rates with which times are whole numbers. */
static const dsc_card_rates rates = { .name = "test",
                                      .memory_bytes = 1e12,
                                      .multiprocessors = 1,
                                      .product_flops = 1e9,
                                      .product_flops_f32 = 1e9,
                                      .attention_forward_flops = { 1e9, 1e9 },
                                      .attention_backward_flops = { 1e9, 1e9 },
                                      .kernel_bytes = 1e9,
                                      .host_link_bytes = 1e9,
                                      .host_update_bytes = 1e9,
                                      .peer_bytes = 1e9,
                                      .cards_of_host = 8,
                                      .network_bytes = 1e9 };

typedef struct machine {
    dsc_virtual_clock clock;
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *compute, *other;
    dsc_event *event;
    dsc_buf on_card, pinned;
} machine;

static int set_up(void **state)
{
    static machine m;
    m = (machine) { .clock = { .rates = &rates } };
    assert_int_equal(dsc_alloc_open(&m.alloc, NULL), DSC_OK);
    const dsc_device_options options = { .alloc = m.alloc, .threads = 1, .clock = &m.clock };
    assert_int_equal(dsc_device_open(&dsc_device_virtual, &m.device, &options, NULL), DSC_OK);
    assert_int_equal(dsc_stream_open(m.device, DSC_STREAM_COMPUTE, "compute", &m.compute, NULL), DSC_OK);
    assert_int_equal(dsc_stream_open(m.device, DSC_STREAM_ASYNC, "other", &m.other, NULL), DSC_OK);
    assert_int_equal(dsc_event_open(m.device, &m.event, NULL), DSC_OK);
    assert_int_equal(dsc_mem_open(m.device, DSC_TAG_IO, DSC_TIER_DEVICE, INT64_C(1) << 36, &m.on_card, NULL), DSC_OK);
    assert_int_equal(dsc_mem_open(m.device, DSC_TAG_IO, DSC_TIER_PINNED, INT64_C(1) << 30, &m.pinned, NULL), DSC_OK);
    *state = &m;
    return 0;
}

static int tear_down(void **state)
{
    machine *m = *state;
    dsc_mem_close(m->device, &m->pinned);
    dsc_mem_close(m->device, &m->on_card);
    dsc_event_close(&m->event);
    dsc_stream_close(&m->other);
    dsc_stream_close(&m->compute);
    dsc_device_close(&m->device);
    dsc_alloc_close(&m->alloc);
    return 0;
}

static void near(double seconds, double expected) { assert_true(fabs(seconds - expected) < 1e-9); }

/* A kernel of so many seconds. */
static void run_kernel(machine *m, dsc_stream *stream, int64_t seconds)
{
    const dsc_add_args add = {
        .to = m->on_card.ptr, .a = m->on_card.ptr, .b = m->on_card.ptr, .count = seconds * 1000000000 / 12
    };
    assert_int_equal(DSC_RUN(stream, ADD, &add, NULL), DSC_OK);
}

static void copy_out(machine *m, dsc_stream *stream, int64_t seconds)
{
    assert_int_equal(dsc_copy(stream, m->pinned.ptr, m->on_card.ptr, seconds * 1000000000, NULL), DSC_OK);
}

static double time_of(machine *m, dsc_stream *stream)
{
    assert_int_equal(dsc_stream_sync(stream, NULL), DSC_OK);
    return m->clock.host_s;
}

static void kernels_of_two_streams_share_the_card(void **state)
{
    machine *m = *state;
    run_kernel(m, m->compute, 3);
    run_kernel(m, m->other, 2);
    assert_true(fabs(time_of(m, m->other) - 5) < 1e-6);
    assert_true(fabs(m->clock.busy_s[DSC_VIRTUAL_MEMORY_KERNELS] - 5) < 1e-6);
    assert_int_equal(m->clock.kernels, 2);
}

static void a_copy_runs_beside_a_kernel(void **state)
{
    machine *m = *state;
    run_kernel(m, m->compute, 3);
    copy_out(m, m->other, 1);
    near(time_of(m, m->other), 1);
    assert_true(fabs(time_of(m, m->compute) - 3) < 1e-6);
}

static void kernels_fill_the_time_in_which_another_stream_waits(void **state)
{
    machine *m = *state;
    copy_out(m, m->other, 1);
    run_kernel(m, m->other, 1);   /* from 1 to 2 */
    run_kernel(m, m->compute, 2); /* from 0 to 1, then from 2 to 3 */
    assert_true(fabs(time_of(m, m->other) - 2) < 1e-6);
    assert_true(fabs(time_of(m, m->compute) - 3) < 1e-6);
}

static void a_stream_waits_for_an_event(void **state)
{
    machine *m = *state;
    copy_out(m, m->other, 1);
    assert_int_equal(dsc_event_record(m->event, m->other, NULL), DSC_OK);
    assert_int_equal(dsc_stream_wait(m->compute, m->event, NULL), DSC_OK);
    run_kernel(m, m->compute, 1);
    assert_true(fabs(time_of(m, m->compute) - 2) < 1e-6);
}

static dsc_status copy_in_a_call(void *args, dsc_error *err)
{
    machine *const *m = args;
    copy_out(*m, (*m)->compute, 1);
    return dsc_stream_sync((*m)->compute, err);
}

static void a_host_call_has_a_clock_of_its_own(void **state)
{
    machine *m = *state;
    assert_int_equal(dsc_host_call(m->other, copy_in_a_call, &m, (int64_t)sizeof m, NULL), DSC_OK);
    near(m->clock.host_s, 0); /* the caller goes on at once */
    assert_int_equal(dsc_event_record(m->event, m->other, NULL), DSC_OK);
    assert_int_equal(dsc_event_sync(m->event, NULL), DSC_OK);
    near(m->clock.host_s, 1);
}

static void the_host_beside_the_card_works_on_the_callers_clock(void **state)
{
    machine *m = *state;
    dsc_device *host = NULL;
    dsc_stream *stream = NULL;
    const dsc_device_options options = { .alloc = m->alloc, .threads = 1 };
    assert_int_equal(dsc_device_open_host(m->device, &options, &host, NULL), DSC_OK);
    assert_int_equal(dsc_stream_open(host, DSC_STREAM_COMPUTE, "host", &stream, NULL), DSC_OK);
    run_kernel(m, stream, 2);
    assert_true(fabs(m->clock.host_s - 2) < 1e-6);
    near(m->clock.card_s, 0);
    dsc_stream_close(&stream);
    dsc_device_close(&host);
}

static void times_follow_from_the_arguments(void **state)
{
    dsc_virtual_part part;
    const dsc_gemm_args gemm = { .m = 128, .n = 256, .k = 512, .ab_dtype = DSC_BF16, .c_dtype = DSC_BF16 };
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_GEMM, &gemm, &part), 2.0 * 128 * 256 * 512 / 1e9);
    assert_int_equal(part, DSC_VIRTUAL_PRODUCTS);
    const dsc_attention_fwd_args attention = {
        .batch = 2, .tokens = 10, .heads = 3, .kv_heads = 3, .head_size = 64, .dtype = DSC_BF16
    };
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_ATTENTION_FWD, &attention, &part), 2.0 * 2 * 2 * 3 * 64 * 55 / 1e9);
    assert_int_equal(part, DSC_VIRTUAL_ATTENTION);
    float p = 0;
    uint16_t half = 0;
    const dsc_update_args update = {
        .master = &p, .grad = &p, .state = { &p, &p }, .param_half = &half, .count = 1000, .state_dtype = DSC_F32
    };
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_ADAMW, &update, &part), 1000.0 * 30 / 1e9);
    assert_int_equal(part, DSC_VIRTUAL_UPDATE);
}

static const double own_rate = 1e12;

/* 4 products and 1 with stored score gradients, else 7. The second kernel of the five takes as long as its reads. */
static void own_gradients_take_five_products_or_seven(void **state)
{
    (void)state;
    dsc_card_rates card = rates;
    dsc_attention_bwd_args a = {
        .batch = 2, .tokens = 1024, .heads = 3, .kv_heads = 3, .head_size = 64, .dtype = DSC_BF16
    };
    const double pairs = 6 * 1024.0 * 1025 / 2, one = 2 * 64 * pairs / own_rate;
    card.attention_own_flops[0] = card.attention_own_flops[1] = own_rate;
    card.kernel_bytes = 1e15;
    near(dsc_virtual_own_gradients_s(&card, &a), 7 * one);
    a.stored_bytes = dsc_attention_stored_head_bytes(1024, false);
    near(dsc_virtual_own_gradients_s(&card, &a), 5 * one);
    card.kernel_bytes = 2 * pairs / (2 * one); /* the reads take as long as two products */
    near(dsc_virtual_own_gradients_s(&card, &a), 6 * one);
    card.kernel_bytes = 2 * pairs / (5 * one); /* slow memory: scores are computed twice */
    near(dsc_virtual_own_gradients_s(&card, &a), 7 * one);
}

/* The bytes of logits, read once and with gradients written once; those of all rows, read or written once. */
static void heads_for_labels_take_time(void **state)
{
    (void)state;
    dsc_virtual_part part;
    dsc_label_loss_args loss = { .rows = 100, .classes = 21841, .stride = 21841, .dtype = DSC_BF16 };
    const dsc_mean_rows_args mean = { .batch = 4, .tokens = 128, .channels = 768, .dtype = DSC_F32 };
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_LABEL_LOSS, &loss, &part), 100.0 * 21841 * 2 / 1e9);
    loss.write_gradient = true;
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_LABEL_LOSS, &loss, &part), 2 * 100.0 * 21841 * 2 / 1e9);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_MEAN_ROWS_FWD, &mean, &part), 4.0 * 128 * 768 * 4 / 1e9);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_MEAN_ROWS_BWD, &mean, &part), 4.0 * 128 * 768 * 4 / 1e9);
}

/* Bytes of feature maps: a norm's backward reads its inputs twice, and a maximum keeps where it was. */
static void feature_maps_take_time(void **state)
{
    (void)state;
    dsc_virtual_part part;
    const double map = 6.0 * 64 * 2 / 1e9;
    const dsc_batch_stats_args stats = { .rows = 6, .channels = 64, .dtype = DSC_BF16 };
    const dsc_batch_norm_fwd_args norm = { .rows = 6, .channels = 64, .dtype = DSC_BF16 };
    const dsc_batch_norm_bwd_args back = { .rows = 6, .channels = 64, .dtype = DSC_BF16, .d_x = &part };
    const dsc_sample_scale_args scale = { .samples = 2, .rows = 3, .channels = 64, .dtype = DSC_BF16 };
    const dsc_sample_dropout_args drop = { .samples = 2, .elements = 192, .dtype = DSC_BF16 };
    const dsc_pool_args pool = { .shape = { DSC_POOL_MEAN, 2, 2, 1, 2, 0, 0, 0 }, .samples = 1, .channels = 64,
                                 .dtype = DSC_BF16 };
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_BATCH_STATS, &stats, &part), map);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_BATCH_NORM_FWD, &norm, &part), 2 * map);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_BATCH_NORM_BWD, &back, &part), 5 * map);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_SAMPLE_SCALE_FWD, &scale, &part), 2 * map);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_SAMPLE_DROPOUT, &drop, &part), 2 * map);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_POOL_FWD, &pool, &part), map);
    const dsc_lstm_fwd_args step = { .shape = { 6, 4, 64, 2 }, .dtype = DSC_BF16 };
    const dsc_lstm_bwd_args step_back = { .shape = { 6, 4, 64, 2 }, .dtype = DSC_BF16 };
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_LSTM_FWD, &step, &part), 9 * map + 6 * 2 * map);
    near(dsc_virtual_kernel_s(&rates, DSC_KERNEL_LSTM_BWD, &step_back, &part), 11 * map + 5 * 2 * map);
}

/* A step of two kernels around a collective, and a wait for its end: 3 + 2 + 6 seconds. */
static dsc_virtual_trace trace_step(machine *m, dsc_virtual_item *items, int64_t capacity)
{
    dsc_virtual_trace trace = { .item = items, .capacity = capacity };
    m->clock.trace = &trace;
    run_kernel(m, m->compute, 3);
    assert_int_equal(dsc_event_record(m->event, m->compute, NULL), DSC_OK);
    assert_int_equal(dsc_stream_wait(m->other, m->event, NULL), DSC_OK);
    dsc_virtual_exchange(m->other, 4, 2);
    assert_int_equal(dsc_event_record(m->event, m->other, NULL), DSC_OK);
    assert_int_equal(dsc_stream_wait(m->compute, m->event, NULL), DSC_OK);
    run_kernel(m, m->compute, 6);
    assert_int_equal(dsc_stream_sync(m->compute, NULL), DSC_OK);
    m->clock.trace = NULL;
    return trace;
}

static dsc_replay_result replay(const machine *m, const dsc_virtual_trace *trace, int32_t slow, double factor,
                                double noise)
{
    dsc_replay_result result;
    const dsc_replay_options options = { .alloc = m->alloc,
                                         .rates = &rates,
                                         .trace = trace,
                                         .streams = m->clock.streams,
                                         .events = m->clock.events,
                                         .ranks = 4,
                                         .steps = 3,
                                         .slow_ranks = slow,
                                         .slow_factor = factor,
                                         .noise = noise,
                                         .seed = 1 };
    assert_int_equal(dsc_virtual_replay(&options, &result, NULL), DSC_OK);
    return result;
}

/* As a GPU of sm_90 with cuDNN chooses (tests/sim/test_conv2d_cudnn.sh), whose trials find all of it right and fast. */
static void convolutions_are_whole_where_a_card_asks_cudnn(void **state)
{
    static const dsc_conv2d_shape usual = { 2, 8, 8, 16, 16, 1, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
                                  of_a_picture = { 2, 8, 8, 16, 16, 1, { 8, 8 }, { 8, 8 }, { 0, 0 }, { 1, 1 } },
                                  of_a_pixel = { 2, 8, 8, 16, 16, 1, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 } };
    static const struct {
        dsc_cudnn_use use;
        dsc_gemm_choice plans;
        dsc_dtype dtype;
        const dsc_conv2d_shape *shape;
        bool whole;
    } cases[] = {
        { DSC_CUDNN_AUTO, DSC_GEMM_SAME_BITS, DSC_BF16, &usual, true },
        { DSC_CUDNN_AUTO, DSC_GEMM_SAME_BITS, DSC_F32, &usual, false },
        { DSC_CUDNN_AUTO, DSC_GEMM_FASTEST, DSC_F32, &usual, true },
        { DSC_CUDNN_AUTO, DSC_GEMM_FIRST, DSC_BF16, &usual, false },
        { DSC_CUDNN_AUTO, DSC_GEMM_SAME_BITS, DSC_BF16, &of_a_picture, false },
        { DSC_CUDNN_AUTO, DSC_GEMM_SAME_BITS, DSC_BF16, &of_a_pixel, false },
        { DSC_CUDNN_ALWAYS, DSC_GEMM_FIRST, DSC_F32, &usual, true },
        { DSC_CUDNN_ALWAYS, DSC_GEMM_FIRST, DSC_F16, &usual, false },
        { DSC_CUDNN_NEVER, DSC_GEMM_FASTEST, DSC_BF16, &usual, false },
    };
    machine *m = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dsc_device_options options = {
            .alloc = m->alloc, .threads = 1, .clock = &m->clock, .convolutions = cases[i].use, .plans = cases[i].plans
        };
        const dsc_conv2d_args args = { .shape = *cases[i].shape, .dtype = cases[i].dtype };
        dsc_device *device = NULL;
        dsc_stream *stream = NULL;
        assert_int_equal(dsc_device_open(&dsc_device_virtual, &device, &options, NULL), DSC_OK);
        assert_int_equal(dsc_stream_open(device, DSC_STREAM_COMPUTE, "compute", &stream, NULL), DSC_OK);
        if (dsc_conv2d_is_whole(stream, &args) != cases[i].whole)
            fail_msg("case %zu", i);
        dsc_stream_close(&stream);
        dsc_device_close(&device);
    }
}

static void ranks_that_are_equally_fast_replay_the_step_of_one(void **state)
{
    machine *m = *state;
    dsc_virtual_item items[16];
    const dsc_virtual_trace trace = trace_step(m, items, 16);
    assert_int_equal(trace.count, 8);
    near(m->clock.host_s, 11);
    const dsc_replay_result even = replay(m, &trace, 0, 1, 0);
    near(even.step_s, 11);
    near(even.most_s, 11);
    near(even.waited_s, 0);
}

/* The slow rank takes 6 + 2 + 12 seconds. The three others begin a step 6 seconds before it and reach the collective
 * after 3 seconds, so that they wait 9 seconds for it. */
static void all_ranks_wait_for_a_slow_one(void **state)
{
    machine *m = *state;
    dsc_virtual_item items[16];
    const dsc_virtual_trace trace = trace_step(m, items, 16);
    const dsc_replay_result slow = replay(m, &trace, 1, 2, 0);
    near(slow.step_s, 20);
    near(slow.waited_s, 9 * 3 / 4.0);
    near(replay(m, &trace, 4, 2, 0).step_s, 20);
    near(replay(m, &trace, 4, 2, 0).waited_s, 0);
}

/* Each part of a step is as long as on the slowest rank: more than the mean noise, which adds half. */
static void noise_costs_more_than_its_mean(void **state)
{
    machine *m = *state;
    dsc_virtual_item items[16];
    const dsc_virtual_trace trace = trace_step(m, items, 16);
    const dsc_replay_result noisy = replay(m, &trace, 0, 1, 0.5), again = replay(m, &trace, 0, 1, 0.5);
    assert_true(noisy.step_s > 2 + 9 * 1.5 && noisy.most_s >= noisy.step_s && noisy.waited_s > 0);
    assert_true(noisy.step_s == again.step_s);
}

static void a_trace_that_is_full_says_so(void **state)
{
    machine *m = *state;
    dsc_virtual_item items[3];
    const dsc_virtual_trace trace = trace_step(m, items, 3);
    assert_true(trace.full && trace.count == 3);
}

static void groups_of_ranks_are_not_replayed(void **state)
{
    machine *m = *state;
    dsc_virtual_item items[16];
    const dsc_virtual_trace trace = trace_step(m, items, 16);
    dsc_replay_result result;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_replay_options options = { .alloc = m->alloc,
                                         .rates = &rates,
                                         .trace = &trace,
                                         .streams = m->clock.streams,
                                         .events = m->clock.events,
                                         .ranks = 8,
                                         .steps = 1,
                                         .slow_factor = 1 };
    assert_int_equal(dsc_virtual_replay(&options, &result, &err), DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "an exchange of 4 of 8 ranks"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kernels_of_two_streams_share_the_card, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_copy_runs_beside_a_kernel, set_up, tear_down),
        cmocka_unit_test_setup_teardown(kernels_fill_the_time_in_which_another_stream_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stream_waits_for_an_event, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_host_call_has_a_clock_of_its_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_host_beside_the_card_works_on_the_callers_clock, set_up, tear_down),
        cmocka_unit_test(times_follow_from_the_arguments),
        cmocka_unit_test(own_gradients_take_five_products_or_seven),
        cmocka_unit_test(heads_for_labels_take_time),
        cmocka_unit_test(feature_maps_take_time),
        cmocka_unit_test_setup_teardown(convolutions_are_whole_where_a_card_asks_cudnn, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ranks_that_are_equally_fast_replay_the_step_of_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(all_ranks_wait_for_a_slow_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(noise_costs_more_than_its_mean, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_trace_that_is_full_says_so, set_up, tear_down),
        cmocka_unit_test_setup_teardown(groups_of_ranks_are_not_replayed, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("virtual GPUs", tests, NULL, NULL);
}
