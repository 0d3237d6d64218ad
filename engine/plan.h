/* plan.h - every byte of a rank before it is taken: by tag and tier, and the sizes that open needs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PLAN_H
#define DSC_ENGINE_PLAN_H

#include "engine/config/config.h"
#include "engine/repeat.h"
#include "kernels/fp8_cache.h"
#include "kernels/needs.h"
#include "zero/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_OUT_SLOTS 3 /* modules with values on a device whose others wait in host memory: two, and one that comes   \
                         */

/* Values of modules that wait in host memory from forward to backward. Where a kind of values is kept, the device has
 * DSC_OUT_SLOTS places for it, each as large as the largest module's, for all micro-batches that run together. */
typedef struct dsc_plan_away {
    int32_t count;                /* the values of so many first modules wait; 0: none */
    int64_t out, saved, repeated; /* bytes of a place, for one micro-batch; 0: the kind is not kept, or shared */
    int64_t bytes;                /* of host memory */
} dsc_plan_away;

/* The model for shorter samples than its own, with the parameters of the whole one. */
typedef struct dsc_truncated_model {
    int64_t length;
    dsc_model *opened;   /* owned */
    dsc_module *modules; /* [module_count] owned */
    dsc_model whole;
    const dsc_model *model; /* whole, or the modules of this rank's stage */
} dsc_truncated_model;

typedef struct dsc_plan {
    dsc_alloc *alloc;
    int64_t bytes[DSC_TAG_COUNT][DSC_TIER_COUNT]; /* on a host_visible device every tier is host memory */
    int64_t tier_bytes[DSC_TIER_COUNT];
    int64_t lent_bytes; /* of DEVICE, what the states' communicators may take from their libraries */
    int64_t total_bytes;          /* memory of all tiers except NVME */
    dsc_module_plan *module;      /* [module_count] for the micro-batch; bytes are enough for its cuts too */
    dsc_module_plan *shorter;     /* [cut_count][module_count] */
    bool *backward_reads_params;  /* [module_count] */
    int64_t out_bytes_most;       /* of a module's output */
    dsc_plan_away away;
    /* Sums over a micro-batch group: outputs, and values saved from forward to backward. */
    int64_t out_bytes_total, d_bytes_most, scratch_bytes, losses_bytes, logits_bytes;
    int64_t places_bytes; /* part of losses_bytes, its end: places of labels in evaluations */
    int64_t saved_bytes,
        rebuilt_bytes; /* sum over modules and micro-batches of a group; shared: of the largest module */
    int64_t repeated_bytes; /* sum over modules and micro-batches; 0 unless these values are kept */
    bool saved_shared, rebuilt_shared;
    int32_t norm_each; /* micro-batches of a norm group that a rank has (norm_group.h); 0: there are no groups */
    int64_t scratch_frame, saved_frame, rebuilt_frame; /* with groups: of one micro-batch where modules share memory */
    int32_t micro_batch_group; /* micro-batches that pass a module before the next one */
    int32_t lanes;       /* micro-batches with activations of their own: of a group, or those that a stage has begun */
    int64_t stage_bytes; /* inputs and gradients that go from stage to stage */
    int32_t loss_slots;  /* micro-steps whose losses the host may fetch before it looks at them */
    int64_t batch_bytes; /* one micro-batch of the model's batch tensors, each 256-byte aligned */
    int64_t io_bytes;    /* staging buffers of saves and loads */
    int64_t snapshot_bytes; /* copy of an asynchronous save; 0: none */
    int64_t chunk_bytes;    /* of dsc_module_ctx */
    bool joins_input_gradients; /* value in dsc_module_ctx: true on a GPU, where each pass over a gradient takes time */
    bool stores_score_gradients; /* of dsc_module_ctx */
    dsc_fp8_plan fp8;       /* zeroed without dsc.fp8 */
    int64_t *fp8_inputs;    /* [module_count] bytes at the end of repeated_bytes: kept inputs of layers in fp8 */
    double flops_per_micro_batch;
    dsc_zero_traffic traffic; /* bytes of one optimizer step of this rank */
    dsc_zero_kept kept;
    bool prefetch_exceeds, prefetch_held; /* as in dsc_zero_plan_bytes */
} dsc_plan;

/* Needs of a stage of a pipeline beside its modules; all 0: there is one stage. */
typedef struct dsc_plan_stage {
    int32_t lanes;      /* micro-batches between forward and backward */
    int32_t slots;      /* gradients of inputs */
    int64_t in_bytes;   /* of the input of a micro-batch, from the stage before */
    int64_t record_bytes; /* loads of experts of a micro-batch, which travel with gradients */
    int64_t tied_bytes;   /* gradients of a micro-batch for tied parameters of another stage */
    int64_t header_bytes; /* headers of all messages of a step */
} dsc_plan_stage;

typedef struct dsc_plan_options {
    dsc_alloc *alloc;
    const dsc_model *model;         /* this rank's modules */
    const dsc_model *whole;         /* those of all stages */
    const dsc_truncated_model *cut; /* [cut_count] */
    int32_t cut_count;
    const dsc_config *config; /* resolved */
    const dsc_layout *layout;
    dsc_dtype compute_dtype;
    int32_t rank;       /* rank among the ranks that share a copy of the states */
    int32_t world_size; /* of all */
    int32_t data_ranks; /* that share the samples of a step: all, or those of a stage */
    dsc_plan_stage stage;
    int64_t comm_bytes; /* buffers of the transports over host memory */
    int64_t device_comm_bytes;    /* buffers of the transport over device memory, if separate */
    int64_t device_library_bytes; /* allocated by that transport's library */
    int64_t decoder_bytes;        /* of readers of pictures that are not open: the others are counted where they are */
    int64_t data_bytes;        /* the reader */
    int64_t mirror_bytes;      /* copies of states (mirror.h) */
    const dsc_io *io;          /* borrowed until the engine closes; may be NULL */
    int32_t threads;           /* host threads and instruction sets, for updates on the host */
    uint32_t cpu_caps;
    dsc_device *device;        /* GEMM shapes are prepared on it */
} dsc_plan_options;

/* The working memory of the engine: what its list of needs opens, and addresses in it (memory.c). */
typedef struct dsc_work {
    dsc_buf activation_buf, scratch_buf, eval_buf;
    dsc_buf stage_buf;             /* pipeline_transfer.c; not open with one stage */
    dsc_buf stage_headers;         /* messages' headers in host memory; a device has its own in stage_buf */
    dsc_buf outputs_buf;           /* values that wait in host memory; not open where none do */
    dsc_buf batch_buf, mirror_buf; /* batch_transfer.c; not open on a host_visible device */
    dsc_buf snapshot_buf;          /* copy of states for asynchronous saves; not open without "save_async" */
    /* Outputs of modules, in order, for each micro-batch of a group. The successor's backward reads outputs; some share
     * slots. */
    char **out, **saved, **rebuilt;   /* [lanes][module_count] */
    char **repeated;                  /* [lanes][module_count]; NULL entries: not kept */
    char **d_buffer;                  /* [dsc_plan_d_buffers] gradients of outputs, module_context.c says whose */
    float *losses, *logits;           /* on the device */
    float *host_losses, *host_logits; /* [loss_slots] of the plan, where the host reads them; may be the device's */
    void **eval_data;                 /* [batch_count] a micro-batch that the host fills */
    void **device_batch;              /* [lanes][batch_count]; NULL where modules read the reader's */
    const void *const **batch;        /* [lanes] where modules read it */
    const void **param;               /* [most parameters of a module] */
    float **grad;                     /* likewise */
    double *step_stats;               /* [dsc_step_stat_count] numbers of this rank's step for the other ranks */
    double *step_stat_count;          /* [W * dsc_step_stat_count] */
    double *eval_losses;              /* [W * micro-batch] of an evaluation's samples */
    uint64_t *first_parts;            /* [groups] fingerprints of a step that is repeated; NULL: no step is */
    dsc_rank_report *reports;         /* [W] likewise (repeat.h) */
    uint64_t *params_read;            /* [W][groups][shards] (replicas.h); NULL: they are not compared */
    dsc_buf fp8_buf;                  /* not open without dsc.fp8 */
    bool *fp8_is_cast;                /* [parameters of all modules] */
    const dsc_fp8_scale **fp8_gathered; /* likewise; dsc_fp8_cache */
    dsc_fp8_matrix *fp8_kept;         /* [together][parameters of all modules] */
    dsc_fp8_cache fp8;
    double *references;               /* [micro-steps * micro-batch] of a step on pairs; NULL without pairs */
    double *above_reference;          /* [micro-batch] likewise */
    dsc_buf records_buf, records_mirror;     /* [together], [loss_slots] records of routers; the mirror as mirror_buf */
    double *router_stats, *router_stats_all; /* [dsc_model_router_stats]; [W] times; NULL without routers */
    int64_t *expert_load;                    /* [routers * experts] of the last step over all ranks; likewise */
    /* Buffers of modules (buffers.h). Values on the device; where the host reads them, if it does not reach the device.
     * Statistics: [together] on the device, [micro-steps] of this rank, [W][micro-steps]. */
    dsc_buf buffers_buf, buffers_mirror, statistics_buf, statistics_own;
    float *statistics_all;
    float *buffer_means;         /* moving averages of dsc.ema, as the values; NULL without them */
    int64_t *buffer_steps;       /* [buffers] values of STEPS */
    const float **buffer_values; /* [most buffers of a module], of a context */
    float **buffer_statistics;   /* likewise */
    /* Norm groups (norm_group.h): numbers of an exchange, of this rank's micro-batches and then of all; the same where
     * the host reads them. Gradients of a module, contexts of a call and lists of gradients, for each micro-batch. */
    dsc_buf norm_buf, norm_mirror, norm_grads_buf;
    dsc_module_ctx *norm_ctx;
    float **norm_grad;
} dsc_work;

/* Gradients of outputs that exist at once: two of each micro-batch of a norm group, else one more than there are
 * micro-batches. */
static inline int32_t dsc_plan_d_buffers(const dsc_plan *plan)
{
    return plan->norm_each > 0 ? 2 * plan->micro_batch_group : plan->micro_batch_group + 1;
}

#define DSC_WORK_NEEDS_MAX 56
/* All memory of the engine itself. Entries of the kind INSIDE stand for memory of communicators and of the reader,
 * which their open functions take. Returns the length of the list. `o` and `plan` are NULL for close: then each entry
 * is listed, without bytes. */
int dsc_work_list_needs(const dsc_plan_options *o, const dsc_plan *plan, dsc_work *work,
                        dsc_need list[DSC_WORK_NEEDS_MAX]);

/* The zero options that both the planner and open use, so that they cannot differ. */
/* How many ranks keep second parts; 0: none do. */
int32_t dsc_plan_neighbours(const dsc_config *config, int32_t world_size);
/* The ranks whose slices are one copy of the states: MiCS's groups, or all; it divides the world size. */
int32_t dsc_plan_shards(const dsc_config *config, int32_t world_size);
void dsc_plan_zero_options(const dsc_plan_options *options, const dsc_plan *plan, dsc_zero_options *out);
/* Fingerprints that a run takes, DSC_FINGERPRINTS_*. */
uint32_t dsc_plan_fingerprints(const dsc_config *config);
/* Doubles that each rank tells the others at the end of a step: a loss per micro-step, then these. On pairs there are
 * three more for each micro-step (preference.h). */
enum {
    DSC_STAT_REQUESTS,
    DSC_STAT_WORK_NS,
    DSC_STAT_MODULE_NS, /* in calls of modules; 0 unless quotas are measured */
    DSC_STAT_DATA_NS,
    DSC_STAT_WAIT_NS, /* for exchanges, up to the sums */
    DSC_STAT_MEMORY_BYTES,
    DSC_STAT_COUNTED, /* targets */
    DSC_STAT_GPU_WATTS,
    DSC_STAT_GPU_BUSY,
    DSC_STAT_GPU_USED_MB,
    DSC_STAT_GPU_CELSIUS, /* NaN: unknown */
    DSC_STAT_COUNT
};
static inline int64_t dsc_step_stat_count(const dsc_config *config)
{
    const int64_t each = config->own.dpo.enabled ? 1 + 3 : 1;
    return each * config->micro_steps_most + DSC_STAT_COUNT;
}
/* Settings of files from a config, into a zeroed struct; texts are borrowed from the config. */
void dsc_plan_swap(const dsc_config *config, dsc_zero_swap *out);
/* Work before a module's backward: none, its rebuild, or its forward again. */
typedef enum dsc_recompute_policy {
    DSC_RECOMPUTE_NOTHING,
    DSC_RECOMPUTE_REBUILD,
    DSC_RECOMPUTE_FORWARD
} dsc_recompute_policy;
dsc_recompute_policy dsc_plan_recompute(const dsc_config *config, const dsc_module *module,
                                        const dsc_module_plan *plan);
double dsc_plan_recompute_flops(const dsc_config *config, const dsc_module *module, const dsc_module_plan *plan);
static inline bool dsc_plan_is_away(const dsc_plan *plan, int32_t module) { return module < plan->away.count; }
static inline int64_t dsc_plan_away_each(const dsc_plan_away *away) { return away->out + away->saved + away->repeated; }
/* Bytes that one micro-batch of a module moves to host memory. */
int64_t dsc_plan_away_of(const dsc_plan *plan, int32_t module, dsc_dtype dtype);
/* FLOPs of one micro-batch, recomputation included; modules of a plan, of full or truncated samples. */
double dsc_plan_flops(const dsc_config *config, const dsc_model *model, const dsc_module_plan *modules);
/* Bytes of the tag in all tiers. */
int64_t dsc_plan_tag_bytes(const dsc_plan *plan, dsc_tag tag);
DSC_MUST_USE dsc_status dsc_plan_open(const dsc_plan_options *options, dsc_plan *out, dsc_error *err);
void dsc_plan_close(dsc_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
