/* test_labels.c - texts with labels: where two texts are cut, samples of rows, and what a folder says about labels.
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

#include "base/io.h"
#include "engine/data/data_text.h"
#include "engine/data/sft/pack.h"
#include "engine/text/pair.h"
#include "models/families.h"

#define T 12
#define FILE_PATH "test_labels.tmp.jsonl"
#define CONFIG_PATH "test_labels.tmp.json"

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
    (void)state;
    unlink(FILE_PATH);
    unlink(CONFIG_PATH);
    dsc_alloc_close(&alloc);
    return 0;
}

/* The numbers are those of the tokenizers package's "longest_first". */
static void test_two_texts_are_cut_as_by_the_package(void **state)
{
    static const int64_t cases[][5] = { { 10, 4, 5, 4, 5 },   { 10, 8, 9, 5, 5 },  { 11, 8, 9, 5, 6 },
                                        { 11, 9, 8, 6, 5 },   { 10, 3, 20, 3, 7 }, { 10, 20, 3, 7, 3 },
                                        { 10, 20, 0, 10, 0 }, { 10, 5, 5, 5, 5 } };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        int64_t first = cases[i][1], second = cases[i][2];
        dsc_pair_cut(cases[i][0], &first, &second);
        assert_int_equal(first, cases[i][3]);
        assert_int_equal(second, cases[i][4]);
    }
}

typedef struct taken {
    uint32_t words[8][2 * T];
    int64_t count, label_words;
} taken;

static dsc_status take(void *user, const uint32_t *words, dsc_error *err)
{
    taken *t = user;
    (void)err;
    assert_true(t->count < 8);
    memcpy(t->words[t->count++], words, (size_t)(T + t->label_words) * sizeof *words);
    return DSC_OK;
}

static const char *const words[] = { "bad", "good", "fine" };
static const char *names[] = { "bad", "good", "fine" };
static int64_t word_labels; /* T: the words of rows have labels */

/* The samples of the file, whose tokenizer is BERT's. */
static dsc_status read_rows(const char *rows, dsc_label_kind kind, int64_t count, int32_t threads, taken *t,
                            dsc_sample_summary *summary)
{
    dsc_tokenizer *tokenizer = NULL;
    const dsc_sft_section section = { .labels = {
                                          .kind = kind, .count = count, .names = names, .tokens = word_labels } };
    dsc_sft_options data = { .alloc = alloc,
                             .path = FILE_PATH,
                             .tokenizer_path = "tests/golden/tokenizer_bert.json",
                             .section = &section,
                             .threads = threads,
                             .sequence = T };
    const dsc_sft_pack_options pack = {
        .alloc = alloc, .sequence = T, .label_words = dsc_label_words(&section.labels), .take = take, .user = t
    };
    memset(t, 0, sizeof *t);
    t->label_words = pack.label_words;
    write_file(FILE_PATH, rows);
    assert_int_equal(dsc_tokenizer_open(&tokenizer, data.tokenizer_path, &error), DSC_OK);
    data.tokenizer = tokenizer;
    const dsc_status status = dsc_sft_pack_file(&data, &pack, summary, &error);
    dsc_tokenizer_close(&tokenizer);
    return status;
}

static void test_samples_have_texts_types_and_labels(void **state)
{
    const char *const rows = "{\"text\": \"the\", \"label\": \"good\"}\n"
                             "{\"sentence1\": \"the\", \"sentence2\": \"the the\", \"label\": 2}\n"
                             "{\"text\": \"the the the the the the the the the the the the\", \"label\": \"0\"}\n";
    taken one, four;
    dsc_sample_summary summary;
    int32_t tokens[T], places[T], segments[T];
    (void)state;
    assert_int_equal(read_rows(rows, DSC_LABELS_CLASS, 3, 1, &one, &summary), DSC_OK);
    assert_int_equal(read_rows(rows, DSC_LABELS_CLASS, 3, 4, &four, &summary), DSC_OK);
    assert_memory_equal(&one, &four, sizeof one);
    assert_int_equal(one.count, 3);
    assert_int_equal(summary.truncated, 1);
    assert_int_equal(summary.label_words, 1);
    assert_string_equal(summary.description, "format labels: text, label");
    assert_int_equal(one.words[0][T], 1);
    assert_int_equal(one.words[1][T], 2);
    assert_int_equal(one.words[2][T], 0);
    /* The tokenizers package's ids: [CLS] 2, [SEP] 3. */
    static const int32_t single[] = { 2, 347, 3 }, pair[] = { 2, 347, 3, 347, 347, 3 };
    assert_int_equal(dsc_sample_unpack_text(one.words[0], T, tokens, places, segments), 2);
    assert_memory_equal(tokens, single, sizeof single);
    for (int32_t i = 0; i < T; i++)
        assert_int_equal(places[i], i < 3 ? i : i - 3);
    assert_int_equal(dsc_sample_unpack_text(one.words[1], T, tokens, places, segments), 5);
    assert_memory_equal(tokens, pair, sizeof pair);
    for (int32_t i = 0; i < 6; i++)
        assert_int_equal(segments[i], i > 2);
    assert_int_equal(dsc_sample_unpack_text(one.words[2], T, tokens, places, NULL), T - 1);
    assert_int_equal(tokens[T - 1], 3);
}

static void test_numbers_and_sets(void **state)
{
    taken t;
    dsc_sample_summary summary;
    float numbers[3];
    (void)state;
    assert_int_equal(read_rows("{\"text\": \"the\", \"score\": -0.5}", DSC_LABELS_NUMBERS, 1, 1, &t, &summary), DSC_OK);
    memcpy(numbers, &t.words[0][T], sizeof *numbers);
    assert_true(numbers[0] == -0.5f);
    assert_int_equal(
        read_rows("{\"text\": \"the\", \"labels\": [\"fine\", \"bad\"]}\n{\"text\": \"a\", \"label\": [0, 1, 0.5]}",
                  DSC_LABELS_SET, 3, 1, &t, &summary),
        DSC_OK);
    memcpy(numbers, &t.words[0][T], sizeof numbers);
    assert_true(numbers[0] == 1 && numbers[1] == 0 && numbers[2] == 1);
    memcpy(numbers, &t.words[1][T], sizeof numbers);
    assert_true(numbers[0] == 0 && numbers[1] == 1 && numbers[2] == 0.5f);
}

static void test_words_with_labels(void **state)
{
    static const struct {
        const char *row, *message;
    } cases[] = {
        { "{\"tokens\": [\"the\"], \"ner_tags\": [0, 1]}", "as many labels as words" },
        { "{\"tokens\": [\"the\", \"a\"], \"ner_tags\": [0]}", "as many labels as words" },
        { "{\"tokens\": [7], \"ner_tags\": [0]}", "words that are texts" },
        { "{\"tokens\": [\"the\"], \"ner_tags\": [3]}", "\"ner_tags\" is 3; expected one of 3 classes" },
        { "{\"tokens\": [\"the\"], \"ner_tags\": 1}", "a list with the label of each word" },
        { "{\"tokens\": [\"the\"]}", "\"ner_tags\" is missing" },
        { "{\"tokens\": \"the\", \"ner_tags\": [1]}", "\"tokens\" is of another type; expected a list of words" },
    };
    static const int32_t labels[T] = { -1, 1, -1, 2, -1, -1, -1, -1, -1, -1, -1, -1 };
    taken t;
    dsc_sample_summary summary;
    (void)state;
    word_labels = T;
    assert_int_equal(read_rows("{\"tokens\": [\"the\", \"the\", \"the\"], \"ner_tags\": [\"good\", -100, 2]}",
                               DSC_LABELS_CLASS, 3, 1, &t, &summary),
                     DSC_OK);
    assert_string_equal(summary.description, "format labels: tokens, ner_tags");
    assert_memory_equal(&t.words[0][T], labels, sizeof labels);
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        assert_int_equal(read_rows(cases[i].row, DSC_LABELS_CLASS, 3, 1, &t, &summary), DSC_ERR_INPUT);
        assert_non_null(strstr(error.message, cases[i].message));
    }
    word_labels = 0;
}

static void test_rows_that_are_refused(void **state)
{
    static const struct {
        const char *row, *message;
        dsc_label_kind kind;
    } cases[] = {
        { "{\"text\": \"a\", \"label\": 3}", "\"label\" is 3; expected one of 3 classes", DSC_LABELS_CLASS },
        { "{\"text\": \"a\", \"label\": -100}", "\"label\" is -100", DSC_LABELS_CLASS },
        { "{\"text\": \"a\", \"label\": \"worse\"}", "\"label\" is \"worse\"", DSC_LABELS_CLASS },
        { "{\"text\": \"a\", \"label\": [1]}", "\"label\" is of another type", DSC_LABELS_CLASS },
        { "{\"text\": \"a\"}", "\"label\" is missing", DSC_LABELS_CLASS },
        { "{\"label\": 1}", "\"text\" is missing; expected a text", DSC_LABELS_CLASS },
        { "{\"text\": \"a\", \"label\": [1, 2]}", "a list of 3 numbers", DSC_LABELS_NUMBERS },
        { "{\"text\": \"a\", \"label\": [1, 2, 1e60]}", "numbers from -1e15 to 1e15", DSC_LABELS_NUMBERS },
        { "{\"text\": \"a\", \"label\": [1, 1e20, 2]}", "numbers from -1e15 to 1e15", DSC_LABELS_NUMBERS },
        { "{\"text\": \"a\", \"label\": [0, 2, 0]}", "a list of 3 numbers from 0 to 1", DSC_LABELS_SET },
        { "{\"text\": \"a\", \"label\": [\"bad\", 1]}", "a list of names of classes", DSC_LABELS_SET },
    };
    taken t;
    dsc_sample_summary summary;
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        assert_int_equal(read_rows(cases[i].row, cases[i].kind, 3, 1, &t, &summary), DSC_ERR_INPUT);
        assert_non_null(strstr(error.message, cases[i].message));
        assert_string_equal(error.where, FILE_PATH ", line 1");
    }
}

/* A CSV file has only texts, and JSON has numbers too: a cell never is another class than the same number in JSON. */
static void test_names_that_are_numbers_have_one_meaning(void **state)
{
    static const char *const stars[] = { "1", "2", "3" }, *const own[] = { "0", "1", "2" };
    taken t;
    dsc_sample_summary summary;
    (void)state;
    memcpy(names, stars, sizeof stars);
    assert_int_equal(read_rows("{\"text\": \"a\", \"label\": \"1\"}", DSC_LABELS_CLASS, 3, 1, &t, &summary), DSC_OK);
    assert_int_equal(t.words[0][T], 0);
    for (int number = 1; number <= 3; number++) {
        char row[60], expected[80];
        snprintf(row, sizeof row, "{\"text\": \"a\", \"label\": %d}", number);
        snprintf(expected, sizeof expected, "is the number %d, which is also the name of class %d", number, number - 1);
        assert_int_equal(read_rows(row, DSC_LABELS_CLASS, 3, 1, &t, &summary), DSC_ERR_INPUT);
        assert_non_null(strstr(error.message, expected));
        assert_string_equal(error.where, FILE_PATH ", line 1");
    }
    memcpy(names, own, sizeof own);
    assert_int_equal(read_rows("{\"text\": \"a\", \"label\": \"2\"}\n{\"text\": \"a\", \"label\": 2}", DSC_LABELS_CLASS,
                               3, 1, &t, &summary),
                     DSC_OK);
    assert_int_equal(t.words[0][T], 2);
    assert_int_equal(t.words[1][T], 2);
    memcpy(names, words, sizeof words);
}

/* The path of the samples that are kept for rows with labels. */
static void kept_path(const dsc_sft_section *section, const char *folder, char out[512])
{
    dsc_data_text_shared shared = { 0 };
    const dsc_data_text text = { .shared = &shared,
                                 .tokenizer = "tests/golden/tokenizer_bert.json",
                                 .field = "text",
                                 .folder = folder,
                                 .threads = 1,
                                 .examples = section,
                                 .sequence = T };
    assert_int_equal(dsc_data_text_tokens(&text, FILE_PATH, out, 512, &error), DSC_OK);
    dsc_data_text_shared_close(&shared);
}

/* Samples hold numbers of classes: other names, kinds and columns need samples of their own. */
static void test_kept_samples_are_of_the_labels(void **state)
{
    static const char *const turned[] = { "good", "bad", "fine" };
    char path[6][512], folder[] = "/tmp/dsc_labels_XXXXXX", command[64];
    dsc_sft_section section[6];
    (void)state;
    assert_non_null(mkdtemp(folder));
    write_file(FILE_PATH, "{\"text\": \"the\", \"other\": \"a\", \"label\": \"good\", \"labels\": \"bad\"}\n");
    for (int i = 0; i < 6; i++)
        section[i] = (dsc_sft_section) { .labels = { .kind = DSC_LABELS_CLASS, .count = 3, .names = names } };
    section[1].labels.names = turned;
    section[2].labels.count = 2;
    snprintf(section[3].column[DSC_SFT_COLUMN_LABEL], sizeof section[3].column[0], "labels");
    snprintf(section[4].column[DSC_SFT_COLUMN_TEXT_PAIR], sizeof section[4].column[0], "other");
    for (int i = 0; i < 6; i++)
        kept_path(&section[i], folder, path[i]);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    assert_string_equal(path[5], path[0]);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(path[i], path[k]);
}

#define BERT                                                                                                           \
    "{\"model_type\": \"bert\", \"vocab_size\": 40, \"hidden_size\": 8, \"num_hidden_layers\": 1, "                    \
    "\"num_attention_heads\": 2, \"intermediate_size\": 8, \"max_position_embeddings\": 16"

static dsc_status open_folder(const char *more, const struct dsc_label_options *labels, dsc_model **out)
{
    char text[600];
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    snprintf(text, sizeof text, BERT "%s}", more);
    write_file(CONFIG_PATH, text);
    options.labels = *labels;
    return dsc_model_open(out, CONFIG_PATH, &options, &error);
}

static void test_labels_of_config_files(void **state)
{
    static const struct {
        const char *more;
        struct dsc_label_options asked;
        dsc_label_kind kind;
        int64_t count;
        const char *name;
    } cases[] = {
        { "", { .wanted = false, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL }, DSC_LABELS_NONE, 0, NULL },
        { ", \"architectures\": [\"BertForSequenceClassification\"]",
          { .wanted = false, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL },
          DSC_LABELS_CLASS,
          2,
          "LABEL_1" },
        { ", \"architectures\": [\"BertForSequenceClassification\"], \"id2label\": {\"0\": \"score\"}",
          { .wanted = false, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL },
          DSC_LABELS_NUMBERS,
          1,
          "score" },
        { ", \"id2label\": {\"0\": \"a\", \"1\": \"b\"}, \"problem_type\": \"multi_label_classification\"",
          { .wanted = true, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL },
          DSC_LABELS_SET,
          2,
          "b" },
        { ", \"id2label\": {\"0\": \"a\", \"1\": \"b\"}",
          { .wanted = true, .kind = DSC_LABELS_CLASS, .count = 3, .names = names },
          DSC_LABELS_CLASS,
          3,
          "fine" },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_model *model = NULL;
        assert_int_equal(open_folder(cases[i].more, &cases[i].asked, &model), DSC_OK);
        assert_int_equal(dsc_model_check(model, &error), DSC_OK);
        assert_int_equal(model->labels.kind, cases[i].kind);
        assert_int_equal(model->labels.count, cases[i].count);
        assert_int_equal(model->losses_per_sample == 1, cases[i].kind != DSC_LABELS_NONE);
        if (cases[i].name != NULL)
            assert_string_equal(model->labels.names[cases[i].count - 1], cases[i].name);
        if (cases[i].name != NULL)
            assert_non_null(strstr(model->config_json, "BertForSequenceClassification"));
        dsc_model_close(&model);
    }
}

/* ImageNet-21k has 21,841 classes; the most that a model may have is what its own saved config.json is read with. */
static void test_a_config_of_the_most_classes_is_read_again(void **state)
{
    const struct dsc_label_options asked = { .wanted = true, .kind = DSC_LABELS_CLASS, .count = DSC_LABELS_MAX };
    const dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_model *model = NULL, *again = NULL;
    (void)state;
    assert_int_equal(open_folder("", &asked, &model), DSC_OK);
    write_file(CONFIG_PATH, model->config_json);
    assert_int_equal(dsc_model_open(&again, CONFIG_PATH, &options, &error), DSC_OK);
    assert_int_equal(again->labels.count, DSC_LABELS_MAX);
    assert_string_equal(again->labels.names[DSC_LABELS_MAX - 1], "LABEL_65535");
    dsc_model_close(&again);
    dsc_model_close(&model);
}

/* Names of 300 bytes of 65,536 classes are more than the reader of config.json accepts. */
static void test_names_that_no_reader_would_accept_are_refused(void **state)
{
    static char name[DSC_LABELS_MAX][301];
    static const char *list[DSC_LABELS_MAX];
    const struct dsc_label_options asked = { .wanted = true,
                                             .kind = DSC_LABELS_CLASS,
                                             .count = DSC_LABELS_MAX,
                                             .names = list };
    dsc_model *model = NULL;
    (void)state;
    for (int i = 0; i < DSC_LABELS_MAX; i++) {
        snprintf(name[i], sizeof name[i], "%0300d", i);
        list[i] = name[i];
    }
    assert_int_equal(open_folder("", &asked, &model), DSC_ERR_INPUT);
    assert_non_null(strstr(error.message, "expected at most 16000000"));
    assert_null(model);
}

static void test_labels_that_are_refused(void **state)
{
    static const struct {
        const char *more, *message;
        struct dsc_label_options asked;
    } cases[] = {
        { "", "the number of classes is not known",
          { .wanted = true, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL } },
        { "", "needs at least 2 classes", { .wanted = true, .kind = DSC_LABELS_CLASS, .count = 1, .names = NULL } },
        { ", \"id2label\": [1]", "must be an object",
          { .wanted = true, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL } },
        { ", \"id2label\": {\"0\": \"a\", \"2\": \"b\"}",
          "no name for class 1",
          { .wanted = true, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL } },
        { ", \"id2label\": {\"0\": \"b\", \"1\": \"a\", \"2\": \"b\"}",
          "\"id2label\" has \"b\" for two classes",
          { .wanted = true, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL } },
        { ", \"id2label\": {\"0\": \"a\"}, \"num_labels\": 3",
          "\"num_labels\" is 3 and \"id2label\" has 1",
          { .wanted = true, .kind = DSC_LABELS_NONE, .count = 0, .names = NULL } },
        { ", \"problem_type\": \"ranking\"",
          "problem_type \"ranking\" is not built",
          { .wanted = true, .kind = DSC_LABELS_NONE, .count = 2, .names = NULL } },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_model *model = NULL;
        assert_int_not_equal(open_folder(cases[i].more, &cases[i].asked, &model), DSC_OK);
        assert_non_null(strstr(error.message, cases[i].message));
        assert_null(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_texts_are_cut_as_by_the_package, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_samples_have_texts_types_and_labels, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_numbers_and_sets, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_words_with_labels, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_rows_that_are_refused, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_labels_of_config_files, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_kept_samples_are_of_the_labels, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_names_that_are_numbers_have_one_meaning, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_a_config_of_the_most_classes_is_read_again, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_names_that_no_reader_would_accept_are_refused, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_labels_that_are_refused, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
