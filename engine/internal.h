/* internal.h - the engine's struct, and functions of single files that others of the folder call.
 *
 * The struct has a core, and one struct for each feature, which the feature's header declares. Data flows one way:
 * config -> plan -> open -> step -> checkpoint. Functions with one responsibility have a header:
 * config and plan in model.h, memory.h and machine.h; open in device.h; step in batch_transfer.h, activation_offload.h
 * and update.h; checkpoint in save.h; output in report.h. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_INTERNAL_H
#define DSC_ENGINE_INTERNAL_H

#include <dsc/dsc.h>

#include "base/io.h"
#include "engine/buffers.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/config/config.h"
#include "engine/counted_targets.h"
#include "engine/device.h"
#include "engine/experts.h"
#include "engine/input.h"
#include "engine/mirror.h"
#include "engine/model.h"
#include "engine/monitor/gpu_sensor.h"
#include "engine/monitor/monitor.h"
#include "engine/packed_hash.h"
#include "engine/plan.h"
#include "engine/preference.h"
#include "engine/profile/profile.h"
#include "engine/progress.h"
#include "engine/quota.h"
#include "engine/repeat.h"
#include "engine/report.h"
#include "engine/router_bias.h"
#include "engine/save.h"
#include "engine/spikes.h"
#include "engine/pipeline.h"
#include "engine/tensor.h"
#include "zero/zero.h"

#define DSC_READER_AHEAD 2 /* micro-batches, or those of the next pass where it takes more */

/* Kind of a section of the compute stream, with the module. */
typedef enum dsc_pass { DSC_PASS_FORWARD, DSC_PASS_BACKWARD, DSC_PASS_REBUILD, DSC_PASS_COUNT } dsc_pass;

struct dsc_world {
    dsc_local_world *local;
    int32_t size;
};

/* Outputs and other values of modules in host memory, work.outputs_buf, until their backward (activation_offload.c). */
typedef struct dsc_outputs {
    dsc_stream *in, *out;
    dsc_event *mark;
    dsc_event *left[DSC_OUT_SLOTS], *here[DSC_OUT_SLOTS]; /* per slot: copied to host memory; copied back */
} dsc_outputs;

struct dsc_engine {
    struct dsc_engine_hooks *hooks; /* the host program's (hooks.c); NULL: none */
    dsc_alloc *alloc;
    dsc_io io;
    dsc_log log;
    dsc_config config;
    char *config_text;
    int64_t config_bytes;
    const dsc_model *model;
    dsc_engine_models models;
    dsc_rank_info place;
    dsc_engine_stages stages;
    dsc_engine_tensor tensor;
    dsc_engine_comms comms;
    dsc_device *device;
    dsc_stream *compute;
    bool host_visible; /* the device's */
    int32_t ranks_of_gpu; /* how many share this rank's */
    uint32_t cpu_caps;
    int32_t threads;
    bool plan_only, failed;
    struct dsc_virtual_clock *clock;            /* the ranks are virtual (planned.h), with plan_only; else NULL */
    struct dsc_launch_times *times_of_launches; /* launches are timed; else NULL */
    bool values_due; /* parameters have no values yet, on all ranks alike */
    int64_t host_free_bytes; /* for plans, before any rank of the host has taken memory; INT64_MAX: unknown */

    dsc_layout layout;
    dsc_plan plan;
    dsc_zero *zero;

    dsc_buf io_buf; /* open before there is a plan, and opened again where the plan's is larger */
    dsc_work work;
    dsc_outputs outputs;
    dsc_event *batch_given; /* the last micro-batch is on the device */

    dsc_engine_input input;
    dsc_engine_preference preference;
    dsc_engine_texts texts;
    dsc_evaluation evaluated; /* the last one; items 0: none yet */
    dsc_engine_saves saves;
    dsc_engine_mirror mirror;

    dsc_engine_progress progress;
    dsc_engine_quota quota;
    dsc_engine_repeat repeat;
    dsc_engine_spikes spikes;
    dsc_engine_counts counts;
    dsc_engine_experts experts;
    dsc_engine_buffers buffers;
    dsc_engine_times times;
    dsc_engine_output output;
    char *gemm_plans; /* gemm_plans.c; NULL: the device has none */
    char *settings;   /* dsc_config_settings, for checkpoints */
    char packed_hash[DSC_PACKED_HASH_TEXT]; /* hash of frozen weights in 4 bits; "": none, or none yet */
};

/* The rank of the job that gives the losses of a data rank: of the last stage, the first of its tensor ranks, which all
 * have them. No rank before that of data rank 0 has losses. */
static inline int32_t dsc_engine_loss_rank(const dsc_engine *engine, int32_t data_rank)
{
    const dsc_grid *grid = &engine->stages.grid;
    return engine->place.size - (grid->data - data_rank) * grid->tensor;
}

/* Among the [lanes][module_count]. */
static inline int32_t dsc_engine_at(const dsc_engine *engine, int32_t mb, int32_t module)
{
    return mb * engine->model->module_count + module;
}

static inline dsc_dtype dsc_engine_dtype(const dsc_engine *engine)
{
    return dsc_config_compute_dtype(&engine->config);
}

/* ---- open ---- */
#define DSC_PLANS_PATH_BYTES (DSC_CONFIG_TEXT + 256)
/* gemm_plans.c: matrix products use the algorithms that rank 0 measured, or those of a checkpoint. Collective. */
dsc_status dsc_engine_choose_plans(dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_set_plans(dsc_engine *engine, const char *text, dsc_error *err); /* text may be NULL */
/* plans_file.c, rank 0: the path of dsc.gemm_plans_file for this GPU and library; "": none. */
dsc_status dsc_engine_name_plans_file(dsc_engine *engine, char path[DSC_PLANS_PATH_BYTES], dsc_error *err);
/* Takes over what the file has. *found: there is such a file. */
dsc_status dsc_engine_take_plans_file(dsc_engine *engine, const char *path, bool *found, dsc_error *err);
/* Adds engine->gemm_plans to the file, if it lacks any of their lines. A failure is a warning. */
void dsc_engine_write_plans_file(const dsc_engine *engine, const char *path);
/* input.c: the tokenizer of texts; then, for dsc.grow_vocab, its number of tokens, before the model is opened. */
dsc_status dsc_engine_find_tokenizer(dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_count_tokens(dsc_engine *engine, dsc_error *err);
/* init_params.c: fills every slice from the model's files or its initialisation, then publishes. Collective. */
dsc_status dsc_engine_init_params(dsc_engine *engine, dsc_error *err);
/* Elements of a tensor from its initialisation, which is not norms. */
void dsc_engine_init_values(const dsc_engine *engine, int32_t t, int64_t tensor_first, int64_t count, float *values);
/* init_norms.c: elements of a tensor whose initialisation is norms. */
dsc_status dsc_engine_init_norms(const dsc_engine *engine, int32_t t, int64_t first, int64_t count, float *values,
                                 dsc_error *err);
dsc_status dsc_engine_need_values(dsc_engine *engine, dsc_error *err); /* creates the first values unless present */
/* run_folder.c: "save": "auto" becomes a new folder with one name on all ranks. Collective. */
dsc_status dsc_engine_run_folder(dsc_engine *engine, dsc_error *err);

/* ---- step ---- */
/* step.c: a pass over work.batch[0] whose losses are in work.losses. */
dsc_status dsc_engine_forward_only(dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_check_idle(const dsc_engine *engine, const char *what, dsc_error *err); /* at a step boundary */
/* step_result.c: copies as many members as the caller's struct_bytes cover. */
void dsc_step_result_give(const dsc_step_result *full, dsc_step_result *out);

#endif
