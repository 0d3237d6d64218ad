/* sft_case.h - set-up of the tests of instruction data: a folder with a tokenizer of bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_UNIT_SFT_CASE_H
#define DSC_TESTS_UNIT_SFT_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/data/sft/pack.h"

#define FILE_PATH "test_sft.tmp"

static dsc_alloc *alloc;
static dsc_tokenizer *tokenizer;
static dsc_error error;
static char folder[64];

static void write_file(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

/* A byte-level tokenizer without merges: the id of a byte is the byte, and 256 to 258 are special tokens. */
static void write_tokenizer(const char *path, const char *normalizer)
{
    FILE *file = fopen(path, "w");
    int other = 256;
    assert_non_null(file);
    fprintf(file, "{\"added_tokens\":[");
    const char *const special[] = { "<|im_start|>", "<|im_end|>", "<eos>" };
    for (int i = 0; i < 3; i++)
        fprintf(file, "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                "\"normalized\":false,\"special\":true}", i > 0 ? "," : "", 256 + i, special[i]);
    fprintf(file, "],\"normalizer\":%s,", normalizer);
    fprintf(file, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                  "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        const bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        fprintf(file, "%s\"\\u%04x\":%d", b > 0 ? "," : "", printed ? b : other++, b);
    }
    fprintf(file, "}}}");
    fclose(file);
}

static int open_all(void **state)
{
    char path[128];
    (void)state;
    error = (dsc_error)DSC_ERROR_INIT;
    snprintf(folder, sizeof folder, "/tmp/dsc_test_sft_XXXXXX");
    if (mkdtemp(folder) == NULL || chdir(folder) != 0 || dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return -1;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_tokenizer(path, "null");
    return dsc_tokenizer_open(&tokenizer, path, &error) == DSC_OK ? 0 : -1;
}

static int close_all(void **state)
{
    char command[128];
    (void)state;
    dsc_tokenizer_close(&tokenizer);
    dsc_alloc_close(&alloc); /* asserts that nothing is left */
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

#endif
