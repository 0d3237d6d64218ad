/* classify.c - `dsc classify --model DIR FILE`: what a model with a head for labels says about each text of a file, or
 * about pictures, as one JSON object a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "tools/dsc/classify_pictures.h"
#include "tools/dsc/picture_grid.h"
#include "tools/dsc/text_rows.h"

enum { PATHS_MAX = 4096 };

typedef struct classification {
    dsc_text_rows texts;
    dsc_flag_list paths;
    int64_t top, show; /* of pictures */
    const char *grid;
} classification;

#define AT(field) offsetof(classification, texts.field)
static const char *const devices[] = DSC_TEXT_ROWS_DEVICES;
static const dsc_flag rows[] = {
    { "--model", NULL, "DIR", DSC_FLAG_TEXT, AT(model), .required = true,
      .help = "model folder: config.json of a class *ForSequenceClassification or of a model of pictures, and "
              "*.safetensors" },
    { "--text", NULL, "NAME", DSC_FLAG_TEXT, AT(text), .help = "column of the text; default: as in training" },
    { "--text-pair", NULL, "NAME", DSC_FLAG_TEXT, AT(text_pair),
      .help = "column of a second text; default: as in training" },
    { "--top", NULL, "N", DSC_FLAG_INTEGER, offsetof(classification, top), .min = 1, .max = 1000,
      .help = "pictures: likeliest classes of each, default 5" },
    { "--grid", NULL, "FILE.png", DSC_FLAG_TEXT, offsetof(classification, grid),
      .help = "pictures: also draw the first 100 with their labels" },
    { "--show", NULL, "N", DSC_FLAG_INTEGER, offsetof(classification, show), .min = 0, .max = PICTURE_GRID_MAX,
      .help = "pictures: draw the first N in the terminal, instead of the lines" },
    DSC_TEXT_ROWS_FLAGS(AT, devices),
};
static const dsc_positional files[] = {
    { "FILE",
      "rows with a text, or two: JSON, CSV, TSV or Parquet; a label is not read. Of a model of pictures: pictures, "
      "folders, "
      "and what train --data takes, whose classes are compared",
      "file", offsetof(classification, paths), 1, 0 },
};
static const dsc_flag_command page = {
    .name = "dsc classify",
    .description =
        "Prints what a model says about each text of a file, as a JSON object a line: the class and its "
        "probability; of a set of classes, those with a probability above 0.5; of a regression, the number. Of a "
        "picture, the likeliest classes.",
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

static int run_pictures(const classification *c)
{
    dsc_error err = DSC_ERROR_INIT;
    const classify_pictures options = { .model = c->texts.model,
                                        .device = c->texts.device,
                                        .paths = c->paths.text,
                                        .path_count = c->paths.count,
                                        .threads = c->texts.threads,
                                        .top = c->top,
                                        .grid = c->grid,
                                        .show = c->show,
                                        .bf16 = c->texts.bf16 };
    const dsc_status status = classify_pictures_run(&options, &err);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}

int dsc_cmd_classify(int argc, char **argv)
{
    static const char *paths[PATHS_MAX];
    classification c = { .texts = { .device = "auto", .threads = sysconf(_SC_NPROCESSORS_ONLN) },
                         .paths = { paths, 0, PATHS_MAX },
                         .top = 5 };
    dsc_error err = DSC_ERROR_INIT;
    bool pictures = false;
    const int code = dsc_tool_parse(&page, argc, argv, &c);
    if (code >= 0)
        return code;
    if (classify_sees_pictures(c.texts.model, &pictures, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    if (pictures)
        return run_pictures(&c);
    if (c.paths.count != 1)
        return dsc_tool_usage("dsc classify", "%d files of texts; one file at a time", (int)c.paths.count);
    if (c.grid != NULL || c.show > 0)
        return dsc_tool_usage("dsc classify", "--grid and --show are for a model of pictures, and %.200s sees texts",
                              c.texts.model);
    c.texts.path = c.paths.text[0];
    return dsc_text_rows_run(&c.texts, false, print_scores);
}
