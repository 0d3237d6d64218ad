/* test_data.c - token ids above the vocabulary: found by the scan as far as it goes, by the reader behind it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/data/data.h"
#include "engine/data/token_writer.h"

#define SEQUENCE 10
#define TOKENS 101 /* 10 samples */
#define VOCAB 50

static char root[] = "/tmp/dsc-data-XXXXXX", paths[2][64], index_path[64];
static dsc_alloc *alloc;
static dsc_error err;

/* A uint16 file of good ids but for one; bad < 0: none. */
static void put(int which, int bad)
{
    uint16_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (uint16_t)(i == bad ? VOCAB : i % VOCAB);
    dsc_file file = DSC_FILE_INIT;
    assert_int_equal(dsc_io_open(NULL, paths[which], DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_write(NULL, &file, tokens, sizeof tokens, 0, &err), DSC_OK);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
}

static dsc_data *open_both(int64_t vocab_size)
{
    const char *const list[] = { paths[0], paths[1] };
    const dsc_data_options options = { .alloc = alloc, .paths = list, .path_count = 2, .sequence = SEQUENCE,
                                       .vocab_size = vocab_size };
    dsc_data *data = NULL;
    assert_int_equal(dsc_data_open(&options, &data, &err), DSC_OK);
    assert_int_equal(dsc_data_token_count(data), 2 * TOKENS);
    return data;
}

/* Through a buffer of 7 tokens: blocks end inside the file. */
static dsc_status scan(dsc_data *data, int64_t bytes, int64_t *left)
{
    _Alignas(uint32_t) uint16_t block[7];
    const dsc_data_buffer buffer = { block, sizeof block };
    *left = bytes;
    return dsc_data_scan(data, buffer, left, &err);
}

static void every_place_is_found(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        for (int bad = 0; bad < TOKENS; bad++) {
            int64_t left;
            char place[64];
            put(which, bad);
            put(1 - which, -1);
            dsc_data *data = open_both(VOCAB);
            assert_int_equal(scan(data, INT64_MAX, &left), DSC_ERR_INPUT);
            assert_string_equal(err.where, paths[which]);
            snprintf(place, sizeof place, "token %d at position %d is outside", VOCAB, bad);
            assert_non_null(strstr(err.message, place));
            dsc_data_close(&data);
        }
    }
}

static void the_budget_is_shared_and_the_reader_checks_the_rest(void **state)
{
    (void)state;
    const int bad = 57;
    const int64_t before = 2 * (TOKENS + bad);
    int64_t left;
    put(0, -1);
    put(1, bad);
    dsc_data *data = open_both(VOCAB);
    assert_int_equal(scan(data, 0, &left), DSC_OK);
    assert_int_equal(scan(data, before + 1, &left), DSC_OK); /* the last token is there by half */
    assert_int_equal(left, 1);
    assert_int_equal(scan(data, before + 2, &left), DSC_ERR_INPUT);
    int32_t tokens[SEQUENCE], targets[SEQUENCE];
    void *const batch[] = { tokens, targets };
    const dsc_data_source source = dsc_data_as_source(data);
    for (int64_t sample = 0; sample < source.sample_count; sample++) {
        const bool has_it = sample == 10 + bad / SEQUENCE;
        assert_int_equal(source.fill(source.user, sample, 1, batch, &err), has_it ? DSC_ERR_INPUT : DSC_OK);
    }
    assert_non_null(strstr(err.message, "position 57"));
    dsc_data_close(&data);
}

static void a_vocabulary_of_every_id_needs_no_reading(void **state)
{
    (void)state;
    int64_t left;
    put(0, -1);
    put(1, -1);
    dsc_data *data = open_both(65536);
    assert_int_equal(truncate(paths[0], 2), 0); /* would be an error of a read */
    assert_int_equal(scan(data, 1000, &left), DSC_OK);
    assert_int_equal(left, 1000);
    dsc_data_close(&data);
    put(0, -1);
    data = open_both(65535);
    assert_int_equal(truncate(paths[0], 2), 0);
    assert_int_equal(scan(data, 1000, &left), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "truncated"));
    dsc_data_close(&data);
}

/* Files of every format and width are read back at any position. */
static void written_token_files_are_read_back(void **state)
{
    (void)state;
    const int32_t ids[] = { 5, 65535, 0, 7, 100000, 3, 131071, 9 };
    const int32_t ends[] = { 3, 8 };
    for (int format = DSC_TOKEN_LLMC; format <= DSC_TOKEN_MEGATRON; format++) {
        for (int64_t vocab = 65536; vocab <= 131072; vocab *= 2) {
            const dsc_token_batch batch = { .ids = ids, .count = vocab == 65536 ? 3 : 8, .ends = ends,
                                            .end_count = vocab == 65536 ? 1 : 2 };
            dsc_token_writer writer;
            dsc_token_file file;
            int32_t back[8];
            const dsc_status status = dsc_token_writer_open(alloc, NULL, paths[0], (dsc_token_format)format, vocab,
                                                            &writer, &err);
            if (format == DSC_TOKEN_RAW && vocab > 65536) {
                assert_int_equal(status, DSC_ERR_INPUT);
                dsc_token_writer_close(&writer);
                continue;
            }
            assert_int_equal(status, DSC_OK);
            assert_int_equal(dsc_token_writer_add(&writer, &batch, &err), DSC_OK);
            assert_int_equal(dsc_token_writer_add(&writer, &batch, &err), DSC_OK);
            assert_int_equal(dsc_token_writer_commit(&writer, &err), DSC_OK);
            dsc_token_writer_close(&writer);
            assert_int_equal(dsc_token_file_open(NULL, paths[0], &file, &err), DSC_OK);
            assert_int_equal(file.token_count, 2 * batch.count);
            assert_int_equal(file.token_bytes, vocab == 65536 ? 2 : 4);
            for (int64_t first = 0; first <= batch.count; first++) {
                assert_int_equal(dsc_token_file_read(NULL, &file, first, batch.count, back, &err), DSC_OK);
                for (int64_t i = 0; i < batch.count; i++)
                    assert_int_equal(back[i], ids[(first + i) % batch.count]);
            }
            uint32_t block[3];
            int64_t left = INT64_MAX;
            const dsc_data_buffer buffer = { block, sizeof block };
            const dsc_status scanned = dsc_token_file_scan(NULL, &file, vocab - 1, buffer, &left, &err);
            assert_int_equal(scanned, DSC_ERR_INPUT); /* the largest id of each list */
            assert_non_null(strstr(err.message, vocab == 65536 ? "token 65535 at position 1 " : "position 6 "));
            dsc_token_file_close(NULL, &file);
        }
        (void)!dsc_io_unlink(NULL, index_path, NULL);
    }
}

static void a_negative_id_is_refused(void **state)
{
    (void)state;
    int32_t ids[256 + SEQUENCE + 1] = { DSC_LLMC_MAGIC_U32, DSC_LLMC_VERSION_U32, SEQUENCE + 1 };
    ids[256 + 4] = -1;
    dsc_file file = DSC_FILE_INIT;
    assert_int_equal(dsc_io_open(NULL, paths[0], DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_write(NULL, &file, ids, sizeof ids, 0, &err), DSC_OK);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    const char *const list[] = { paths[0] };
    const dsc_data_options options = { .alloc = alloc, .paths = list, .path_count = 1, .sequence = SEQUENCE,
                                       .vocab_size = 100000 };
    dsc_data *data = NULL;
    assert_int_equal(dsc_data_open(&options, &data, &err), DSC_OK);
    int32_t tokens[SEQUENCE], targets[SEQUENCE];
    void *const batch[] = { tokens, targets };
    const dsc_data_source source = dsc_data_as_source(data);
    assert_int_equal(source.fill(source.user, 0, 1, batch, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "token -1 at position 4 "));
    int64_t left;
    assert_int_equal(scan(data, INT64_MAX, &left), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "token -1 at position 4 "));
    dsc_data_close(&data);
}

/* An epoch of weights 2.5 and 0.3: file 0's samples twice, and half of them once more; three of file 1's. */
static void weights_say_how_often_a_file_comes(void **state)
{
    (void)state;
    const char *const list[] = { paths[0], paths[1] };
    const double weights[] = { 2.5, 0.3 };
    uint16_t ids[TOKENS];
    for (int which = 0; which < 2; which++) { /* the first token of a sample tells the sample */
        for (int i = 0; i < TOKENS; i++)
            ids[i] = (uint16_t)(100 * which + i / SEQUENCE);
        assert_int_equal(dsc_io_write_all_atomic(NULL, paths[which], ids, sizeof ids, &err), DSC_OK);
    }
    int last[2][20] = { { 0 } };
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            const dsc_data_options options = { .alloc = alloc, .paths = list, .path_count = 2, .sequence = SEQUENCE,
                                               .weights = weights, .vocab_size = 200, .shuffle = shuffle == 1,
                                               .seed = 7 };
            dsc_data *data = NULL;
            assert_int_equal(dsc_data_open(&options, &data, &err), DSC_OK);
            const dsc_data_source source = dsc_data_as_source(data);
            assert_int_equal(source.sample_count, 28);
            int seen[20] = { 0 };
            for (int64_t g = 0; g < 28; g++) {
                int32_t tokens[SEQUENCE], targets[SEQUENCE];
                void *const batch[] = { tokens, targets };
                assert_int_equal(source.fill(source.user, epoch * 28 + g, 1, batch, &err), DSC_OK);
                seen[tokens[0] / 100 * 10 + tokens[0] % 100]++;
            }
            int thrice = 0, second = 0;
            for (int i = 0; i < 10; i++) {
                assert_true(seen[i] == 2 || seen[i] == 3);
                assert_true(seen[10 + i] <= 1);
                thrice += seen[i] == 3;
                second += seen[10 + i];
                assert_true(shuffle == 1 || seen[i] == (i < 5 ? 3 : 2));
            }
            assert_int_equal(thrice, 5);
            assert_int_equal(second, 3);
            if (shuffle == 1 && epoch == 1) /* another epoch takes others */
                assert_int_not_equal(memcmp(seen, last[1], sizeof seen), 0);
            memcpy(last[shuffle], seen, sizeof seen);
            dsc_data_close(&data);
        }
    }
    const double too_few[] = { 1, 0.05 };
    const dsc_data_options options = { .alloc = alloc, .paths = list, .path_count = 2, .sequence = SEQUENCE,
                                       .weights = too_few, .vocab_size = 200 };
    dsc_data *data = NULL;
    assert_int_equal(dsc_data_open(&options, &data, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, paths[1]);
}

/* Places in documents that a program gives are looked at before a kernel counts on them. */
static void checks_places(void **state)
{
    static const struct { int32_t places[6]; bool good; } cases[] = {
        { { 0, 1, 2, 0, 1, 2 }, true }, { { 0, 0, 1, 0, 1, 0 }, true },   { { 0, 1, 2, 3, 4, 5 }, false },
        { { 1, 2, 3, 0, 1, 2 }, false }, { { 0, 1, 1, 0, 1, 2 }, false }, { { 0, 1, 3, 0, 1, 2 }, false },
        { { 0, 1, 2, 0, -1, 0 }, false },
    };
    static const dsc_batch_spec batch = { .name = DSC_BATCH_POSITIONS, .dtype = DSC_I32, .dim_count = 1, .dim = { 3 } };
    const dsc_model model = { .struct_bytes = sizeof model, .vocab_size = 2, .batch_count = 1, .batch = &batch };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const void *const data[1] = { cases[i].places };
        assert_int_equal(dsc_batch_check(&model, 2, data, NULL), cases[i].good ? DSC_OK : DSC_ERR_INPUT);
    }
}

/* -1 and -100 are masked targets where the loss module accepts them, and nowhere else. */
static void checks_masked_targets(void **state)
{
    static const struct {
        int32_t tokens[4], targets[4];
        bool masks;
        int64_t counted;
    } cases[] = {
        { { 0, 1, 2, 0 }, { 1, 2, 0, 1 }, true, 4 },          { { 0, 1, 2, 0 }, { -1, 2, -100, 1 }, true, 2 },
        { { 0, 1, 2, 0 }, { -1, -1, -1, -1 }, true, 0 },      { { 0, 1, 2, 0 }, { -1, 2, 0, 1 }, false, -1 },
        { { 0, -1, 2, 0 }, { 1, 2, 0, 1 }, true, -1 },        { { 0, 1, 2, 0 }, { 1, -2, 0, 1 }, true, -1 },
        { { 0, 1, 2, 0 }, { 1, INT32_MIN, 0, 1 }, true, -1 }, { { 0, 1, 2, 0 }, { 1, 3, 0, 1 }, true, -1 },
    };
    static const dsc_batch_spec batch[] = {
        { .name = "tokens", .dtype = DSC_I32, .dim_count = 1, .dim = { 2 } },
        { .name = DSC_BATCH_TARGETS, .dtype = DSC_I32, .dim_count = 1, .dim = { 2 } },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const dsc_module loss = { .flags =
                                      cases[i].masks ? DSC_MODULE_LOSS | DSC_MODULE_MASKS_TARGETS : DSC_MODULE_LOSS };
        const dsc_model model = { .struct_bytes = sizeof model,
                                  .vocab_size = 3,
                                  .batch_count = 2,
                                  .batch = batch,
                                  .module_count = 1,
                                  .modules = &loss,
                                  .losses_per_sample = 2 };
        const void *const data[2] = { cases[i].tokens, cases[i].targets };
        const bool good = cases[i].counted >= 0;
        assert_int_equal(dsc_batch_check(&model, 2, data, NULL), good ? DSC_OK : DSC_ERR_INPUT);
        if (good)
            assert_int_equal(dsc_batch_counted(&model, 4, data), cases[i].counted);
        assert_int_equal(dsc_batch_targets(&model), cases[i].masks ? 1 : -1);
    }
    const dsc_model without = { .struct_bytes = sizeof without };
    assert_int_equal(dsc_batch_counted(&without, 7, NULL), 7); /* every target counts */
}

static int open_folder(void **state)
{
    (void)state;
    if (mkdtemp(root) == NULL || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return -1;
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%d.bin", root, i);
    snprintf(index_path, sizeof index_path, "%s/0.idx", root);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    dsc_alloc_close(&alloc);
    return dsc_io_remove_dir(NULL, root, NULL) == DSC_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_place_is_found),
        cmocka_unit_test(the_budget_is_shared_and_the_reader_checks_the_rest),
        cmocka_unit_test(a_vocabulary_of_every_id_needs_no_reading),
        cmocka_unit_test(written_token_files_are_read_back),
        cmocka_unit_test(a_negative_id_is_refused),
        cmocka_unit_test(weights_say_how_often_a_file_comes),
        cmocka_unit_test(checks_places),
        cmocka_unit_test(checks_masked_targets),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
