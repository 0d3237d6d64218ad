/* test_checkpoint_damage.c - no damaged checkpoint is loaded. Damages: every byte of headers and small files flipped,
 * 1000 bits of data flipped, cuts at every boundary, files missing, swapped, foreign or extra. The error names the
 * file and the tensor.
 *
 * Each case goes to `dsc ckpt verify`'s reader and to a load into a living engine, which must keep its state. The
 * manifests of a hostile hand, whose own hash is right, are in test_checkpoint_hostile.c.
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

#include "base/formats/safetensors.h"
#include "base/rng.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

static char *dir;
static char good[512], before[512], other[512]; /* step-2; step-1; step-2 of another run */
static char victim[512];                        /* the one that is damaged */
static dsc_model *plain, with_config;
static dsc_alloc *alloc;
static uint64_t seed;
static int64_t cases;
static const char *const files[] = { "model.safetensors", "optimizer.safetensors", "config.json", "ds_config.json",
                                     "manifest.json" };

static dsc_status save_steps(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(cw_train(rank, 1, err));
    DSC_TRY(dsc_engine_save(rank->engine, rank->user, err));
    DSC_TRY(cw_train(rank, 2, err));
    return dsc_engine_save(rank->engine, rank->user, err);
}

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    plain = toy_model_open(3, 24, 1, true);
    with_config = *plain;
    with_config.config_json = "{\"model_type\": \"toy\", \"width\": 24}\n";
    cw_options options = { .world = 2, .stage = 2, .bf16 = true, .model = &with_config };
    cw_run_well(&options, save_steps, cw_path(dir, "a"));
    options.seed = 77;
    cw_run_well(&options, save_steps, cw_path(dir, "b"));
    snprintf(good, sizeof good, "%s/a/step-2", dir);
    snprintf(before, sizeof before, "%s/a/step-1", dir);
    snprintf(other, sizeof other, "%s/b/step-2", dir);
    snprintf(victim, sizeof victim, "%s/v/step-2", dir);
    cases = 0;
    return mkdir(cw_path(dir, "v"), 0755) == 0 && dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    toy_model_close(plain);
    cw_tmp_close(dir);
    return 0;
}

/* ---- a living engine that every case is offered to ---- */

typedef struct offer {
    void (*run)(cw_rank *rank);
} offer;

/* Both readers refuse the victim, alike, and say where. words: "" is any message. */
static void refused(cw_rank *rank, const char *where, const char *words)
{
    dsc_error by_verify = DSC_ERROR_INIT, by_load = DSC_ERROR_INIT;
    const dsc_status verified = dsc_ckpt_verify(NULL, alloc, victim, &by_verify);
    const dsc_status loaded = dsc_engine_load(rank->engine, victim, &by_load);
    cases++;
    if (verified != DSC_ERR_INPUT || strstr(by_verify.where, where) == NULL ||
        strstr(by_verify.message, words) == NULL) {
        fprintf(stderr, "case %d: %s: %s\n", (int)cases, by_verify.where, by_verify.message);
        cw_fail(where, __FILE__, __LINE__, words);
    }
    if (loaded != DSC_ERR_INPUT || by_load.where[0] == 0 || dsc_probe_has_failed(rank->engine)) {
        fprintf(stderr, "case %d: %s: %s\n", (int)cases, by_load.where, by_load.message);
        cw_fail("load", __FILE__, __LINE__, words);
    }
}

static dsc_status offer_cases(cw_rank *rank, dsc_error *err)
{
    const offer *o = rank->user;
    char was[65], is[65];
    DSC_TRY(cw_train(rank, 3, err));
    cw_hash(rank, was);
    o->run(rank);
    cw_hash(rank, is);
    CW_CHECK(strcmp(was, is) == 0 && dsc_probe_step(rank->engine) == 3);
    /* The undamaged one is taken: the cases were refused for what was done to them. */
    cw_copy_dir(good, victim);
    DSC_TRY(dsc_ckpt_verify(NULL, alloc, victim, err));
    return dsc_engine_load(rank->engine, victim, err);
}

static void to_an_engine(void (*run_cases)(cw_rank *rank), int64_t least)
{
    offer o = { run_cases };
    const cw_options options = { .world = 1, .stage = 1, .bf16 = true, .model = &with_config };
    cw_run_well(&options, offer_cases, &o);
    print_message("# %d cases\n", (int)cases);
    assert_true(cases >= least);
}

/* ---- flipped bits ---- */

static void write_victim(const char *name, const char *data, size_t bytes)
{
    cw_write(cw_path(victim, name), data, bytes);
}

static int64_t header_bytes(const char *name, const char *data, size_t bytes)
{
    uint64_t length = 0;
    if (strstr(name, ".safetensors") == NULL)
        return (int64_t)bytes;
    memcpy(&length, data, 8);
    return 8 + (int64_t)length;
}

static void flip_heads(cw_rank *rank)
{
    cw_copy_dir(good, victim);
    for (size_t f = 0; f < DSC_COUNT(files); f++) {
        size_t bytes;
        char *data = cw_read(cw_path(good, files[f]), &bytes);
        const int64_t head = header_bytes(files[f], data, bytes);
        for (int64_t at = 0; at < head; at++) {
            const char bit = (char)(1u << dsc_rng_u32(seed, (uint64_t)at, f) % 8);
            data[at] ^= bit;
            write_victim(files[f], data, bytes);
            refused(rank, files[f], "");
            data[at] ^= bit;
        }
        write_victim(files[f], data, bytes);
        free(data);
    }
}

static void every_header_byte_counts(void **state) { to_an_engine(flip_heads, 5000); }

/* The tensor that holds byte `at` of a file. */
static const dsc_safetensors_entry *tensor_at(const dsc_safetensors *st, int64_t at)
{
    for (int64_t i = 0; i < dsc_safetensors_count(st); i++) {
        const dsc_safetensors_entry *entry = dsc_safetensors_at(st, i);
        if (at >= entry->offset && at < entry->offset + entry->bytes)
            return entry;
    }
    return NULL;
}

static void flip_data(cw_rank *rank)
{
    cw_copy_dir(good, victim);
    for (uint64_t f = 0; f < 2; f++) {
        size_t bytes;
        char *data = cw_read(cw_path(good, files[f]), &bytes), words[256];
        const int64_t head = header_bytes(files[f], data, bytes);
        dsc_safetensors *st = NULL;
        CW_CHECK(dsc_safetensors_open(&st, NULL, alloc, cw_path(good, files[f]), NULL) == DSC_OK);
        for (uint64_t round = 0; round < 500; round++) {
            const int64_t at = head + dsc_rng_u32(seed, round, 2 + 2 * f) % ((int64_t)bytes - head);
            const char bit = (char)(1u << dsc_rng_u32(seed, round, 3 + 2 * f) % 8);
            const dsc_safetensors_entry *entry = tensor_at(st, at);
            CW_CHECK(entry != NULL);
            snprintf(words, sizeof words, "tensor \"%s\" is damaged", entry->name);
            data[at] ^= bit;
            write_victim(files[f], data, bytes);
            refused(rank, files[f], words);
            data[at] ^= bit;
        }
        write_victim(files[f], data, bytes);
        dsc_safetensors_close(&st);
        free(data);
    }
}

static void a_thousand_data_bits_count(void **state) { to_an_engine(flip_data, 1000); }

/* An engine before its first step loads each block as it arrives. After a bad last block it has its initial values
 * again, and it trains or loads another checkpoint as if there had been no load. */
static dsc_status offer_to_fresh(cw_rank *rank, dsc_error *err)
{
    char first[65], is[65], trained[65];
    dsc_error why = DSC_ERROR_INIT;
    cw_hash(rank, first);
    for (int round = 0; round < 2; round++) {
        CW_CHECK(dsc_engine_load(rank->engine, victim, &why) == DSC_ERR_INPUT && !dsc_probe_has_failed(rank->engine));
        CW_CHECK(strstr(why.message, "is damaged at elements") != NULL);
        cw_hash(rank, is);
        CW_CHECK(strcmp(first, is) == 0 && dsc_probe_step(rank->engine) == 0);
    }
    if (rank->user != NULL) {
        DSC_TRY(dsc_engine_load(rank->engine, good, err));
        CW_CHECK(dsc_probe_step(rank->engine) == 2);
        return DSC_OK;
    }
    DSC_TRY(cw_train(rank, 2, err));
    cw_hash(rank, trained);
    DSC_TRY(dsc_engine_load(rank->engine, good, err));
    cw_hash(rank, is);
    CW_CHECK(strcmp(trained, is) == 0);
    return DSC_OK;
}

static void a_fresh_engine_keeps_nothing_of_it(void **state)
{
    const char *const name = "optimizer.safetensors";
    size_t bytes;
    cw_copy_dir(good, victim);
    char *data = cw_read(cw_path(good, name), &bytes);
    data[bytes - 1] ^= 1;
    write_victim(name, data, bytes);
    free(data);
    for (int stage = 1; stage <= 3; stage++)
        for (int again = 0; again < 2; again++) {
            cw_options options = { .world = 2, .stage = stage, .bf16 = true, .model = &with_config };
            cw_run_well(&options, offer_to_fresh, again != 0 ? good : NULL);
        }
}

/* ---- cuts ---- */

static void cut_at(cw_rank *rank, const char *name, const char *data, int64_t bytes, int64_t at)
{
    if (at < 0 || at >= bytes)
        return;
    write_victim(name, data, (size_t)at);
    refused(rank, name, "");
}

static void cut_files(cw_rank *rank)
{
    cw_copy_dir(good, victim);
    for (size_t f = 0; f < DSC_COUNT(files); f++) {
        size_t bytes;
        char *data = cw_read(cw_path(good, files[f]), &bytes);
        const int64_t head = header_bytes(files[f], data, bytes);
        for (int64_t at = 0; at < head; at += at < 16 || at > head - 16 ? 1 : 7)
            cut_at(rank, files[f], data, (int64_t)bytes, at);
        dsc_safetensors *st = NULL;
        if (f < 2)
            CW_CHECK(dsc_safetensors_open(&st, NULL, alloc, cw_path(good, files[f]), NULL) == DSC_OK);
        for (int64_t i = 0; f < 2 && i < dsc_safetensors_count(st); i++)
            for (int64_t by = -1; by <= 1; by++)
                cut_at(rank, files[f], data, (int64_t)bytes, dsc_safetensors_at(st, i)->offset + by);
        for (int64_t by = 1; by <= 64; by *= 2)
            cut_at(rank, files[f], data, (int64_t)bytes, (int64_t)bytes - by);
        dsc_safetensors_close(&st);
        /* And longer ones: zeros, or what it ends with once more. */
        char *longer = calloc(1, bytes + 64);
        memcpy(longer, data, bytes);
        write_victim(files[f], longer, bytes + 1);
        refused(rank, files[f], "");
        memcpy(longer + bytes, data + (bytes > 64 ? bytes - 64 : 0), 64 < bytes ? 64 : bytes);
        write_victim(files[f], longer, bytes + (64 < bytes ? 64 : bytes));
        refused(rank, files[f], "");
        free(longer);
        write_victim(files[f], data, bytes);
        free(data);
    }
}

static void every_cut_is_seen(void **state) { to_an_engine(cut_files, 500); }

/* ---- files that are not there, not the right ones, or too many ---- */

static void copy_file(const char *from_dir, const char *from, const char *to)
{
    size_t bytes;
    char *data = cw_read(cw_path(from_dir, from), &bytes);
    write_victim(to, data, bytes);
    free(data);
}

static void exchange_files(cw_rank *rank)
{
    const char *const sources[] = { before, other };
    for (size_t f = 0; f < DSC_COUNT(files); f++) {
        const bool is_manifest = f == 4, is_tensors = f < 2;
        /* Files of another step and of another run: the sizes are the same, nothing but the contents tells. A config
         * is the same in all of them. */
        for (size_t s = 0; s < DSC_COUNT(sources); s++) {
            if (f == 2 || (f == 3 && s == 0))
                continue;
            cw_copy_dir(good, victim);
            copy_file(sources[s], files[f], files[f]);
            refused(rank, is_manifest ? "" : files[f], is_tensors ? "is damaged at elements" : "");
        }
        for (size_t g = 0; g < DSC_COUNT(files); g++)
            if (g != f) {
                cw_copy_dir(good, victim);
                copy_file(good, files[g], files[f]);
                refused(rank, files[f], "");
            }
        cw_copy_dir(good, victim);
        cw_remove(cw_path(victim, files[f]));
        refused(rank, is_manifest ? "" : files[f], "");
        CW_CHECK(symlink(cw_path(good, files[f]), cw_path(victim, files[f])) == 0);
        refused(rank, files[f], "is a symbolic link");
        cw_remove(cw_path(victim, files[f]));
        CW_CHECK(mkdir(cw_path(victim, files[f]), 0755) == 0);
        refused(rank, files[f], "");
        cw_remove(cw_path(victim, files[f]));
        CW_CHECK(mkfifo(cw_path(victim, files[f]), 0644) == 0);
        refused(rank, files[f], "");
    }
    /* Both tensor files of another step, of another run, and a whole other checkpoint in this one's place. */
    for (size_t s = 0; s < DSC_COUNT(sources); s++) {
        cw_copy_dir(good, victim);
        copy_file(sources[s], files[0], files[0]);
        copy_file(sources[s], files[1], files[1]);
        refused(rank, "model.safetensors", "is damaged at elements");
    }
    cw_copy_dir(before, victim);
    refused(rank, "step-2", "holds the checkpoint of step 1");
}

static void no_other_file_is_taken(void **state) { to_an_engine(exchange_files, 40); }

static void add_files(cw_rank *rank)
{
    static const char *const strangers[] = { "model-00002-of-00002.safetensors", "adapter.safetensors",
                                             "model.safetensors.index.json" };
    for (size_t i = 0; i < DSC_COUNT(strangers); i++) {
        cw_copy_dir(good, victim);
        copy_file(good, "model.safetensors", strangers[i]);
        refused(rank, strangers[i], "is not in the checkpoint's manifest");
    }
    /* A file that is not a shard may lie there. */
    cw_copy_dir(good, victim);
    write_victim("tokenizer.json", "{}", 2);
    write_victim("README.md", "best so far", 11);
    CW_CHECK(dsc_ckpt_verify(NULL, alloc, victim, NULL) == DSC_OK);
}

static void no_extra_shard_is_taken(void **state) { to_an_engine(add_files, 3); }

/* A config that this checkpoint's model did not have. */
static void no_extra_config_is_taken(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    const cw_options options = { .world = 1, .bf16 = true, .model = plain };
    cw_run_well(&options, save_steps, cw_path(dir, "c"));
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, cw_path(dir, "c/step-2"), &err), DSC_OK);
    cw_write(cw_path(dir, "c/step-2/config.json"), "{}", 2);
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, cw_path(dir, "c/step-2"), &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.where, "config.json"));
    /* Under a name of one's own a checkpoint is still one. */
    cw_copy_dir(good, cw_path(dir, "best"));
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, cw_path(dir, "best"), &err), DSC_OK);
}

int main(void)
{
    const char *given = getenv("DSC_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    fprintf(stderr, "# seed %llu; rerun: DSC_TEST_SEED=%llu\n", (unsigned long long)seed, (unsigned long long)seed);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_header_byte_counts),
        TEST(a_thousand_data_bits_count),
        TEST(a_fresh_engine_keeps_nothing_of_it),
        TEST(every_cut_is_seen),
        TEST(no_other_file_is_taken),
        TEST(no_extra_shard_is_taken),
        TEST(no_extra_config_is_taken),
    };
    return cmocka_run_group_tests_name("checkpoint_damage", tests, NULL, NULL);
}
