/* text_rows.h - a model's answer for each text of a file: what `dsc classify` and `dsc embed` share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TEXT_ROWS_H
#define DSC_TOOLS_TEXT_ROWS_H

#include <dsc/text.h>

#include "engine/data/sft/examples.h"
#include "engine/generate/infer.h"
#include "tools/dsc/tool.h"

/* The fields up to `bf16` are set by the command line. */
typedef struct dsc_text_rows {
    const char *model, *tokenizer_path, *device, *path, *text, *text_pair;
    int64_t tokens, threads; /* tokens: 0: the model's usual length, at most 512 */
    bool bf16;
    const char *prompt; /* before each text; NULL: none */
    const char *shown;  /* name of the file in messages; NULL: its path */
    dsc_alloc *alloc;
    dsc_tokenizer *tokenizer;
    dsc_infer *infer;
    dsc_sft_section section;
    dsc_sft_reader *reader;
    int64_t rows, truncated;
} dsc_text_rows;

#define DSC_TEXT_ROWS_DEVICES                                                                                          \
    {                                                                                                                  \
        "auto", "cpu", "cuda", NULL                                                                                    \
    }
/* Rows of a table of flags. `at` is the offset of a field of dsc_text_rows. */
#define DSC_TEXT_ROWS_FLAGS(at, devices)                                                                               \
    { "--max-tokens",                                                                                                  \
      NULL,                                                                                                            \
      "N",                                                                                                             \
      DSC_FLAG_INTEGER,                                                                                                \
      at(tokens),                                                                                                      \
      .min = 1,                                                                                                        \
      .max = 1 << 24,                                                                                                  \
      .help = "longer texts are cut; default: the model's usual length, at most 512" },                                \
        { "--tokenizer",      NULL,                                                                                    \
          "DIR|FILE.json",    DSC_FLAG_TEXT,                                                                           \
          at(tokenizer_path), .help = "tokenizer of the texts; default: the model folder's" },                         \
        { "--bf16", NULL, NULL, DSC_FLAG_BOOL, at(bf16), .help = "compute in bf16 instead of fp32" },                  \
        { "--device",                                                                                                  \
          NULL,                                                                                                        \
          "NAME",                                                                                                      \
          DSC_FLAG_CHOICE,                                                                                             \
          at(device),                                                                                                  \
          .choices = (devices),                                                                                        \
          .help = "auto, the default, cpu or cuda" },                                                                  \
    {                                                                                                                  \
        "--threads", NULL, "N", DSC_FLAG_INTEGER, at(threads), .min = 1, .max = 256,                                   \
                                                               .help = "CPU threads; default: one for each core"       \
    }

/* Prints the answer for the row of a line: scores[labels.count]. */
typedef dsc_status (*dsc_text_rows_print)(const dsc_text_rows *rows, int64_t line, const float *scores, dsc_error *err);

/* Opens a model of this kind, reads all rows and prints their answers. `vectors`: it makes vectors, else it classifies.
 * Everything is closed at the end; the exit code of the command. */
int dsc_text_rows_run(dsc_text_rows *rows, bool vectors, dsc_text_rows_print print);

#endif
