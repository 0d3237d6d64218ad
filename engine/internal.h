/* internal.h - the engine's struct and what its files call of each other. Data flows one way: config -> plan -> open ->
 * step -> checkpoint. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_INTERNAL_H
#define DSC_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include <dsc/dsc.h>

#include "base/io.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/config/config.h"
#include "engine/data/data.h"
#include "engine/loss_scale.h"
#include "engine/monitor/gpu_sensor.h"
#include "engine/monitor/monitor.h"
#include "engine/plan.h"
#include "engine/profile/profile.h"
#include "zero/zero.h"

#define DSC_READER_AHEAD 2 /* micro-batches, or those of the next pass where it takes more */

/* Communicators of some ranks: ZeRO++'s second partition, zero_hpz_partition_size ranks; MiCS's ranks that share a copy
 * of the states, and those of all copies that own the same slices. */
typedef enum dsc_side { DSC_SUB_NEIGHBOURS, DSC_SUB_SHARDS, DSC_SUB_REPLICAS, DSC_SUB_COUNT } dsc_side;
typedef struct dsc_side_comm { dsc_comm *host, *device; } dsc_side_comm;
/* What a section of the compute stream is, with the module. */
typedef enum dsc_pass { DSC_PASS_FORWARD, DSC_PASS_BACKWARD, DSC_PASS_REBUILD, DSC_PASS_COUNT } dsc_pass;
typedef enum dsc_phase { DSC_PHASE_IDLE, DSC_PHASE_FORWARD_DONE, DSC_PHASE_BACKWARD_DONE } dsc_phase;

struct dsc_world {
    dsc_local_world *local;
    int32_t size;
};

/* Outputs of modules in host memory until their backward (activation_offload.c). */
typedef struct dsc_outputs {
    dsc_buf buf;
    dsc_stream *in, *out;
    dsc_event *mark;
    dsc_event *left[DSC_OUT_SLOTS], *here[DSC_OUT_SLOTS]; /* of a slot: what it held is in host memory; is back */
} dsc_outputs;

struct dsc_engine {
    dsc_alloc *alloc;
    dsc_io io;
    dsc_log log;
    dsc_config config;
    char *config_text;
    int64_t config_bytes;
    const dsc_model *model;
    dsc_model *opened_model; /* opened here; NULL: the caller's */
    struct { dsc_model *model; dsc_module *modules; dsc_param_spec *specs; } frozen; /* freeze.c; NULL: none is */
    dsc_rank_info place;
    dsc_comm *comm;        /* over host memory: verdicts, scalars, the host program's collectives */
    dsc_comm *device_comm; /* over device memory: parameters and gradients, of ranks that share a copy of the states;
                            * on a host_visible device one over host memory */
    dsc_side_comm side[DSC_SUB_COUNT]; /* NULL where there is none */
    dsc_device *device;
    dsc_stream *compute;
    bool host_visible; /* the device's */
    uint32_t cpu_caps;
    int32_t threads;
    bool plan_only, failed;
    bool values_due; /* parameters have no values yet, on all ranks alike */
    int64_t host_free_bytes; /* for plans, before any rank of the host has taken memory; INT64_MAX: unknown */
    bool came; /* to the opening of the communicator */

    dsc_layout layout;
    dsc_plan plan;
    dsc_zero *zero;

    dsc_buf activation_buf, scratch_buf, io_buf, eval_buf;
    dsc_outputs outputs;
    dsc_buf batch_buf, mirror_buf; /* batch_transfer.c; not open on a host_visible device */
    /* Of each of the micro-batches that run together, its modules' one after the other. Outputs are kept for the
     * successor's backward; some share slots. */
    char **out, **saved, **rebuilt;   /* [together][module_count] */
    char **d_buffer;                  /* [together + 1] gradients of outputs, step.c says whose */
    float *losses, *logits;           /* on the device */
    float *host_losses, *host_logits; /* [loss_slots] of the plan, where the host reads them; may be the device's */
    void **eval_data;    /* [batch_count] a micro-batch that the host fills */
    void **device_batch; /* [together][batch_count] */
    dsc_event *batch_given; /* the last micro-batch is on the device */
    int64_t settled;        /* micro-steps of this step whose loss is in step_stats */
    const void **param;  /* [most parameters of a module] */
    float **grad;        /* likewise */
    double *step_stats;  /* [dsc_step_stat_count] what this rank tells the others of the step */
    double *step_stat_count; /* [W * dsc_step_stat_count] */
    atomic_uint requests; /* since the last step that acted */

    dsc_data_source source;
    dsc_data *data, *eval;
    dsc_reader *reader;
    int64_t samples_per_epoch, steps_per_epoch, total_steps;

    dsc_buf snapshot_buf;        /* of saves that are written meanwhile; not open without "save_async" */
    dsc_checkpoint_async *saving; /* NULL: none was started, or it was waited for */
    bool save_begun, save_ended; /* on all ranks alike; `saving` is NULL on those that write nothing */
    dsc_status save_status;
    dsc_error save_error;
    int64_t saving_step;

    dsc_phase phase;
    bool batch_from_reader;
    const void *const **batch; /* [together] where modules read it */
    int64_t step, update_count, micro_step;
    int64_t skipped_in_row;
    dsc_loss_scaler loss_scaler;
    int64_t resumed_step;
    char resumed_dir[4096]; /* as given to load */
    double lr_override; /* negative: the schedule */
    bool in_train_batch; /* nobody else has a say before the step's update */
    int64_t step_start_ns, forward_ns, backward_ns, update_ns, data_wait_ns;
    int64_t last_forward_ns, last_backward_ns, last_step_ns, last_data_wait_ns;
    dsc_truncated_model *cut; /* [cut_count] by length, all shorter than the model's own */
    int32_t cut_count;
    const dsc_model *now; /* whose modules run: `model`, or within a step that of a cut */
    char numerics[400];
    char tokenizer[DSC_CONFIG_TEXT]; /* data/open.c; "": bytes are tokens */
    dsc_monitors *monitors; /* on rank 0, NULL without any */
    dsc_log program_log;    /* where `log` goes on to when the monitors see it first */
    dsc_gpu_sensor *sensor; /* of this rank's GPU; NULL: nobody wants to know, or nobody can tell */
    char *hosts;            /* [W][DSC_MONITOR_HOST_BYTES] on rank 0 where a page shows them */
    dsc_profile *profile;   /* NULL: nobody wants to know */
    char *gemm_plans; /* gemm_plans.c; NULL: the device has none */
};

/* Among the [together][module_count]. */
static inline int32_t dsc_engine_at(const dsc_engine *engine, int32_t lane, int32_t module)
{
    return lane * engine->model->module_count + module;
}

static inline dsc_dtype dsc_engine_dtype(const dsc_engine *engine)
{
    return dsc_config_compute_dtype(&engine->config);
}

/* config_model.c: for samples of seq_length tokens, 0: as many as the model has. */
dsc_status dsc_engine_open_config_model(const dsc_engine *engine, int64_t seq_length, bool want_weights,
                                        dsc_model **out, dsc_error *err);
/* truncated_model.c. Open: after the model; close: safe on none. Take: what follows is about samples of this length. */
dsc_status dsc_engine_open_cuts(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_cuts(dsc_engine *engine);
void dsc_engine_set_length(dsc_engine *engine, int64_t length);
int64_t dsc_engine_length(const dsc_engine *engine, int64_t step); /* of the samples of a step from 1 */
int32_t dsc_engine_cut_of(const dsc_engine *engine, int64_t length); /* into plan.shorter; -1: whole samples */
int64_t dsc_engine_step_tokens(const dsc_engine *engine, int64_t step);
double dsc_engine_step_flops(const dsc_engine *engine, int64_t step); /* over all ranks */
/* data/open.c. Scan: one rank of a host reads for all of them; check: what there is to evaluate is enough. */
dsc_status dsc_engine_open_data(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
dsc_status dsc_engine_scan_data(dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_check_eval(const dsc_engine *engine, dsc_error *err);
/* freeze.c: engine->model becomes a copy with the parameters of dsc.freeze not trainable. */
dsc_status dsc_engine_freeze(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_freeze(dsc_engine *engine);
/* The pattern fits the name of a parameter: '*' stands for any text, '?' for one byte. */
bool dsc_name_matches(const char *pattern, const char *name);
/* param_groups.c: tensors' update_class by dsc.param_groups; rank 0 tells of each group. */
dsc_status dsc_engine_group_params(const dsc_engine *engine, dsc_layout *layout, dsc_error *err);
/* activation_offload.c. Nothing happens where all outputs stay on the device; after_forward: of a pass that has a
 * backward, for
 * each of the micro-batches that run together, the others before the first of them. */
dsc_status dsc_outputs_open(dsc_engine *engine, dsc_error *err);
void dsc_outputs_close(dsc_engine *engine);
dsc_status dsc_outputs_before_forward(dsc_engine *engine, int32_t module, dsc_error *err);
dsc_status dsc_outputs_after_forward(dsc_engine *engine, int32_t module, int32_t lane, dsc_error *err);
dsc_status dsc_outputs_before_backward(dsc_engine *engine, int32_t module, dsc_error *err);
/* init_params.c: fills every slice from the model's files or its initialisation, then publishes. Collective. */
dsc_status dsc_engine_init_params(dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_need_values(dsc_engine *engine, dsc_error *err); /* the same, where they are still due */
/* run_folder.c: "save": "auto" becomes a new folder, the same on every rank. Collective. */
dsc_status dsc_engine_run_folder(dsc_engine *engine, dsc_error *err);
/* optimizer.c: scalars of one update, computed on rank 0 and broadcast; *skip when the norm is not finite. */
typedef struct dsc_update {
    double lr, grad_norm;
    bool skip;
    int32_t class_count;
    dsc_update_scalars scalars[DSC_UPDATE_CLASSES_MAX]; /* of each update_class of the layout */
} dsc_update;
/* Collective, after the last of `micro_steps`; update counts from 1. */
dsc_status dsc_update_decide(dsc_engine *engine, dsc_zero *zero, int64_t micro_steps, double loss_scale, int64_t update,
                             dsc_update *out, dsc_error *err);
/* What it will decide for the update that is next, if nothing is clipped. */
void dsc_update_expect(const dsc_engine *engine, dsc_update *out);
/* skipped_step.c: instead of an update; an error when this was one too many. Collective. */
dsc_status dsc_engine_skip_step(dsc_engine *engine, dsc_error *err);
/* step.c: as many members as the caller's struct_bytes say. */
void dsc_step_result_give(const dsc_step_result *full, dsc_step_result *out);
/* device.c: the device that config and machine agree on, and who this rank talks to. */
dsc_status dsc_engine_open_device(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
dsc_status dsc_engine_open_comm(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
dsc_status dsc_engine_open_device_comm(dsc_engine *engine, const dsc_engine_options *options,
                                       dsc_error *err); /* after the sides */
dsc_status dsc_engine_open_sub_communicators(dsc_engine *engine, dsc_error *err); /* collective, where there are any */
void dsc_engine_close_sub_communicators(dsc_engine *engine);
/* The ranks whose slices are this rank's copy of the states. */
dsc_comm *dsc_engine_shards(const dsc_engine *engine);
void dsc_engine_comm_plan(const dsc_engine *engine, dsc_plan_options *out);
void dsc_engine_label_step(dsc_engine *engine, int64_t step); /* what the flight record says of calls that follow */
void dsc_engine_abort(dsc_engine *engine, const char *reason); /* every communicator that is open */
/* Of a status that is no failure nothing; else the engine can only be closed, and its peers are told: they must not
 * wait for this rank, nor this rank's device for them. Returns the status. */
dsc_status dsc_engine_fail(dsc_engine *engine, dsc_status status, dsc_error *err);
/* Waits for all that is under way; what fails of it has failed the engine. */
dsc_status dsc_engine_settle(dsc_engine *engine, dsc_error *err);
/* open.c: what the run's plan is made from. */
void dsc_engine_plan_options(const dsc_engine *engine, dsc_plan_options *out);
/* memory.c: does the plan fit, and the working memory that it names. */
/* Makes the plan; "recompute": "auto" is then the least that lets every rank fit. Collective, but to plan. */
dsc_status dsc_engine_open_plan(dsc_engine *engine, const dsc_plan_options *options, dsc_error *err);
dsc_status dsc_engine_check_fit(const dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_agree_fit(const dsc_engine *engine, dsc_error *err); /* collective; the table is logged if not */
/* offload_space.c: part of dsc_engine_check_fit. */
dsc_status dsc_engine_check_files(const dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_open_memory(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_memory(dsc_engine *engine);
/* batch_transfer.c: micro-batches to the device, losses and logits back. */
/* `lane`: which of those that run together. */
dsc_status dsc_engine_give_batch(dsc_engine *engine, int32_t lane, const void *const *host, dsc_error *err);
dsc_status dsc_engine_batch_passed(dsc_engine *engine, dsc_error *err); /* the host may write the given one again */
dsc_status dsc_engine_fetch_losses(dsc_engine *engine, int64_t micro_step, dsc_error *err);
double dsc_engine_mean_loss(const dsc_engine *engine, int64_t micro_step); /* after the fetch passed */
dsc_status dsc_engine_fetch_logits(dsc_engine *engine, dsc_error *err);
/* gemm_plans.c: matrix products take the algorithms that rank 0 measured, or those of a checkpoint. Collective. */
dsc_status dsc_engine_choose_plans(dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_set_plans(dsc_engine *engine, const char *text, dsc_error *err); /* text may be NULL */
/* machine.c */
/* What is left to a process beside what is planned. It has heaps and stacks of libraries and products that oneDNN
 * compiles (5 MiB), page tables (1 to 2) and the code that it runs (11), which the kernel drops and reads again and
 * again where there is no room for it. In a memory cgroup a run was 4 to 30 times slower with 12 to 16 MiB beside its
 * plan and as fast as ever from 17 on. */
#define DSC_PROCESS_BYTES ((int64_t)20 << 20)
/* What this process's machine or cgroup has free for what `processes` of ours plan; INT64_MAX: unknown. */
int64_t dsc_machine_available_bytes(int32_t processes);
int32_t dsc_machine_cores(void); /* that this process may run on */
/* The share of a core that each thread has when all ranks of this host compute: 1 when the cores suffice. */
double dsc_machine_share(int32_t threads, int32_t ranks);
/* report.c: what rank 0 logs, and what the monitors write. */
void dsc_engine_report_config(const dsc_engine *engine);
void dsc_engine_note(const dsc_engine *engine, const char *what, const char *taken); /* in its place */
dsc_status dsc_engine_open_profile(dsc_engine *engine, dsc_error *err);  /* before the communicators */
dsc_status dsc_engine_start_profile(dsc_engine *engine, dsc_error *err); /* with a plan; collective */
/* Work between the two is a span of the profile. */
int64_t dsc_engine_span_start(const dsc_engine *engine, dsc_span_kind kind, int32_t module);
void dsc_engine_span_end(const dsc_engine *engine, dsc_span_kind kind, int32_t module, int64_t start_ns);
dsc_status dsc_engine_open_monitors(dsc_engine *engine, dsc_error *err); /* collective */
void dsc_engine_describe(const dsc_engine *engine); /* to the monitors, once all is open */
void dsc_engine_report_step(const dsc_engine *engine, const dsc_step_result *result);
void dsc_engine_report_evaluation(const dsc_engine *engine, double loss);
/* snapshot.c: what a step does for a save that was started. Whether this rank is at work on it; what has to be waited
 * for before states change; the next phase, collective, when no rank is at work. */
bool dsc_engine_saving(const dsc_engine *engine);
void dsc_engine_snapshot_wait(dsc_engine *engine);
void dsc_engine_save_advance(dsc_engine *engine);
/* info.c */
void dsc_engine_describe_numerics(dsc_engine *engine); /* the line "numerics:" */
void dsc_engine_run_state(const dsc_engine *engine, dsc_run_state *out);

#endif
