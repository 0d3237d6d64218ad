/* text_rows.c - see text_rows.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/text_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TOKENS_USUAL 512

static dsc_status open_reader(dsc_text_rows *r, dsc_error *err)
{
    dsc_sft_section *section = &r->section;
    const char *path = r->tokenizer_path != NULL ? r->tokenizer_path : r->model;
    const dsc_sft_options options = { .alloc = r->alloc,
                                      .path = r->path,
                                      .tokenizer_path = path,
                                      .tokenizer = r->tokenizer,
                                      .section = section,
                                      .threads = 1,
                                      .sequence = r->tokens };
    *section = (dsc_sft_section)DSC_SFT_SECTION_INIT;
    section->labels = *dsc_infer_labels(r->infer);
    section->unlabeled = true;
    snprintf(section->column[DSC_SFT_COLUMN_TEXT], sizeof section->column[0], "%s", r->text != NULL ? r->text : "");
    snprintf(section->column[DSC_SFT_COLUMN_TEXT_PAIR], sizeof section->column[0], "%s",
             r->text_pair != NULL ? r->text_pair : "");
    snprintf(section->prompt[0], sizeof section->prompt[0], "%s", r->prompt != NULL ? r->prompt : "");
    return dsc_sft_reader_open(&options, &r->reader, err);
}

/* JSON has no word for a number that is not finite. */
static dsc_status check_finite(const dsc_text_rows *r, int64_t line, const float *scores, dsc_error *err)
{
    for (int64_t i = 0; i < dsc_infer_labels(r->infer)->count; i++)
        if (!isfinite(scores[i]))
            return DSC_FAIL(err, DSC_ERR_INPUT, r->model,
                            "the numbers of line %lld are not finite; are the weights whole?", (long long)line);
    return DSC_OK;
}

static dsc_status run(dsc_text_rows *r, dsc_text_rows_print print, dsc_error *err)
{
    dsc_sft_example example;
    bool found = true;
    if (r->tokens == 0)
        r->tokens = dsc_min_i64(TOKENS_USUAL, dsc_infer_positions(r->infer));
    DSC_TRY(dsc_tokenizer_open(&r->tokenizer, r->tokenizer_path != NULL ? r->tokenizer_path : r->model, err));
    DSC_TRY(dsc_infer_start(r->infer, r->tokens, NULL, err));
    DSC_TRY(open_reader(r, err));
    for (;; r->rows++) {
        const float *scores = NULL;
        DSC_TRY(dsc_sft_reader_next(r->reader, &found, &example, err));
        if (!found)
            break;
        r->truncated += example.truncated;
        DSC_TRY(dsc_infer_scores(r->infer, example.ids, example.counted, example.count, &scores, err));
        DSC_TRY(check_finite(r, example.line, scores, err));
        DSC_TRY(print(r, example.line, scores, err));
    }
    if (r->truncated > 0 && fflush(stdout) == 0)
        fprintf(stderr, "dsc: warning: %s: %lld of %lld texts were cut to %lld tokens; --max-tokens sets more\n",
                r->shown != NULL ? r->shown : r->path, (long long)r->truncated, (long long)r->rows,
                (long long)r->tokens);
    return DSC_OK;
}

/* Messages about a copy of the lines name what was given. */
static void name_lines(const dsc_text_rows *r, dsc_error *err)
{
    char rest[sizeof err->where];
    const size_t bytes = strlen(r->path);
    if (r->shown == NULL || strncmp(err->where, r->path, bytes) != 0)
        return;
    snprintf(rest, sizeof rest, "%s", err->where + bytes);
    snprintf(err->where, sizeof err->where, "%.50s%.200s", r->shown, rest);
}

int dsc_text_rows_run(dsc_text_rows *r, bool vectors, dsc_text_rows_print print)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_status status = dsc_alloc_open(&r->alloc, &err);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_infer_options options = { .alloc = r->alloc,
                                        .model = r->model,
                                        .device = r->device,
                                        .dtype = r->bf16 ? DSC_BF16 : DSC_F32,
                                        .threads = (int32_t)r->threads,
                                        .labels = true,
                                        .vectors = vectors };
    status = dsc_infer_open(&options, &r->infer, &err);
    if (status == DSC_OK)
        status = run(r, print, &err);
    dsc_sft_reader_close(&r->reader);
    dsc_infer_close(&r->infer);
    dsc_tokenizer_close(&r->tokenizer);
    dsc_alloc_close(&r->alloc);
    name_lines(r, &err);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
