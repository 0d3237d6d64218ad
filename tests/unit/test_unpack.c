/* test_unpack.c - gzip and zstd files are read as the text in them, whole or not at all, and never without bound.
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

#include "base/hash.h"
#include "engine/text/content.h"

static char folder[] = "/tmp/dsc-unpack-XXXXXX", file[300];

/* Bytes of a file in the making. */
static unsigned char made[1 << 20];
static int64_t made_bytes;

static void put(const void *bytes, size_t count)
{
    assert_true(made_bytes + (int64_t)count <= (int64_t)sizeof made);
    memcpy(made + made_bytes, bytes, count);
    made_bytes += (int64_t)count;
}

static void put_number(uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        put(&(unsigned char) { (unsigned char)(value >> (8 * i)) }, 1);
}

/* A member of one block that is not compressed. */
static void put_gzip(const char *text)
{
    const uint32_t bytes = (uint32_t)strlen(text);
    put("\x1f\x8b\x08\0\0\0\0\0\0\xff\1", 11);
    put_number(bytes, 2);
    put_number(~bytes, 2);
    put(text, bytes);
    put_number(dsc_crc32(0, text, bytes), 4);
    put_number(bytes, 4);
}

static void put_zstd_block(uint32_t kind, bool last, uint32_t bytes) { put_number(bytes << 3 | kind << 1 | last, 3); }

/* A frame of one block that is not compressed, with a window of 128 KiB. */
static void put_zstd(const char *text)
{
    put("\x28\xb5\x2f\xfd\0\x38", 6);
    put_zstd_block(0, true, (uint32_t)strlen(text));
    put(text, strlen(text));
}

static const char *write_made(const char *name, int64_t bytes)
{
    snprintf(file, sizeof file, "%s/%s", folder, name);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(made, 1, (size_t)bytes, out), bytes);
    fclose(out);
    return file;
}

/* The text of the file that was made, in reads of `block` bytes. */
static dsc_status read_made(int64_t file_bytes, int64_t block, char *text, int64_t most, int64_t *bytes, dsc_error *err)
{
    dsc_source source = DSC_SOURCE_INIT;
    dsc_status status = dsc_source_open(NULL, write_made("x", file_bytes), &source, err);
    *bytes = 0;
    for (int64_t got = 0; status == DSC_OK && !source.ended; *bytes += got) {
        status = dsc_source_read(&source, text + *bytes % most, dsc_min_i64(block, most - *bytes % most), &got, err);
        assert_true(got > 0 || status != DSC_OK);
    }
    assert_true(status != DSC_OK || source.at == *bytes);
    (void)dsc_source_close(&source, NULL);
    return status;
}

static void expect_text(const char *want)
{
    static const int64_t blocks[] = { 1, 2, 7, 4096 };
    char text[4096];
    int64_t bytes = 0;
    for (size_t i = 0; i < DSC_COUNT(blocks); i++) {
        dsc_error err = DSC_ERROR_INIT;
        if (read_made(made_bytes, blocks[i], text, sizeof text, &bytes, &err) != DSC_OK)
            fail_msg("%s", err.message);
        assert_int_equal(bytes, strlen(want));
        assert_memory_equal(text, want, bytes);
    }
}

static void expect_refused(int64_t file_bytes, const char *what, const char *place)
{
    static char text[1 << 20];
    dsc_error err = DSC_ERROR_INIT;
    int64_t bytes = 0;
    assert_int_equal(read_made(file_bytes, 1 << 18, text, sizeof text, &bytes, &err), DSC_ERR_INPUT);
    if (strstr(err.message, what) == NULL || strstr(err.message, place) == NULL)
        fail_msg("%lld bytes: %s (expected \"%s\" and \"%s\")", (long long)file_bytes, err.message, what, place);
    assert_string_equal(err.where, file);
}

static void all_members_and_frames_of_a_file_are_read(void **state)
{
    (void)state;
    made_bytes = 0;
    put("plain words\n", 12);
    expect_text("plain words\n");
    made_bytes = 0;
    put_gzip("one\n");
    expect_text("one\n");
    put_gzip("");
    put_gzip("two\n");
    expect_text("one\ntwo\n");
    put("\0\0\0", 3); /* a block's fill */
    expect_text("one\ntwo\n");
    made_bytes = 0;
    put_gzip("");
    expect_text("");
    made_bytes = 0;
    put_zstd("one\n");
    put_zstd("");
    put("\x50\x2a\x4d\x18\3\0\0\0abc", 11); /* a frame to skip */
    put_zstd("two\n");
    expect_text("one\ntwo\n");
    made_bytes = 0;
    put_zstd("");
    expect_text("");
}

static void a_file_that_is_cut_off_is_refused_at_every_byte(void **state)
{
    char place[32];
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        made_bytes = 0;
        kind == 0 ? put_gzip("some words\n") : put_zstd("some words\n");
        const int64_t whole = made_bytes;
        kind == 0 ? put_gzip("and more\n") : put_zstd("and more\n");
        for (int64_t bytes = kind == 0 ? 2 : 4; bytes < made_bytes; bytes++) {
            snprintf(place, sizeof place, "at byte %lld:", (long long)bytes);
            if (bytes != whole)
                expect_refused(bytes, "stream is truncated", place);
        }
    }
}

static void damage_is_named_with_its_byte(void **state)
{
    (void)state;
    made_bytes = 0;
    put_gzip("some words\n");
    made[16] ^= 1;
    expect_refused(made_bytes, "the gzip stream is damaged", "at byte ");
    made[16] ^= 1;
    put("XYZ-and-more", 12);
    expect_refused(made_bytes, "the gzip stream is damaged", "incorrect header check");
    made_bytes = 0;
    put_zstd("some words\n");
    const int64_t block = 6;
    made[block] |= 6; /* a kind of block that does not exist */
    expect_refused(made_bytes, "the zstd stream is damaged", "at byte ");
    made_bytes = 0;
    put_zstd("some words\n");
    put("XYZ-and-more", 12);
    expect_refused(made_bytes, "the zstd stream is damaged", "at byte 20");
}

static void a_text_far_larger_than_its_file_is_refused(void **state)
{
    (void)state;
    made_bytes = 0;
    put("\x28\xb5\x2f\xfd\0\x38", 6);
    for (int i = 0; i < 8000; i++) { /* 1 GiB of one character from 32 KB */
        put_zstd_block(1, i == 7999, 1 << 17);
        put("x", 1);
    }
    expect_refused(made_bytes, "of the zstd stream make", "256 for each byte, and 16 MiB");
}

static dsc_content detect(const char *name)
{
    dsc_content content;
    assert_int_equal(dsc_content_detect(NULL, write_made(name, made_bytes), "text", &content, NULL), DSC_OK);
    assert_true(content.packed);
    return content;
}

static void the_text_inside_decides_what_a_file_is(void **state)
{
    static const struct {
        const char *name, *text;
        dsc_content_kind kind;
    } cases[] = {
        { "a.txt.gz", "plain words\n", DSC_CONTENT_TEXT },
        { "a.jsonl.gz", "anything", DSC_CONTENT_JSON_LINES },
        { "a.JSONL.ZST", "anything", DSC_CONTENT_JSON_LINES },
        { "a.gz", "{\"text\": \"a\"}\n", DSC_CONTENT_JSON_LINES },
        { "a.json", "[{\"text\": \"a\"}]", DSC_CONTENT_JSON_LIST },
        { "a.csv.gz", "a,b\n1,2\n", DSC_CONTENT_TABLE },
        { "a.tsv.zstd", "text\tb\n1\t2\n", DSC_CONTENT_TABLE },
        { "renamed.txt", "id,text\n1,a\n", DSC_CONTENT_TABLE },
        { "a.gz", "", DSC_CONTENT_EMPTY },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        made_bytes = 0;
        i % 2 == 0 ? put_gzip(cases[i].text) : put_zstd(cases[i].text);
        if (detect(cases[i].name).kind != cases[i].kind)
            fail_msg("case %zu: %s", i, cases[i].name);
    }
}

static void binary_content_inside_is_refused_by_name(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    (void)state;
    made_bytes = 0;
    put_gzip("PAR1\x80\x80\x80\x80");
    const dsc_content content = detect("a.gz");
    assert_int_equal(content.kind, DSC_CONTENT_OTHER);
    assert_int_equal(dsc_content_refuse(&content, file, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "the content is a compressed file of Parquet"));
    assert_null(strstr(err.message, "python3")); /* pandas reads no gzip here */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_members_and_frames_of_a_file_are_read),
        cmocka_unit_test(a_file_that_is_cut_off_is_refused_at_every_byte),
        cmocka_unit_test(damage_is_named_with_its_byte),
        cmocka_unit_test(a_text_far_larger_than_its_file_is_refused),
        cmocka_unit_test(the_text_inside_decides_what_a_file_is),
        cmocka_unit_test(binary_content_inside_is_refused_by_name),
    };
    char command[64];
    if (mkdtemp(folder) == NULL)
        return 1;
    const int failed = cmocka_run_group_tests_name("unpack", tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0 || failed != 0;
}
