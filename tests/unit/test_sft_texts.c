/* test_sft_texts.c - rows whose texts are compared: negatives and scores that are refused, and files of their samples.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/sft_case.h"

#define PAIR "\"anchor\":\"a\",\"positive\":\"b\""

/* Reads the first row of a text; *texts <- those of the row. */
static dsc_status read_row(dsc_label_kind kind, const char *text, int64_t *texts)
{
    dsc_sft_section section = DSC_SFT_SECTION_INIT;
    const dsc_sft_options options = { .alloc = alloc,
                                      .path = FILE_PATH,
                                      .tokenizer_path = folder,
                                      .tokenizer = tokenizer,
                                      .section = &section,
                                      .sequence = 8 };
    dsc_sft_reader *reader = NULL;
    dsc_sft_example example = { .texts = 0 };
    bool found = false;
    section.labels.kind = kind;
    write_file(FILE_PATH, text, strlen(text));
    error = (dsc_error)DSC_ERROR_INIT;
    dsc_status status = dsc_sft_reader_open(&options, &reader, &error);
    if (status == DSC_OK)
        status = dsc_sft_reader_next(reader, &found, &example, &error);
    *texts = example.texts;
    dsc_sft_reader_close(&reader);
    return status;
}

static void check_texts(const char *text, int64_t wanted)
{
    int64_t texts = 0;
    if (read_row(DSC_LABELS_RANKED, text, &texts) != DSC_OK)
        fail_msg("%s: %s: %s", text, error.where, error.message);
    assert_int_equal(texts, wanted);
}

static void check_refused(dsc_label_kind kind, const char *text, const char *wanted)
{
    int64_t texts = 0;
    assert_int_equal(read_row(kind, text, &texts), DSC_ERR_INPUT);
    if (strstr(error.message, wanted) == NULL)
        fail_msg("%s: %s", error.where, error.message);
}

static void test_negatives_that_would_be_left_out_are_refused_by_name(void **state)
{
    (void)state;
    check_texts("{" PAIR ",\"negative\":\"c\",\"negative_1\":\"d\"}", 4);
    check_texts("{" PAIR ",\"negative_1\":\"c\",\"negative_2\":\"d\",\"negative_3\":null}", 4);
    check_texts("{" PAIR ",\"negatively\":\"c\",\"negative_a\":\"d\"}", 2);
    check_refused(DSC_LABELS_RANKED, "{" PAIR ",\"negative_1\":\"c\",\"negative_3\":\"d\"}",
                  "\"negative_3\" is not read");
    check_refused(DSC_LABELS_RANKED, "{" PAIR ",\"negative_0\":\"c\"}", "\"negative_0\" is not read");
    check_refused(DSC_LABELS_RANKED, "{" PAIR ",\"negatives\":[\"c\"]}", "\"negatives\" is not read");
    check_refused(DSC_LABELS_COSINE, "{" PAIR ",\"score\":1,\"negatives\":[\"c\"]}", "\"negatives\" is not read");
}

static const char *row_of(int negatives)
{
    static char text[4000];
    int used = snprintf(text, sizeof text, "{" PAIR);
    for (int i = 1; i <= negatives; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, ",\"negative_%d\":\"c\"", i);
    snprintf(text + used, sizeof text - (size_t)used, "}");
    return text;
}

static void test_a_row_has_as_many_texts_as_a_file_of_samples_may_have(void **state)
{
    (void)state;
    check_texts(row_of(DSC_TEXTS_MAX - 2), DSC_TEXTS_MAX);
    check_refused(DSC_LABELS_RANKED, row_of(DSC_TEXTS_MAX - 1), "more than 62 negatives");
    check_refused(DSC_LABELS_RANKED, row_of(DSC_TEXTS_MAX + 9), "more than 62 negatives");
}

static void test_scores_have_bounds(void **state)
{
    int64_t texts = 0;
    (void)state;
    assert_int_equal(read_row(DSC_LABELS_COSINE, "{" PAIR ",\"score\":-1}", &texts), DSC_OK);
    assert_int_equal(read_row(DSC_LABELS_ORDER, "{" PAIR ",\"score\":\"1e15\"}", &texts), DSC_OK);
    check_refused(DSC_LABELS_COSINE, "{" PAIR ",\"score\":4.5}", "\"score\" is 4.5, and no cosine is");
    check_refused(DSC_LABELS_ORDER, "{" PAIR ",\"score\":3e38}", "from -1e15 to 1e15");
    check_refused(DSC_LABELS_RANKED, "{" PAIR ",\"score\":-2e15}", "from -1e15 to 1e15");
}

/* A file of 4 samples whose summary says so. */
static dsc_status open_samples(int64_t texts, int64_t label_words, int64_t pairs)
{
    const uint32_t words[10] = { 0 };
    const dsc_sample_summary summary = { .texts = texts, .pairs = pairs };
    dsc_sample_writer writer;
    dsc_sample_file file;
    assert_int_equal(dsc_sample_writer_open(NULL, "a.samples", 4, label_words, &writer, &error), DSC_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(dsc_sample_writer_add(&writer, words, &error), DSC_OK);
    assert_int_equal(dsc_sample_writer_commit(&writer, &summary, &error), DSC_OK);
    dsc_sample_writer_close(&writer);
    const dsc_status status = dsc_sample_file_open(NULL, "a.samples", &file, &error);
    dsc_sample_file_close(NULL, &file);
    return status;
}

static void test_files_whose_rows_cannot_be_are_refused(void **state)
{
    (void)state;
    assert_int_equal(open_samples(2, 2, 0), DSC_OK);
    assert_int_equal(open_samples(4, 2, 0), DSC_OK);
    assert_int_equal(open_samples(0, 2, 0), DSC_OK);
    assert_int_equal(open_samples(1, 2, 0), DSC_ERR_INPUT);
    assert_int_equal(open_samples(-2, 2, 0), DSC_ERR_INPUT);
    assert_int_equal(open_samples(3, 2, 0), DSC_ERR_INPUT);
    assert_int_equal(open_samples(2, 3, 0), DSC_ERR_INPUT);
    assert_int_equal(open_samples(2, 2, 2), DSC_ERR_INPUT);
    assert_int_equal(open_samples(DSC_TEXTS_MAX * 2, 2, 0), DSC_ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_negatives_that_would_be_left_out_are_refused_by_name),
        cmocka_unit_test(test_a_row_has_as_many_texts_as_a_file_of_samples_may_have),
        cmocka_unit_test(test_scores_have_bounds),
        cmocka_unit_test(test_files_whose_rows_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
