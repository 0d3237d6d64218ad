/* test_overlap.c - concurrent work with states in files. One side is held until the other reaches a point that it could
 * not reach by waiting. The bits are those of a run in memory.
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
#include <pthread.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/io.h"
#include "offload/aio.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/sanitizer.h"
#include "tests/support/toy_model.h"

#define STEPS 2
#define MODULES 6
#define BLOCKS (MODULES - 2)

static char folder[512];
static dsc_model *toy, watched; /* watched: rank 0's modules tell that they have begun */
static dsc_module module[MODULES];

/* The block that is held: the at-th that a stream's thread gives, of those that are written or read. */
typedef struct hold {
    const char *stream;
    bool write;
    int64_t at;
    _Atomic int64_t *until; /* this has come to `value`; NULL: what may go on has had time enough */
    int64_t value;
} hold;

static hold held;
static _Atomic int64_t blocks[2], forwards[MODULES], backwards[MODULES], gathered;
enum { GATHER, REDUCE, UPDATE, STREAMS };
static const char *const streams[STREAMS] = { "gather", "reduce", "update" };
static _Atomic int64_t moved[STREAMS][2]; /* bytes read and written */
static atomic_bool late, was_held;

/* A forbidden wait ends here. */
static void hold_until(const _Atomic int64_t *counter, int64_t value)
{
    const int64_t end = dsc_clock_ns() + (int64_t)60e9;
    while (atomic_load(counter) < value && dsc_clock_ns() < end)
        dsc_clock_sleep_ns(200000);
    if (atomic_load(counter) < value)
        atomic_store(&late, true);
}

static dsc_aio_fault_kind before_block(void *user, int64_t n, const dsc_aio_piece *piece, int64_t *result)
{
    char name[16] = "";
    (void)user, (void)n, (void)result;
    pthread_getname_np(pthread_self(), name, sizeof name);
    for (int i = 0; i < STREAMS; i++)
        if (strcmp(name, streams[i]) == 0)
            atomic_fetch_add(&moved[i][piece->write], piece->bytes);
    if (strcmp(name, streams[GATHER]) == 0)
        atomic_fetch_add(&gathered, 1);
    if (held.stream == NULL || strcmp(name, held.stream) != 0 || piece->write != held.write)
        return DSC_AIO_FAULT_NONE;
    if (atomic_fetch_add(&blocks[piece->write], 1) + 1 == held.at) {
        atomic_store(&was_held, true);
        if (held.until != NULL)
            hold_until(held.until, held.value);
        else
            dsc_clock_sleep_ns(100000000);
    }
    return DSC_AIO_FAULT_NONE;
}

static dsc_status watch_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    const int64_t i = m - module;
    atomic_fetch_add(&forwards[i], 1);
    return toy->modules[i].forward(&toy->modules[i], ctx, err);
}

static int64_t reads_of_one_pass; /* 0: nobody waits for more */
static bool in_files;

static dsc_status watch_backward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    const int64_t i = m - module;
    if (atomic_fetch_add(&backwards[i], 1) == 0 && i == 0 && in_files && reads_of_one_pass > 0)
        hold_until(&gathered, reads_of_one_pass + 1);
    return toy->modules[i].backward(&toy->modules[i], ctx, err);
}

static bool waits_for_hold;
static double evaluated; /* rank 0's loss */

static dsc_status fill_eval(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    const dsc_data_source *source = user;
    if (waits_for_hold && in_files)
        hold_until(&blocks[held.write], held.at);
    return source->fill(source->user, first_sample, count, data, err);
}

/* Before the others a step, whose update goes on. */
static dsc_status step_and_evaluate(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    double loss;
    dsc_data_source data = toy_data(toy, 1 << 10);
    const dsc_data_source waiting = { fill_eval, &data, 1 << 10 };
    (void)user;
    DSC_TRY(dsc_engine_train_batch(engine, NULL, err));
    DSC_TRY(dsc_engine_evaluate(engine, &waiting, 4, &loss, err));
    if (rank == 0)
        evaluated = loss;
    return DSC_OK;
}

static dsc_zero_traffic planned; /* rank 0's */

static dsc_status after(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    (void)user;
    if (rank == 0)
        planned = dsc_probe_plan(engine)->traffic;
    return dsc_engine_barrier(engine, err);
}

static int together = 1;   /* with files */
static bool early = false; /* likewise */
static double stay = 0;    /* gradients_in_memory */
static double share = 1;   /* offload_optimizer.ratio */
static double clip = 0.5;

static void train(int32_t world, int64_t steps, int32_t accumulation, bool files, bool evaluates, run_result *out)
{
    static const dsc_aio_hook hook = { before_block, NULL };
    const dsc_io io = { .blocks = &hook };
    char config[2048], nvme[1200] = "";
    if (files)
        snprintf(nvme, sizeof nvme,
                 ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"ratio\": %g},"
                 " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", folder, share, folder);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d,"
             " \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"gradient_clipping\": %g,"
             " \"zero_optimization\": {\"stage\": 3, \"sub_group_size\": 2048,"
             " \"stage3_param_persistence_threshold\": 0%s},"
             " \"dsc\": {\"threads\": 1, \"micro_batches_together\": %d, \"early_update\": %s,"
             " \"gradients_in_memory\": %g, \"comm_timeout_s\": %g}}",
             (int)accumulation, clip, nvme, files ? together : 1, files && early ? "true" : "false", files ? stay : 0,
             100 * SANITIZE_SLOWER);
    const run_options options = { .world = world, .steps = steps, .model = &watched, .config = config,
                                  .data = toy_data(toy, 1 << 20), .before = evaluates ? step_and_evaluate : NULL,
                                  .after = after, .io = &io };
    for (int i = 0; i < MODULES; i++)
        forwards[i] = backwards[i] = 0;
    blocks[0] = blocks[1] = gathered = 0;
    memset(moved, 0, sizeof moved);
    late = was_held = false;
    in_files = files;
    run_well(&options, out);
}

static void expect_same_but_held(int32_t world, int32_t accumulation, bool evaluates)
{
    run_result in_memory, r;
    train(world, STEPS, accumulation, false, evaluates, &in_memory);
    const double loss = evaluated;
    train(world, STEPS, accumulation, true, evaluates, &r);
    assert_true(evaluated == loss);
    assert_true(was_held || held.stream == NULL);
    assert_false(late);
    run_expect_same(&in_memory, &r);
    held = (hold){ 0 };
    reads_of_one_pass = 0;
}

/* The tied group's gradient is much larger than a block's. Its first tiles are in its sum and the others wait; two
 * later blocks continue meanwhile. The second block's gradient takes the memory of the large gradient's first tiles. */
static void backward_goes_on_while_a_large_gradient_is_reduced(void **state)
{
    for (int32_t world = 1; world <= 2; world++) {
        held = (hold){ "reduce", true, 6, &backwards[BLOCKS - 1], world };
        expect_same_but_held(world, 2, false);
    }
}

/* But what is not reduced yet stays. */
static void no_gradient_is_overwritten(void **state)
{
    for (together = 1; together <= 3; together++)
        for (int64_t at = 2; at <= 16; at += 7)
            for (int32_t world = 1; world <= 2; world++) {
                held = (hold){ "reduce", true, at, NULL, 0 };
                expect_same_but_held(world, 2 * together, false);
            }
    together = 1;
}

/* The last module of a backward pass begins when parameters of the next forward pass are on their way. */
static void the_next_micro_steps_parameters_are_read_ahead(void **state)
{
    run_result r;
    train(1, STEPS, 1, true, false, &r);
    reads_of_one_pass = gathered / STEPS; /* the first pass's at most */
    expect_same_but_held(1, 2, false);
}

/* The first update's last writes wait until the forward pass of the next step, or of an evaluation, has begun. */
static void forward_goes_on_under_the_update(void **state)
{
    run_result r;
    held = (hold){ "update", true, INT64_MAX, NULL, 0 }; /* counts */
    train(1, STEPS, 1, true, false, &r);
    const int64_t writes = blocks[1] / STEPS;
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        held = (hold){ "update", true, writes - 1, &forwards[1], 2 };
        expect_same_but_held(1, 1, evaluates != 0);
    }
}

/* The first pass of a step may read more: what it was not given by the update. */
static void expect_passes_as_planned(void)
{
    const int64_t reads = moved[GATHER][0] + moved[REDUCE][0], one_use = (BLOCKS * 4096 + 1024) * 2 + 2048;
    assert_int_equal(moved[REDUCE][1], STEPS * planned.pass_written_bytes);
    assert_in_range(reads, STEPS * planned.pass_read_bytes, STEPS * (planned.pass_read_bytes + one_use + 2048));
}

/* Only as much as `dsc plan` says; what the first pass of a step takes from the update may be less than all. The sums
 * that a backward pass makes last stay where their gradients were: the plan has no writing and reading of them. */
static void files_move_what_is_planned(void **state)
{
    static const int32_t counts[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 }, { 6, 2 }, { 6, 3 }, { 6, 6 } };
    for (size_t i = 0; i < DSC_COUNT(counts); i++) {
        const int32_t accumulation = counts[i][0];
        run_result r;
        together = counts[i][1];
        train(1, STEPS, accumulation, true, false, &r);
        expect_passes_as_planned();
        assert_int_equal(moved[UPDATE][0], STEPS * planned.update_read_bytes);
        assert_in_range(moved[UPDATE][1], STEPS * planned.update_written_bytes,
                        STEPS * (planned.update_written_bytes + MODULES * DSC_AIO_ALIGN / 2)); /* whole blocks */
        const int64_t sums = (24576 + BLOCKS * 4096 + 1024) * 4; /* all groups; two parts of the tied one */
        assert_true(planned.update_read_bytes < 4 * sums);
        assert_true(planned.pass_written_bytes < (sums + 24576 * 4) * accumulation / together);
    }
    together = 1;
}

/* Sums that stay in memory are in no file: of two of the blocks here. */
static void gradients_that_stay_do_not_move(void **state)
{
    const int64_t stays = 2 * 4096 * 4;
    for (together = 1; together <= 2; together++) {
        run_result away, r;
        train(1, STEPS, 2, true, false, &away);
        const dsc_zero_traffic all = planned;
        stay = 0.2;
        train(1, STEPS, 2, true, false, &r);
        stay = 0;
        expect_passes_as_planned();
        assert_int_equal(moved[UPDATE][0], STEPS * planned.update_read_bytes);
        /* The first block's last leaf went to no file before. */
        assert_int_equal(planned.update_read_bytes + stays / 2, all.update_read_bytes);
        assert_true(planned.pass_written_bytes + stays / 2 <= all.pass_written_bytes);
        run_expect_same(&away, &r);
    }
    together = 1;
}

/* A module whose states stay in memory has nothing in a file: states and sums of the tied group, which needs no window,
 * and of two blocks also the parameters. Compute updates these, while the update works on the files of the others. */
static void modules_whose_states_stay_do_not_move(void **state)
{
    const int64_t tied = 24576, blocks_kept = 2 * 4096, all = tied + BLOCKS * 4096 + 1024;
    for (int32_t accumulation = 1; accumulation <= 2; accumulation++)
        for (int32_t begins_early = 0; begins_early <= 1; begins_early++) {
            run_result away, r;
            train(1, STEPS, accumulation, true, false, &away);
            const dsc_zero_traffic whole = planned;
            share = 1 - (double)(tied + blocks_kept + 512) / (double)all;
            early = begins_early;
            train(1, STEPS, accumulation, true, false, &r);
            share = 1;
            early = false;
            expect_passes_as_planned();
            assert_int_equal(planned.update_written_bytes + tied * 12 + blocks_kept * (12 + 2),
                             whole.update_written_bytes);
            assert_true(planned.update_read_bytes + (tied + blocks_kept) * 12 <= whole.update_read_bytes);
            assert_true(planned.pass_read_bytes + blocks_kept * 2 <= whole.pass_read_bytes);
            if (!begins_early) {
                assert_int_equal(moved[UPDATE][0], STEPS * planned.update_read_bytes);
                assert_in_range(moved[UPDATE][1], STEPS * planned.update_written_bytes,
                                STEPS * (planned.update_written_bytes + MODULES * DSC_AIO_ALIGN / 2));
            }
            run_expect_same(&away, &r);
            run_expect_planned(&r);
        }
}

/* Where nothing is clipped, an early update is given all sums, from the first step on. It makes most of them before
 * anybody asks for their parameters. */
static void sums_that_are_handed_over_do_not_move(void **state)
{
    const int64_t one_use = (BLOCKS * 4096 + 1024) * 2, whole_blocks = MODULES * DSC_AIO_ALIGN / 2;
    clip = 0;
    for (together = 1; together <= 2; together++) {
        run_result waiting, r;
        train(1, STEPS, together, true, false, &waiting);
        const dsc_zero_traffic apart = planned;
        early = true;
        train(1, STEPS, together, true, false, &r);
        early = false;
        assert_int_equal(planned.pass_written_bytes, 0);
        assert_true(apart.pass_written_bytes > 0);
        assert_int_equal(moved[REDUCE][1], 0);
        assert_in_range(moved[GATHER][0], STEPS * (planned.pass_read_bytes - one_use),
                        STEPS * (planned.pass_read_bytes + whole_blocks));
        assert_int_equal(moved[UPDATE][0], STEPS * planned.update_read_bytes);
        run_expect_same(&waiting, &r);
    }
    together = 1;
    clip = 0.5;
}

/* With speculative updates the tied group's parts wait for each other: its sum is written and read once less in a pass.
 * The update's own bytes depend on its progress. */
static void a_tied_groups_leaves_are_added_at_once(void **state)
{
    static const int32_t counts[][2] = { { 1, 1 }, { 3, 1 }, { 4, 2 }, { 6, 3 }, { 6, 6 } };
    for (size_t i = 0; i < DSC_COUNT(counts); i++) {
        const int32_t accumulation = counts[i][0];
        const int64_t less = 24576 * 4 * (accumulation / counts[i][1]);
        const int64_t others = 1024 * 4; /* a sum that finds no place beside the leaves that wait */
        run_result waiting, r;
        together = counts[i][1];
        train(1, STEPS, accumulation, true, false, &waiting);
        const dsc_zero_traffic apart = planned;
        early = true;
        train(1, STEPS, accumulation, true, false, &r);
        early = false;
        assert_in_range(planned.pass_written_bytes + less, apart.pass_written_bytes,
                        apart.pass_written_bytes + others);
        assert_int_equal(planned.pass_read_bytes + less, apart.pass_read_bytes);
        expect_passes_as_planned();
        run_expect_same(&waiting, &r);
    }
    together = 1;
}

/* An update delivers parameters directly to an open window instead of a file. The last block's window is open when the
 * forward pass is at the block before it. */
static void updated_parameters_are_not_read_again(void **state)
{
    run_result r;
    held = (hold){ "update", false, INT64_MAX, NULL, 0 }; /* counts */
    train(1, 1, 1, true, false, &r);
    const int64_t reads = blocks[0], bytes_of_a_step = moved[GATHER][0];
    assert_true(bytes_of_a_step > 0);
    held = (hold){ "update", false, reads, &forwards[BLOCKS - 1], 2 };
    expect_same_but_held(1, 1, false);
    assert_true(moved[GATHER][0] < STEPS * bytes_of_a_step);
}

/* From the second of its two tiles on: who evaluates asks when the first one is made. */
static void a_part_of_a_group_comes_from_the_update(void **state)
{
    held = (hold){ "update", false, 57, &forwards[0], 2 }; /* after the 12 tiles of the tied group and one of a block */
    waits_for_hold = true;
    expect_same_but_held(1, 1, true);
    waits_for_hold = false;
}

static int open_all(void **state)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.400s/dsc-overlap-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(folder) == NULL)
        return -1;
    toy = toy_model_open(400, 61, BLOCKS, false);
    watched = *toy;
    watched.modules = module;
    for (int i = 0; i < MODULES; i++) {
        module[i] = toy->modules[i];
        module[i].forward = watch_forward;
        module[i].backward = module[i].backward != NULL ? watch_backward : NULL;
    }
    return 0;
}

static int close_all(void **state)
{
    toy_model_close(toy);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_goes_on_while_a_large_gradient_is_reduced),
        cmocka_unit_test(no_gradient_is_overwritten),
        cmocka_unit_test(the_next_micro_steps_parameters_are_read_ahead),
        cmocka_unit_test(forward_goes_on_under_the_update),
        cmocka_unit_test(files_move_what_is_planned),
        cmocka_unit_test(gradients_that_stay_do_not_move),
        cmocka_unit_test(modules_whose_states_stay_do_not_move),
        cmocka_unit_test(sums_that_are_handed_over_do_not_move),
        cmocka_unit_test(a_tied_groups_leaves_are_added_at_once),
        cmocka_unit_test(updated_parameters_are_not_read_again),
        cmocka_unit_test(a_part_of_a_group_comes_from_the_update),
    };
    return cmocka_run_group_tests_name("overlap", tests, open_all, close_all);
}
