/* test_checkpoint_power.c - a loss of power at any moment of a save. `latest` names a whole checkpoint: the step
 * announced last, or the one whose save was under way. Every folder with a checkpoint's name is a checkpoint.
 *
 * The program's own open, pwrite, fsync, ... log the calls of real saves. crash_fs.h makes from them the states that
 * POSIX allows: any subset of the changes that no fsync has covered. DSC_TEST_NIGHT=1: ten times as many.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/ckpt_world.h"
#include "tests/support/crash_fs.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

/* ---- the system, with a log ---- */

static struct {
    pthread_mutex_t mutex; /* one call at a time, so that the log's order is the truth */
    cfs_log *log;          /* NULL: nothing is logged */
    int fail_fsync;        /* this fsync (from 1) fails; 0: none */
    int fsyncs;
} sys = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static void path_of(int fd, char path[512])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, 511);
    path[length > 0 ? length : 0] = 0;
}

static void note(long result, cfs_op op, const char *path, const char *other, int64_t offset, const void *data)
{
    if (result >= 0 && sys.log != NULL)
        cfs_note(sys.log, op, path, other, offset, data, op == CFS_WRITE ? (size_t)result : 0);
}

DSC_API int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(args, unsigned) : 0;
    va_end(args);
    pthread_mutex_lock(&sys.mutex);
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if ((flags & O_CREAT) != 0)
        note(fd, CFS_CREATE, path, NULL, 0, NULL);
    pthread_mutex_unlock(&sys.mutex);
    return fd;
}

DSC_API ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    char path[512];
    pthread_mutex_lock(&sys.mutex);
    path_of(fd, path);
    const ssize_t count = syscall(SYS_pwrite64, fd, from, bytes, offset);
    note(count, CFS_WRITE, path, NULL, offset, from);
    pthread_mutex_unlock(&sys.mutex);
    return count;
}

DSC_API int ftruncate(int fd, off_t bytes)
{
    char path[512];
    pthread_mutex_lock(&sys.mutex);
    path_of(fd, path);
    const int result = (int)syscall(SYS_ftruncate, fd, bytes);
    note(result, CFS_TRUNCATE, path, NULL, bytes, NULL);
    pthread_mutex_unlock(&sys.mutex);
    return result;
}

/* A failed operation has made nothing durable. */
DSC_API int fsync(int fd)
{
    char path[512];
    pthread_mutex_lock(&sys.mutex);
    path_of(fd, path);
    int result = (int)syscall(SYS_fsync, fd);
    if (++sys.fsyncs == sys.fail_fsync) {
        errno = EIO;
        result = -1;
    }
    note(result, CFS_FSYNC, path, NULL, 0, NULL);
    pthread_mutex_unlock(&sys.mutex);
    return result;
}

DSC_API int mkdir(const char *path, mode_t mode)
{
    pthread_mutex_lock(&sys.mutex);
    const int result = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    note(result, CFS_MKDIR, path, NULL, 0, NULL);
    pthread_mutex_unlock(&sys.mutex);
    return result;
}

DSC_API int rename(const char *from, const char *to)
{
    pthread_mutex_lock(&sys.mutex);
    const int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    note(result, CFS_RENAME, from, to, 0, NULL);
    pthread_mutex_unlock(&sys.mutex);
    return result;
}

static int remove_at(int fd, const char *folder, const char *name, int flags)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s%s", folder, folder[0] != 0 ? "/" : "", name);
    pthread_mutex_lock(&sys.mutex);
    const int result = (int)syscall(SYS_unlinkat, fd, name, flags);
    note(result, CFS_REMOVE, path, NULL, 0, NULL);
    pthread_mutex_unlock(&sys.mutex);
    return result;
}

DSC_API int unlink(const char *path) { return remove_at(AT_FDCWD, "", path, 0); }
DSC_API int rmdir(const char *path) { return remove_at(AT_FDCWD, "", path, AT_REMOVEDIR); }
DSC_API int unlinkat(int fd, const char *name, int flags)
{
    char folder[512];
    path_of(fd, folder);
    return remove_at(fd, folder, name, flags);
}

/* ---- the runs ---- */

static char *dir, *save_dir, *crash_dir, *crash_run;
static dsc_model *model;
static dsc_alloc *alloc;
static char expected[8][65]; /* [step] of the undisturbed run */
static uint64_t seed;
static int64_t states, states_in_all; /* count of one test, and of all tests */

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    save_dir = strdup(cw_path(dir, "root/run"));
    crash_dir = strdup(cw_path(dir, "crash"));
    crash_run = strdup(cw_path(dir, "crash/run"));
    model = toy_model_open(3, 16, 1, true);
    memset(expected, 0, sizeof expected);
    states = 0;
    return mkdir(cw_path(dir, "root"), 0755) == 0 && dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    toy_model_close(model);
    free(crash_run);
    free(crash_dir);
    free(save_dir);
    cw_tmp_close(dir);
    return 0;
}

static bool apart; /* rank 0 is on one host, the others are on another, whose folder has another name here */
static const char *seen_by(const char *path, int32_t rank)
{
    static _Thread_local char other[4096];
    if (!apart || rank == 0)
        return path;
    snprintf(other, sizeof other, "%s-b", path);
    return other;
}

typedef struct life {
    const char *load;    /* NULL: a fresh start */
    int64_t save[6];     /* at these steps; 0 ends */
    bool may_fail;       /* a save */
} life;

static dsc_status live(cw_rank *rank, dsc_error *err)
{
    const life *l = rank->user;
    char hex[65];
    if (l->load != NULL)
        DSC_TRY(dsc_engine_load(rank->engine, seen_by(l->load, rank->rank), err));
    for (int i = 0; l->save[i] != 0; i++) {
        DSC_TRY(cw_train(rank, l->save[i], err));
        cw_hash(rank, hex);
        if (rank->rank == 0) {
            CW_CHECK(expected[l->save[i]][0] == 0 || strcmp(expected[l->save[i]], hex) == 0);
            memcpy(expected[l->save[i]], hex, 65);
        }
        dsc_error failure = DSC_ERROR_INIT;
        const dsc_status status = cw_save(rank, seen_by(save_dir, rank->rank), &failure);
        if (status != DSC_OK && !l->may_fail) {
            *err = failure;
            return status;
        }
        cw_barrier(rank);
        if (rank->rank == 0 && status == DSC_OK && sys.log != NULL)
            cfs_note(sys.log, CFS_MARK, "", NULL, l->save[i], NULL, 0);
        cw_barrier(rank);
    }
    return DSC_OK;
}

static const cw_options two_ranks = { .world = 2, .stage = 2, .bf16 = true };
static bool async; /* saves are written beside training */
static void live_once(life l, int32_t world)
{
    cw_options options = two_ranks;
    options.async = async;
    options.node_local = apart;
    options.own = apart ? ", \"keep_last\": 1" : NULL;
    options.aio = "threads"; /* this engine writes by this program's pwrite */
    options.model = model;
    options.world = world;
    cw_run_well(&options, live, &l);
}

/* ---- what a crash leaves ---- */

static bool is_whole(const char *step_dir)
{
    char hex[65];
    dsc_error err = DSC_ERROR_INIT;
    const int64_t step = dsc_probe_step_of_folder(step_dir);
    CW_CHECK(step >= 0 && step < 8);
    if (dsc_ckpt_verify(NULL, alloc, step_dir, &err) != DSC_OK ||
        dsc_ckpt_hash(NULL, alloc, step_dir, hex, &err) != DSC_OK)
        cw_fail(step_dir, __FILE__, __LINE__, err.message);
    return strcmp(hex, expected[step]) == 0;
}

/* The step that `latest` of a host names, if all hosts have all of it and it is right; -1: none. */
static int64_t whole_of(const char *run, const char *named_by)
{
    char name[64], found[4096];
    const char *part[2];
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_ckpt_find(NULL, alloc, named_by, found, sizeof found, NULL) != DSC_OK)
        return -1;
    const int64_t step = dsc_probe_step_of_folder(found);
    snprintf(name, sizeof name, "step-%d", (int)step);
    part[0] = cw_path(run, name);
    part[1] = cw_path(seen_by(run, 1), name);
    if (!cw_exists(part[0]) || !cw_exists(part[1]))
        return -1;
    const char *whole = cw_path(dir, "whole");
    if (dsc_ckpt_merge(NULL, alloc, part, 2, whole, &err) != DSC_OK)
        return -1;
    char hex[65];
    CW_OK(dsc_ckpt_hash(NULL, alloc, whole, hex, &err), &err);
    CW_CHECK(strcmp(hex, expected[step]) == 0);
    cw_remove(whole);
    return step;
}

/* Of two hosts: what one of them announces is whole on both, or the other's is; what has a name verifies. */
static void check_hosts(const char *run, int64_t saved)
{
    char name[64];
    dsc_error err = DSC_ERROR_INIT;
    for (int32_t host = 0; host < 2; host++)
        for (int64_t step = 1; step < 8; step++) {
            snprintf(name, sizeof name, "step-%d", (int)step);
            const char *path = cw_path(seen_by(run, host), name);
            if (cw_exists(path))
                CW_OK(dsc_ckpt_verify(NULL, alloc, path, &err), &err);
        }
    const int64_t a = whole_of(run, run), b = whole_of(run, seen_by(run, 1));
    CW_CHECK((a > b ? a : b) >= saved || saved <= 0);
    const bool named = cw_exists(cw_path(run, "latest")) || cw_exists(cw_path(seen_by(run, 1), "latest"));
    CW_CHECK(!named || a > 0 || b > 0);
}

/* `saved`: the last step that a save has returned from. */
static void check_crash(const char *run, int64_t saved)
{
    if (apart) {
        check_hosts(run, saved);
        return;
    }
    char found[4096], name[64];
    dsc_error err = DSC_ERROR_INIT;
    for (int64_t step = 1; step < 8; step++) {
        snprintf(name, sizeof name, "step-%d", (int)step);
        const char *path = cw_path(run, name);
        if (cw_exists(path))
            CW_CHECK(is_whole(path));
    }
    const dsc_status status = dsc_ckpt_find(NULL, alloc, run, found, sizeof found, &err);
    if (status != DSC_OK) {
        if (saved > 0)
            cw_fail(err.where, __FILE__, __LINE__, err.message);
        return;
    }
    CW_CHECK(dsc_probe_step_of_folder(found) >= saved);
    CW_CHECK(is_whole(found));
}

/* crash_dir is what a loss of power after `count` calls leaves. */
static void crash(cfs_log *log, int64_t count, uint64_t choice)
{
    cfs_crash(log, count, choice, crash_dir);
    states++;
    states_in_all++;
}

/* Every moment of the log: nothing more than is durable, everything, and `each` states in between. */
static void check_log(int64_t each)
{
    cfs_log *log = sys.log;
    const char *night = getenv("DSC_TEST_NIGHT");
    sys.log = NULL;
    if (night != NULL && strcmp(night, "1") == 0)
        each *= 10;
    for (int64_t count = 0; count <= cfs_count(log); count++)
        for (int64_t i = 0; i < each + 2; i++) {
            crash(log, count, i < 2 ? (uint64_t)i : seed + (uint64_t)states);
            check_crash(crash_run, cfs_mark_before(log, count));
        }
    sys.log = log;
}

/* A new life in a folder that a crash has left ends where it would have ended. */
static void go_on_from_crashes(int64_t last_step, int64_t rounds)
{
    cfs_log *log = sys.log;
    sys.log = NULL;
    char *was = save_dir;
    for (int64_t i = 0; i < rounds; i++) {
        const int64_t count = i % (cfs_count(log) + 1);
        crash(log, count, seed + (uint64_t)i);
        save_dir = crash_run;
        const bool here = cw_exists(cw_path(save_dir, "latest"));
        const bool started = here || cw_exists(cw_path(seen_by(save_dir, 1), "latest"));
        const int64_t latest = here && !apart ? cw_latest(save_dir) : 0;
        if (latest < last_step)
            live_once((life){ .load = started ? save_dir : NULL, .save = { last_step } },
                      apart ? 2 : 1 + (int32_t)(i % 3));
        check_crash(save_dir, last_step);
        CW_CHECK(cw_latest(save_dir) == last_step);
    }
    save_dir = was;
    sys.log = log;
}

static void start_log(void) { sys.log = cfs_open(cw_path(dir, "root")); }
static void end_log(void)
{
    cfs_log *log = sys.log;
    sys.log = NULL;
    cfs_close(log);
}

static void a_run_of_saves(void **state)
{
    start_log();
    live_once((life){ .save = { 1, 2, 3, 4 } }, 2);
    assert_true(cfs_count(sys.log) > 100);
    check_log(8);
    assert_true(states >= 1000);
    end_log();
}

/* The same beside training, with tensors long enough for the way past the page cache. */
static void a_run_of_saves_beside_training(void **state)
{
    toy_model_close(model);
    model = toy_model_open(3, 272, 1, true);
    async = true;
    start_log();
    live_once((life){ .save = { 1, 2 } }, 2);
    async = false;
    check_log(1);
    assert_true(states >= 150);
    end_log();
}

/* The first save: there may be no latest, and a fresh start on other ranks comes to the step again. */
static void a_fresh_start_after_any_crash(void **state)
{
    start_log();
    live_once((life){ .save = { 1 } }, 2);
    go_on_from_crashes(1, 4 * (cfs_count(sys.log) + 1));
    end_log();
}

static void going_on_after_any_crash(void **state)
{
    live_once((life){ .save = { 1 } }, 2);
    start_log();
    cfs_note(sys.log, CFS_MARK, "", NULL, 1, NULL, 0);
    live_once((life){ .load = save_dir, .save = { 2 } }, 2);
    go_on_from_crashes(2, 2 * (cfs_count(sys.log) + 1));
    end_log();
}

/* A folder with step-2 and step-4, of which latest names step-2. `marked`: latest.tmp names step-4. */
static void unannounced(bool marked)
{
    live_once((life){ .save = { 2, 4 } }, 2);
    cw_write(cw_path(save_dir, "latest"), "step-2\n", 7);
    if (marked)
        cw_write(cw_path(save_dir, "latest.tmp"), "step-4\n", 7);
}

static void an_unannounced_step_is_tidied_up(void **state)
{
    unannounced(true);
    start_log();
    cfs_note(sys.log, CFS_MARK, "", NULL, 2, NULL, 0);
    live_once((life){ .load = save_dir, .save = { 3, 4 } }, 3);
    check_log(4);
    end_log();
}

static void the_same_step_is_kept(void **state)
{
    unannounced(false);
    start_log();
    cfs_note(sys.log, CFS_MARK, "", NULL, 2, NULL, 0);
    live_once((life){ .load = save_dir, .save = { 4 } }, 3);
    check_log(4);
    end_log();
}

/* Going back makes an older step the latest: here a mark of step 4 would say more than is promised. */
static void going_back_to_an_older_step(void **state)
{
    live_once((life){ .save = { 2, 4 } }, 2);
    start_log();
    cfs_note(sys.log, CFS_MARK, "", NULL, 2, NULL, 0);
    live_once((life){ .load = cw_path(save_dir, "step-2"), .save = { 2 } }, 2);
    check_log(20);
    end_log();
}

/* Every fsync fails once, and what follows is undone: a loss of power meanwhile leaves the step before. */
static void a_failed_fsync_and_its_undoing(void **state)
{
    live_once((life){ .save = { 2 } }, 2);
    for (int fail = 1;; fail++) {
        start_log();
        cfs_note(sys.log, CFS_MARK, "", NULL, 2, NULL, 0);
        sys.fsyncs = 0;
        sys.fail_fsync = fail;
        live_once((life){ .load = save_dir, .save = { 4 }, .may_fail = true }, 2);
        const bool failed = sys.fsyncs >= fail;
        sys.fail_fsync = 0;
        check_log(1);
        end_log();
        if (!failed)
            break;
        assert_int_equal(cw_latest(save_dir), 2);
        assert_false(cw_exists(cw_path(save_dir, "step-4")));
    }
}

/* Two hosts lose their power at once; each keeps the newest alone. */
static void two_hosts(void **state)
{
    toy_model_close(model);
    model = toy_model_open(3, 40, 1, true); /* both ranks have elements of it */
    apart = true;
    for (int i = 0; i < 2; i++) {
        async = i == 1;
        start_log();
        live_once((life){ .save = { 1 + 3 * i, 2 + 3 * i, 3 + 3 * i } }, 2);
        async = false;
        check_log(i == 0 ? 6 : 1);
        end_log();
        cw_remove(save_dir);
        cw_remove(seen_by(save_dir, 1));
    }
    apart = false;
}

static void two_hosts_go_on_after_any_crash(void **state)
{
    toy_model_close(model);
    model = toy_model_open(3, 40, 1, true);
    apart = true;
    live_once((life){ .save = { 1 } }, 2);
    start_log();
    cfs_note(sys.log, CFS_MARK, "", NULL, 1, NULL, 0);
    live_once((life){ .load = save_dir, .save = { 2 } }, 2);
    go_on_from_crashes(2, cfs_count(sys.log) + 1);
    end_log();
    apart = false;
}

int main(void)
{
    const char *given = getenv("DSC_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    seed = seed < 2 ? 2 : seed;
    fprintf(stderr, "# seed %llu; rerun: DSC_TEST_SEED=%llu\n", (unsigned long long)seed, (unsigned long long)seed);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_run_of_saves),
        TEST(a_run_of_saves_beside_training),
        TEST(a_fresh_start_after_any_crash),
        TEST(going_on_after_any_crash),
        TEST(an_unannounced_step_is_tidied_up),
        TEST(the_same_step_is_kept),
        TEST(going_back_to_an_older_step),
        TEST(a_failed_fsync_and_its_undoing),
        TEST(two_hosts),
        TEST(two_hosts_go_on_after_any_crash),
    };
    const int failed = cmocka_run_group_tests_name("checkpoint_power", tests, NULL, NULL);
    fprintf(stderr, "# tried %lld states after a loss of power\n", (long long)states_in_all);
    return failed;
}
