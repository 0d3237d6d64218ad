/* test_embedding.c - vectors of texts: correlations, rows of texts as samples, and what a folder says about vectors.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "engine/data/data.h"
#include "engine/data/sft/pack.h"
#include "engine/text_evaluation.h"
#include "models/families.h"

#define T 12
#define FILE_PATH "test_embedding.tmp.jsonl"
#define FOLDER "test_embedding.tmp"

static dsc_alloc *alloc;
static dsc_error error;

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

static int open_all(void **state)
{
    (void)state;
    error = (dsc_error)DSC_ERROR_INIT;
    return dsc_alloc_open(&alloc, &error) == DSC_OK ? 0 : -1;
}

static int close_all(void **state)
{
    static const char *const files[] = { FILE_PATH, FOLDER "/1_Pooling/config.json", FOLDER "/modules.json",
                                         FOLDER "/sentence_bert_config.json", FOLDER "/config.json" };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(files); i++)
        unlink(files[i]);
    rmdir(FOLDER "/1_Pooling");
    rmdir(FOLDER);
    dsc_alloc_close(&alloc);
    return 0;
}

/* The numbers are those of scipy.stats.spearmanr and pearsonr. */
static void test_correlations_are_those_of_scipy(void **state)
{
    dsc_scored_pair pairs[] = { { 1, 0.5 }, { 2, 0.1 }, { 2, 0.9 }, { 3, 0.9 }, { 5, 0.7 }, { 0, -0.2 } };
    dsc_scored_pair ranks[6];
    (void)state;
    assert_true(fabs(dsc_pearson(pairs, 6) - 0.6248781105026973) < 1e-12);
    assert_true(fabs(dsc_spearman(pairs, ranks, 6) - 0.6617647058823529) < 1e-12);
}

static void test_numbers_that_do_not_vary_have_no_correlation(void **state)
{
    dsc_scored_pair pairs[] = { { 1, 0.5 }, { 1, 0.1 } };
    dsc_scored_pair ranks[2];
    (void)state;
    assert_true(isnan(dsc_pearson(pairs, 2)));
    assert_true(isnan(dsc_spearman(pairs, ranks, 2)));
    assert_true(isnan(dsc_spearman(pairs, ranks, 1)));
}

/* A triplet whose positive is first, one whose negative is nearer, an anchor alone, and a scored pair. */
static void test_rows_of_an_evaluation_are_counted_by_kind(void **state)
{
    const double losses[] = { 0.5, 0.9, 0.1, -2, 0.2, 0.3, 0, 0, 0.6 };
    const double targets[] = { 0, NAN, 1, NAN, 2, NAN, 0, NAN, 1, NAN, 2, NAN, 0, NAN, 0, 0.5, 1, 0.5 };
    dsc_scored_pair pairs[2];
    dsc_text_evaluation e = { .pair = &pairs[0], .ranks = &pairs[1], .room = 1 };
    (void)state;
    assert_int_equal(dsc_text_evaluation_add(&e, DSC_LABELS_RANKED, 20, losses, targets, 9, &error), DSC_OK);
    assert_int_equal(dsc_text_evaluation_finish(&e, &error), DSC_OK);
    assert_int_equal(e.rows, 2);
    assert_int_equal(e.first, 1);
    assert_int_equal(e.triplets, 2);
    assert_int_equal(e.right, 1);
    assert_int_equal(e.pairs, 1);
    assert_true(fabs(e.loss - (0.5 + 2 + 0.01) / 3) < 1e-12);
    assert_int_equal(dsc_text_evaluation_add(&e, DSC_LABELS_RANKED, 20, losses + 7, targets + 14, 2, &error),
                     DSC_ERR_STATE);
}

/* ---- Samples ---- */

static uint32_t sample[8][T + 2];
static int64_t sample_count;

static dsc_status take(void *user, const uint32_t *words, dsc_error *err)
{
    (void)user;
    (void)err;
    assert_true(sample_count < 8);
    memcpy(sample[sample_count++], words, sizeof sample[0]);
    return DSC_OK;
}

static dsc_status pack_texts(const int32_t *lengths, int64_t texts, float score, dsc_sft_pack *pack)
{
    int32_t ids[64], counted[64] = { 0 };
    dsc_sft_example example = { .ids = ids, .counted = counted, .line = 7, .texts = texts, .label_words = texts + 1 };
    for (int64_t i = 0; i < texts; i++)
        for (int32_t k = 0; k < lengths[i]; k++)
            ids[example.count++] = 10 * (int32_t)i + k;
    memcpy(ids + example.count, lengths, (size_t)texts * sizeof *lengths);
    memcpy(ids + example.count + texts, &score, sizeof score);
    return dsc_sft_pack_add(pack, &example, &error);
}

static float number_of(uint32_t word)
{
    float out;
    memcpy(&out, &word, sizeof out);
    return out;
}

static void test_each_text_of_a_row_is_a_sample(void **state)
{
    const dsc_sft_pack_options options = { .alloc = alloc, .sequence = T, .label_words = 2, .take = take };
    const int32_t lengths[] = { 3, T, 1 };
    dsc_sft_pack *pack = NULL;
    (void)state;
    sample_count = 0;
    assert_int_equal(dsc_sft_pack_open(&options, &pack, &error), DSC_OK);
    assert_int_equal(pack_texts(lengths, 3, 0.25f, pack), DSC_OK);
    assert_int_equal(sample_count, 3);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(sample[i][0], DSC_SAMPLE_BEGINS | (uint32_t)(10 * i));
        if (lengths[i] < T)
            assert_int_equal(sample[i][lengths[i]], DSC_SAMPLE_BEGINS);
        assert_true(number_of(sample[i][T]) == (float)i);
        assert_true(number_of(sample[i][T + 1]) == 0.25f);
    }
    assert_int_equal(dsc_sft_pack_summary(pack)->texts, 3);
    assert_int_equal(dsc_sft_pack_summary(pack)->examples, 1);
    assert_int_equal(pack_texts(lengths, 2, 0.25f, pack), DSC_ERR_INPUT);
    assert_non_null(strstr(error.message, "line 7 has 2 texts"));
    dsc_sft_pack_close(&pack);
}

/* A file of rows for another loss has scores that are not numbers, or rows of more texts. */
static void test_losses_of_scores_refuse_batches_without_them(void **state)
{
    static const struct {
        float targets[8];
        bool ranked, scored;
    } cases[] = {
        { { 0, 0.5f, 1, 0.5f, 0, 0.1f, 1, 0.1f }, true, true },
        { { 0, 0.5f, 0, 0.5f, 0, 0.5f, 0, 0.5f }, true, true },
        { { 0, NAN, 1, NAN, 0, NAN, 1, NAN }, true, false },
        { { 0, 0.5f, 1, 0.5f, 2, 0.5f, 0, 0.1f }, true, false },
        { { 1, 0.5f, 0, 0.5f, 1, 0.5f, 0, 0.1f }, false, false },
    };
    static const dsc_label_kind kinds[] = { DSC_LABELS_RANKED, DSC_LABELS_COSINE, DSC_LABELS_ORDER };
    static const int32_t tokens[4] = { 0, 1, 1, 0 };
    static const dsc_batch_spec batch[] = {
        { .name = "tokens", .dtype = DSC_I32, .dim_count = 1, .dim = { 1 } },
        { .name = DSC_BATCH_TARGETS, .dtype = DSC_F32, .dim_count = 1, .dim = { 2 } },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        for (size_t k = 0; k < DSC_COUNT(kinds); k++) {
            const dsc_model model = { .struct_bytes = sizeof model,
                                      .vocab_size = 2,
                                      .batch_count = 2,
                                      .batch = batch,
                                      .labels = { .kind = kinds[k], .count = 32 } };
            const void *const data[2] = { tokens, cases[i].targets };
            const bool good = k == 0 ? cases[i].ranked : cases[i].scored;
            assert_int_equal(dsc_batch_check(&model, 4, data, NULL), good ? DSC_OK : DSC_ERR_INPUT);
        }
}

/* ---- Folders ---- */

#define BERT                                                                                                           \
    "{\"model_type\": \"bert\", \"vocab_size\": 30, \"hidden_size\": 32, \"num_hidden_layers\": 1, "                   \
    "\"num_attention_heads\": 2, \"intermediate_size\": 48, \"max_position_embeddings\": 40%s}"
#define MODULES(rest)                                                                                                  \
    "[{\"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"}, {\"path\": \"1_Pooling\", \"type\": "  \
    "\"sentence_transformers.models.Pooling\"}" rest "]"

/* Opens the folder as a model of vectors; *text <- its config.json, to be freed. */
static dsc_status open_folder(const char *modules, const char *pooling, const char *more, char **text)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_model *model = NULL;
    char config[1000];
    snprintf(config, sizeof config, BERT, more);
    (void)mkdir(FOLDER, 0777);
    (void)mkdir(FOLDER "/1_Pooling", 0777);
    write_file(FOLDER "/config.json", config);
    unlink(FOLDER "/modules.json");
    if (modules != NULL)
        write_file(FOLDER "/modules.json", modules);
    write_file(FOLDER "/1_Pooling/config.json", pooling);
    options.labels.wanted = true;
    options.labels.kind = DSC_LABELS_RANKED;
    error = (dsc_error)DSC_ERROR_INIT;
    const dsc_status status = dsc_model_open(&model, FOLDER, &options, &error);
    *text = NULL;
    if (status != DSC_OK)
        return status;
    assert_int_equal(dsc_model_check(model, &error), DSC_OK);
    assert_int_equal(model->labels.count, 32);
    assert_int_equal(model->batch[1].dim[0], 2);
    *text = strdup(model->config_json);
    dsc_model_close(&model);
    return DSC_OK;
}

static void check_says(const char *modules, const char *pooling, const char *more, const char *how, bool unit)
{
    char *text = NULL, wanted[100];
    assert_int_equal(open_folder(modules, pooling, more, &text), DSC_OK);
    snprintf(wanted, sizeof wanted, "\"%s\"", how);
    const char *member = strstr(text, "\"sentence_transformers\"");
    assert_non_null(member);
    assert_non_null(strstr(member, wanted));
    assert_int_equal(strstr(member, "true") != NULL, unit);
    assert_non_null(strstr(text, "\"BertModel\""));
    free(text);
}

static void test_a_folder_says_how_vectors_are_made(void **state)
{
    (void)state;
    check_says(NULL, "{}", "", "mean", false);
    check_says(MODULES(""), "{\"pooling_mode\": \"cls\"}", "", "cls", false);
    check_says(MODULES(", {\"path\": \"2_Normalize\", \"type\": \"sentence_transformers.models.Normalize\"}"),
               "{\"pooling_mode_mean_tokens\": false, \"pooling_mode_lasttoken\": true}", "", "lasttoken", true);
    check_says(NULL, "{}", ", \"sentence_transformers\": {\"pooling\": \"cls\", \"normalize\": true}", "cls", true);
}

static void check_refused(const char *modules, const char *pooling, const char *more, const char *wanted)
{
    char *text = NULL;
    assert_int_not_equal(open_folder(modules, pooling, more, &text), DSC_OK);
    if (strstr(error.message, wanted) == NULL)
        fail_msg("%s: %s", error.where, error.message);
}

static void test_other_modules_are_refused_by_name(void **state)
{
    (void)state;
    check_refused(MODULES(", {\"path\": \"2\", \"type\": \"a.b.Dense\"}"), "{\"pooling_mode\": \"cls\"}", "",
                  "\"Dense\"");
    check_refused(MODULES(""), "{\"pooling_mode_max_tokens\": true}", "", "pooling_mode_max_tokens");
    check_refused(MODULES(""), "{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": true}", "",
                  "two pooling modes");
    check_refused(MODULES(""), "{}", "", "names no pooling mode");
    check_refused(MODULES(""), "{\"pooling_mode\": \"mean\", \"include_prompt\": false}", "", "include_prompt");
    check_refused("[{\"path\": \"\", \"type\": \"Transformer\"}, {\"path\": \"../x\", \"type\": \"Pooling\"}]", "{}",
                  "", "../x");
    check_refused("[{\"path\": \"0_Transformer\", \"type\": \"Transformer\"}]", "{}", "", "0_Transformer");
    check_refused("[]", "{}", "", "has no pooling");
    check_refused("{}", "{}", "", "is not a list; expected a list of modules");
    check_refused(NULL, "{}", ", \"sentence_transformers\": {\"pooling\": 3}", "must have \"pooling\"");
}

static void test_settings_of_another_type_are_refused(void **state)
{
    static const char *const lengths[][2] = { { "{\"max_seq_length\": \"abc\"}", "\"max_seq_length\" must be" },
                                              { "{\"do_lower_case\": 1}", "\"do_lower_case\" must be true or false" },
                                              { "[1]", "is not an object" } };
    (void)state;
    check_says(MODULES(""), "{\"pooling_mode\": \"cls\", \"word_embedding_dimension\": 32}", "", "cls", false);
    check_refused(MODULES(""), "{\"pooling_mode\": [\"mean\"]}", "", "\"pooling_mode\" is not one text");
    check_refused(MODULES(""), "{\"pooling_mode_mean_tokens\": 1}", "", "must be true or false");
    check_refused(MODULES(""), "{\"pooling_mode\": \"mean\", \"include_prompt\": 0}", "", "must be true or false");
    check_refused(MODULES(""), "{\"pooling_mode\": \"mean\", \"word_embedding_dimension\": 33}", "", "must be 32");
    check_refused(MODULES(""), "[\"mean\"]", "", "is not an object; expected the settings of a pooling");
    check_refused("[{\"path\": 3, \"type\": \"Transformer\"}]", "{}", "", "\"path\" of module 0");
    check_refused(NULL, "{}", ", \"sentence_transformers\": {\"pooling\": \"cls\", \"normalize\": 1}", "\"normalize\"");
    for (size_t i = 0; i < DSC_COUNT(lengths); i++) {
        write_file(FOLDER "/sentence_bert_config.json", lengths[i][0]);
        check_refused(NULL, "{}", "", lengths[i][1]);
    }
    unlink(FOLDER "/sentence_bert_config.json");
}

/* The folder's own files are not left out because they cannot be read. */
static void test_files_of_a_folder_that_are_none_are_refused(void **state)
{
    char *text = NULL;
    (void)state;
    assert_int_equal(open_folder(NULL, "{}", "", &text), DSC_OK);
    free(text);
    assert_int_equal(symlink("nothing", FOLDER "/sentence_bert_config.json"), 0);
    check_refused(NULL, "{}", "", "");
    assert_non_null(strstr(error.where, "sentence_bert_config.json"));
    assert_int_equal(unlink(FOLDER "/sentence_bert_config.json"), 0);
    assert_int_equal(mkfifo(FOLDER "/sentence_bert_config.json", 0600), 0);
    check_refused(NULL, "{}", "", "");
    assert_int_equal(unlink(FOLDER "/sentence_bert_config.json"), 0);
    assert_int_equal(mkdir(FOLDER "/sentence_bert_config.json", 0700), 0);
    check_refused(NULL, "{}", "", "");
    assert_int_equal(rmdir(FOLDER "/sentence_bert_config.json"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_correlations_are_those_of_scipy),
        cmocka_unit_test(test_numbers_that_do_not_vary_have_no_correlation),
        cmocka_unit_test(test_rows_of_an_evaluation_are_counted_by_kind),
        cmocka_unit_test(test_each_text_of_a_row_is_a_sample),
        cmocka_unit_test(test_losses_of_scores_refuse_batches_without_them),
        cmocka_unit_test(test_a_folder_says_how_vectors_are_made),
        cmocka_unit_test(test_other_modules_are_refused_by_name),
        cmocka_unit_test(test_settings_of_another_type_are_refused),
        cmocka_unit_test(test_files_of_a_folder_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
