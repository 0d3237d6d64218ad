/* test_checkpoint_read_ahead.c - blocks that are long enough for the way past the page cache. Loads by one thread and
 * by several: the saved states; a flipped bit refused, the tensor named; every failure of an asynchronous read told
 * or gone on from. Saves by buffers of any size: the same files.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/formats/safetensors.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/io_fault.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

#define THREADS 4

static char *dir;
static dsc_model *model;
static char saved[2][65]; /* [bf16] */
static const char *const files[] = { "model.safetensors", "optimizer.safetensors" };

typedef struct job {
    const char *load;
    int32_t threads;
    io_fault fault;
    char before[65], after[65];
} job;

static dsc_status save(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(cw_train(rank, 1, err));
    cw_hash(rank, saved[rank->options->bf16]);
    return dsc_engine_save(rank->engine, rank->user, err);
}

static int64_t buffer_bytes; /* of save_by */

static dsc_status save_by(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(dsc_probe_resize_io_buffer(rank->engine, buffer_bytes, err));
    return save(rank, err);
}

/* With as many threads, and the memory of a large model, so that each gets some. */
static dsc_status load(cw_rank *rank, dsc_error *err)
{
    job *j = rank->user;
    dsc_engine *engine = rank->engine;
    const dsc_aio_hook hook = io_fault_hook(&j->fault);
    dsc_probe_set_threads(engine, j->threads);
    if (j->threads > 1)
        DSC_TRY(dsc_probe_resize_io_buffer(engine, DSC_CKPT_BUFFER_BYTES_MOST, err));
    dsc_probe_set_block_hook(engine, &hook);
    cw_hash(rank, j->before);
    const dsc_status status = dsc_engine_load(engine, j->load, err);
    dsc_probe_set_block_hook(engine, NULL);
    cw_hash(rank, j->after);
    return status;
}

static dsc_status run(int32_t world, bool bf16, job *j, dsc_error *err)
{
    const cw_options options = { .world = world, .batch = 2, .stage = 2, .bf16 = bf16, .model = model, .seed = 9 };
    cw_rank ranks[CW_RANKS_MAX];
    cw_run(&options, load, j, ranks);
    *err = ranks[0].error;
    return ranks[0].status;
}

static int setup(void **state)
{
    dir = cw_tmp_open(); /* no memory: a disk that has O_DIRECT, where there is one */
    model = toy_model_open(3, 600, 2, true);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const cw_options options = { .world = 1, .batch = 2, .stage = 1, .bf16 = bf16 != 0, .model = model };
        cw_run_well(&options, save, cw_path(dir, bf16 != 0 ? "bf16" : "fp32"));
    }
    return 0;
}

static int teardown(void **state)
{
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

static void any_number_of_threads_loads_the_states(void **state)
{
    for (int32_t threads = 1; threads <= THREADS; threads++)
        for (int32_t world = 1; world <= 2; world++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                job j = { .load = cw_path(dir, bf16 != 0 ? "bf16" : "fp32"), .threads = threads };
                dsc_error err = DSC_ERROR_INIT;
                if (run(world, bf16 != 0, &j, &err) != DSC_OK)
                    fail_msg("%d threads: %s: %s", (int)threads, err.where, err.message);
                assert_string_equal(j.after, saved[bf16]);
                assert_string_not_equal(j.before, saved[bf16]);
                assert_true(j.fault.count >= 4); /* blocks did go that way */
            }
}

/* Three portions to eleven, of which the first are filled again. */
static void a_buffer_of_any_size_saves_the_same_files(void **state)
{
    static const int64_t sizes[] = { DSC_CKPT_BUFFER_BYTES, 9 << 20, DSC_CKPT_BUFFER_BYTES_MOST };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const cw_options options = { .world = 1, .batch = 2, .stage = 1, .bf16 = bf16 != 0, .model = model };
            char *folder = cw_path(dir, bf16 != 0 ? "again-bf16" : "again-fp32");
            buffer_bytes = sizes[i];
            cw_run_well(&options, save_by, folder);
            for (size_t f = 0; f < DSC_COUNT(files); f++) {
                size_t bytes, expected_bytes;
                char *data = cw_read(cw_path(cw_path(folder, "step-1"), files[f]), &bytes);
                char *expected = cw_read(cw_path(cw_path(dir, bf16 != 0 ? "bf16/step-1" : "fp32/step-1"), files[f]),
                                         &expected_bytes);
                assert_int_equal(bytes, expected_bytes);
                assert_memory_equal(data, expected, bytes);
                free(expected);
                free(data);
            }
            cw_remove(folder);
        }
}

/* In each third of both files, the last block's end too. */
static void a_flipped_bit_is_found_by_any_thread(void **state)
{
    for (size_t f = 0; f < DSC_COUNT(files); f++) {
        size_t bytes;
        const char *path = cw_path(cw_path(dir, "fp32/step-1"), files[f]);
        char *data = cw_read(path, &bytes);
        for (size_t third = 0; third < 3; third++) {
            const size_t at = bytes - 5 - third * (bytes / 3);
            job j = { .load = cw_path(dir, "fp32"), .threads = third == 1 ? 1 : THREADS };
            dsc_error err = DSC_ERROR_INIT;
            data[at] ^= 4;
            cw_write(path, data, bytes);
            if (run(1, false, &j, &err) != DSC_ERR_INPUT)
                fail_msg("%s: byte %zu of %zu, %d threads: taken", files[f], at, bytes, (int)j.threads);
            assert_non_null(strstr(err.message, "is damaged at elements"));
            assert_non_null(strstr(err.where, files[f]));
            assert_string_equal(j.before, j.after);
            data[at] ^= 4;
        }
        cw_write(path, data, bytes);
        free(data);
    }
}

static void every_failure_of_a_read(void **state)
{
    for (int kind = 0; kind < IO_FAULT_NEVER; kind++)
        for (int32_t threads = 1; threads <= THREADS; threads += THREADS - 1) {
            job j = { .load = cw_path(dir, "fp32"), .threads = threads,
                      .fault = { .at = 1 + kind, .kind = (io_fault_kind)kind } };
            dsc_error err = DSC_ERROR_INIT;
            const dsc_status expected = io_fault_status((io_fault_kind)kind), status = run(1, false, &j, &err);
            if (status != expected)
                fail_msg("%s, %d threads: status %d, %s: %s", io_fault_text((io_fault_kind)kind), (int)threads,
                         (int)status, err.where, err.message);
            assert_true(j.fault.fired);
            assert_string_equal(j.after, status == DSC_OK ? saved[0] : j.before);
            if (status != DSC_OK)
                assert_non_null(strstr(err.message, io_fault_message((io_fault_kind)kind)));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_loads_the_states),
        cmocka_unit_test(a_buffer_of_any_size_saves_the_same_files),
        cmocka_unit_test(a_flipped_bit_is_found_by_any_thread),
        cmocka_unit_test(every_failure_of_a_read),
    };
    return cmocka_run_group_tests_name("checkpoint_read_ahead", tests, setup, teardown);
}
