/* zero.h - the model states of one rank at ZeRO stage 0, 1, 2 or 3: their owners and their transfers.
 *
 * The order of a pass is known before the run, so everything is planned. The plan has the addresses of gathered groups
 * (stage 3) and of gradient parts, the step of each gather, and the step at which memory may be written again.
 * Steps of the order, for M modules: the forward of module m is step m. The last module, the loss module, also makes
 * its gradients there. The backward of module m < M - 1 is step 2M - 2 - m. A pass without gradients uses steps
 * 0..M-1.
 *
 *   open --> [IDLE] --begin--> [ACCUMULATING] --sumsq--> [SUMMED] --update--> [IDLE] --> close
 *                                                           |
 *                                                           +------skip-----> [IDLE]
 *
 *   [IDLE]           view, publish, sync, settle_signs, forget_shared; acquire of a pass without gradients
 *   [ACCUMULATING]   each micro-step: acquire, step_event, grad_part, reduce; expect before the last micro-step
 *   [SUMMED]         find_nonfinite
 *
 * Invariants:
 *  Z1. Rank r owns slice r of every group at every stage. A stage decides only what else a rank keeps.
 *  Z2. The bits of sums, weights and states do not depend on the stage, on offloading or on overlap.
 *  Z3. Memory is taken in dsc_zero_open only. A step takes none.
 *  Z4. Every rank issues the same collectives in the same order; the plan fixes this order.
 *  Z5. Work of a stream runs in the order of its calls. Two streams are ordered by events only (dsc_stream_order).
 *  Z6. A gather writes a window only after the compute stream has passed the last use of that memory.
 *  Z7. A gradient part is overwritten only after the reductions have read the part that lay there before.
 *  Z8. The terms of an update are const once before_update of all optimizer passes has returned.
 *
 * Streams: compute (of the caller), gather and reduce. Three more serve host memory that holds states of a GPU: fetch
 * (parameters to windows), in and out (sums, and the data of the update). Without overlap all are the compute stream.
 * A trainable group has P elements and slices of S = P / W. With the two moments of Adam (other recipes have one or
 * none) a rank keeps:
 *   stage 0: params P, grads P, master P, moments 2P      stage 1: params P, grads S, master S, moments 2S
 *   stage 2: as 1 (gradients are reduced to their owners in every micro-step at every stage)
 *   stage 3: params S, grads S, master S, moments 2S, and windows for the groups in use (a group whose window would
 *            take more than its whole parameters keeps those instead, unless they travel packed)
 * In fp32 the params are the master. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_ZERO_H
#define DSC_ZERO_ZERO_H

#include "comm/comm.h"
#include "kernels/device.h"
#include "offload/swap.h"
#include "zero/core/layout.h"
#include "zero/core/onebit_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_CHANNEL_CONTROL, DSC_CHANNEL_GATHER, DSC_CHANNEL_REDUCE, DSC_CHANNEL_COUNT };

/* Placement of states outside the device: in files (offload/swap.h), or in host memory if the device is not
 * host_visible. Such states are read and written in tiles. All fields 0: all states are on the device. Values are equal
 * on all ranks, except the folders. The host updates states outside a device that is not host_visible. */
typedef struct dsc_zero_swap {
    const char *state_folders[DSC_SWAP_FOLDERS_MAX]; /* gradients' sums, master weights, moments; stage 1 and higher */
    const char *param_folders[DSC_SWAP_FOLDERS_MAX]; /* parameters; stage 3 */
    int32_t state_folder_count, param_folder_count;  /* 0: in memory */
    bool states_on_host, params_on_host;             /* without folders; only if the device is not host_visible */
    int32_t host_threads;             /* threads of the host's update */
    uint32_t host_caps;
    double state_share;               /* share of the states outside the device, 0..1; the first groups stay */
    double sums_in_memory;            /* share of the sums of states in files that stay in memory, 0..1 */
    int64_t param_elements_in_memory; /* this rank's parameters in memory (of the host if not host_visible) instead of
                                         files; those of the first groups */
    bool params_with_states;          /* and parameters of groups whose states stay in memory */
    int64_t persistent_elements;      /* groups of at most this length keep their parameters on the device */
    int64_t window_elements;          /* limit of parameter windows, unless one module needs more; 0: none */
    int64_t tile_elements;            /* most elements of one tile buffer; a group may be cut into several tiles */
    int32_t slot_count;               /* buffers for each kind of state, 1..DSC_TILE_BUFFERS_MAX */
    bool read_ahead, write_behind;    /* a tile is read, and another written, while one is worked on */
    bool early_update;                /* the update of dsc_zero_expect begins under the last backward pass */
    bool unclipped;                   /* only a skipped step changes the update: its sums need no file */
    dsc_aio_options aio;              /* alloc is not read */
    bool pin_states, pin_params;      /* their buffers are locked in memory, where the system lets us */
    const dsc_io *io;                 /* may be NULL */
    const dsc_log *log;               /* file engine with its reason, slow settings; may be NULL */
} dsc_zero_swap;

typedef struct dsc_zero_options {
    dsc_alloc *alloc;
    const dsc_model *model;
    const dsc_layout *layout;
    int32_t stage, rank;
    dsc_dtype compute_dtype;          /* F32, BF16 or F16 */
    dsc_dtype wire_dtype;             /* dtype of gradient parts on the wire: F32, BF16 or F16 */
    float leaf_factor;                /* factor of gradient parts before they are sent; 0 is 1 */
    dsc_recipe recipe;                /* recipe of the update; it has 0 to 3 moments an element */
    int64_t round_elements;           /* most elements of this rank's matrices per round of Muon; one group may exceed
                                         the limit */
    dsc_dtype moment_dtype;           /* F32, or BF16: rounded by chance, keyed by seed, update and element */
    dsc_dtype sum_dtype;              /* gradient sums; BF16: rounded to nearest after each gradient part. Sums outside
                                         the device have this type too */
    /* ZeRO++: packing of parameters, and of frozen ones, for gathers at stage 3 (NONE or INT8), and of gradient parts
     * for the reduction. */
    dsc_quant quant_params, quant_frozen, quant_leaves;
    int64_t packed_gather_elements, packed_leaf_elements; /* limit per collective, of all ranks; 0: none */
    bool leaf_errors;        /* this rank adds the rounding error of a packed part to the next part of the same use */
    dsc_onebit_policy signs; /* exchange of signs; recipes ADAMW and ONEBIT_LAMB at stage 0 */
    uint64_t seed;
    bool overlap;
    int64_t prefetch_elements;         /* prefetch: limit of elements in unfinished gathers */
    int64_t reuse_elements;            /* a window stays until its next use if fewer elements are used between */
    int64_t live_elements;             /* limit of all open windows; a single module may exceed the limit */
    int64_t leaves_per_step;           /* GAS * W of one copy of the states */
    int32_t micro_batch_group;         /* size of a micro-batch group; a divisor of GAS */
    const bool *backward_reads_params; /* [module_count] false: no gather for this module's backward step */
    bool world_size_reproducible;      /* sum parts in one binary counter: bits do not depend on W */
    dsc_zero_swap swap;
    dsc_device *device;
    dsc_comm *comm;                   /* over device memory; not used by dsc_zero_plan */
    /* hpZ (hpz.c): consecutive ranks of one host that each keep 1/neighbour_count of the gathered parameters of stage
     * 3; <= 1: off. A divisor of the number of ranks. */
    int32_t neighbour_count;
    dsc_comm *neighbours;             /* over device memory, one channel; not used by dsc_zero_plan */
    /* MiCS: number of copies of the states, each over the layout's ranks; <= 1: one copy. After the sums of a copy are
     * complete, the sums of all copies are added in fp32, in the order of the copies. */
    int32_t replica_count;
    dsc_comm *replicas;               /* over device memory, the owners of a slice; not used by dsc_zero_plan */
    dsc_comm *host_comm;              /* `comm`'s ranks over host memory, may be `comm`; not used by dsc_zero_plan */
    dsc_stream *compute;              /* not used by dsc_zero_plan */
} dsc_zero_options;

/* Bytes that one optimizer step moves to and from this rank. */
typedef struct dsc_zero_traffic {
    int64_t wire_bytes;                               /* parameters, gradients and sums from other ranks */
    int64_t neighbour_bytes;                          /* part of wire_bytes that stays within this rank's neighbours */
    int64_t replica_bytes;                            /* part of wire_bytes from other copies of the states */
    int64_t signs_bytes;                              /* signs and scales from other ranks, instead of sums; 0: none */
    int64_t pass_read_bytes, pass_written_bytes;      /* file I/O during forward and backward passes */
    int64_t update_read_bytes, update_written_bytes;  /* file I/O during the update */
    int64_t updated_elements;                         /* by this rank */
    int64_t to_device_bytes, to_host_bytes;           /* over a GPU's link to its host */
} dsc_zero_traffic;

/* States of trainable groups that stay on the device although dsc_zero_swap asks for others to be offloaded. Elements
 * are those of this rank's slices. */
typedef struct dsc_zero_kept {
    int32_t group_count;
    int64_t elements;
    int32_t state_groups;
    int64_t state_elements; /* by state_share */
    int32_t sum_groups;
    int64_t sum_elements;   /* by sums_in_memory, of the other groups */
    int64_t first_elements; /* length of the first group, if state_share leaves too little memory for it; else 0 */
} dsc_zero_kept;
/* The largest state_share, in steps of 1/10000, that keeps the first group on the device; 1: no smaller share is
 * needed. */
double dsc_zero_first_share(const dsc_zero_kept *kept);

/* Bytes that dsc_zero_open will take, by tag and tier. */
typedef struct dsc_zero_plan_bytes {
    int64_t bytes[DSC_TAG_COUNT][DSC_TIER_COUNT];
    dsc_zero_traffic traffic;
    dsc_zero_kept kept;
} dsc_zero_plan_bytes;
DSC_MUST_USE dsc_status dsc_zero_plan(const dsc_zero_options *options, dsc_zero_plan_bytes *out, dsc_error *err);

typedef struct dsc_zero dsc_zero;
DSC_MUST_USE dsc_status dsc_zero_open(const dsc_zero_options *options, dsc_zero **out, dsc_error *err);
void dsc_zero_close(dsc_zero **zero); /* waits for its streams */

/* Before the first micro-step towards an update, counted from 1. */
void dsc_zero_begin(dsc_zero *zero, int64_t update);
/* The sums of this update hold only this rank's gradient parts, because ranks exchange signs instead of sums. */
bool dsc_zero_sums_are_own(const dsc_zero *zero);

/* ---- inside a pass, in the order of steps; the calls issue work on the compute stream ---- */

/* Before the last micro-step: the scalars of dsc_zero_update for a step without clipping and skipping. With
 * early_update, groups with parameters and states in files are updated with these scalars as soon as their sums are
 * complete. The results are written to a second place. They become valid if the update gets exactly these scalars, and
 * are dropped otherwise. `last_word`: only the norm can still change the scalars. */
void dsc_zero_expect(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                     bool last_word);
/* Starts the gathers that belong before step `step`, and waits for those of `module`. param[i] points at the whole
 * parameter i in the compute dtype (NULL when this backward reads none), valid until the next step's acquire. */
DSC_MUST_USE dsc_status dsc_zero_acquire(dsc_zero *zero, int32_t step, int32_t module, const void **param,
                                         dsc_error *err);
/* Events of a step that the caller reports, so that files are busy while compute has long work to do. */
typedef enum dsc_zero_event {
    /* The first micro-batch of a pass is about to enter the loss module with gradients: the longest products of the
     * pass follow, and files are idle. In the last pass of a step the speculative update begins, or the states that the
     * update begins with are read. In earlier passes parameters are prefetched. */
    DSC_ZERO_HEAD_BEGINS
} dsc_zero_event;
/* Before dsc_zero_grad_part of that micro-batch. */
DSC_MUST_USE dsc_status dsc_zero_step_event(dsc_zero *zero, dsc_zero_event event, dsc_error *err);
/* grad[i] <- fp32 buffer for this use's gradient of parameter i (NULL: frozen). The caller overwrites all elements.
 * micro_step counts from 0 inside the optimizer step. */
DSC_MUST_USE dsc_status dsc_zero_grad_part(dsc_zero *zero, int32_t module, int64_t micro_step, float **grad,
                                           dsc_error *err);
/* Sends the part to its owners, which add it. All micro-batches of a pass call in order before the next module. */
DSC_MUST_USE dsc_status dsc_zero_reduce(dsc_zero *zero, int32_t module, int64_t micro_step, dsc_error *err);

/* ---- at the boundary ---- */

/* Sets the stored errors of leaf_errors to 0. Asynchronous. */
DSC_MUST_USE dsc_status dsc_zero_forget_errors(dsc_zero *zero, dsc_error *err);
/* Collective. Adds each rank's errors of sign compression and local steps to the moments or the weights of all ranks,
 * so that a save needs no other state. The next update keeps beta1 of the momentum and adds equal numbers on all
 * ranks. */
DSC_MUST_USE dsc_status dsc_zero_settle_signs(dsc_zero *zero, double beta1, dsc_error *err);

/* After the last micro-step: all sums are complete. *sum <- sum of squares of the raw sums over all ranks; with own
 * sums (dsc_zero_sums_are_own), over the sums of each rank. */
DSC_MUST_USE dsc_status dsc_zero_sumsq(dsc_zero *zero, dsc_fixed_sum *sum, dsc_error *err);
/* Collective, after a sum that is not finite: the first tensor (in the layout) with an Inf or NaN among its sums, and
 * the owner's rank. -1: no tensor. */
DSC_MUST_USE dsc_status dsc_zero_find_nonfinite(dsc_zero *zero, int32_t *tensor, int32_t *rank, dsc_error *err);
/* Applies the recipe to this rank's slices, then distributes the parameters that the stage keeps (asynchronously). A
 * tensor's scalars are scalars[its update_class], of class_count <= DSC_UPDATE_CLASSES_MAX. `update` counts from 1. If
 * states are in files of a host_visible device, the update continues after the return. dsc_zero_acquire then waits for
 * the groups of its module. Both acquire and dsc_zero_sync return the update's errors. */
#define DSC_UPDATE_CLASSES_MAX 64
DSC_MUST_USE dsc_status dsc_zero_update(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count,
                                        int64_t update, dsc_error *err);

/* Instead of dsc_zero_update: the step has no update. */
DSC_MUST_USE dsc_status dsc_zero_skip(dsc_zero *zero, dsc_error *err);
/* Elements of this rank that speculative updates have updated: `made` in the open step, `kept` in all finished steps.
 * */
typedef struct dsc_zero_speculative_stats {
    int64_t made, kept;
} dsc_zero_speculative_stats;
void dsc_zero_speculative_stats_get(const dsc_zero *zero, dsc_zero_speculative_stats *out);

/* ---- states, for initialisation and checkpoints; the engine is idle ---- */

/* The slice of a group that this rank owns. At stage 0 every rank stores the whole group; the owned slice is still
 * [rank * slice, + slice). */
typedef struct dsc_zero_slice {
    int64_t first, count; /* elements of the group */
    bool trainable;       /* frozen groups have only parameters */
} dsc_zero_slice;
void dsc_zero_slice_get(const dsc_zero *zero, int32_t group, dsc_zero_slice *out);

/* The states of an element. In an fp32 run PARAM and MASTER are the same. */
typedef enum dsc_plane {
    DSC_PLANE_PARAM,  /* compute dtype */
    DSC_PLANE_MASTER, /* fp32; of trainable groups */
    DSC_PLANE_MOMENT1,
    DSC_PLANE_MOMENT2,
    DSC_PLANE_MOMENT3, /* moment_dtype; of trainable groups, by recipe */
    DSC_PLANE_GRAD,    /* gradient sums: fp32, outside the device sum_dtype; of trainable groups; no views */
    DSC_PLANE_COUNT
} dsc_plane;
dsc_dtype dsc_zero_dtype(const dsc_zero *zero, dsc_plane plane);
/* Elements [first, first + *count) of this rank's slice of one plane, counted from the slice's start. *count <- number
 * of contiguous elements at *ptr, at least 1. *ptr is device memory; use copies if the device is not host_visible. It
 * is valid until the next view of that plane, of any group. dsc_zero_publish stores a view with `write`. */
DSC_MUST_USE dsc_status dsc_zero_view(dsc_zero *zero, int32_t group, dsc_plane plane, int64_t first, int64_t *count,
                                      bool write, void **ptr, dsc_error *err);
/* Whether this plane of this rank's slice is contiguous and readable by the host until the next update or write.
 * Another thread may then take a view and read it. */
bool dsc_zero_stays(const dsc_zero *zero, int32_t group, dsc_plane plane);
/* Second moments of a matrix's rows or columns, in host memory, for recipes with factors (kernels/update.h). Every rank
 * has all of them, and a caller writes them on every rank. */
float *dsc_zero_adafactor_factors(const dsc_zero *zero, int32_t tensor, bool cols);
/* State numbers of a whole tensor, for recipes with such numbers; written on every rank. */
float *dsc_zero_tensor_state(const dsc_zero *zero, int32_t tensor);
void dsc_zero_forget_shared(dsc_zero *zero); /* sets both to 0, if present */
/* Collective, after slices were written: converts params from masters (bf16, fp16) and completes states that the stage
 * keeps whole. */
DSC_MUST_USE dsc_status dsc_zero_publish(dsc_zero *zero, dsc_error *err);
/* Waits for all streams and for all writes to files. */
DSC_MUST_USE dsc_status dsc_zero_sync(dsc_zero *zero, dsc_error *err);
/* Ends an active update at its next tile, after the run has failed. From any thread. */
void dsc_zero_cancel(dsc_zero *zero);

#ifdef __cplusplus
}
#endif
#endif
