/* grid.c - see grid.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/grid.h"

#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/formats/yaml.h"
#include "base/io.h"

#define STAGES_MAX 1024
#define CONFIG_BYTES_MAX 1000000

/* The value behind the last "FLAG VALUE" or "FLAG=VALUE"; NULL: there is none. */
static const char *value_of(const dsc_flag_program *program, const char *flag)
{
    const size_t bytes = strlen(flag);
    const char *value = NULL;
    for (int i = 1; i < program->argc; i++) {
        const char *arg = program->argv[i];
        if (strncmp(arg, flag, bytes) != 0)
            continue;
        if (arg[bytes] == '=')
            value = arg + bytes + 1;
        else if (arg[bytes] == 0 && i + 1 < program->argc)
            value = program->argv[i + 1];
    }
    return value;
}

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
}

static bool is_stages(const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble <= STAGES_MAX;
}

static int32_t stages_of(const cJSON *root)
{
    const cJSON *own = member(member(member(root, "dsc"), "grid"), "pipeline");
    const cJSON *of_deepspeed = member(member(root, "pipeline"), "stages");
    return is_stages(own)            ? (int32_t)own->valuedouble
           : is_stages(of_deepspeed) ? (int32_t)of_deepspeed->valuedouble
                                     : 1;
}

static int32_t stages_of_file(dsc_alloc *alloc, const char *path)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    const dsc_io io = { 0 };
    dsc_json *json = NULL;
    char *text = NULL;
    int64_t bytes;
    int32_t stages = 1;
    if (dsc_io_read_all(&io, alloc, path, CONFIG_BYTES_MAX, &text, &bytes, NULL) != DSC_OK)
        return 1;
    const dsc_status status = dsc_yaml_is_name(path)
                                  ? dsc_yaml_open(alloc, path, text, bytes, &limits, &json, NULL)
                                  : dsc_json_open(alloc, path, text, bytes, DSC_JSON_CONFIG, &limits, &json, NULL);
    if (status == DSC_OK)
        stages = stages_of(dsc_json_root(json));
    dsc_json_close(&json);
    dsc_alloc_free(alloc, text);
    return stages;
}

int32_t dsc_grid_stages(dsc_alloc *alloc, const dsc_flag_program *program)
{
    static const char *const files[] = { "--config", "--deepspeed_config" };
    if (program->argc == 0)
        return 1;
    const char *slash = strrchr(program->argv[0], '/');
    if (strcmp(slash != NULL ? slash + 1 : program->argv[0], "train") != 0)
        return 1;
    const char *given = value_of(program, "--pipeline-ranks");
    if (given != NULL) {
        char *end;
        const long stages = strtol(given, &end, 10);
        return *given != 0 && *end == 0 && stages >= 1 && stages <= STAGES_MAX ? (int32_t)stages : 1;
    }
    for (size_t i = 0; i < DSC_COUNT(files); i++)
        if (value_of(program, files[i]) != NULL)
            return stages_of_file(alloc, value_of(program, files[i]));
    return 1;
}
