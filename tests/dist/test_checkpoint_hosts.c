/* test_checkpoint_hosts.c - hosts without a common folder (checkpoint.use_node_local_storage). The parts on the hosts'
 * disks form the checkpoint that one folder would hold, and it loads on any placement of ranks. A host that dies or
 * fails at any moment of a save loses nothing. Losses of power are in test_checkpoint_power.c.
 *
 * A rank's host is the folder that it is given. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/checkpoint/manifest.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

static char *dir;
static dsc_model *model, *wide, *small;
static dsc_alloc *alloc;

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    small = toy_model_open(3, 40, 2, true); /* the last ranks' slices are padding only */
    model = toy_model_open(3, 100, 2, true);
    wide = toy_model_open(3, 700, 1, true); /* a tensor of two blocks */
    return dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    toy_model_close(wide);
    toy_model_close(small);
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

/* "aabb": the host of each rank, a letter; its folder. */
static const char *folder(const char *hosts, int32_t rank)
{
    const char name[2] = { hosts[rank], 0 };
    return cw_path(dir, name);
}
static const char *step_of(char host, const char *step)
{
    const char name[2] = { host, 0 };
    return cw_path(cw_path(dir, name), step);
}
static void forget(void)
{
    for (char host = 'a'; host <= 'd'; host++)
        cw_remove(step_of(host, ""));
}

typedef struct trip {
    const char *load, *save; /* hosts; NULL: not */
    const char *load_name;   /* in the hosts' folders; NULL: what `latest` names */
    int64_t save_step, end_step;
    char saved_hash[65], end_hash[65];
} trip;

static dsc_status go(cw_rank *rank, dsc_error *err)
{
    trip *t = rank->user;
    char saved[65], end[65];
    if (t->load != NULL) {
        const char *from = folder(t->load, rank->rank);
        DSC_TRY(dsc_engine_load(rank->engine, t->load_name != NULL ? cw_path(from, t->load_name) : from, err));
    }
    DSC_TRY(cw_train(rank, t->save_step, err));
    cw_hash(rank, saved);
    if (t->save != NULL)
        DSC_TRY(cw_save(rank, folder(t->save, rank->rank), err));
    DSC_TRY(cw_train(rank, t->end_step, err));
    cw_hash(rank, end);
    if (rank->rank == 0) {
        memcpy(t->saved_hash, saved, 65);
        memcpy(t->end_hash, end, 65);
    }
    return DSC_OK;
}

static cw_options options_of(int32_t world, int stage, bool bf16)
{
    return (cw_options){ .world = world, .stage = stage, .bf16 = bf16, .model = model, .node_local = true };
}

/* A load that every rank is refused alike; the line. */
static dsc_status refused(cw_rank *rank, dsc_error *err)
{
    const trip *t = rank->user;
    const char *from = folder(t->load, rank->rank);
    dsc_error why = DSC_ERROR_INIT;
    from = t->load_name != NULL ? cw_path(from, t->load_name) : from;
    const dsc_status status = dsc_engine_load(rank->engine, from, &why);
    CW_CHECK(status == DSC_ERR_INPUT);
    *err = why;
    return status;
}

static void expect_refused(const cw_options *options, const char *hosts, const char *name, const char *words)
{
    trip t = { .load = hosts, .load_name = name };
    cw_rank ranks[CW_RANKS_MAX];
    cw_run(options, refused, &t, ranks);
    for (int32_t r = 0; r < options->world; r++)
        if (strstr(ranks[r].error.message, words) == NULL)
            cw_fail(words, __FILE__, __LINE__, ranks[r].error.message);
}

static void merge_all(const char *hosts, const char *step, const char *out)
{
    const char *part[4];
    int32_t count = 0;
    dsc_error err = DSC_ERROR_INIT;
    for (; hosts[count] != 0; count++)
        part[count] = step_of(hosts[count], step);
    CW_OK(dsc_ckpt_merge(NULL, alloc, part, count, out, &err), &err);
}

static void expect_same_file(const char *a, const char *b, const char *name)
{
    size_t bytes[2];
    char *x = cw_read(cw_path(a, name), &bytes[0]), *y = cw_read(cw_path(b, name), &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(x, y, bytes[0]);
    free(x);
    free(y);
}

/* ---- what is saved ---- */

static int64_t file_bytes(const char *step_dir, const char *name)
{
    struct stat st;
    CW_CHECK(stat(cw_path(step_dir, name), &st) == 0);
    return st.st_size;
}

/* With one folder for all ranks the key changes nothing. With several folders the parts form the same bytes, and no
 * byte of a tensor is in two parts. */
static void the_parts_are_the_whole(void **state)
{
    const struct { const char *hosts, *each; int stage; bool bf16, async; dsc_model *model; } ways[] = {
        { "aabb", "ab", 3, true, false, model }, { "abab", "ab", 1, true, true, model },
        { "abc", "abc", 2, false, false, model }, { "abbc", "abc", 0, true, true, wide },
        { "ab", "ab", 3, true, false, wide },    { "aabb", "ab", 3, true, true, small },
    };
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        cw_options options = options_of((int32_t)strlen(ways[i].hosts), ways[i].stage, ways[i].bf16);
        options.async = ways[i].async;
        options.model = ways[i].model;
        trip apart = { .save = ways[i].hosts, .save_step = 2, .end_step = 2 }, one = apart;
        cw_run_well(&options, go, &apart);
        one.save = "dddd";
        cw_run_well(&options, go, &one);
        const char *whole = strdup(step_of('d', "step-2")), *out = strdup(cw_path(dir, "out"));
        cw_expect_checkpoint(whole, one.saved_hash);
        assert_string_equal(apart.saved_hash, one.saved_hash);
        merge_all(ways[i].each, "step-2", out);
        cw_expect_checkpoint(out, one.saved_hash);
        static const char *const names[] = { "model.safetensors", "optimizer.safetensors", "ds_config.json",
                                             "manifest.json" };
        for (size_t n = 0; n < DSC_COUNT(names); n++)
            expect_same_file(whole, out, names[n]);
        for (size_t n = 0; n < 2; n++) {
            int64_t sum = 0, head = 8;
            char *text = cw_read(cw_path(whole, names[n]), &(size_t){ 0 });
            memcpy(&head, text, 8);
            head += 8;
            free(text);
            for (const char *host = ways[i].each; *host != 0; host++)
                sum += file_bytes(step_of(*host, "step-2"), names[n]) - head;
            assert_int_equal(sum, file_bytes(whole, names[n]) - head);
        }
        for (const char *host = ways[i].each; *host != 0; host++) {
            dsc_error err = DSC_ERROR_INIT;
            CW_OK(dsc_ckpt_verify(NULL, alloc, step_of(*host, "step-2"), &err), &err);
            assert_int_equal(cw_latest(step_of(*host, "")), 2);
        }
        free((void *)(uintptr_t)whole);
        cw_remove(out);
        free((void *)(uintptr_t)out);
        forget();
    }
}

/* ---- where it loads ---- */

static void any_ranks_load_it_where_all_parts_are(void **state)
{
    static const struct { const char *hosts; int stage; bool bf16, wide; } ways[] = {
        { "aabb", 3, true, false },     /* as it was */
        { "bbaa", 3, true, false },     /* hosts swapped */
        { "abab", 1, true, false },     /* ranks placed otherwise */
        { "abb", 2, true, false },      /* fewer */
        { "ab", 0, false, false },      /* fewer, another stage and precision */
        { "aabbcc", 3, true, false },   /* a new host */
        { "cabd", 2, true, false },     /* which has rank 0 */
        { "aabb", 3, true, true },      { "bab", 3, true, true },
    };
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        cw_options options = options_of(4, 3, true);
        options.model = ways[i].wide ? wide : model;
        trip saved = { .save = "aabb", .save_step = 2, .end_step = 4 };
        cw_run_well(&options, go, &saved);
        for (int bad = 0; bad < 2; bad++) { /* into a new engine, and into a run's states */
            trip again = { .load = ways[i].hosts, .load_name = bad != 0 ? "step-2" : NULL, .save = "dddddddd",
                           .save_step = 2, .end_step = 4 };
            options = options_of((int32_t)strlen(ways[i].hosts), ways[i].stage, ways[i].bf16);
            options.model = ways[i].wide ? wide : model;
            if (strchr(ways[i].hosts, 'd') != NULL)
                again.save = NULL;
            cw_run_well(&options, go, &again);
            assert_string_equal(again.saved_hash, saved.saved_hash);
            if (ways[i].bf16)
                assert_string_equal(again.end_hash, saved.end_hash);
            if (again.save != NULL)
                cw_expect_checkpoint(step_of('d', "step-2"), saved.saved_hash);
            cw_remove(step_of('d', ""));
        }
        forget();
    }
}

/* Into a run that has made steps: two passes, of which the first changes nothing. */
static dsc_status load_later(cw_rank *rank, dsc_error *err)
{
    trip *t = rank->user;
    char end[65];
    DSC_TRY(cw_train(rank, 3, err));
    DSC_TRY(dsc_engine_load(rank->engine, folder(t->load, rank->rank), err));
    DSC_TRY(cw_train(rank, t->end_step, err));
    cw_hash(rank, end);
    CW_CHECK(strcmp(end, t->end_hash) == 0);
    return DSC_OK;
}

static void flip(const char *path, int64_t at)
{
    size_t bytes;
    char *text = cw_read(path, &bytes);
    CW_CHECK((size_t)at < bytes);
    text[at] ^= 16;
    cw_write(path, text, bytes);
    free(text);
}

static dsc_status damaged_later(cw_rank *rank, dsc_error *err)
{
    trip *t = rank->user;
    char before[65], after[65];
    DSC_TRY(cw_train(rank, 3, err));
    cw_hash(rank, before);
    dsc_error why = DSC_ERROR_INIT;
    CW_CHECK(dsc_engine_load(rank->engine, folder(t->load, rank->rank), &why) == DSC_ERR_INPUT);
    if (strstr(why.message, "is damaged at elements") == NULL)
        cw_fail("a damaged part", __FILE__, __LINE__, why.message);
    cw_hash(rank, after);
    CW_CHECK(strcmp(before, after) == 0);
    return cw_train(rank, 4, err);
}

static void a_run_loads_it_later(void **state)
{
    const cw_options options = options_of(4, 3, true);
    trip t = { .save = "aabb", .load = "bbaa", .save_step = 2, .end_step = 4 };
    t.load = NULL;
    cw_run_well(&options, go, &t);
    t.load = "bbaa";
    cw_run_well(&options, load_later, &t);
    const char *file = cw_path(step_of('b', "step-2"), "optimizer.safetensors");
    flip(file, file_bytes(step_of('b', "step-2"), "optimizer.safetensors") - 5);
    cw_run_well(&options, damaged_later, &t);
    t.load = "aabb";
    cw_run_well(&options, damaged_later, &t);
}

static void incomplete_parts_are_refused_with_the_reason(void **state)
{
    cw_options options = options_of(4, 2, true);
    trip saved = { .save = "aabb", .save_step = 1, .end_step = 1 };
    cw_run_well(&options, go, &saved);
    expect_refused(&options, "aaaa", NULL, "part 2 of 2, which host");
    expect_refused(&options, "bbbb", "step-1", "part 1 of 2, which host");
    expect_refused(&options, "cccc", NULL, "no such checkpoint folder");
    options.node_local = false;
    expect_refused(&options, "aaaa", NULL, "is part 1 of 2 of a checkpoint, that of host");
    /* Uses that need the whole checkpoint. */
    char hex[65];
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_ckpt_hash(NULL, alloc, step_of('a', "step-1"), hex, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "dsc ckpt merge"));
    const dsc_ckpt_export_options to = { .out_dir = cw_path(dir, "hf"), .dtype = DSC_F32, .shard_bytes = 1 << 30 };
    assert_int_equal(dsc_ckpt_export(NULL, alloc, step_of('b', "step-1"), &to, &err), DSC_ERR_INPUT);
    assert_false(cw_exists(cw_path(dir, "hf")));
    /* Parts of two saves do not form a checkpoint. */
    options.node_local = true;
    trip other = { .save = "ccdd", .save_step = 1, .end_step = 1 };
    options.seed = 6;
    cw_run_well(&options, go, &other);
    expect_refused(&options, "aadd", NULL, "part 2 of 2, which host");
    const char *mixed[2] = { step_of('a', "step-1"), step_of('d', "step-1") };
    assert_int_equal(dsc_ckpt_merge(NULL, alloc, mixed, 2, cw_path(dir, "out"), &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "of another save"));
    assert_int_equal(dsc_ckpt_merge(NULL, alloc, mixed, 1, cw_path(dir, "out"), &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "is not among the folders"));
    mixed[1] = mixed[0];
    assert_int_equal(dsc_ckpt_merge(NULL, alloc, mixed, 2, cw_path(dir, "out"), &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "is part 1 of 2, as is"));
    assert_false(cw_exists(cw_path(dir, "out")));
    assert_false(cw_exists(cw_path(dir, "out.tmp")));
}

/* Turns a part into one of a longer list of hosts: without a block of its own, of the same save by its blocks. */
static void claim_part_3_of_3(const char *step_dir)
{
    static const char *const file[] = { "model.safetensors", "optimizer.safetensors" };
    size_t bytes;
    char *text = cw_read(cw_path(step_dir, "manifest.json"), &bytes), *body = malloc(bytes + 256), hex[65], key[64];
    uint8_t digest[32];
    char *part = strstr(text, "\"index\":1,\"hosts\":["), *seal = text;
    assert_non_null(body);
    assert_non_null(part);
    for (char *next = text; (next = strstr(next + 1, DSC_CKPT_SEAL_TEXT)) != NULL;)
        seal = next;
    *part = *seal = 0;
    const int body_bytes = snprintf(body, bytes, "%s\"index\":2,\"hosts\":[\"c\",%s", text, strchr(part + 1, '[') + 1);
    dsc_ckpt_sha256(body, body_bytes, digest);
    dsc_hex(hex, digest, sizeof digest);
    const int all = body_bytes + snprintf(body + body_bytes, 128, DSC_CKPT_SEAL_TEXT "%s\"}\n", hex);
    cw_write(cw_path(step_dir, "manifest.json"), body, (size_t)all);
    for (size_t f = 0; f < DSC_COUNT(file); f++) { /* the header alone */
        snprintf(key, sizeof key, "\"%s\":{", file[f]);
        const char *head = strstr(strstr(body, key), "\"head_bytes\":");
        assert_int_equal(truncate(cw_path(step_dir, file[f]), (off_t)strtoll(head + 13, NULL, 10)), 0);
    }
    free(body);
    free(text);
}

static void a_part_of_a_longer_list_is_another_save(void **state)
{
    cw_options options = options_of(2, 2, true);
    trip saved = { .save = "ab", .save_step = 1, .end_step = 1 };
    cw_run_well(&options, go, &saved);
    const char *part[2] = { step_of('a', "step-1"), step_of('b', "step-1") };
    claim_part_3_of_3(part[1]);
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_ckpt_merge(NULL, alloc, part, 2, cw_path(dir, "out"), &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "step 1 of 3 parts, there step 1 of 2"));
    assert_false(cw_exists(cw_path(dir, "out")));
}

/* ---- runs that go on ---- */

static void expect_names(const char *hosts, const char *there, const char *gone)
{
    for (; *hosts != 0; hosts++) {
        assert_true(cw_exists(step_of(*hosts, there)));
        assert_false(cw_exists(step_of(*hosts, gone)));
    }
}

static dsc_status save_thrice(cw_rank *rank, dsc_error *err)
{
    for (int64_t step = 1; step <= 3; step++) {
        DSC_TRY(cw_train(rank, step, err));
        DSC_TRY(cw_save(rank, folder(rank->user, rank->rank), err));
    }
    return DSC_OK;
}

static void each_host_removes_what_is_older(void **state)
{
    for (int async = 0; async < 2; async++) {
        cw_options options = options_of(3, 2, true);
        options.own = ", \"keep_last\": 2";
        options.async = async != 0;
        cw_run_well(&options, save_thrice, (void *)(uintptr_t)"abb");
        expect_names("ab", "step-2", "step-1");
        expect_names("ab", "step-3", "step-3.tmp");
        forget();
    }
}

/* The same step again: what was loaded stays and is `latest`; going back, a step of the same bits is kept, and of other
 * ones refused. */
static void a_step_that_is_there(void **state)
{
    cw_options options = options_of(4, 3, true);
    trip t = { .save = "aabb", .save_step = 2, .end_step = 2 };
    cw_run_well(&options, go, &t);
    t.save_step = t.end_step = 4;
    t.load = "aabb";
    cw_run_well(&options, go, &t);
    char four[65];
    memcpy(four, t.end_hash, 65);
    t = (trip){ .load = "aabb", .load_name = "step-2", .save = "aabb", .save_step = 2, .end_step = 2 };
    cw_run_well(&options, go, &t);
    assert_int_equal(cw_latest(step_of('a', "")), 2);
    assert_int_equal(cw_latest(step_of('b', "")), 2);
    /* On a host more, which has nothing of it and needs nothing. */
    t.load = t.save = "abbc";
    cw_run_well(&options, go, &t);
    assert_int_equal(cw_latest(step_of('b', "")), 2);
    assert_false(cw_exists(step_of('c', "step-2")));
    t = (trip){ .load = "aabb", .save = "aabb", .save_step = 4, .end_step = 4 };
    cw_run_well(&options, go, &t);
    assert_int_equal(cw_latest(step_of('b', "")), 4);
    merge_all("ab", "step-4", cw_path(dir, "out"));
    cw_expect_checkpoint(cw_path(dir, "out"), four);
    t.load_name = "step-2";
    t.load = t.save = "abbb";
    cw_rank ranks[CW_RANKS_MAX];
    cw_run(&options, go, &t, ranks);
    assert_int_equal(ranks[0].status, DSC_ERR_INPUT);
    assert_non_null(strstr(ranks[3].error.message, "hosts of its ranks differ"));
    merge_all("ab", "step-4", cw_path(dir, "again"));
    cw_expect_checkpoint(cw_path(dir, "again"), four);
}

/* ---- a host that fails, and one that dies ---- */

typedef struct harm {
    int32_t rank;      /* every operation of it fails from the n-th on; */
    int64_t n;         /* 0: counts */
    bool dies;         /* and whose connection breaks */
    atomic_llong count;
    atomic_bool fired;
    struct cw_rank *of;
} harm;

static dsc_status hurt(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes, int *errno_value)
{
    (void)op, (void)path, (void)offset, (void)bytes;
    harm *h = user;
    const int64_t count = atomic_fetch_add(&h->count, 1) + 1;
    if (h->n == 0 || count < h->n || (!h->dies && count > h->n))
        return DSC_OK;
    if (h->dies && count == h->n)
        dsc_comm_abort(dsc_probe_host_comm(h->of->engine, DSC_PROBE_COMM_ALL), "this host died");
    atomic_store(&h->fired, true);
    *errno_value = EIO;
    return DSC_ERR_IO;
}

static char hash_of_step[3][65]; /* [step] of the undisturbed run */

static dsc_status until_second_save(cw_rank *rank, dsc_error *err)
{
    char hex[65];
    for (int64_t step = 1; step <= 2; step++) {
        DSC_TRY(cw_train(rank, step, err));
        cw_hash(rank, hex);
        if (rank->rank == 0)
            memcpy(hash_of_step[step], hex, 65);
        if (step == 1)
            DSC_TRY(cw_save(rank, folder("abb", rank->rank), err));
    }
    return DSC_OK;
}

static dsc_status save_harmed(cw_rank *rank, dsc_error *err)
{
    harm *h = rank->user;
    dsc_error failure = DSC_ERROR_INIT;
    DSC_TRY(until_second_save(rank, err));
    if (rank->rank == h->rank) {
        h->of = rank;
        dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ hurt, h });
    }
    const dsc_status status = cw_save(rank, folder("abb", rank->rank), &failure);
    dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ NULL, NULL });
    rank->loss[0] = status == DSC_OK;
    if (!h->dies) { /* the run goes on and may save again */
        cw_barrier(rank);
        DSC_TRY(cw_train(rank, 3, err));
        DSC_TRY(cw_save(rank, folder("abb", rank->rank), err));
    }
    return DSC_OK;
}

static _Atomic int64_t fallback_warnings;
static void count_warnings(void *user, dsc_log_level level, const char *text)
{
    (void)user;
    fallback_warnings += level == DSC_LOG_WARNING && strstr(text, "which is whole") != NULL;
}

/* `said`: a rank's save succeeded. */
static void expect_nothing_lost(const cw_options *options, bool said)
{
    trip t = { .load = "abb", .save_step = 0, .end_step = 0 };
    cw_options load = *options;
    load.async = false;
    load.log = (dsc_log){ count_warnings, NULL };
    cw_run_well(&load, go, &t);
    const bool new = strcmp(t.end_hash, hash_of_step[2]) == 0;
    if (!new && (said || strcmp(t.end_hash, hash_of_step[1]) != 0))
        cw_fail("neither the last save nor the one before", __FILE__, __LINE__, t.end_hash);
    /* And a run goes on from there to the same end. */
    t = (trip){ .load = "abb", .save = "abb", .save_step = 2, .end_step = 2 };
    cw_run_well(&load, go, &t);
    CW_CHECK(strcmp(t.end_hash, hash_of_step[2]) == 0);
    t = (trip){ .load = "bab", .save_step = 2, .end_step = 2 };
    cw_run_well(&load, go, &t);
    CW_CHECK(strcmp(t.saved_hash, hash_of_step[2]) == 0);
}

/* Each n-th operation of each rank; DSC_TEST_NIGHT=1: every one. */
static void harm_all(bool dies, bool async, int64_t each)
{
    const char *night = getenv("DSC_TEST_NIGHT");
    each = night != NULL && strcmp(night, "1") == 0 ? 1 : each;
    for (int32_t rank = 0; rank < 3; rank++)
        for (int64_t n = 1 + rank % each;; n += each) {
            harm h = { .rank = rank, .n = n, .dies = dies };
            cw_options options = options_of(3, 2, true);
            cw_rank ranks[CW_RANKS_MAX];
            options.async = async;
            options.own = ", \"keep_last\": 1";
            cw_run(&options, save_harmed, &h, ranks);
            const bool fired = atomic_load(&h.fired);
            bool said = false;
            for (int32_t r = 0; r < 3; r++)
                said |= ranks[r].loss[0] != 0;
            if (!dies) {
                for (int32_t r = 0; r < 3; r++)
                    if (ranks[r].status != DSC_OK)
                        cw_fail("a save after a failed one", __FILE__, __LINE__, ranks[r].error.message);
                expect_names("ab", "step-3", "step-3.tmp");
            } else {
                expect_nothing_lost(&options, said);
            }
            forget();
            if (!fired)
                break;
        }
}

static void a_host_that_fails_fails_the_save(void **state) { harm_all(false, false, 2); }
static void a_host_that_dies_loses_nothing(void **state) { harm_all(true, false, 1); }
static void nor_beside_training(void **state) { harm_all(true, true, 4); }

/* A verdict that all others hear: they go on, and the last ones of them remove what is older. */
typedef struct deafness {
    int32_t rank;
    const char *after; /* its rename to a name that ends so */
    bool breaks;       /* its connection */
    cw_rank *of;
    bool fired;
} deafness;

static const dsc_comm_ops *hearing;
static dsc_comm_ops deaf;
static deafness *now_deaf;

static dsc_status gather_deaf(dsc_transport *t, int32_t channel, void *recv, const void *send, int64_t bytes,
                              dsc_stream *stream, dsc_error *err)
{
    const dsc_status status = hearing->all_gather(t, channel, recv, send, bytes, stream, err);
    dsc_probe_set_comm_ops(dsc_probe_host_comm(now_deaf->of->engine, DSC_PROBE_COMM_ALL), hearing);
    if (status != DSC_OK)
        return status;
    if (now_deaf->breaks)
        dsc_comm_abort(dsc_probe_host_comm(now_deaf->of->engine, DSC_PROBE_COMM_ALL), "this host died");
    now_deaf->fired = true;
    return DSC_FAIL(err, DSC_ERR_PEER, "", "a rank was lost");
}

static dsc_status go_deaf(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes, int *errno_value)
{
    (void)offset, (void)bytes, (void)errno_value;
    deafness *d = user;
    const size_t length = strlen(path), end = strlen(d->after);
    dsc_comm *comm = dsc_probe_host_comm(d->of->engine, DSC_PROBE_COMM_ALL);
    if (op == DSC_IO_RENAME && !d->fired && length >= end && strcmp(path + length - end, d->after) == 0) {
        hearing = dsc_probe_comm_ops(comm);
        deaf = *hearing;
        deaf.all_gather = gather_deaf;
        dsc_probe_set_comm_ops(comm, &deaf);
    }
    return DSC_OK;
}

static dsc_status save_unheard(cw_rank *rank, dsc_error *err)
{
    deafness *d = rank->user;
    dsc_error failure = DSC_ERROR_INIT;
    DSC_TRY(until_second_save(rank, err));
    if (rank->rank == d->rank) {
        d->of = rank;
        dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ go_deaf, d });
    }
    cw_barrier(rank);
    rank->loss[0] = cw_save(rank, folder("abb", rank->rank), &failure) == DSC_OK;
    dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ NULL, NULL });
    return DSC_OK;
}

static void a_verdict_that_one_host_does_not_hear(void **state)
{
    for (int32_t rank = 0; rank < 2; rank++)
        for (int named = 0; named < 2; named++) {
            deafness d = { .rank = rank, .after = named != 0 ? "step-2" : "/latest", .breaks = named != 0 };
            cw_options options = options_of(3, 2, true);
            cw_rank ranks[CW_RANKS_MAX];
            options.own = ", \"keep_last\": 1";
            now_deaf = &d;
            cw_run(&options, save_unheard, &d, ranks);
            assert_true(d.fired);
            assert_true(ranks[rank].loss[0] == 0);
            assert_true(named != 0 || ranks[1 - rank].loss[0] != 0);
            expect_nothing_lost(&options, named == 0);
            forget();
        }
}

/* The run gets a warning that an older step is the newest whole one. */
static void an_older_step_is_said(void **state)
{
    cw_options options = options_of(2, 1, true);
    trip t = { .save = "ab", .save_step = 1, .end_step = 1 };
    cw_run_well(&options, go, &t);
    char one[65];
    memcpy(one, t.end_hash, 65);
    t = (trip){ .load = "ab", .save = "ab", .save_step = 2, .end_step = 2 };
    cw_run_well(&options, go, &t);
    cw_remove(step_of('b', "step-2"));
    cw_write(step_of('b', "latest"), "step-1\n", 7);
    fallback_warnings = 0;
    options.log = (dsc_log){ count_warnings, NULL };
    t = (trip){ .load = "ab" };
    cw_run_well(&options, go, &t);
    assert_string_equal(t.end_hash, one);
    assert_int_equal(fallback_warnings, 1);
}

/* ---- before a run ---- */

static dsc_status check_first(cw_rank *rank, dsc_error *err)
{
    const char *at = folder("ab", rank->rank);
    dsc_error why = DSC_ERROR_INIT;
    const dsc_status status = dsc_engine_save_check(rank->engine, at, 0, 1, &why);
    CW_CHECK(status == (rank->user != NULL ? DSC_ERR_INPUT : DSC_OK));
    cw_barrier(rank);
    CW_CHECK(cw_exists(at) == (rank->user != NULL));
    cw_barrier(rank);
    return DSC_OK;
}

static void every_host_is_looked_at_before(void **state)
{
    cw_options options = options_of(2, 1, true);
    cw_run_well(&options, check_first, NULL);
    CW_CHECK(mkdir(step_of('a', ""), 0755) == 0 && mkdir(step_of('b', ""), 0755) == 0);
    CW_CHECK(mkdir(step_of('b', "step-1"), 0755) == 0);
    cw_run_well(&options, check_first, dir);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_parts_are_the_whole),
        TEST(any_ranks_load_it_where_all_parts_are),
        TEST(a_run_loads_it_later),
        TEST(incomplete_parts_are_refused_with_the_reason),
        TEST(a_part_of_a_longer_list_is_another_save),
        TEST(each_host_removes_what_is_older),
        TEST(a_step_that_is_there),
        TEST(a_host_that_fails_fails_the_save),
        TEST(a_host_that_dies_loses_nothing),
        TEST(nor_beside_training),
        TEST(a_verdict_that_one_host_does_not_hear),
        TEST(an_older_step_is_said),
        TEST(every_host_is_looked_at_before),
    };
    return cmocka_run_group_tests_name("checkpoint_hosts", tests, NULL, NULL);
}
