/* args.h - the command line of `train` as overrides of the config. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRAIN_ARGS_H
#define DSC_TOOLS_TRAIN_ARGS_H

#include <dsc/dsc.h>

#define TRAIN_OVERRIDES_MAX 40
#define TRAIN_PATHS_MAX 64

typedef struct train_args {
    char config[4096];
    bool config_given, strict, help, version, curve;
    dsc_override overrides[TRAIN_OVERRIDES_MAX];
    int32_t override_count;
    char json[TRAIN_OVERRIDES_MAX][TRAIN_PATHS_MAX * 128 + 8192]; /* texts that the overrides point at */
    const char *load;   /* --load, "" when not given */
    const char *save;
    const char *prompt; /* --sample TEXT: continued at the end */
} train_args;

/* `exe_dir` is where this program lies: presets are looked for in ../configs and ../share/dsc/configs. */
dsc_status train_args_parse(int argc, char **argv, const char *exe_dir, train_args *out, dsc_error *err);
extern const char train_usage[];

#endif
