/* test_offload_faults.c - files fail while ranks train on them: any block of any rank, by every engine, in every way.
 *
 * A request that can be retried or resumed gives equal bits. Another fault ends every rank: the failing rank names the
 * file, the position and the reason, and its peers name that rank. No wait of streams or peers hangs.
 * A seed (DSC_TEST_SEED) chooses a sample; DSC_TEST_NIGHT=1: every n.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/base.h"
#include "base/io.h"
#include "base/rng.h"
#include "tests/support/disk.h"
#include "tests/support/io_fault.h"
#include "tests/support/run_world.h"
#include "tests/support/sanitizer.h"
#include "tests/support/toy_model.h"

#define STEPS 2
#define WORLDS 3

static const char *const engines[] = { "io_uring", "libaio", "threads" };
static char folder[512];
static dsc_model *model;
static run_result whole[WORLDS + 1][2]; /* runs without faults, by world size and clipping */
static bool here[DSC_COUNT(engines)];
static uint64_t seed;
static bool night;

typedef struct faulty {
    const char *engine, *folder;
    int32_t world, rank;
    bool overlap, early, clips; /* without clipping an early update is handed its sums */
    double stay;                /* gradients_in_memory */
    const char *save; /* a folder for a checkpoint after the last step; NULL: none */
    double comm_timeout_s;
    dsc_status (*before)(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);
    void *user;
    io_fault fault;
    int64_t at;     /* the block that fails, for messages */
    int64_t blocks; /* blocks of the rank until the end of its last step */
    run_result result;
} faulty;

static dsc_status before(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const faulty *f = user;
    return f->before != NULL ? f->before(engine, rank, f->user, err) : DSC_OK;
}

/* The last update is still under way; what follows it is run_world's look at the states. */
static dsc_status after(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    faulty *f = user;
    if (f->save != NULL)
        DSC_TRY(dsc_engine_save(engine, f->save, err));
    DSC_TRY(dsc_engine_barrier(engine, err));
    if (rank == f->rank) {
        f->blocks = f->fault.count;
        f->fault.at = 0;
    }
    return DSC_OK;
}

static void *run(void *argument)
{
    faulty *f = argument;
    const dsc_aio_hook hook = io_fault_hook(&f->fault);
    const dsc_io io = { .blocks = &hook };
    char config[2048];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2,"
             " \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"gradient_clipping\": %g,"
             " \"zero_optimization\": {\"stage\": 3, \"sub_group_size\": 2048, \"overlap_comm\": %s,"
             " \"stage3_param_persistence_threshold\": 0,"
             " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
             " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}},"
             " \"aio\": {\"block_size\": 4096, \"queue_depth\": 3, \"thread_count\": 2},"
             " \"dsc\": {\"threads\": 1, \"aio\": \"%s\", \"comm_timeout_s\": %g,"
             " \"early_update\": %s, \"gradients_in_memory\": %g}}",
             f->clips ? 0.5 : 0.0, f->overlap ? "true" : "false", f->folder, f->folder, f->engine, f->comm_timeout_s,
             f->early ? "true" : "false", f->stay);
    const run_options options = { .world = f->world, .steps = STEPS, .model = model, .config = config,
                                  .data = toy_data(model, 1 << 20), .before = before,
                                  .after = after, .user = f, .fault_rank = f->rank, .io = &io };
    run_world(&options, &f->result);
    return NULL;
}

static faulty plain(const char *engine, int32_t world)
{
    return (faulty) { .engine = engine,
                      .folder = folder,
                      .world = world,
                      .overlap = true,
                      .clips = true,
                      .comm_timeout_s = 20 * SANITIZE_SLOWER };
}

static bool is_same(const faulty *f)
{
    const run_result *a = &whole[f->world][f->clips], *b = &f->result;
    return b->status == DSC_OK && memcmp(a->loss, b->loss, STEPS * sizeof(double)) == 0 &&
           memcmp(a->norm, b->norm, STEPS * sizeof(double)) == 0 && strcmp(a->hash, b->hash) == 0;
}

/* The rank's own words: the folder, the place, the reason; everybody else's name the rank and the reason. */
static bool is_reported(const faulty *f)
{
    const dsc_error *own = &f->result.ranks[f->rank];
    char where[600];
    snprintf(where, sizeof where, "swap in %s", f->folder);
    bool good = own->status == io_fault_status(f->fault.kind) && own->rank == f->rank &&
                strcmp(own->where, where) == 0 && strstr(own->message, " at ") != NULL &&
                strstr(own->message, f->engine) != NULL &&
                strstr(own->message, io_fault_message(f->fault.kind)) != NULL;
    for (int32_t r = 0; r < f->world; r++) {
        const dsc_error *other = &f->result.ranks[r];
        if (r == f->rank || other->status == DSC_OK) /* it was through with the last step */
            continue;
        /* All ranks get the same error for a save's own blocks. The number of blocks before them depends on the
         * progress of the last update when its parameters were requested. */
        const bool of_save = f->save != NULL && other->status == own->status;
        good = good && (of_save || other->status == DSC_ERR_PEER) && other->rank == f->rank &&
               strstr(other->message, io_fault_message(f->fault.kind)) != NULL;
    }
    return good;
}

static void expect(const faulty *f)
{
    const bool fails = f->at > 0 && atomic_load(&f->fault.fired) && io_fault_status(f->fault.kind) != DSC_OK;
    if (fails ? is_reported(f) : is_same(f))
        return;
    for (int32_t r = 0; r < f->world; r++)
        print_error("rank %d: %d %s: %s (rank %d)\n", (int)r, (int)f->result.ranks[r].status, f->result.ranks[r].where,
                    f->result.ranks[r].message, (int)f->result.ranks[r].rank);
    fail_msg("%s at block %lld of %lld of rank %d of %d, %s, overlap %d: not %s", io_fault_text(f->fault.kind),
             (long long)f->at, (long long)f->fault.count, (int)f->rank, (int)f->world, f->engine, f->overlap,
             fails ? "one error on every rank" : "the same bits");
}

static bool is_here(size_t engine)
{
    if (!here[engine])
        print_message("# %s is not here\n", engines[engine]);
    return here[engine];
}

static int64_t blocks_of(int32_t world, int32_t rank, bool overlap)
{
    static int64_t known[WORLDS + 1][WORLDS][2];
    if (known[world][rank][overlap] == 0) {
        faulty f = plain("auto", world);
        f.rank = rank;
        f.overlap = overlap;
        run(&f);
        expect(&f);
        known[world][rank][overlap] = f.blocks;
    }
    assert_true(known[world][rank][overlap] > 100);
    return known[world][rank][overlap];
}

static int64_t draw(int64_t below)
{
    static uint64_t drawn;
    return dsc_rng_u32(seed, dsc_rng_stream(DSC_RNG_TEST, 0), drawn++) % below;
}

static void fail_block(const char *engine, io_fault_kind kind, int32_t world, int32_t rank, bool overlap, int64_t at)
{
    faulty f = plain(engine, world);
    f.rank = rank;
    f.overlap = overlap;
    f.early = draw(2) != 0;
    f.clips = draw(2) != 0;
    f.stay = draw(2) != 0 ? 0.4 : 0;
    f.fault.kind = kind;
    f.fault.at = f.at = at;
    run(&f);
    expect(&f);
}

static void every_block_of_every_engine(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engines); e++)
        for (io_fault_kind kind = 0; kind < IO_FAULT_NEVER && is_here(e); kind++)
            for (int32_t world = 1; world <= WORLDS; world++) {
                const int32_t rank = (int32_t)draw(world);
                const bool overlap = draw(4) != 0;
                const int64_t blocks = blocks_of(world, rank, overlap);
                if (night)
                    print_message("# %s, %s, rank %d of %d: %lld blocks\n", engines[e], io_fault_text(kind), (int)rank,
                                  (int)world, (long long)blocks);
                for (int64_t at = 1; night && at <= blocks; at++)
                    fail_block(engines[e], kind, world, rank, overlap, at);
                if (!night)
                    fail_block(engines[e], kind, world, rank, overlap, 1 + draw(blocks));
            }
}

/* The last update is still under way when the step has ended. A fault in it fails the save, and nothing is saved. */
static void a_save_waits_for_the_update(void **state)
{
    char dir[600], step[700];
    snprintf(dir, sizeof dir, "%s/save", folder);
    snprintf(step, sizeof step, "%s/step-%d", dir, STEPS);
    for (int i = 0; i < 4; i++) {
        faulty f = plain("threads", 2);
        f.rank = i % 2;
        f.fault.kind = IO_FAULT_EIO;
        f.fault.at = f.at = blocks_of(2, f.rank, true) - i / 2;
        f.save = dir;
        run(&f);
        expect(&f);
        assert_int_not_equal(f.result.status, DSC_OK);
        assert_int_not_equal(access(step, F_OK), 0);
    }
    (void)rmdir(dir);
}

/* ---- a device that does not answer ---- */

/* All cases wait, so they run at the same time. A machine that is too busy gets a longer timeout: then a rank without a
 * fault, or another rank than the stuck one, has exceeded the timeout. */
static void no_answer(void **state)
{
    enum { RUNS = 6 };
    faulty f[RUNS];
    pthread_t thread[RUNS];
    for (int i = 0; i < RUNS; i++) {
        f[i] = plain(is_here((size_t)i % 3) ? engines[i % 3] : "threads", 2);
        f[i].rank = i / 3;
        f[i].overlap = i % 2 == 0;
        f[i].fault.kind = IO_FAULT_NEVER;
        f[i].at = 1 + draw(blocks_of(2, f[i].rank, f[i].overlap));
    }
    bool good = false;
    for (double timeout_s = 1.2; !good && timeout_s < 60 * SANITIZE_SLOWER; timeout_s *= 4) {
        for (int i = 0; i < RUNS; i++) {
            f[i].comm_timeout_s = timeout_s;
            atomic_store(&f[i].fault.count, 0);
            atomic_store(&f[i].fault.fired, false);
            atomic_store(&f[i].fault.at, f[i].at);
            assert_int_equal(pthread_create(&thread[i], NULL, run, &f[i]), 0);
        }
        good = true;
        for (int i = 0; i < RUNS; i++) {
            pthread_join(thread[i], NULL);
            good = good && is_reported(&f[i]);
        }
    }
    for (int i = 0; i < RUNS; i++)
        expect(&f[i]);
}

/* ---- full disks ---- */

static dsc_status fill_disk(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    DSC_TRY(dsc_engine_barrier(engine, err)); /* every rank has taken its space */
    if (rank == 0)
        disk_fill(user);
    return DSC_OK;
}

/* Disk space taken before the first step stays with the run when the disk fills up. A run on a full disk is refused. */
static void on_full_disk(const char *kind)
{
    char dir[600];
    snprintf(dir, sizeof dir, "%s/small", folder);
    assert_int_equal(mkdir(dir, 0700), 0);
    if (!disk_mount(dir, kind, 144)) {
        (void)rmdir(dir);
        skip();
    }
    faulty f = plain("auto", 2), late = f;
    f.folder = late.folder = dir;
    f.before = fill_disk;
    f.user = dir;
    run(&f);
    run(&late);
    disk_unmount(dir);
    assert_int_equal(rmdir(dir), 0);
    expect(&f);
    assert_int_equal(late.result.status, DSC_ERR_NOFIT);
    assert_string_equal(late.result.error.where, dir);
}

static void full_tmpfs(void **state) { on_full_disk("tmpfs"); }
static void full_ext4(void **state) { on_full_disk("ext4"); }
static void full_ext2(void **state) { on_full_disk("ext2"); } /* which cannot reserve: written once */

/* ---- closed in the middle of a step ---- */

static dsc_status half_a_step(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    (void)rank;
    DSC_TRY(dsc_engine_forward(engine, NULL, NULL, err));
    if (*(const bool *)user)
        DSC_TRY(dsc_engine_backward(engine, err));
    return DSC_FAIL(err, DSC_ERR_CANCELLED, "", "enough");
}

static void closed_with_blocks_under_way(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engines); e++)
        for (int i = 0; i < 8 && is_here(e); i++) {
            faulty f = plain(engines[e], 1 + i % 2);
            bool also_backward = i / 2 % 2 == 0;
            f.overlap = i < 6;
            f.before = half_a_step;
            f.user = &also_backward;
            run(&f);
            assert_true(f.result.status == DSC_ERR_CANCELLED || f.result.status == DSC_ERR_PEER);
            assert_int_equal(f.result.ranks[0].status != DSC_OK, 1);
        }
}

static int make_folder(void **state)
{
    const char *base = getenv("TMPDIR"), *given = getenv("DSC_TEST_SEED"), *long_one = getenv("DSC_TEST_NIGHT");
    night = long_one != NULL && strcmp(long_one, "1") == 0;
    seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("# seed %llu; rerun: DSC_TEST_SEED=%llu\n", (unsigned long long)seed, (unsigned long long)seed);
    snprintf(folder, sizeof folder, "%.400s/dsc-offload-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(folder) == NULL)
        return -1;
    model = toy_model_open(5, 61, 2, true);
    for (int32_t world = 1; world <= WORLDS; world++) {
        for (int clips = 0; clips < 2; clips++) {
            faulty f = plain("threads", world);
            f.clips = clips != 0;
            run(&f);
            whole[world][clips] = f.result;
            if (f.result.status != DSC_OK)
                return -1;
        }
    }
    for (size_t e = 0; e < DSC_COUNT(engines); e++) {
        faulty f = plain(engines[e], 1);
        run(&f);
        here[e] = f.result.status != DSC_ERR_UNSUPPORTED;
    }
    return 0;
}

static int remove_folder(void **state)
{
    toy_model_close(model);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_of_every_engine), cmocka_unit_test(a_save_waits_for_the_update),
        cmocka_unit_test(no_answer),                   cmocka_unit_test(full_tmpfs),
        cmocka_unit_test(full_ext4),                   cmocka_unit_test(full_ext2),
        cmocka_unit_test(closed_with_blocks_under_way),
    };
    return cmocka_run_group_tests_name("offload faults", tests, make_folder, remove_folder);
}
