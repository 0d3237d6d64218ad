/* test_graphs.c - a module's work as one CUDA graph ("dsc.cuda_graphs"): the same bits as without, whatever the
 * placement of states, and arguments that change are never replayed. On real GPUs (tests/gpu/real.c) the bits are
 * compared too. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cusim.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_run.h"

#define GRAPHS ", \"cuda_graphs\": true"

static dsc_model *model;

static void run(const tiny_variant *v, int64_t steps, run_result *out)
{
    tiny_run(model, v, &(run_options){ .steps = steps }, out);
}

/* Every placement that moves buffers: windows of stage 3, recomputation, micro-steps. After the first step each section
 * has run once with the arguments that it has from then on, so all others are replays. */
static void the_same_bits(void **state)
{
    static const struct {
        int32_t stage;
        dsc_recompute recompute;
    } all[] = {
        { 1, DSC_RECOMPUTE_SELECTIVE }, { 2, DSC_RECOMPUTE_FULL }, { 3, DSC_RECOMPUTE_NONE }, { 0, DSC_RECOMPUTE_KEPT }
    };
    const int32_t world = run_most_ranks(2);
    const int64_t steps = 2, accumulation = 2, sections = 2 * model->module_count - 1;
    run_result off, on;
    cusim_graphs_launched();
    run(&(tiny_variant){ "cuda", world, 0, 2, true, false, DSC_RECOMPUTE_NONE, NULL }, steps, &off);
    assert_int_equal(cusim_graphs_launched(), 0);
    for (size_t i = 0; i < DSC_COUNT(all); i++) {
        run(&(tiny_variant){ "cuda", world, all[i].stage, 2, true, true, all[i].recompute, GRAPHS }, steps, &on);
        run_expect_same(&off, &on);
        const int64_t again = all[i].recompute > DSC_RECOMPUTE_NONE ? model->module_count - 2 : 0;
        if (cusim_present())
            assert_true(cusim_graphs_launched() >= world * (steps - 1) * accumulation * (sections + again));
        assert_int_equal(on.alloc_calls_after_first, on.alloc_calls_at_end);
        assert_true(on.tracked_peak <= on.planned + on.planned / 100);
    }
}

/* ---- what the stream is asked for, by hand ---- */

#define COUNT 16

typedef struct bench {
    dsc_engine *engine;
    dsc_stream *stream;
    dsc_buf in, out, cos, sin; /* [COUNT] */
    float frequency[COUNT];
} bench;

static float fetch(bench *t)
{
    float host[COUNT];
    assert_int_equal(dsc_copy(t->stream, host, t->out.ptr, sizeof host, NULL), DSC_OK);
    assert_int_equal(dsc_stream_sync(t->stream, NULL), DSC_OK);
    return host[COUNT - 1];
}

static void bench_open(bench *t)
{
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    *t = (bench){ 0 };
    options.flags = DSC_ENGINE_NO_MODEL;
    options.config_text = "{\"train_micro_batch_size_per_gpu\": 1, \"dsc\": {\"device\": \"cuda\", \"threads\": 1}}";
    assert_int_equal(dsc_engine_open(&t->engine, &options, NULL), DSC_OK);
    t->stream = dsc_probe_compute_stream(t->engine);
    for (dsc_buf *b = &t->in; b <= &t->sin; b++)
        assert_int_equal(dsc_mem_open(dsc_probe_device(t->engine), DSC_TAG_SCRATCH, DSC_TIER_DEVICE, COUNT * 4, b,
                                      NULL), DSC_OK);
    assert_int_equal(dsc_sections_open(t->stream, 2, NULL), DSC_OK);
    cusim_graphs_launched();
}

static void bench_close(bench *t)
{
    for (dsc_buf *b = &t->in; b <= &t->sin; b++)
        dsc_mem_close(dsc_probe_device(t->engine), b);
    dsc_engine_close(&t->engine);
}

static void add(bench *t, const dsc_buf *a, const dsc_buf *b)
{
    const dsc_add_args args = { .to = t->out.ptr, .a = a->ptr, .b = b->ptr, .count = COUNT };
    assert_int_equal(DSC_RUN(t->stream, ADD, &args, NULL), DSC_OK);
}

/* value + factor * cos(frequency): memory that changes, a scalar, and host memory that the launch reads. */
static float section(bench *t, float value, float factor, float frequency)
{
    float host[COUNT];
    for (int i = 0; i < COUNT; i++) {
        host[i] = value;
        t->frequency[i] = frequency;
    }
    assert_int_equal(dsc_copy(t->stream, t->in.ptr, host, sizeof host, NULL), DSC_OK);
    assert_int_equal(dsc_section_begin(t->stream, 1, NULL), DSC_OK);
    const dsc_rope_table_args table = { .cos = t->cos.ptr, .sin = t->sin.ptr, .frequency = t->frequency,
                                        .first = 1, .positions = 1, .pairs = COUNT, .factor = factor };
    assert_int_equal(DSC_RUN(t->stream, ROPE_TABLE, &table, NULL), DSC_OK);
    assert_int_equal(dsc_fill_zero(t->stream, t->out.ptr, sizeof host, NULL), DSC_OK);
    assert_int_equal(dsc_copy(t->stream, t->out.ptr, t->in.ptr, sizeof host, NULL), DSC_OK);
    add(t, &t->out, &t->cos);
    assert_int_equal(dsc_section_end(t->stream, true, NULL), DSC_OK);
    return fetch(t);
}

static void launched(int64_t count)
{
    assert_int_equal(cusim_graphs_launched(), cusim_present() ? count : 0);
}

/* Data may change; another scalar, or other host memory, is another list of calls with a graph of its own. */
static void sections_with_other_arguments_get_their_own_graphs(void **state)
{
    bench t;
    const float half_turn = 3.14159265f;
    bench_open(&t);
    assert_true(section(&t, 3, 2, 0) == 5);
    launched(0);
    assert_true(section(&t, 5, 2, 0) == 7);
    launched(1);
    assert_true(section(&t, 5, 3, 0) == 8);
    assert_true(section(&t, 5, 2, half_turn) == 3);
    launched(0);
    assert_true(section(&t, 7, 3, 0) == 10);
    assert_true(section(&t, 7, 2, 0) == 9);
    assert_true(section(&t, 7, 2, half_turn) == 5);
    launched(3);
    for (int again = 0; again < 2; again++) /* more than are kept */
        for (int i = 0; i < 20; i++)
            assert_true(section(&t, (float)again, (float)(10 + i), 0) == (float)(10 + i + again));
    const int64_t kept = cusim_graphs_launched();
    assert_true(cusim_present() ? kept >= 1 && kept <= 19 : kept == 0);
    bench_close(&t);
}

/* Other algorithms of products make another graph. */
static void other_plans(void **state)
{
    bench t;
    int64_t others;
    bench_open(&t);
    assert_true(section(&t, 3, 2, 0) == 5);
    assert_true(section(&t, 3, 2, 0) == 5);
    launched(1);
    assert_int_equal(dsc_gemm_plans_set(dsc_probe_device(t.engine), "", &others, NULL), DSC_OK);
    assert_true(section(&t, 3, 2, 0) == 5);
    launched(0);
    assert_true(section(&t, 3, 2, 0) == 5);
    launched(1);
    bench_close(&t);
}

/* An event, or a wait of the host, sees what came before it; what is dropped never runs. */
static void events_and_host_waits_end_a_section(void **state)
{
    bench t;
    dsc_event *event = NULL;
    bench_open(&t);
    assert_int_equal(dsc_event_open(dsc_probe_device(t.engine), &event, NULL), DSC_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(section(&t, 3, 2, 0) == 5);
        assert_int_equal(dsc_section_begin(t.stream, 0, NULL), DSC_OK);
        add(&t, &t.out, &t.out);
        if (i == 0)
            assert_int_equal(dsc_event_record(event, t.stream, NULL), DSC_OK);
        else if (i == 1)
            assert_true(fetch(&t) == 10);
        assert_int_equal(dsc_section_end(t.stream, i < 2, NULL), DSC_OK);
        assert_true(fetch(&t) == (i < 2 ? 10 : 5));
    }
    launched(2); /* of section 1 */
    dsc_event_close(&event);
    bench_close(&t);
}

/* A run that is loaded in its middle goes on with the checkpoint's algorithms. */
static dsc_status load_again(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    DSC_TRY(dsc_engine_save(engine, user, err));
    DSC_TRY(dsc_engine_load(engine, user, err));
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    return dsc_engine_train_batch(engine, &result, err);
}

static void loading_in_between(void **state)
{
    run_result off, on;
    char *dir = cw_tmp_open();
    const tiny_variant v = { "cuda", run_most_ranks(2), 3, 1, true, true, DSC_RECOMPUTE_NONE, NULL };
    run(&v, 3, &off);
    tiny_variant graphs = v;
    graphs.own = GRAPHS;
    tiny_run(model, &graphs, &(run_options){ .steps = 2, .after = load_again, .user = dir }, &on);
    assert_string_equal(off.hash, on.hash);
    cw_tmp_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits),
        cmocka_unit_test(sections_with_other_arguments_get_their_own_graphs),
        cmocka_unit_test(other_plans),
        cmocka_unit_test(events_and_host_waits_end_a_section),
        cmocka_unit_test(loading_in_between),
    };
    model = tiny_gpt_open(&(tiny_gpt){ .vocab = 61, .sequence = 8, .heads = 2, .layers = 2 });
    const int failed = cmocka_run_group_tests_name("a module's work as one CUDA graph", tests, NULL, NULL);
    dsc_model_close(&model);
    return failed;
}
