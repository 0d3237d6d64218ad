/* test_documents.c - documents of JSON files and tables are the same for any cuts, and cells may have quotes. The first
 * bytes of a file name its format. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/text/documents.h"

static dsc_alloc *alloc;
static char folder[] = "/tmp/dsc-documents-XXXXXX", file[300];

static const char *write_file(const char *name, const void *bytes, int64_t count)
{
    snprintf(file, sizeof file, "%s/%s", folder, name);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, (size_t)count, out), count);
    fclose(out);
    return file;
}

/* Documents one after the other, each behind '|'. */
static dsc_status collect(void *user, const char *text, int64_t bytes, dsc_error *err)
{
    DSC_TRY(dsc_text_add(user, "|", 1, err));
    return dsc_text_add(user, text, bytes, err);
}

/* The documents of `text`, read in blocks and cut as the reader of files does it. */
static dsc_status read_in_blocks(const dsc_documents *d, const char *path, const char *text, int64_t block,
                                 dsc_text *out, dsc_error *err)
{
    const int64_t bytes = (int64_t)strlen(text);
    dsc_document_cut cut = { .depth = 0 };
    int64_t from = d->start, line = d->first_line;
    bool first = true;
    out->bytes = 0;
    for (int64_t to = dsc_min_i64(bytes, from + block);; to = dsc_min_i64(bytes, to + block)) {
        const bool last = to == bytes;
        const int64_t end = last ? bytes - from : dsc_documents_find_cut(d, &cut, text + from, to - from);
        if (end > 0) {
            const dsc_document_part part = { .text = text + from, .bytes = end, .path = path, .first_line = line,
                                             .first = first, .last = last };
            DSC_TRY(dsc_documents_each(d, alloc, &part, collect, out, err));
            for (int64_t i = 0; i < end; i++)
                line += text[from + i] == '\n';
            if (!last)
                dsc_documents_drop(&cut, end);
            from += end;
            first = false;
        }
        if (last)
            return DSC_OK;
    }
}

static void expect_documents(const char *name, const char *text, const char *wanted)
{
    dsc_documents d;
    dsc_error err = DSC_ERROR_INIT;
    dsc_text out = { .alloc = alloc };
    const char *path = write_file(name, text, (int64_t)strlen(text));
    assert_int_equal(dsc_documents_open(NULL, alloc, path, "text", &d, &err), DSC_OK);
    for (int64_t block = 1; block <= (int64_t)strlen(text) + 1; block++) {
        const dsc_status status = read_in_blocks(&d, path, text, block, &out, &err);
        if (status != DSC_OK)
            print_error("%s: %s\n", err.where, err.message);
        assert_int_equal(status, DSC_OK);
        assert_int_equal(out.bytes, strlen(wanted));
        assert_memory_equal(out.ptr, wanted, strlen(wanted));
    }
    dsc_text_free(&out);
}

static void documents_are_the_same_for_any_cuts(void **state)
{
    (void)state;
    expect_documents("lines",
                     "{\"text\": \"a\"}\n\n  {\"n\": [1, {}], \"text\": \"b}\\\"{\"}\r\n{\"text\": \"\"}", "|a|b}\"{|");
    expect_documents("list",
                     "\n[ {\"text\": \"a\"},\n{\"n\": [{}, \"]\"], \"text\": \"b}\\\\\"} , {\"text\":\"c\"}\n]\n",
                     "|a|b}\\|c");
    expect_documents("empty.json", "[]\n", "");
    expect_documents("comma",
                     "id,text\n1,a\n2,\"b, \"\"c\"\"\nd\"\r\n\n3,5\" disk\n4,\"\"\n5,last",
                     "|a|b, \"c\"\nd|5\" disk||last");
    expect_documents("tab", "text\tn\na b\t1\n\"c\td\"\t2\n", "|a b|c\td");
    expect_documents("half", "n;text\r\n1;a, b\r\n2;c\r\n", "|a, b|c");
    expect_documents("one.csv", "text\nfirst\n\"second\nline\"\n", "|first|second\nline");
    expect_documents("mark.csv", "\xef\xbb\xbftext,n\nfirst,1\n", "|first");
}

static void tables_need_the_name_of_a_column(void **state)
{
    dsc_documents d;
    dsc_error err = DSC_ERROR_INIT;
    const char *const table = "id,text\n1,a\n", *const json = "{\"text\": \"a\"}\n";
    (void)state;
    assert_int_equal(dsc_documents_open(NULL, alloc, write_file("t", table, (int64_t)strlen(table)), NULL, &d, &err),
                     DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "a table with the columns id, text: name the one with the text"));
    assert_int_equal(dsc_documents_open(NULL, alloc, write_file("j", json, (int64_t)strlen(json)), NULL, &d, &err),
                     DSC_OK);
    assert_string_equal(d.field, "text");
}

static void expect_refused(const char *name, const char *text, const char *where, const char *words)
{
    dsc_documents d;
    dsc_error err = DSC_ERROR_INIT;
    dsc_text out = { .alloc = alloc };
    const char *path = write_file(name, text, (int64_t)strlen(text));
    dsc_status status = dsc_documents_open(NULL, alloc, path, "text", &d, &err);
    if (status == DSC_OK)
        status = read_in_blocks(&d, path, text, 7, &out, &err);
    if (status != DSC_ERR_INPUT)
        fail_msg("%s", text);
    if (strstr(err.where, where) == NULL || strstr(err.message, words) == NULL)
        fail_msg("%s: %s", err.where, err.message);
    dsc_text_free(&out);
}

static void invalid_documents_are_refused_with_their_line(void **state)
{
    (void)state;
    expect_refused("a.json", "{\n\"text\": \"a\"\n}\n", "line 1", "over several lines");
    expect_refused("a.json", "[{\"text\": \"a\"},\n{\"text\": 5}]", "line 2", "string \"text\"");
    expect_refused("a.json", "[{\"text\": \"a\"},\n{\"body\": \"b\", \"n\": 1}]", "line 2", "its members are body, n");
    expect_refused("a.json", "[{\"text\": \"a\"}\n{\"text\": \"b\"}]", "line 2", "a comma");
    expect_refused("a.json", "[{\"text\": \"a\"},\n", "line 2", "an object in the JSON list");
    expect_refused("a.json", "[{\"text\": \"a\"}\n", "line 2", "is the file whole");
    expect_refused("a.json", "[{\"text\": \"a\"},\n{\"text\": \"b", "line 2", "without its end");
    expect_refused("a.json", "[{\"text\": \"a\"}]\n[]", "line 2", "behind the end");
    expect_refused("a.json", "[\"a\", \"b\"]", "line 1", "an object in the JSON list");
    expect_refused("a.jsonl", "plain words\n", "line 1", "");
    expect_refused("a.csv", "id,text\n1,a\n2\n", "line 3", "1 cells; the header has 2");
    expect_refused("a.csv", "id,text\n1,a\n2,\"b\n3,c\n", "line 3", "without its end");
    expect_refused("a.csv", "id,body,\"a \"\"name\"\"\"\n1,a,b\n", "a.csv", "its columns are id, body, a \"name\"");
}

static dsc_content_kind kind_of(const char *name, const void *bytes, int64_t count)
{
    dsc_content content;
    assert_int_equal(dsc_content_detect(NULL, write_file(name, bytes, count), "text", &content, NULL), DSC_OK);
    return content.kind;
}

static void content_decides_what_a_file_is(void **state)
{
    static const struct { const char *name, *text; dsc_content_kind kind; } cases[] = {
        { "a.txt", "plain words, and \"quotes\"\n", DSC_CONTENT_TEXT },
        { "a.txt", "{ a brace } begins this text", DSC_CONTENT_TEXT },
        { "a.txt", "[1] a footnote, text and words\nand, text\n", DSC_CONTENT_TEXT },
        { "a.txt", "ORChids, and BZh", DSC_CONTENT_TEXT },
        { "a.txt", "PAR1 is a word here", DSC_CONTENT_TEXT },
        { "a.txt", "", DSC_CONTENT_EMPTY },
        { "a.jsonl", " \n\n", DSC_CONTENT_EMPTY },
        { "a.txt", "{\"text\": \"a\"}\n", DSC_CONTENT_JSON_LINES },
        { "A.JSONL", "anything", DSC_CONTENT_JSON_LINES },
        { "a.ndjson", "{}", DSC_CONTENT_JSON_LINES },
        { "a", "\n[\n {\"text\": \"a\"}]", DSC_CONTENT_JSON_LIST },
        { "a.json", "[]", DSC_CONTENT_JSON_LIST },
        { "a.dat", "id,text\n1,a\n", DSC_CONTENT_TABLE },
        { "a.CSV", "a,b\n1,2\n", DSC_CONTENT_TABLE },
        { "a.txt", "some words, text\nand, more\n", DSC_CONTENT_TEXT },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        if (kind_of(cases[i].name, cases[i].text, (int64_t)strlen(cases[i].text)) != cases[i].kind)
            fail_msg("case %zu: %s", i, cases[i].text);
}

static void expect_format(const char *mark, int64_t count, const char *format, const char *command)
{
    unsigned char bytes[400];
    dsc_content content;
    dsc_error err = DSC_ERROR_INIT;
    memset(bytes, 0x80, sizeof bytes);
    memcpy(bytes, mark, (size_t)count);
    const char *path = write_file("d.x.txt", bytes, (int64_t)sizeof bytes);
    assert_int_equal(dsc_content_detect(NULL, path, "text", &content, NULL), DSC_OK);
    assert_int_equal(content.kind, DSC_CONTENT_OTHER);
    assert_int_equal(dsc_content_refuse(&content, path, &err), DSC_ERR_INPUT);
    if (strstr(err.message, format) == NULL || strstr(err.message, command) == NULL)
        fail_msg("%s", err.message);
    assert_string_equal(err.where, path);
}

static void binary_formats_are_named_with_the_command_that_converts_them(void **state)
{
    char tar[262] = "a name";
    (void)state;
    memcpy(tar + 257, "ustar", 5);
    expect_format("PAR1", 4, "Parquet", "read_parquet('/tmp/");
    expect_format("ARROW1\0\0", 8, "Arrow", "read_feather");
    expect_format("\xff\xff\xff\xff\x10\1\0\0", 8, "Arrow", "datasets.Dataset.from_file");
    expect_format("BZh9", 4, "bzip2", "bzip2 -dc");
    expect_format("\xfd" "7zXZ\0", 6, "xz", "xz -dc");
    expect_format("PK\3\4", 4, "zip", "unzip");
    expect_format(tar, sizeof tar, "tar", "tar -xf");
    expect_format("\x93NUMPY", 6, "NumPy", "tofile");
    expect_format("\x89HDF\r\n\x1a\n", 8, "HDF5", "convert it");
    expect_format("\xff\xfe" "a\0", 4, "UTF-16", "iconv -f UTF-16 -t UTF-8");
    expect_format("caf\xe9 ", 5, "byte 3 is not UTF-8", "iconv -f ISO-8859-1 -t UTF-8");
    expect_format("\x88\xd8\x34\x01\1\0\0\0", 8, "llm.c", ".bin");
    expect_format("a\0b", 3, "byte 1 is not UTF-8", "*.bin");
}

static bool ends_with(const char *text, const char *end)
{
    const size_t bytes = strlen(text), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

static void commands_of_long_paths_are_whole_or_left_out(void **state)
{
    char path[160] = "";
    dsc_content parquet, latin = { .kind = DSC_CONTENT_OTHER, .byte = 3 };
    (void)state;
    assert_true(dsc_content_has_mark("PAR1", 4, false, &parquet));
    for (size_t bytes = 1; bytes < sizeof path; bytes++) {
        dsc_error err = DSC_ERROR_INIT;
        memset(path, 'p', bytes);
        assert_int_equal(dsc_content_refuse(&parquet, path, &err), DSC_ERR_INPUT);
        if (!ends_with(err.message, "lines=True)\"") && !ends_with(err.message, "; convert it to one of them"))
            fail_msg("%zu bytes: %s", bytes, err.message);
        err = (dsc_error)DSC_ERROR_INIT;
        assert_int_equal(dsc_content_refuse(&latin, path, &err), DSC_ERR_INPUT);
        if (strstr(err.message, ".utf8', and") == NULL && strstr(err.message, "-t UTF-8, and") == NULL)
            fail_msg("%zu bytes: %s", bytes, err.message);
    }
}

static void commands_leave_out_names_that_a_shell_would_change(void **state)
{
    static const char *const paths[] = { "a'b", "a$(b)", "a`b`", "a\"b", "a\\b", "a\nb" };
    dsc_content parquet;
    (void)state;
    assert_true(dsc_content_has_mark("PAR1", 4, false, &parquet));
    for (size_t i = 0; i < DSC_COUNT(paths); i++) {
        dsc_error err = DSC_ERROR_INIT;
        assert_int_equal(dsc_content_refuse(&parquet, paths[i], &err), DSC_ERR_INPUT);
        if (!ends_with(err.message, "; convert it to one of them"))
            fail_msg("%s: %s", paths[i], err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_the_same_for_any_cuts),
        cmocka_unit_test(tables_need_the_name_of_a_column),
        cmocka_unit_test(invalid_documents_are_refused_with_their_line),
        cmocka_unit_test(content_decides_what_a_file_is),
        cmocka_unit_test(binary_formats_are_named_with_the_command_that_converts_them),
        cmocka_unit_test(commands_of_long_paths_are_whole_or_left_out),
        cmocka_unit_test(commands_leave_out_names_that_a_shell_would_change),
    };
    char command[64];
    if (mkdtemp(folder) == NULL || dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return 1;
    const int failed = cmocka_run_group_tests_name("documents", tests, NULL, NULL);
    dsc_alloc_close(&alloc);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0 || failed != 0;
}
