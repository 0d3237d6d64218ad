/* trial_config.c - the training of a trial: the command line and the config made from it. See trial.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/dsc/config_tool.h"
#include "tools/dsc/tool.h"
#include "tools/dsc/trial.h"

/* ---- the command line ---- */

/* A flag of dsc-launch goes on to it with its value. */
static dsc_status add_launch_flag(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    trial_setup *setup = out;
    if (setup->launch_flag_count + 2 > TRIAL_FLAGS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "more than %d of them; give fewer", TRIAL_FLAGS_MAX / 2);
    setup->launch_flag[setup->launch_flag_count++] = flag->name;
    setup->launch_flag[setup->launch_flag_count++] = value;
    return DSC_OK;
}

static dsc_status add_edit(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    trial_setup *setup = out;
    if (*value == 0 || setup->edit_count == TRIAL_FLAGS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "no value, or more than %d of them", TRIAL_FLAGS_MAX);
    setup->edit[setup->edit_count++] = (trial_edit){ flag->key, value };
    return DSC_OK;
}

#define AT(field) offsetof(trial_setup, field)
const dsc_flag trial_flags[TRIAL_FLAG_ROWS] = {
    { "--config", NULL, "FILE", DSC_FLAG_TEXT, AT(path), .help = "the ds_config.json; must be given" },
    { "--model", NULL, "NAME|DIR", DSC_FLAG_CALL, 0, .set = add_edit, .key = "dsc.model",
      .help = "model of the runs; default: the config's dsc.model" },
    { "--data", NULL, "PATH", DSC_FLAG_CALL, 0, .set = add_edit, .key = "dsc.data",
      .help = "data of the runs, may be repeated; default: the config's dsc.data" },
    { "--seq-len", NULL, "T", DSC_FLAG_CALL, 0, .set = add_edit, .key = "dsc.seq_length",
      .help = "tokens of a sample; default: the config's dsc.seq_length" },
    { "--set", NULL, "KEY=VALUE", DSC_FLAG_CALL, 0, .set = add_edit,
      .help = "value of the config for all runs, may be repeated" },
    { "--steps", NULL, "N", DSC_FLAG_INTEGER, AT(steps), .min = 1, .max = TRIAL_STEPS_MAX,
      .help = "steps of a run that count; default 10" },
    { "--warm", NULL, "N", DSC_FLAG_INTEGER, AT(warm_steps), .min = 0, .max = TRIAL_STEPS_MAX,
      .help = "first steps of a run, which do not count; default 3" },
    { "--limit", NULL, "S", DSC_FLAG_INTEGER, AT(limit_s), .min = 1, .max = 86400,
      .help = "seconds after which a run is ended and has failed; default 600" },
    { "--hostfile", NULL, "FILE", DSC_FLAG_CALL, 0, .set = add_launch_flag,
      .help = "hosts of the ranks, as for dsc-launch; default: this host" },
    { "-H", NULL, "HOSTS", DSC_FLAG_CALL, 0, .set = add_launch_flag,
      .help = "hosts of the ranks as name:slots,..., as for dsc-launch" },
};

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

bool trial_share_batch(int64_t batch, int64_t ranks, int64_t most, int64_t *micro_batch, int64_t *accumulation)
{
    const int64_t each = batch / ranks;
    if (each == 0 || each * ranks != batch)
        return false;
    *micro_batch = dsc_min_i64(most, each);
    while (each % *micro_batch != 0)
        --*micro_batch;
    *accumulation = each / *micro_batch;
    return true;
}

dsc_status trial_put_batch(cJSON *config, int64_t micro_batch, int64_t accumulation, dsc_error *err)
{
    dsc_config_tool_remove(config, "train_batch_size");
    DSC_TRY(dsc_config_tool_put(config, "train_micro_batch_size_per_gpu", cJSON_CreateNumber((double)micro_batch),
                                err));
    return dsc_config_tool_put(config, "gradient_accumulation_steps", cJSON_CreateNumber((double)accumulation), err);
}
