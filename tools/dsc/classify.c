/* classify.c - `dsc classify --model DIR FILE`: what a model with a head for labels says about each text of a file, as
 * one JSON object a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "tools/dsc/text_rows.h"

#define AT(field) offsetof(dsc_text_rows, field)
static const char *const devices[] = DSC_TEXT_ROWS_DEVICES;
static const dsc_flag rows[] = {
    { "--model", NULL, "DIR", DSC_FLAG_TEXT, AT(model), .required = true,
      .help = "model folder: config.json of a class *ForSequenceClassification, and *.safetensors" },
    { "--text", NULL, "NAME", DSC_FLAG_TEXT, AT(text), .help = "column of the text; default: as in training" },
    { "--text-pair", NULL, "NAME", DSC_FLAG_TEXT, AT(text_pair),
      .help = "column of a second text; default: as in training" },
    DSC_TEXT_ROWS_FLAGS(AT, devices),
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

static dsc_status print_scores(const dsc_text_rows *r, int64_t line, const float *scores, dsc_error *err)
{
    const dsc_labels *labels = dsc_infer_labels(r->infer);
    printf("{\"line\":%lld,", (long long)line);
    if (labels->kind == DSC_LABELS_CLASS)
        print_class(labels, scores);
    else if (labels->kind == DSC_LABELS_SET)
        print_set(labels, scores);
    else
        print_numbers(labels, scores);
    return printf("}\n") < 0 ? DSC_FAIL(err, DSC_ERR_IO, "stdout", "the line cannot be written") : DSC_OK;
}

int dsc_cmd_classify(int argc, char **argv)
{
    dsc_text_rows r = { .device = "auto", .threads = sysconf(_SC_NPROCESSORS_ONLN) };
    const int code = dsc_tool_parse(&page, argc, argv, &r);
    return code >= 0 ? code : dsc_text_rows_run(&r, false, print_scores);
}
