/* test_offload_prefetch.c - prefetches from files. States of the update are read before the norm is known, and
 * parameters under the head's products of a pass that is not the step's last one. Blocks are counted as the file
 * engine gets them. A prefetched byte is not read again, and the bits are those of a run without prefetch.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/io.h"
#include "offload/aio.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

#define STEPS 2
enum { TILE = 2048, STATES = 3 }; /* elements; master and two moments of AdamW */

static char folder[512];
static dsc_model *model;

typedef struct reads {
    _Atomic int64_t count, bytes;
    bool late_params; /* one of 256 offers to write a tile of parameters is taken */
    _Atomic int64_t offered;
} reads;

static dsc_aio_fault_kind count_read(void *user, int64_t n, const dsc_aio_piece *piece, int64_t *result)
{
    reads *r = user;
    (void)n, (void)result;
    if (!piece->write) {
        atomic_fetch_add(&r->count, 1);
        atomic_fetch_add(&r->bytes, piece->bytes);
    } else if (r->late_params && piece->bytes == TILE * 2 && atomic_fetch_add(&r->offered, 1) % 256 != 255) {
        return DSC_AIO_FAULT_REFUSE;
    }
    return DSC_AIO_FAULT_NONE;
}

typedef struct variant {
    int32_t accumulation, buffers;
    bool ahead, params; /* pipeline_read; parameters in files too, at stage 3 */
    reads r;
    int64_t under_head, before_norm, bytes_before_norm; /* reads of the first step until then */
    run_result result;
} variant;

/* The first step by hand. A barrier waits for all background work and starts none. */
static dsc_status first_step(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    variant *v = user;
    (void)rank;
    DSC_TRY(dsc_engine_barrier(engine, err));
    const int64_t before = v->r.count, bytes_before = v->r.bytes;
    for (int32_t m = 0; m < v->accumulation; m++) {
        DSC_TRY(dsc_engine_forward(engine, NULL, NULL, err));
        if (m == 0 && v->under_head == 0) {
            DSC_TRY(dsc_engine_barrier(engine, err));
            v->under_head = v->r.count - before;
        }
        DSC_TRY(dsc_engine_backward(engine, err));
        if (m + 1 < v->accumulation)
            DSC_TRY(dsc_engine_step(engine, NULL, err));
    }
    DSC_TRY(dsc_engine_barrier(engine, err));
    v->before_norm = v->r.count - before;
    v->bytes_before_norm = v->r.bytes - bytes_before;
    return dsc_engine_step(engine, NULL, err);
}

static void run(variant *v)
{
    const dsc_aio_hook hook = { count_read, &v->r };
    const dsc_io io = { .blocks = &hook };
    char config[2048], params[640] = "";
    snprintf(params, sizeof params, ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", folder);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d,"
             " \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"gradient_clipping\": 0.5,"
             " \"zero_optimization\": {\"stage\": %d, \"sub_group_size\": %d,"
             " \"stage3_param_persistence_threshold\": 0,"
             " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"buffer_count\": %d,"
             " \"pipeline_read\": %s}%s}, \"dsc\": {\"threads\": 1}}",
             (int)v->accumulation, v->params ? 3 : 1, TILE, folder, (int)v->buffers, v->ahead ? "true" : "false",
             v->params ? params : "");
    const run_options options = { .world = 1, .steps = STEPS, .model = model, .config = config,
                                  .data = toy_data(model, 1 << 20), .before = first_step, .user = v,
                                  .io = &io };
    run_well(&options, &v->result);
}

/* Bytes of as many tiles as there are buffers behind the one in use. The other reads of one micro-step are the sum of a
 * parameter that two modules share. */
static void states_before_the_norm(void **state)
{
    static const struct { int32_t buffers, tiles; } cases[] = { { 4, 3 }, { 20, 5 }, { 48, 12 } };
    variant none = { .accumulation = 1, .buffers = 4 };
    run(&none);
    assert_int_equal(none.under_head, 0);
    assert_int_equal(none.before_norm, 1);
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        variant v = { .accumulation = 1, .buffers = cases[i].buffers, .ahead = true };
        run(&v);
        assert_int_equal(v.under_head, STATES * (cases[i].tiles - 1)); /* they begin there */
        assert_int_equal(v.before_norm, none.before_norm + STATES * (cases[i].tiles - 1));
        run_expect_same(&none.result, &v.result);
    }
}

/* The buffers of masters and moments hold two tiles of parameters each, and one stays free. */
static void parameters_under_the_head(void **state)
{
    variant none = { .accumulation = 2, .buffers = 4, .params = true };
    run(&none);
    for (int32_t buffers = 4; buffers <= 48; buffers += 44) {
        variant v = { .accumulation = 2, .buffers = buffers, .ahead = true, .params = true };
        run(&v);
        if (buffers == 4)
            assert_int_equal(v.under_head - none.under_head, STATES * 3 * 2 - 1);
        else
            assert_true(v.under_head - none.under_head > STATES * 3 * 2);
        run_expect_same(&none.result, &v.result);
    }
}

/* In a step that nobody interrupts. */
static void nothing_is_read_twice(void **state)
{
    for (int32_t accumulation = 2; accumulation <= 3; accumulation++) {
        variant none = { .accumulation = accumulation, .buffers = 4, .params = true, .under_head = -1 };
        run(&none);
        for (int32_t buffers = 4; buffers <= 48; buffers += 44) {
            variant v = none;
            v.ahead = true;
            v.buffers = buffers;
            run(&v);
            const int64_t tiles = buffers == 4 ? 3 : 12;
            assert_int_equal(v.bytes_before_norm - none.bytes_before_norm, STATES * (tiles - 1) * TILE * 4);
            run_expect_same(&none.result, &v.result);
        }
    }
}

/* A forward pass has what an update makes before files do; whoever comes after it reads those. */
static void parameters_are_written_later(void **state)
{
    for (int32_t accumulation = 1; accumulation <= 2; accumulation++) {
        variant none = { .accumulation = accumulation, .buffers = 4, .params = true };
        run(&none);
        for (int32_t buffers = 4; buffers <= 48; buffers += 44) {
            variant v = { .accumulation = accumulation, .buffers = buffers, .ahead = true, .params = true,
                          .r = { .late_params = true } };
            run(&v);
            run_expect_same(&none.result, &v.result);
        }
    }
}

static int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.400s/dsc-ahead-XXXXXX", base != NULL ? base : "/tmp");
    model = toy_model_open(20, 61, 8, false); /* 8 groups of 4096, and 2048 at both ends */
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    toy_model_close(model);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_before_the_norm),
        cmocka_unit_test(parameters_under_the_head),
        cmocka_unit_test(nothing_is_read_twice),
        cmocka_unit_test(parameters_are_written_later),
    };
    return cmocka_run_group_tests_name("offload prefetch", tests, make_folder, remove_folder);
}
