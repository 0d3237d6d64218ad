/* args.h - the command line of `train` as overrides of the config. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRAIN_ARGS_H
#define DSC_TOOLS_TRAIN_ARGS_H

#include <stdio.h>

#include <dsc/dsc.h>

#define TRAIN_OVERRIDES_MAX 40
#define TRAIN_VALUE_BYTES 16384

typedef struct train_args {
    const char *config;   /* --config, or the preset */
    char config_flag[16]; /* stands for --deepspeed in argv */
    char preset[4096];    /* the path of the strategy's preset */
    const char *strategy; /* NULL: not given */
    bool strict, help, version, curve;
    bool deepspeed;       /* accepted and ignored, as local_rank is: RANK and LOCAL_RANK of the environment count */
    int64_t local_rank;
    dsc_override overrides[TRAIN_OVERRIDES_MAX];
    int32_t override_count;
    char json[TRAIN_OVERRIDES_MAX][TRAIN_VALUE_BYTES]; /* texts that the overrides point at, but for lists */
    struct train_list {
        char *json;
        size_t bytes, room;
    } lists[2];         /* --data, --eval-data; kept until the end */
    const char *prompt; /* --sample TEXT: continued at the end; NULL: not given */
} train_args;

/* Parses into a zeroed struct. `exe_dir` is the folder of this program: presets are looked for in ../configs and
 * ../share/dsc/configs. Texts point into argv or into `out`. */
dsc_status train_args_parse(int argc, char **argv, const char *exe_dir, train_args *out, dsc_error *err);
/* The key of the config as a flag named `name` sets it; it wins over the file. */
dsc_status train_args_set_number(train_args *args, const char *key, int64_t value, const char *name, dsc_error *err);
/* The page of --help. */
void train_args_help(FILE *to);

#endif
