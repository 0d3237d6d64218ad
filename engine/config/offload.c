/* offload.c - offload_optimizer, offload_param and aio: where states live and how their files are used.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

#define DIRECT_BYTES 4096 /* offload/aio.h: sizes of direct I/O are multiples of it */
#define MAX_IN_CPU INT64_C(1000000000) /* DeepSpeed's default of offload_param.max_in_cpu */

/* Rows of the table that say the same of one kind of state. */
typedef struct offload_rows {
    int device, path, old, least_stage;
} offload_rows;

static dsc_status offload_paths(dsc_config_parse_state *s, const offload_rows *rows, dsc_nvme_config *out)
{
    out->path_count = dsc_config_copy_texts(s->given[rows->path], out->path, DSC_NVME_PATHS_MAX);
    if (out->path_count > DSC_NVME_PATHS_MAX)
        return dsc_config_fail(s, rows->path, DSC_ERR_CONFIG, "%d folders; at most %d", out->path_count,
                               DSC_NVME_PATHS_MAX);
    for (int i = 0; i < out->path_count; i++)
        if (out->path[i][0] == 0)
            return dsc_config_fail(s, rows->path, DSC_ERR_CONFIG, "an empty name; give a folder on a fast local disk");
    if (out->path_count == 0)
        return dsc_config_fail(s, rows->device, DSC_ERR_CONFIG, "\"nvme\" needs %s, a folder",
                               dsc_config_keys[rows->path].path);
    return DSC_OK;
}

/* The device in effect, and the one that is named. */
static dsc_status offload_device(dsc_config_parse_state *s, const offload_rows *rows, dsc_offload *out,
                                 dsc_offload *named, dsc_nvme_config *nvme)
{
    static const char *const names[] = { "none", "cpu", "nvme" };
    const cJSON *device = dsc_config_has(s, rows->device) ? s->given[rows->device] : NULL;
    int at = rows->device;
    int choice = device != NULL ? dsc_value_choice(&dsc_config_keys[at], device->valuestring) : 0;
    if (dsc_config_has(s, rows->old)) {
        bool old = false, from_text;
        (void)dsc_value_bool(s->given[rows->old], &old, &from_text);
        choice = old;
        at = rows->old;
        DSC_TRY(dsc_config_warn(s, at, "an old form, taken as %s \"%s\"", dsc_config_keys[rows->device].path,
                                names[choice]));
    }
    *out = DSC_OFFLOAD_NONE;
    *named = (dsc_offload)choice;
    if (choice == DSC_OFFLOAD_NONE)
        return DSC_OK;
    if (s->config->zero.stage < rows->least_stage)
        return dsc_config_warn(s, at, "no effect at stage %d: it needs stage %d", s->config->zero.stage,
                               rows->least_stage);
    if (choice == DSC_OFFLOAD_NVME)
        DSC_TRY(offload_paths(s, rows, nvme));
    *out = (dsc_offload)choice;
    return DSC_OK;
}

/* DeepSpeed reads intra_op_parallelism; thread_count is its older name, which it reads no more. */
static dsc_status fill_aio(dsc_config_parse_state *s)
{
    const int64_t block = s->config->aio.block_size;
    bool from_text;
    s->config->aio.thread_count = 0;
    for (size_t i = 0; i < 2; i++) {
        const int id = i == 0 ? DSC_ID_AIO_THREADS_OLD : DSC_ID_AIO_THREADS;
        if (dsc_config_has(s, id))
            (void)dsc_value_int(s->given[id], &s->config->aio.thread_count, &from_text);
    }
    if (block % DIRECT_BYTES == 0)
        return DSC_OK;
    return dsc_config_fail(s, DSC_ID_AIO_BLOCK, DSC_ERR_CONFIG, "%lld is not a multiple of %d bytes, which O_DIRECT "
                           "needs; use %lld", (long long)block, DIRECT_BYTES,
                           (long long)dsc_align_up(block, DIRECT_BYTES));
}

dsc_status dsc_config_fill_offload(dsc_config_parse_state *s)
{
    static const offload_rows optimizer = { DSC_ID_OFFLOAD_OPTIMIZER_DEVICE, DSC_ID_OFFLOAD_OPTIMIZER_PATH,
                                            DSC_ID_CPU_OFFLOAD, 1 };
    static const offload_rows param = { DSC_ID_OFFLOAD_PARAM_DEVICE, DSC_ID_OFFLOAD_PARAM_PATH,
                                        DSC_ID_CPU_OFFLOAD_PARAM, 3 };
    dsc_zero_config *zero = &s->config->zero;
    if (zero->offload_ratio < 1 && zero->stage < 3)
        return dsc_config_fail(s, DSC_ID_OFFLOAD_RATIO, DSC_ERR_CONFIG, "below 1 only at stage 3, not %d", zero->stage);
    DSC_TRY(offload_device(s, &optimizer, &zero->offload_optimizer, &zero->optimizer_named,
                           &zero->nvme_optimizer));
    DSC_TRY(offload_device(s, &param, &zero->offload_param, &zero->param_named, &zero->nvme_param));
    s->config->unresolved.offload_optimizer = dsc_config_source_pos(s, DSC_ID_OFFLOAD_OPTIMIZER_DEVICE);
    s->config->unresolved.offload_param = dsc_config_source_pos(s, DSC_ID_OFFLOAD_PARAM_DEVICE);
    s->config->unresolved.outputs_on_host = dsc_config_source_pos(s, DSC_ID_CPU_CHECKPOINTING);
    s->config->unresolved.early_update = dsc_config_source_pos(s, DSC_ID_EARLY_UPDATE);
    s->config->unresolved.late_update = dsc_config_source_pos(s, DSC_ID_LATE_UPDATE);
    s->config->unresolved.gradients_in_memory = dsc_config_source_pos(s, DSC_ID_GRADIENTS_IN_MEMORY);
    s->config->unresolved.gradients_on_gpu = dsc_config_source_pos(s, DSC_ID_GRADIENTS_ON_GPU);
    zero->param_buffers_given = dsc_config_has(s, DSC_ID_PARAM_BUFFERS) || dsc_config_has(s, DSC_ID_PARAM_BUFFER_SIZE);
    s->config->unresolved.max_in_cpu = dsc_config_has(s, DSC_ID_MAX_IN_CPU) ? zero->max_in_cpu : DSC_AUTO_I64;
    return fill_aio(s);
}

/* ---- what the machine says to it ---- */

static dsc_status resolve_outputs(dsc_config *config, const char *device, dsc_error *err)
{
    char where[256];
    if (!config->own.outputs_on_host || device == NULL || strcmp(device, "cpu") != 0)
        return DSC_OK;
    dsc_config_source_text(config, config->unresolved.outputs_on_host, where);
    return dsc_config_warn_at(config, where, config->unresolved.outputs_on_host.line,
                              "activation_checkpointing.cpu_checkpointing", err,
                              "moves nothing: host memory is the device of CPU ranks");
}

static dsc_status warn_no_effect(dsc_config *config, dsc_source_pos place, const char *key, const char *about,
                                 dsc_error *err)
{
    char where[256];
    dsc_config_source_text(config, place, where);
    return dsc_config_warn_at(config, where, place.line, key, err, "no effect: it is about %s", about);
}

static dsc_status resolve_early_update(dsc_config *config, bool on_gpus, dsc_error *err)
{
    const dsc_zero_config *zero = &config->zero;
    const bool in_files = zero->offload_optimizer == DSC_OFFLOAD_NVME && zero->offload_param == DSC_OFFLOAD_NVME;
    if (config->own.early_update && config->own.moments == DSC_U8)
        return warn_no_effect(config, config->unresolved.early_update, "dsc.early_update",
                              "moments in fp32 or bf16, and these are in 8 bits", err);
    const bool on_host =
        zero->offload_optimizer == DSC_OFFLOAD_CPU && zero->offload_param != DSC_OFFLOAD_NVME && on_gpus;
    if (config->own.early_update && on_host && config->gradient_clipping > 0)
        return warn_no_effect(config, config->unresolved.early_update, "dsc.early_update",
                              "steps on GPUs that are not clipped; set gradient_clipping to 0", err);
    if (config->own.early_update && config->own.ema.enabled)
        return warn_no_effect(config, config->unresolved.early_update, "dsc.early_update",
                              "runs without dsc.ema: an average is not undone", err);
    if (!config->own.early_update || (in_files && !on_gpus) || on_host)
        return DSC_OK;
    return warn_no_effect(config, config->unresolved.early_update, "dsc.early_update",
                          "CPU ranks with offload_optimizer and offload_param on nvme, and GPUs with offload_optimizer "
                          "in host memory",
                          err);
}

/* A condition that an update under the next forward pass lacks; NULL: it lacks none. */
static const char *late_update_needs(const dsc_config *config, bool on_cpu)
{
    const dsc_recipe recipe = config->optimizer.recipe;
    if (on_cpu)
        return "GPUs: a CPU rank's cores have no time left beside a forward pass";
    if (config->zero.offload_optimizer != DSC_OFFLOAD_NONE || config->zero.offload_param != DSC_OFFLOAD_NONE)
        return "states and parameters on the GPU, and some are offloaded";
    if (dsc_recipes[recipe].needs != DSC_NEEDS_NOTHING || dsc_recipes[recipe].rest != recipe ||
        dsc_config_compresses_signs(config))
        return "optimizers whose steps depend on an element's own numbers alone";
    if (config->own.ema.enabled)
        return "runs without dsc.ema, which reads the new weights";
    return config->own.grid.pipeline > 1 ? "runs without pipeline stages, which share weights after an update" : NULL;
}

static dsc_status resolve_late_update(dsc_config *config, bool on_cpu, dsc_error *err)
{
    const char *needs = config->own.late_update ? late_update_needs(config, on_cpu) : NULL;
    return needs == NULL
               ? DSC_OK
               : warn_no_effect(config, config->unresolved.late_update, "dsc.late_update", needs, err);
}

static dsc_status resolve_kept_gradients(dsc_config *config, bool on_gpus, dsc_error *err)
{
    if (config->own.gradients_on_gpu == 0 ||
        (on_gpus && config->zero.offload_optimizer == DSC_OFFLOAD_CPU && config->gradient_accumulation_steps != 1))
        return DSC_OK;
    return warn_no_effect(config, config->unresolved.gradients_on_gpu, "dsc.gradients_on_gpu",
                          "GPUs with offload_optimizer in host memory and several micro-batches a step", err);
}

static dsc_status resolve_gradients(dsc_config *config, dsc_error *err)
{
    const bool leave_memory =
        config->zero.offload_optimizer == DSC_OFFLOAD_NVME && config->own.reproducible != DSC_REPRODUCIBLE_WORLD_SIZE;
    if (config->own.gradients_in_memory == 0 || leave_memory)
        return DSC_OK;
    return warn_no_effect(config, config->unresolved.gradients_in_memory, "dsc.gradients_in_memory",
                          "offload_optimizer on nvme, without reproducible \"world_size\"", err);
}

static dsc_status resolve_device(dsc_config *config, const char *key, dsc_offload offload, dsc_source_pos place,
                                 const char *device, dsc_error *err)
{
    char where[256];
    if (offload != DSC_OFFLOAD_CPU || device == NULL || strcmp(device, "cpu") != 0)
        return DSC_OK;
    dsc_config_source_text(config, place, where);
    return dsc_config_warn_at(config, where, place.line, key, err,
                              "\"cpu\" moves nothing: host memory is the device of CPU ranks");
}

dsc_status dsc_config_resolve_offload(dsc_config *config, const dsc_config_facts *facts, dsc_error *err)
{
    dsc_zero_config *zero = &config->zero;
    const bool on_cpu = facts->device != NULL && strcmp(facts->device, "cpu") == 0;
    zero->max_in_cpu = config->unresolved.max_in_cpu;
    zero->params_with_states = on_cpu && zero->max_in_cpu == DSC_AUTO_I64;
    if (zero->max_in_cpu == DSC_AUTO_I64) {
        zero->max_in_cpu = on_cpu ? 0 : MAX_IN_CPU;
        if (on_cpu && zero->offload_param == DSC_OFFLOAD_NVME)
            dsc_config_note(config, "zero_optimization.offload_param.max_in_cpu is not given: %s, because host memory "
                            "is the device of CPU ranks",
                            zero->offload_ratio < 1 ? "the modules whose states stay in memory" : "0");
    }
    DSC_TRY(resolve_outputs(config, facts->device, err));
    DSC_TRY(resolve_early_update(config, facts->device != NULL && !on_cpu, err));
    DSC_TRY(resolve_late_update(config, on_cpu, err));
    DSC_TRY(resolve_gradients(config, err));
    DSC_TRY(resolve_kept_gradients(config, facts->device != NULL && !on_cpu, err));
    DSC_TRY(resolve_device(config, "zero_optimization.offload_optimizer.device", zero->offload_optimizer,
                           config->unresolved.offload_optimizer, facts->device, err));
    return resolve_device(config, "zero_optimization.offload_param.device", zero->offload_param,
                          config->unresolved.offload_param, facts->device, err);
}
