/* classify.c - `dsc classify --model DIR FILE`: what a model with a head for labels says about each text of a file, as
 * one JSON object a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "engine/data/sft/examples.h"
#include "engine/generate/infer.h"
#include "tools/dsc/tool.h"

#define TOKENS_USUAL 512

typedef struct classification {
    const char *model, *tokenizer_path, *device, *path, *text, *text_pair;
    int64_t tokens, threads;
    bool bf16;
    dsc_alloc *alloc;
    dsc_tokenizer *tokenizer;
    dsc_infer *infer;
    dsc_sft_section section;
    dsc_sft_reader *reader;
    int64_t rows, truncated;
} classification;

#define AT(field) offsetof(classification, field)
static const char *const devices[] = { "auto", "cpu", "cuda", NULL };
static const dsc_flag rows[] = {
    { "--model", NULL, "DIR", DSC_FLAG_TEXT, AT(model), .required = true,
      .help = "model folder: config.json of a class *ForSequenceClassification, and *.safetensors" },
    { "--max-tokens", NULL, "N", DSC_FLAG_INTEGER, AT(tokens), .min = 1, .max = 1 << 24,
      .help = "longer texts are cut; default: the model's usual length, at most 512" },
    { "--text", NULL, "NAME", DSC_FLAG_TEXT, AT(text), .help = "column of the text; default: as in training" },
    { "--text-pair", NULL, "NAME", DSC_FLAG_TEXT, AT(text_pair),
      .help = "column of a second text; default: as in training" },
    { "--tokenizer", NULL, "DIR|FILE.json", DSC_FLAG_TEXT, AT(tokenizer_path),
      .help = "tokenizer of the texts; default: the model folder's" },
    { "--bf16", NULL, NULL, DSC_FLAG_BOOL, AT(bf16), .help = "compute in bf16 instead of fp32" },
    { "--device", NULL, "NAME", DSC_FLAG_CHOICE, AT(device), .choices = devices,
      .help = "auto, the default, cpu or cuda" },
    { "--threads", NULL, "N", DSC_FLAG_INTEGER, AT(threads), .min = 1, .max = 256,
      .help = "CPU threads; default: one for each core" },
};
static const dsc_positional files[] = {
    { "FILE", "rows with a text, or two: JSON, CSV, TSV or Parquet; a label is not read", "file", AT(path), 1, 1 },
};
static const dsc_flag_command page = {
    .name = "dsc classify",
    .description = "Prints what a model says about each text of a file, as a JSON object a line: the class and its "
                   "probability; of a set of classes, those with a probability above 0.5; of a regression, the number.",
    .flags = rows,
    .flag_count = DSC_COUNT(rows),
    .positionals = files,
    .positional_count = 1,
    .exit_codes = "0 done; 1 failed; 2 wrong command line, model or text; 3 does not fit into memory",
};

/* ---- Output ---- */

static void print_class(const dsc_labels *labels, const float *scores)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t c = 1; c < labels->count; c++)
        best = scores[c] > scores[best] ? c : best;
    for (int64_t c = 0; c < labels->count; c++)
        sum += exp((double)scores[c] - (double)scores[best]);
    printf("\"label\":");
    dsc_tool_json_text(labels->names[best]);
    printf(",\"class\":%lld,\"probability\":%.6g", (long long)best, 1 / sum);
}

static void print_set(const dsc_labels *labels, const float *scores)
{
    const char *before = "";
    printf("\"labels\":[");
    for (int64_t c = 0; c < labels->count; c++)
        if (scores[c] > 0) {
            printf("%s", before);
            dsc_tool_json_text(labels->names[c]);
            before = ",";
        }
    printf("],\"probabilities\":[");
    for (int64_t c = 0; c < labels->count; c++)
        printf("%s%.6g", c > 0 ? "," : "", 1 / (1 + exp(-(double)scores[c])));
    printf("]");
}

static void print_numbers(const dsc_labels *labels, const float *scores)
{
    printf(labels->count == 1 ? "\"value\":" : "\"values\":[");
    for (int64_t c = 0; c < labels->count; c++)
        printf("%s%.9g", c > 0 ? "," : "", (double)scores[c]);
    printf("%s", labels->count == 1 ? "" : "]");
}

/* JSON has no word for a number that is not finite. */
static dsc_status print_scores(const classification *c, int64_t line, const float *scores, dsc_error *err)
{
    const dsc_labels *labels = dsc_infer_labels(c->infer);
    for (int64_t i = 0; i < labels->count; i++)
        if (!isfinite(scores[i]))
            return DSC_FAIL(err, DSC_ERR_INPUT, c->model,
                            "the scores of line %lld are not finite; are the weights whole?", (long long)line);
    printf("{\"line\":%lld,", (long long)line);
    if (labels->kind == DSC_LABELS_CLASS)
        print_class(labels, scores);
    else if (labels->kind == DSC_LABELS_SET)
        print_set(labels, scores);
    else
        print_numbers(labels, scores);
    return printf("}\n") < 0 ? DSC_FAIL(err, DSC_ERR_IO, "stdout", "the line cannot be written") : DSC_OK;
}

/* ---- Texts ---- */

static dsc_status open_reader(classification *c, dsc_error *err)
{
    dsc_sft_section *section = &c->section;
    const char *path = c->tokenizer_path != NULL ? c->tokenizer_path : c->model;
    const dsc_sft_options options = { .alloc = c->alloc,
                                      .path = c->path,
                                      .tokenizer_path = path,
                                      .tokenizer = c->tokenizer,
                                      .section = section,
                                      .threads = 1,
                                      .sequence = c->tokens };
    *section = (dsc_sft_section)DSC_SFT_SECTION_INIT;
    section->labels = *dsc_infer_labels(c->infer);
    section->unlabeled = true;
    snprintf(section->column[DSC_SFT_COLUMN_TEXT], sizeof section->column[0], "%s", c->text != NULL ? c->text : "");
    snprintf(section->column[DSC_SFT_COLUMN_TEXT_PAIR], sizeof section->column[0], "%s",
             c->text_pair != NULL ? c->text_pair : "");
    return dsc_sft_reader_open(&options, &c->reader, err);
}

static dsc_status classify(classification *c, dsc_error *err)
{
    dsc_sft_example example;
    bool found = true;
    if (c->tokens == 0)
        c->tokens = dsc_min_i64(TOKENS_USUAL, dsc_infer_positions(c->infer));
    DSC_TRY(dsc_tokenizer_open(&c->tokenizer, c->tokenizer_path != NULL ? c->tokenizer_path : c->model, err));
    DSC_TRY(dsc_infer_start(c->infer, c->tokens, NULL, err));
    DSC_TRY(open_reader(c, err));
    for (;; c->rows++) {
        const float *scores = NULL;
        DSC_TRY(dsc_sft_reader_next(c->reader, &found, &example, err));
        if (!found)
            break;
        c->truncated += example.truncated;
        DSC_TRY(dsc_infer_scores(c->infer, example.ids, example.counted, example.count, &scores, err));
        DSC_TRY(print_scores(c, example.line, scores, err));
    }
    if (c->truncated > 0 && fflush(stdout) == 0)
        fprintf(stderr, "dsc: warning: %s: %lld of %lld texts were cut to %lld tokens; --max-tokens sets more\n",
                c->path, (long long)c->truncated, (long long)c->rows, (long long)c->tokens);
    return DSC_OK;
}

int dsc_cmd_classify(int argc, char **argv)
{
    classification c = { .device = "auto", .threads = sysconf(_SC_NPROCESSORS_ONLN) };
    dsc_error err = DSC_ERROR_INIT;
    const int code = dsc_tool_parse(&page, argc, argv, &c);
    if (code >= 0)
        return code;
    dsc_status status = dsc_alloc_open(&c.alloc, &err);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_infer_options options = { .alloc = c.alloc,
                                        .model = c.model,
                                        .device = c.device,
                                        .dtype = c.bf16 ? DSC_BF16 : DSC_F32,
                                        .threads = (int32_t)c.threads,
                                        .labels = true };
    status = dsc_infer_open(&options, &c.infer, &err);
    if (status == DSC_OK)
        status = classify(&c, &err);
    dsc_sft_reader_close(&c.reader);
    dsc_infer_close(&c.infer);
    dsc_tokenizer_close(&c.tokenizer);
    dsc_alloc_close(&c.alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
