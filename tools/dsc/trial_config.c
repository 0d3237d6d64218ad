/* trial_config.c - what a trial trains: the command line's words and the config that they make. See trial.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/dsc/config_tool.h"
#include "tools/dsc/tool.h"
#include "tools/dsc/trial.h"

/* ---- the command line ---- */

const char trial_usage[] = "[--model M] [--data PATH]... [--seq-len T] [--set KEY=VALUE]... [--steps 10] [--warm 3] "
                           "[--limit 600] [--hostfile FILE | -H HOSTS]";

/* Two words of the command line, or one with its "=", as they are. */
static trial_flag_code pass_on(trial_setup *setup, int argc, char **argv, int *i)
{
    if (setup->launch_flag_count + 2 > TRIAL_FLAGS_MAX || (strchr(argv[*i], '=') == NULL && *i + 1 == argc)) {
        (void)dsc_tool_usage(argv[*i], "a value is missing, or there are too many of them");
        return TRIAL_FLAG_WRONG;
    }
    setup->launch_flag[setup->launch_flag_count++] = argv[*i];
    if (strchr(argv[*i], '=') == NULL)
        setup->launch_flag[setup->launch_flag_count++] = argv[++*i];
    return TRIAL_FLAG_TAKEN;
}

static trial_flag_code take_edit(trial_setup *setup, const char *name, const char *path, const char *value)
{
    if (*value == 0 || setup->edit_count == TRIAL_FLAGS_MAX) {
        (void)dsc_tool_usage(name, "no value, or more than %d of them", TRIAL_FLAGS_MAX);
        return TRIAL_FLAG_WRONG;
    }
    setup->edit[setup->edit_count++] = (trial_edit){ path, value };
    return TRIAL_FLAG_TAKEN;
}

trial_flag_code trial_flag(trial_setup *setup, int argc, char **argv, int *i)
{
    const struct { const char *name; int64_t least, most, *out; } numbers[] = {
        { "--steps", 1, TRIAL_STEPS_MAX, &setup->steps },
        { "--warm", 0, TRIAL_STEPS_MAX, &setup->warm_steps },
        { "--limit", 1, 86400, &setup->limit_s },
    };
    static const struct { const char *name, *path; } edits[] = {
        { "--model", "dsc.model" }, { "--data", "dsc.data" }, { "--seq-len", "dsc.seq_length" }, { "--set", NULL },
    };
    const char *value;
    for (size_t n = 0; n < DSC_COUNT(numbers); n++)
        if ((value = dsc_tool_flag(numbers[n].name, argc, argv, i)) != NULL)
            return dsc_tool_number(numbers[n].name, value, numbers[n].least, numbers[n].most, numbers[n].out)
                       ? TRIAL_FLAG_TAKEN : TRIAL_FLAG_WRONG;
    for (size_t n = 0; n < DSC_COUNT(edits); n++)
        if ((value = dsc_tool_flag(edits[n].name, argc, argv, i)) != NULL)
            return take_edit(setup, edits[n].name, edits[n].path, value);
    if ((value = dsc_tool_flag("--config", argc, argv, i)) != NULL) {
        setup->path = value;
        return TRIAL_FLAG_TAKEN;
    }
    if (strcmp(argv[*i], "-H") == 0 || strncmp(argv[*i], "--hostfile", 10) == 0)
        return pass_on(setup, argc, argv, i);
    return TRIAL_FLAG_OTHER;
}

/* ---- the config ---- */

/* VALUE is JSON, or a text when it is none. */
static dsc_status edit(const trial_setup *setup, const trial_edit *e, dsc_error *err)
{
    char path[256];
    const char *text = e->text;
    snprintf(path, sizeof path, "%s", e->path != NULL ? e->path : "");
    if (e->path == NULL) {
        const char *equals = strchr(e->text, '=');
        if (equals == NULL || equals == e->text || equals - e->text >= (ptrdiff_t)sizeof path)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--set", "\"%.80s\" is not KEY=VALUE", e->text);
        snprintf(path, sizeof path, "%.*s", (int)(equals - e->text), e->text);
        text = equals + 1;
    }
    const bool is_list = strcmp(path, "dsc.data") == 0;
    cJSON *value = e->path == NULL || !is_list ? cJSON_Parse(text) : NULL;
    if (value == NULL || (e->path != NULL && !cJSON_IsNumber(value))) {
        cJSON_Delete(value);
        value = cJSON_CreateString(text);
    }
    cJSON *list = is_list ? dsc_config_tool_get(setup->config, path) : NULL;
    if (!is_list || e->path == NULL || !cJSON_IsArray(list))
        return dsc_config_tool_put(setup->config, path, value, err);
    if (value != NULL && cJSON_AddItemToArray(list, value))
        return DSC_OK;
    cJSON_Delete(value);
    return DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory");
}

/* The file as it is must be right: then errors name its lines. */
static dsc_status check_file(const trial_setup *setup, dsc_error *err)
{
    dsc_config *config = NULL;
    DSC_TRY(dsc_alloc_zeroed(setup->alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, err));
    const dsc_status status = dsc_config_load(setup->alloc, setup->path, NULL, 0, false, config, err);
    dsc_alloc_free(setup->alloc, config);
    return status;
}

dsc_status trial_make_config(trial_setup *setup, dsc_error *err)
{
    bool has_data = false;
    DSC_TRY(check_file(setup, err));
    DSC_TRY(dsc_config_tool_open(setup->alloc, setup->path, &setup->file, err));
    setup->config = cJSON_Duplicate(dsc_json_root(setup->file), true);
    if (setup->config == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, setup->path, "out of host memory");
    for (int i = 0; i < setup->edit_count; i++) {
        const char *path = setup->edit[i].path;
        if (path != NULL && strcmp(path, "dsc.data") == 0 && !has_data) { /* the first takes the place of the file's */
            has_data = true;
            DSC_TRY(dsc_config_tool_put(setup->config, path, cJSON_CreateArray(), err));
        }
        DSC_TRY(edit(setup, &setup->edit[i], err));
    }
    return DSC_OK;
}

dsc_status trial_resolve(const trial_setup *setup, const cJSON *config, int64_t ranks, dsc_config **out, dsc_error *err)
{
    const dsc_config_facts facts = { .world_size = ranks };
    char *text = cJSON_PrintUnformatted(config);
    dsc_config *own = NULL;
    dsc_status status = text != NULL ? dsc_alloc_zeroed(setup->alloc, DSC_TAG_CONTROL, 1, sizeof *own, &own, err)
                                     : DSC_FAIL(err, DSC_ERR_NOMEM, setup->path, "out of host memory");
    if (status == DSC_OK)
        status = dsc_config_parse(setup->alloc, "<json>", text, (int64_t)strlen(text), NULL, 0, false, own, err);
    if (status == DSC_OK)
        status = dsc_config_resolve(own, &facts, err);
    cJSON_free(text);
    if (status == DSC_OK)
        *out = own;
    else
        dsc_alloc_free(setup->alloc, own);
    return status;
}

dsc_status trial_put_batch(cJSON *config, int64_t micro_batch, int64_t accumulation, dsc_error *err)
{
    dsc_config_tool_remove(config, "train_batch_size");
    DSC_TRY(dsc_config_tool_put(config, "train_micro_batch_size_per_gpu", cJSON_CreateNumber((double)micro_batch),
                                err));
    return dsc_config_tool_put(config, "gradient_accumulation_steps", cJSON_CreateNumber((double)accumulation), err);
}
