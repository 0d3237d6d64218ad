/* test_checkpoint_faults.c - every file operation and every allocation of a save or a load fails, on each rank, once,
 * twice or for good. No partial checkpoint exists, the one before loads, all ranks get the same error, and the engine
 * continues.
 *
 * A fault that stays leaves the folder as a kill at that operation would: nothing can be tidied up any more. A new life
 * then loads what `latest` names and must end where the undisturbed run does. pread, pwrite and fsync of this program
 * are its own (below), so that short counts, interruptions and a disk that fills up come from the system too.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

#define SWEEP_MAX 2000 /* operations: more means that the sweep does not end */

/* ---- the system ---- */

static struct {
    atomic_bool short_counts; /* a call moves at most 100 bytes, every third is interrupted first */
    atomic_llong calls;
    atomic_llong full_at; /* this write moves half of its bytes, no later one any: the disk is full; 0: never */
    atomic_llong writes;
} sys;

static bool interrupted(size_t *bytes)
{
    if (!atomic_load(&sys.short_counts))
        return false;
    if (atomic_fetch_add(&sys.calls, 1) % 3 == 2) {
        errno = EINTR;
        return true;
    }
    *bytes = *bytes > 100 ? 100 : *bytes;
    return false;
}

DSC_API ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    return interrupted(&bytes) ? -1 : syscall(SYS_pread64, fd, to, bytes, offset);
}

DSC_API ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    const int64_t full_at = atomic_load(&sys.full_at), write = atomic_fetch_add(&sys.writes, 1) + 1;
    if (interrupted(&bytes))
        return -1;
    if (full_at > 0 && write == full_at)
        bytes /= 2;
    if (full_at > 0 && (write > full_at || bytes == 0)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, from, bytes, offset);
}

DSC_API int fsync(int fd)
{
    size_t bytes = 0;
    return interrupted(&bytes) ? -1 : (int)syscall(SYS_fsync, fd);
}

/* ---- the run that faults disturb ---- */

static char *dir, *save_dir;
static dsc_model *model;
static char expected[4][65]; /* [step] of the undisturbed run */

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    save_dir = strdup(cw_path(dir, "run"));
    model = toy_model_open(3, 40, 1, true);
    return 0;
}

static int teardown(void **state)
{
    toy_model_close(model);
    free(save_dir);
    cw_tmp_close(dir);
    return 0;
}

/* Three steps, with a save after the first. */
static dsc_status make_first(cw_rank *rank, dsc_error *err)
{
    char hex[65];
    for (int64_t step = 1; step <= 3; step++) {
        DSC_TRY(cw_train(rank, step, err));
        cw_hash(rank, hex);
        if (rank->rank == 0)
            memcpy(expected[step], hex, 65);
        if (step == 1)
            DSC_TRY(cw_save(rank, save_dir, err));
    }
    return DSC_OK;
}

static void start_over(const cw_options *options)
{
    cw_remove(save_dir);
    cw_run_well(options, make_first, NULL);
}

static void in_memory(cw_rank *rank, int64_t step)
{
    char hex[65];
    cw_hash(rank, hex);
    CW_CHECK(strcmp(hex, expected[step]) == 0);
}

static bool there(const char *name) { return cw_exists(cw_path(save_dir, name)); }

/* Checkpoints are whole, and `latest` names one. `clean`: and nothing of a failed save is left. */
static void check_folder(bool clean)
{
    const int64_t latest = cw_latest(save_dir);
    CW_CHECK(latest == 1 || latest == 2);
    cw_expect_checkpoint(cw_path(save_dir, "step-1"), expected[1]);
    if (there("step-2"))
        cw_expect_checkpoint(cw_path(save_dir, "step-2"), expected[2]);
    CW_CHECK(latest == 1 || there("step-2"));
    if (clean)
        CW_CHECK(!there("step-2.tmp") && !there("latest.tmp") && !there("latest.new") &&
                 there("step-2") == (latest == 2));
}

static void back_to_first(void)
{
    static const char *const rests[] = { "step-2", "step-2.tmp", "latest.tmp", "latest.new" };
    for (size_t i = 0; i < DSC_COUNT(rests); i++)
        cw_remove(cw_path(save_dir, rests[i]));
    cw_write(cw_path(save_dir, "latest"), "step-1\n", 7);
}

/* ---- sweeps ---- */

typedef struct sweep {
    int32_t rank;     /* whose operations fail */
    bool allocations; /* instead of file operations */
    bool persistent;
    int64_t n, again;
    cw_fault fault;
    int64_t alloc_n;
    bool fired;
} sweep;

static void arm(cw_rank *rank, sweep *s)
{
    static const int reasons[] = { EIO, ENOSPC, EINTR };
    dsc_alloc_stats stats;
    if (rank->rank != s->rank)
        return;
    s->fault = (cw_fault){ .n = s->n, .again = s->again, .persistent = s->persistent,
                           .errno_value = reasons[s->n % 3] };
    dsc_alloc_stats_get(dsc_probe_alloc(rank->engine), &stats);
    s->alloc_n = stats.call_count + s->n;
    if (s->allocations)
        dsc_alloc_fail_at(dsc_probe_alloc(rank->engine), s->alloc_n, s->persistent);
    else
        cw_fault_arm(rank, &s->fault);
}

/* Every rank knows afterwards whether a fault was met. */
static void disarm(cw_rank *rank, sweep *s)
{
    dsc_alloc_stats stats;
    if (rank->rank == s->rank) {
        cw_fault_arm(rank, NULL);
        dsc_alloc_fail_at(dsc_probe_alloc(rank->engine), 0, false);
        dsc_alloc_stats_get(dsc_probe_alloc(rank->engine), &stats);
        s->fired = s->allocations ? stats.call_count >= s->alloc_n : atomic_load(&s->fault.fired);
    }
    cw_barrier(rank);
}

static void same_verdict(cw_rank *rank, dsc_status status, const dsc_error *err)
{
    static struct { dsc_status status; char message[512]; } said[CW_RANKS_MAX];
    said[rank->rank].status = status;
    snprintf(said[rank->rank].message, sizeof said[0].message, "%s", status != DSC_OK ? err->message : "");
    cw_barrier(rank);
    CW_CHECK(said[0].status == said[rank->rank].status);
    CW_CHECK(strcmp(said[0].message, said[rank->rank].message) == 0);
    CW_CHECK((status == DSC_OK) == (said[0].message[0] == 0));
    cw_barrier(rank);
}

static dsc_status failure_of(const sweep *s) { return s->allocations ? DSC_ERR_NOMEM : DSC_ERR_IO; }

/* A save of step 2 with the fault of *s. */
static dsc_status save_with_fault(cw_rank *rank, sweep *s)
{
    dsc_error failure = DSC_ERROR_INIT;
    arm(rank, s);
    const dsc_status status = cw_save(rank, save_dir, &failure);
    disarm(rank, s);
    same_verdict(rank, status, &failure);
    CW_CHECK(status == (s->fired ? failure_of(s) : DSC_OK));
    return status;
}

/* One engine meets every fault of the sweep and tries again after each: what failed once works the next time. */
static dsc_status save_through_faults(cw_rank *rank, dsc_error *err)
{
    sweep *s = rank->user;
    DSC_TRY(cw_train(rank, 2, err));
    for (int64_t n = 1;; n++) {
        CW_CHECK(n < SWEEP_MAX);
        if (rank->rank == s->rank)
            s->n = n;
        const dsc_status status = save_with_fault(rank, s);
        if (rank->rank == 0)
            check_folder(true);
        CW_CHECK(cw_latest(save_dir) == (status == DSC_OK ? 2 : 1));
        in_memory(rank, 2);
        if (status == DSC_OK)
            break;
        DSC_TRY(cw_save(rank, save_dir, err));
        cw_barrier(rank);
        if (rank->rank == 0) {
            cw_expect_checkpoint(cw_path(save_dir, "step-2"), expected[2]);
            back_to_first();
        }
        cw_barrier(rank);
    }
    DSC_TRY(cw_train(rank, 3, err));
    in_memory(rank, 3);
    return DSC_OK;
}

static void a_fault_for_a_moment_is_survived(void **state)
{
    for (int i = 0; i < 3; i++) {
        const int32_t world = i == 0 ? 1 : 2;
        const cw_options options = { .world = world, .stage = 2 * world - 1, .bf16 = world == 2, .async = i == 2,
                                     .model = model };
        start_over(&options);
        for (int32_t rank = 0; rank < world; rank++)
            for (int allocations = 0; allocations < 2; allocations++) {
                sweep s = { .rank = rank, .allocations = allocations };
                cw_run_well(&options, save_through_faults, &s);
                assert_true(s.n > (rank == 0 ? 20 : 8)); /* there was something to fail */
                back_to_first();
            }
    }
}

/* The tidying up after a failure fails too: the next save of the same engine still finds its way, or says that a whole
 * step is there. */
static dsc_status save_through_two_faults(cw_rank *rank, dsc_error *err)
{
    sweep *s = rank->user;
    dsc_error failure = DSC_ERROR_INIT;
    DSC_TRY(cw_train(rank, 2, err));
    for (s->n = 1; s->n < SWEEP_MAX; s->n++)
        for (s->again = 1 + s->n % 3; s->again < 24; s->again += 3) {
            if (save_with_fault(rank, s) == DSC_OK)
                return DSC_OK;
            check_folder(false);
            if (cw_latest(save_dir) == 2)
                CW_CHECK(cw_save(rank, save_dir, &failure) == DSC_ERR_INPUT &&
                         strstr(failure.message, "exists already") != NULL);
            else
                DSC_TRY(cw_save(rank, save_dir, err));
            check_folder(false);
            CW_CHECK(cw_latest(save_dir) == 2);
            back_to_first();
        }
    return DSC_ERR_INTERNAL;
}

static void two_faults_are_survived(void **state)
{
    const cw_options options = { .world = 1, .model = model };
    sweep s = { .rank = 0 };
    start_over(&options);
    cw_run_well(&options, save_through_two_faults, &s);
    assert_true(s.n > 20);
}

/* ---- lives that end at an operation ---- */

static dsc_status die_in_save(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(dsc_engine_load(rank->engine, save_dir, err));
    DSC_TRY(cw_train(rank, 2, err));
    (void)save_with_fault(rank, rank->user);
    /* Not dead after all: it goes on with the same bits. */
    DSC_TRY(cw_train(rank, 3, err));
    in_memory(rank, 3);
    return DSC_OK;
}

static dsc_status live_again(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(dsc_engine_load(rank->engine, save_dir, err));
    in_memory(rank, dsc_probe_step(rank->engine));
    DSC_TRY(cw_train(rank, 2, err));
    DSC_TRY(cw_save(rank, save_dir, err));
    DSC_TRY(cw_train(rank, 3, err));
    in_memory(rank, 3);
    return DSC_OK;
}

static void a_new_life_goes_on_after_any_operation(void **state)
{
    for (int32_t world = 1; world <= 2; world++) {
        const cw_options options = { .world = world, .stage = 2, .bf16 = world == 1, .model = model };
        start_over(&options);
        for (int32_t rank = 0; rank < world; rank++) {
            sweep s = { .rank = rank, .n = 1, .persistent = true };
            for (;; s.n++) {
                /* Every second life has another world size and stage, which makes another manifest. */
                const cw_options next = { .world = s.n % 2 ? world : 3, .stage = s.n % 2 ? 2 : 1,
                                          .bf16 = options.bf16, .model = model };
                assert_true(s.n < SWEEP_MAX);
                cw_run_well(&options, die_in_save, &s);
                check_folder(!s.fired);
                if (!s.fired)
                    break;
                cw_run_well(&next, live_again, NULL);
                check_folder(true);
                assert_int_equal(cw_latest(save_dir), 2);
                back_to_first();
            }
            assert_true(s.n > (rank == 0 ? 20 : 8));
            back_to_first();
        }
    }
}

/* The first save of a run: there is no latest yet, and a fresh start comes to the same step again. */
static dsc_status die_in_first_save(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(cw_train(rank, 1, err));
    (void)save_with_fault(rank, rank->user);
    return DSC_OK;
}

static dsc_status save_first(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(cw_train(rank, 1, err));
    return cw_save(rank, save_dir, err);
}

static void a_fresh_start_goes_on_after_any_operation(void **state)
{
    const cw_options options = { .world = 2, .stage = 3, .bf16 = true, .model = model };
    start_over(&options);
    for (int persistent = 0; persistent < 2; persistent++)
        for (int64_t n = 1;; n++) {
            sweep s = { .rank = 0, .n = n, .persistent = persistent };
            assert_true(n < SWEEP_MAX);
            cw_remove(save_dir);
            cw_run_well(&options, die_in_first_save, &s);
            if (!s.fired)
                break;
            if (!persistent)
                assert_false(there("step-1") || there("step-1.tmp") || there("latest") || there("latest.tmp"));
            if (cw_latest(save_dir) < 0) {
                const cw_options next = { .world = n % 2 ? 2 : 3, .stage = n % 2 ? 3 : 0, .bf16 = true,
                                          .model = model };
                cw_run_well(&next, save_first, NULL);
            }
            cw_expect_checkpoint(cw_path(save_dir, "step-1"), expected[1]);
            assert_int_equal(cw_latest(save_dir), 1);
        }
}

/* ---- what the system does of itself ---- */

static dsc_status save_and_load(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(cw_train(rank, 2, err));
    DSC_TRY(cw_save(rank, save_dir, err));
    DSC_TRY(dsc_engine_load(rank->engine, save_dir, err));
    in_memory(rank, 2);
    return DSC_OK;
}

static void short_counts_and_interruptions_change_nothing(void **state)
{
    const cw_options options = { .world = 2, .stage = 3, .model = model };
    start_over(&options);
    atomic_store(&sys.short_counts, true);
    cw_run_well(&options, save_and_load, NULL);
    atomic_store(&sys.short_counts, false);
    assert_true(atomic_load(&sys.calls) > 500);
    cw_expect_checkpoint(cw_path(save_dir, "step-2"), expected[2]);
}

static dsc_status fill_the_disk(cw_rank *rank, dsc_error *err)
{
    bool *full = rank->user;
    dsc_error failure = DSC_ERROR_INIT;
    DSC_TRY(cw_train(rank, 2, err));
    const dsc_status status = cw_save(rank, save_dir, &failure);
    same_verdict(rank, status, &failure);
    if (rank->rank == 0)
        *full = status != DSC_OK;
    if (status == DSC_OK)
        return DSC_OK;
    CW_CHECK(status == DSC_ERR_IO && strstr(failure.message, "No space left on device") != NULL);
    atomic_store(&sys.full_at, 0);
    if (rank->rank == 0)
        check_folder(true);
    cw_barrier(rank);
    return cw_save(rank, save_dir, err);
}

static void a_disk_that_fills_up_leaves_the_one_before(void **state)
{
    dsc_model *wide = toy_model_open(3, 90, 2, true); /* slices on every rank, so writes of every rank */
    const cw_options options = { .world = 4, .stage = 2, .bf16 = true, .model = wide };
    int64_t writes = 1;
    start_over(&options);
    for (bool full = true; full; writes++) {
        atomic_store(&sys.writes, 0);
        atomic_store(&sys.full_at, writes);
        cw_run_well(&options, fill_the_disk, &full);
        cw_expect_checkpoint(cw_path(save_dir, "step-2"), expected[2]);
        back_to_first();
    }
    atomic_store(&sys.full_at, 0);
    assert_true(writes > 20);
    toy_model_close(wide);
}

/* Not by our own hand: the system refuses to make a file longer. */
static dsc_status save_beyond_limit(cw_rank *rank, dsc_error *err)
{
    static struct rlimit was;
    dsc_error failure = DSC_ERROR_INIT;
    DSC_TRY(cw_train(rank, 2, err));
    if (rank->rank == 0) {
        CW_CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
        struct rlimit small = was;
        small.rlim_cur = 512;
        CW_CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    }
    cw_barrier(rank);
    const dsc_status status = cw_save(rank, save_dir, &failure);
    cw_barrier(rank);
    if (rank->rank == 0)
        CW_CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
    same_verdict(rank, status, &failure);
    CW_CHECK(status == DSC_ERR_IO && strstr(failure.message, "File too large") != NULL);
    if (rank->rank == 0)
        check_folder(true);
    cw_barrier(rank);
    return cw_save(rank, save_dir, err);
}

static void a_limit_of_the_file_size_leaves_the_one_before(void **state)
{
    const cw_options options = { .world = 2, .stage = 2, .model = model };
    signal(SIGXFSZ, SIG_IGN);
    start_over(&options);
    cw_run_well(&options, save_beyond_limit, NULL);
    cw_expect_checkpoint(cw_path(save_dir, "step-2"), expected[2]);
}

/* ---- load ---- */

/* Nothing has changed, or the engine says that it is of no use any more. */
static dsc_status load_with_fault(cw_rank *rank, dsc_error *err)
{
    sweep *s = rank->user;
    dsc_error failure = DSC_ERROR_INIT;
    DSC_TRY(cw_train(rank, 2, err));
    arm(rank, s);
    const dsc_status status = dsc_engine_load(rank->engine, save_dir, &failure);
    disarm(rank, s);
    same_verdict(rank, status, &failure);
    CW_CHECK(status == DSC_OK || (s->fired && status == failure_of(s)));
    if (status != DSC_OK && dsc_probe_has_failed(rank->engine)) {
        CW_CHECK(cw_save(rank, save_dir, &failure) == DSC_ERR_STATE);
        return DSC_OK;
    }
    if (status != DSC_OK) {
        in_memory(rank, 2);
        DSC_TRY(dsc_engine_load(rank->engine, save_dir, err));
    }
    in_memory(rank, 1);
    DSC_TRY(cw_train(rank, 3, err));
    in_memory(rank, 3);
    return DSC_OK;
}

static void a_failed_load_changes_nothing_or_says_so(void **state)
{
    for (int32_t world = 1; world <= 2; world++) {
        const cw_options options = { .world = world, .stage = 3, .bf16 = true, .model = model };
        start_over(&options);
        for (int32_t rank = 0; rank < world; rank++)
            for (int allocations = 0; allocations < 2; allocations++) {
                sweep s = { .rank = rank, .allocations = allocations, .n = 1, .fired = true };
                for (; s.fired; s.n++) {
                    assert_true(s.n < SWEEP_MAX);
                    s.persistent = s.n % 2;
                    cw_run_well(&options, load_with_fault, &s);
                }
                assert_true(s.n > 20);
            }
        check_folder(true);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_fault_for_a_moment_is_survived),
        TEST(two_faults_are_survived),
        TEST(a_new_life_goes_on_after_any_operation),
        TEST(a_fresh_start_goes_on_after_any_operation),
        TEST(short_counts_and_interruptions_change_nothing),
        TEST(a_disk_that_fills_up_leaves_the_one_before),
        TEST(a_limit_of_the_file_size_leaves_the_one_before),
        TEST(a_failed_load_changes_nothing_or_says_so),
    };
    return cmocka_run_group_tests_name("checkpoint_faults", tests, NULL, NULL);
}
