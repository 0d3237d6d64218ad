/* sft_render.c - prints each row of a file of instruction data as JSON for chat_families.py: text, tokens and mask, or
 * the error. A refused row does not end the file, unlike in `dsc data render`. Arguments: MODEL_DIR FILE ROWS.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/data/sft/examples.h"
#include "engine/data/sft/json_out.h"

static void print_text(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes)
{
    dsc_text out = { .alloc = alloc };
    if (dsc_json_out_text(&out, text, bytes, NULL) != DSC_OK)
        exit(1);
    printf("\"%s\":%.*s", name, (int)out.bytes, out.ptr);
    dsc_text_free(&out);
}

static void print_numbers(const char *name, const int32_t *numbers, int64_t count)
{
    printf(",\"%s\":[", name);
    for (int64_t i = 0; i < count; i++)
        printf("%s%d", i > 0 ? "," : "", (int)numbers[i]);
    printf("]");
}

static void print_row(dsc_alloc *alloc, dsc_sft_reader *reader)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_sft_example row;
    bool found = false;
    char message[1024];
    const dsc_status status = dsc_sft_reader_next(reader, &found, &row, &err);
    printf("{");
    if (status == DSC_OK && found) {
        print_text(alloc, "text", row.text, row.text_bytes);
        print_numbers("tokens", row.ids, row.count);
        print_numbers("mask", row.counted, row.count);
    } else {
        dsc_error_format(&err, message, sizeof message);
        print_text(alloc, "error", message, (int64_t)strlen(message));
    }
    printf("}\n");
}

int main(int argc, char **argv)
{
    dsc_alloc *alloc = NULL;
    dsc_tokenizer *tokenizer = NULL;
    dsc_sft_reader *reader = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char message[1024];
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    if (argc != 4 || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 2;
    dsc_status status = dsc_tokenizer_open(&tokenizer, argv[1], &err);
    const dsc_sft_options options = { .alloc = alloc,
                                      .path = argv[2],
                                      .tokenizer_path = argv[1],
                                      .tokenizer = tokenizer,
                                      .section = &section,
                                      .now_s = (int64_t)time(NULL) };
    if (status == DSC_OK)
        status = dsc_sft_reader_open(&options, &reader, &err);
    if (status != DSC_OK) {
        dsc_error_format(&err, message, sizeof message);
        fprintf(stderr, "%s\n", message);
    }
    for (long i = 0; status == DSC_OK && i < atol(argv[3]); i++)
        print_row(alloc, reader);
    dsc_sft_reader_close(&reader);
    dsc_tokenizer_close(&tokenizer);
    dsc_alloc_close(&alloc);
    return status == DSC_OK ? 0 : 1;
}
