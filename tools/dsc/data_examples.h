/* data_examples.h - `dsc data render`, and the part of `dsc data show` for samples. SPDX-License-Identifier: Apache-2.0
 */
#ifndef DSC_TOOLS_DATA_EXAMPLES_H
#define DSC_TOOLS_DATA_EXAMPLES_H

#include "engine/config/config.h"
#include "tools/dsc/tool.h"

extern const dsc_flag_command dsc_data_render_page;
int dsc_data_render(int argc, char **argv);

/* Settings of instruction data: of a config, or the defaults. */
typedef struct dsc_example_settings {
    const char *tokenizer; /* folder or tokenizer.json; NULL: the config's */
    const char *config;    /* NULL: none */
    const char *path;      /* data */
    int64_t sequence;      /* 0: the config's, or 2048 */
} dsc_example_settings;
/* `tokenizer` [DSC_CONFIG_TEXT]; *sequence keeps a value above 0, else it is the config's. */
dsc_status dsc_data_read_settings(dsc_alloc *alloc, const dsc_example_settings *settings, dsc_sft_section *section,
                                  char *tokenizer, int64_t *sequence, dsc_error *err);
/* Prints sample `sample` (from 0) as training would see it, in colours on a terminal. */
dsc_status dsc_data_show_sample(dsc_alloc *alloc, const dsc_example_settings *settings, int64_t sample, dsc_error *err);

#endif
