/* grid.c - see grid.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/grid.h"

#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/formats/yaml.h"
#include "base/io.h"

#define SIZE_MAX_OF_AXIS 1024
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

static bool is_size(const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble <= SIZE_MAX_OF_AXIS;
}

/* The first of the items that is a size. */
static int32_t first_size(const cJSON *const *items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_size(items[i]))
            return (int32_t)items[i]->valuedouble;
    return 1;
}

static dsc_asked_grid grid_of(const cJSON *root)
{
    const cJSON *own = member(member(root, "dsc"), "grid"), *tensor = member(root, "tensor_parallel");
    const cJSON *const stages[] = { member(own, "pipeline"), member(member(root, "pipeline"), "stages") };
    const cJSON *const ranks[] = { member(own, "tensor"), member(tensor, "autotp_size"),
                                   member(member(tensor, "tp"), "tp_size") };
    return (dsc_asked_grid) { first_size(stages, DSC_COUNT(stages)), first_size(ranks, DSC_COUNT(ranks)) };
}

static dsc_asked_grid grid_of_file(dsc_alloc *alloc, const char *path)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    const dsc_io io = { 0 };
    dsc_json *json = NULL;
    char *text = NULL;
    int64_t bytes;
    dsc_asked_grid grid = { 1, 1 };
    if (dsc_io_read_all(&io, alloc, path, CONFIG_BYTES_MAX, &text, &bytes, NULL) != DSC_OK)
        return grid;
    const dsc_status status = dsc_yaml_is_name(path)
                                  ? dsc_yaml_open(alloc, path, text, bytes, &limits, &json, NULL)
                                  : dsc_json_open(alloc, path, text, bytes, DSC_JSON_CONFIG, &limits, &json, NULL);
    if (status == DSC_OK)
        grid = grid_of(dsc_json_root(json));
    dsc_json_close(&json);
    dsc_alloc_free(alloc, text);
    return grid;
}

/* *size <- that of the flag, if it is there; 1 of a value that `train` refuses. */
static void take_flag(const dsc_flag_program *program, const char *flag, int32_t *size)
{
    char *end;
    const char *given = value_of(program, flag);
    if (given == NULL)
        return;
    const long value = strtol(given, &end, 10);
    *size = *given != 0 && *end == 0 && value >= 1 && value <= SIZE_MAX_OF_AXIS ? (int32_t)value : 1;
}

dsc_asked_grid dsc_grid_asked(dsc_alloc *alloc, const dsc_flag_program *program)
{
    static const char *const files[] = { "--config", "--deepspeed_config" };
    dsc_asked_grid grid = { 1, 1 };
    if (program->argc == 0)
        return grid;
    const char *slash = strrchr(program->argv[0], '/');
    if (strcmp(slash != NULL ? slash + 1 : program->argv[0], "train") != 0)
        return grid;
    for (size_t i = DSC_COUNT(files); i-- > 0;)
        if (value_of(program, files[i]) != NULL)
            grid = grid_of_file(alloc, value_of(program, files[i]));
    take_flag(program, "--pipeline-ranks", &grid.stages);
    take_flag(program, "--tensor-ranks", &grid.tensor);
    return grid;
}
