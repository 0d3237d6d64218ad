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

#include "zero/core/options.h"
#include "zero/core/planes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The largest state_share, in steps of 1/10000, that keeps the first group on the device; 1: no smaller share is
 * needed. */
double dsc_zero_first_share(const dsc_zero_kept *kept);

/* *out <- the bytes that dsc_zero_open takes. */
DSC_MUST_USE dsc_status dsc_zero_plan(const dsc_zero_options *options, dsc_zero_plan_bytes *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_zero_open(const dsc_zero_options *options, dsc_zero **out, dsc_error *err);
void dsc_zero_close(dsc_zero **zero); /* waits for its streams */

/* Before the first micro-step towards an update, counted from 1. */
void dsc_zero_begin(dsc_zero *zero, int64_t update);
/* The sums of this update hold only this rank's gradient parts, because ranks exchange signs instead of sums. */
bool dsc_zero_sums_are_own(const dsc_zero *zero);

/* ---- inside a pass, in the order of steps; the calls issue work on the compute stream ---- */

/* Before the last micro-step: the scalars of dsc_zero_update for a step without clipping and skipping. With
 * early_update, groups with parameters and states in files, or with states in a GPU's host memory, are updated with
 * these scalars as soon as their sums are complete. The results are written to a second position. They become valid if
 * the update gets exactly these scalars, and are dropped otherwise. `last_word`: only the norm can still change the
 * scalars. */
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

/* Sets the stored errors of grad_part_errors and of PowerSGD to 0. Asynchronous. */
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
/* Which of the options' fingerprints the following steps take, from 0 on. Before dsc_zero_begin. */
DSC_MUST_USE dsc_status dsc_zero_watch(dsc_zero *zero, uint32_t watched, dsc_error *err);
/* After dsc_zero_sumsq: the fingerprints since dsc_zero_watch, in host memory that stays until the next call. parts:
 * [groups], of this rank's gradient parts of the step. params: [groups][W], of each slice as this rank has read it; 0:
 * not read. NULL: not in the options. */
DSC_MUST_USE dsc_status dsc_zero_fingerprints(dsc_zero *zero, const uint64_t **parts, const uint64_t **params,
                                              dsc_error *err);
/* After dsc_zero_sumsq, until the update: each rank's part of the sum of squares, [W]. */
const dsc_fixed_sum *dsc_zero_rank_sums(const dsc_zero *zero);
/* Applies the recipe to this rank's slices, then distributes the parameters that the stage keeps (asynchronously). A
 * tensor's scalars are scalars[its update_class], of class_count <= DSC_UPDATE_CLASSES_MAX. `update` counts from 1. If
 * states are in files of a host_visible device, the update continues after the return. dsc_zero_acquire then waits for
 * the groups of its module. Both acquire and dsc_zero_sync return the update's errors. */
DSC_MUST_USE dsc_status dsc_zero_update(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count,
                                        int64_t update, dsc_error *err);

/* Instead of dsc_zero_update: the step has no update. */
DSC_MUST_USE dsc_status dsc_zero_skip(dsc_zero *zero, dsc_error *err);
/* Elements of this rank that speculative updates have updated: in the open step, and in all finished steps. */
typedef struct dsc_zero_speculative_stats {
    int64_t updated, kept;
} dsc_zero_speculative_stats;
void dsc_zero_speculative_stats_get(const dsc_zero *zero, dsc_zero_speculative_stats *out);

/* ---- functions of the host program, and copies of the states that exchange weights ---- */

/* Between steps; NULL members: none. */
void dsc_zero_set_hooks(dsc_zero *zero, const dsc_zero_hooks *hooks);
/* Collective over all copies, between steps: an outer step (zero/outer_step.h), after which all copies have the same
 * weights. They are distributed. */
DSC_MUST_USE dsc_status dsc_zero_outer_step(dsc_zero *zero, dsc_error *err);
/* The weights are the common ones: after first values, or a load. */
DSC_MUST_USE dsc_status dsc_zero_outer_start(dsc_zero *zero, dsc_error *err);
/* Momentum of the outer steps of this rank's slice of a trainable group, in device memory, from element `first` on. */
float *dsc_zero_outer_momentum(const dsc_zero *zero, int32_t group, int64_t first);

/* ---- states, for initialisation and checkpoints; the engine is idle ---- */

/* Elements [first, first + *count) of this rank's slice of one plane, counted from the slice's start. *count <- number
 * of contiguous elements at *ptr, at least 1. *ptr is device memory; use copies if the device is not host_visible. It
 * is valid until the next view of that plane, of any group. dsc_zero_publish stores a view with `write`. Of a packed
 * group's parameters `first` and `count` are bytes of its packed slice divided by the bytes of an element of the plane.
 */
DSC_MUST_USE dsc_status dsc_zero_view(dsc_zero *zero, int32_t group, dsc_plane plane, int64_t first, int64_t *count,
                                      bool write, void **ptr, dsc_error *err);
/* Elements [*first, *first + *count) of a frozen tensor's parameters that this rank keeps, at *ptr: all of them, or
 * those of its slice. A writer writes the same values on every rank, while nothing is gathered. */
void dsc_zero_kept_params(const dsc_zero *zero, int32_t tensor, int64_t *first, int64_t *count, void **ptr);
/* Scales of the scales of a packed tensor, which every rank has for the whole tensor: tops[count] in host memory,
 * borrowed until the compute stream passes. Only of groups that are packed DSC_NF4_NESTED. */
DSC_MUST_USE dsc_status dsc_zero_set_packed_tops(dsc_zero *zero, int32_t tensor, const float *tops, int64_t count,
                                                 float offset, dsc_error *err);
/* Where the scale of a tensor's numbers will be, on the device, if dsc_zero_acquire gives E4M3 numbers of it instead of
 * the compute dtype (dsc_zero_options.gather_fp8); else NULL. */
struct dsc_fp8_scale;
const struct dsc_fp8_scale *dsc_zero_fp8_scale(const dsc_zero *zero, int32_t tensor);
/* Whether this plane of this rank's slice is contiguous and readable by the host until the next update or write.
 * Another thread may then take a view and read it. */
bool dsc_zero_stays(const dsc_zero *zero, int32_t group, dsc_plane plane);
/* The absmax of moments in U8, from that of the block with element `first` of this rank's slice on; in memory, of the
 * device or the host. */
float *dsc_zero_absmax(const dsc_zero *zero, int32_t group, int32_t moment, int64_t first);
/* Second moments of a matrix's rows or columns, in host memory, for recipes with factors (kernels/update.h). Every rank
 * has all of them, and a caller writes them on every rank. */
float *dsc_zero_adafactor_factors(const dsc_zero *zero, int32_t tensor, bool cols);
/* State numbers of a whole tensor, for recipes with such numbers; written on every rank. */
float *dsc_zero_tensor_state(const dsc_zero *zero, int32_t tensor);
void dsc_zero_forget_shared(dsc_zero *zero); /* sets both to 0, if present */
/* Collective, after slices were written: converts params from masters (bf16, fp16) and completes states that the stage
 * keeps whole. */
DSC_MUST_USE dsc_status dsc_zero_publish(dsc_zero *zero, dsc_error *err);
/* Moving averages of this rank's slice of a trainable group (zero/optimizer/average.h), from element `first` of it on,
 * in memory of the device or the host. NULL: the group is frozen, or the run has no averages. */
float *dsc_zero_average(const dsc_zero *zero, int32_t group, int64_t first);
/* Whether the averages have values: of an update, or of a checkpoint, for which the loader sets this. */
bool dsc_zero_has_averages(const dsc_zero *zero);
void dsc_zero_set_averages(dsc_zero *zero, bool present);
/* Collective. Weights and averages change places, and the parameters are distributed. A second call undoes the first;
 * no step and no save is in between. */
DSC_MUST_USE dsc_status dsc_zero_exchange_averages(dsc_zero *zero, dsc_error *err);
/* dsc_zero_publish of other master weights that are in use for a time: nothing of the training is forgotten. */
DSC_MUST_USE dsc_status dsc_zero_republish(dsc_zero *zero, dsc_error *err);
/* Waits for all streams and for all writes to files. */
DSC_MUST_USE dsc_status dsc_zero_sync(dsc_zero *zero, dsc_error *err);
/* Other quotas from the next step on: as many micro-batches in all, in more than one pass. A list is borrowed until
 * close, or other quotas. Between steps. */
void dsc_zero_set_quota(dsc_zero *zero, const dsc_quota *quota);
/* Ends an active update at its next tile, after the run has failed. From any thread. */
void dsc_zero_cancel(dsc_zero *zero);

#ifdef __cplusplus
}
#endif
#endif
