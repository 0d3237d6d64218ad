/* internal.h - the state that zero.c, gather.c, reduce.c and update.c share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_INTERNAL_H
#define DSC_ZERO_INTERNAL_H

#include <stdatomic.h>

#include "zero/offload/state_store.h"
#include "zero/optimizer/pass.h"
#include "zero/window.h"
#include "zero/zero.h"

#define DSC_COUNTER_LEVELS_MAX 48
#define DSC_GRAD_PART_MARKS_MAX 8

/* One trainable or frozen group's memory on this rank. */
typedef struct dsc_group_state {
    int32_t first_user, last_user; /* modules */
    char *param;      /* whole group, or this rank's slice at stage 3 */
    bool param_whole;
    bool resident;     /* stage 3: whole all the time, because a window for it would take more (gather.c) */
    float *master;     /* [local_count] from element local_first */
    char *moment[DSC_UPDATE_STATES_MAX]; /* likewise, of moment_dtype; those that the recipe has */
    float *grad;                      /* [local_count]: the sum of leaves; meaningful on the own slice before publish */
    int64_t local_first, local_count; /* what this rank updates: everything at stage 0, else its slice */
    bool swap_states, swap_param;      /* asked for; a resident group's parameters stay all the same */
    bool sums_stay;                    /* of swap_states: in memory, not in a file */
    bool param_on_host;                /* of swap_param: in host memory, not in a file */
    char *host_grad;                   /* where sums lie in host memory, of sum_dtype; `grad` is NULL then */
    dsc_event *sums_gone;              /* this step's are there */
    float *own_error, *sum_error; /* signs.c: of the whole group, and of this rank's slice */
    float *local_update, *shared; /* onebit.c: likewise of the whole group */
    int32_t newest_grad_part;     /* grad_parts.c's own, while it lists them */
    int64_t sum_at;               /* elements among near_sums */
    float *last_sum;                   /* where a step's sum, not in its file, is until it is updated; or NULL */
    int64_t swap_at[DSC_PLANE_COUNT];  /* bytes in the plane's swap space, -1: in memory */
    int64_t other_at[DSC_PLANE_COUNT]; /* where the next update puts it; the same, unless that may begin early */
    atomic_llong sum_there;            /* of groups that may: so much of this step's sum is where the update finds it */
    int32_t room;                      /* of the sum's memory, -1: none */
    bool sum_by_hand;                  /* and that is not its file, but buffers of the reductions from this one on */
    int32_t sum_slot;
    bool goes_first;                   /* update_tiles.c's own, while it lists an early update's groups */
    bool hpz_is_current;               /* this rank's part of the neighbours' is what the parameters are */
    int64_t hpz_at;                    /* bytes */
    bool gather_pending;               /* an asynchronous gather of updated parameters is under way */
    dsc_event *updated;                /* on the update stream */
    /* An update hands what it makes to the first window that asks, beside writing it to a file. */
    _Atomic(char *) hand_to; /* where this rank's slice lies in that window; NULL: none has asked */
    int64_t handed_from;     /* the update's until `updated`: from this element of the slice on, all has come there */
    dsc_event *given, *gathered;       /* this rank's updated parameters are on the device; all ranks' are */
} dsc_group_state;

/* One lifetime of a gathered group in the window arena (stage 3, W > 1). */
typedef struct dsc_gather {
    int32_t group;
    int32_t issue_step, last_step; /* a negative one is of the pass before */
    bool asked; /* this rank's slice comes from the update, as far as that had not made it before */
    dsc_event *fetched, *done; /* this rank's slice is in the window; all of them are */
} dsc_gather;

/* One gradient leaf of a pass: a use of a group, the module's own or one it shares, by one of the micro-batches that
 * run together. They are listed in the order in which they are reduced. */
typedef struct dsc_grad_part {
    int32_t module, group, use;
    int32_t lane;  /* which of the micro-batches */
    int32_t visit; /* it is reduced with this module's leaves of that micro-batch */
    bool first_use, last_use; /* of the leaves that a micro-step adds to the group's sum */
    int32_t before;           /* the group's leaf that is reduced before it in a pass, -1: none */
    bool finds_sum,
        leaves_sum;      /* of a sum away from the device: it is near it still, or stays there for the next one */
    bool holds_sum;      /* the step's last one's place is the sum's from then on: no other leaf comes there before */
    int32_t place;
    int32_t after, after_mark; /* whose leaf lay there before, and when the reductions have passed what they share */
    int64_t error_at;          /* elements before its own among the errors */
    float *levels;             /* [level_count][slice] of its use; world-size reproducible sums only */
} dsc_grad_part;

/* Where leaves of one use lie, one after the other. */
typedef struct dsc_grad_part_slot {
    int64_t offset;    /* bytes in the leaf arena */
    int32_t last_grad_part; /* of a pass */
    int32_t mark_count;
    dsc_event *mark[DSC_GRAD_PART_MARKS_MAX]; /* so many mark_count-ths of the last one there are reduced */
} dsc_grad_part_slot;

/* How a tensor's update differs from that of others of its class. */
typedef struct dsc_tensor_step {
    double rate;  /* what step_size is multiplied by */
    double scale; /* and what weights lose */
} dsc_tensor_step;

/* trust_ratio.c: what recipes like LAMB need of whole tensors, whose elements lie in several ranks' slices. */
typedef struct dsc_trust_ratio {
    dsc_buf device_buf, host_buf;             /* [tensor_count][2] sums of squares: of weights, of directions */
    dsc_buf all_buf;                          /* [W][piece] of every rank's */
    dsc_buf direction_buf, host_direction_buf; /* directions of one piece of a tensor, before they are squared */
    int64_t piece_sums;
    dsc_tensor_step *step; /* [tensor_count] */
} dsc_trust_ratio;

/* binned_sum.c: of recipes like Adafactor's, a matrix's numbers are its rows' and then its columns', tensor by tensor;
 * each buffer has room for W parts of them. */
typedef struct dsc_adafactor {
    int64_t *at;                          /* [tensor_count + 1] where a tensor's begin */
    int64_t part;                         /* that one rank makes the new ones of */
    dsc_buf state_buf;                    /* the second moments, on every rank */
    dsc_buf host_sums, device_sums;       /* of this rank's slices */
    dsc_buf part_sums;                    /* [W][part] every rank's, of this rank's part */
    dsc_buf host_factors, device_factors; /* what elements are multiplied by */
    dsc_binned_grid grid;                 /* of this update's sums */
} dsc_adafactor;

/* onebit_lamb.c: of 1-bit LAMB. */
typedef struct dsc_onebit_lamb {
    dsc_buf state_buf;              /* [tensor_count][DSC_TENSOR_STATES] */
    dsc_buf device_most, host_most; /* [tensor_count] bits of floats: this update's largest ratios */
} dsc_onebit_lamb;

/* A tensor's elements in some rank's slice, or all of them: `at` in the group. */
typedef struct dsc_part {
    int32_t tensor;
    int64_t at, count;
    const dsc_update_scalars *scalars; /* of the update under way; NULL outside one */
} dsc_part;

/* Of the slice of rank `owner`; -1: of all. */
typedef dsc_status (*dsc_part_fn)(dsc_zero *zero, const dsc_layout_group *group, dsc_group_state *state,
                                  const dsc_part *part, int32_t owner, dsc_error *err);

/* signs.c: what ranks that exchange signs need beside their states. */
typedef struct dsc_sign_compress {
    dsc_buf error_buf;                /* of each trainable group what own signs left out, then what the slice's did */
    dsc_buf signs_buf;                /* of the longest group: those that go, those that come */
    dsc_buf device_sums, host_sums;   /* [tensor_count] sums of squares */
    dsc_buf own_scales, all_scales;   /* [tensor_count], [W][tensor_count] */
    dsc_buf by_tensor, device_scales; /* [tensor_count][W] */
    dsc_part_fn fill;                 /* of the exchange that is under way */
    bool to_moments;                  /* likewise */
} dsc_sign_compress;

/* onebit.c: what optimizers keep that exchange them. */
typedef struct dsc_onebit {
    dsc_onebit_phase left_of;        /* whose errors there are; SUMS: none */
    dsc_buf local_update_buf,
        shared_buf;                  /* of trainable groups: a rank's own steps, and the weights that they began at */
    bool apart;                      /* this rank has taken steps that others do not know */
    int64_t steps;                   /* how many */
    double decays[DSC_UPDATE_CLASSES_MAX], rates[DSC_UPDATE_CLASSES_MAX]; /* their product, and their sum */
    float eps[DSC_UPDATE_CLASSES_MAX]; /* of the last one; a save may synchronize after it */
} dsc_onebit;

/* muon.c: the directions of whole matrices, whose elements lie in several ranks' slices. */
typedef struct dsc_muon {
    dsc_round *round;
    int32_t round_count;
    int32_t *owner;           /* [tensor_count] rank that orthogonalises it */
    int64_t *sent;            /* [W] elements of this round for or from a rank that a walk has passed */
    int64_t *at;              /* [group_count] where among its round's directions a group's are */
    int64_t direction_elements, chunk, work_elements, host_elements; /* of the largest round, matrix, tile */
    int64_t wire_bytes;       /* that an update brings from others */
    dsc_buf direction_buf;    /* of a round's groups, [local_count] each: before and after */
    dsc_buf send_buf, recv_buf; /* [W][chunk] */
    dsc_buf work_buf;         /* the matrix twice, and two squares of its smaller side */
    dsc_buf sum_buf, norm_buf; /* its sum of squares, on the device and for the host */
    dsc_buf host_buf;         /* directions of a tile that the host updates */
} dsc_muon;

/* speculative_update.c: an update that begins before it is known to come. */
typedef struct dsc_speculative_update {
    int32_t *group; /* [group_count] that it may begin with, in the order in which their sums are complete */
    int32_t count;
    int32_t aim;            /* so many of them come first */
    int32_t complete, told; /* of the reductions: so many of them in this step, and so many whose files have them */
    dsc_update_terms expected;
    bool firm;             /* they hold, unless there is no update */
    bool holds;            /* the last step's held */
    bool begun, kept;      /* in this step; and the update goes on from there */
    atomic_bool hurried;   /* somebody waits for all that goes on by itself */
    dsc_event *ended;      /* nothing more is made, or ever will be */
    /* In this step: when the first tile's sum was there; for how long it had nothing to do then, and when all of its
     * aim was made. */
    int64_t first_ns, rest_ns, spare_ns;
    atomic_llong elements; /* made in this step */
    int64_t kept_elements;
} dsc_speculative_update;

struct dsc_zero {
    dsc_zero_options o;
    int32_t world_size, step_count;
    int64_t param_bytes_each;
    int64_t window_bytes, grad_part_bytes;
    int64_t resident_bytes, resident_slice_bytes; /* whole parameters of resident groups; of them this rank's slices */
    dsc_group_state *group;
    dsc_gather *gather;
    dsc_window *gather_window;
    int32_t gather_count;
    int64_t *step_elements, *live_elements; /* [step_count] that a step reads from windows, and that they hold in it */
    int32_t prefetch_steps; /* a gather is issued at most so many steps ahead */
    int32_t prefetch_carryover_steps; /* of them in the pass before */
    int32_t keep_steps;     /* a group that is used again at most so many steps later stays */
    int64_t pass_count;     /* of an optimizer step */
    int64_t pass;           /* whose reductions came last */
    bool more_follow;       /* and it is not the last one before an update */
    bool next_pass_prefetched; /* gathers of the next pass are issued */
    int32_t *gather_of_use; /* [2 * use_count]: forward uses, then backward uses -> gather index, -1: none needed */
    dsc_grad_part *leaf;
    int32_t grad_part_count;
    dsc_grad_part_slot *grad_part_slot;
    int32_t grad_part_slot_count;
    int32_t *grad_part_of_use; /* [use_count * together], -1: frozen */
    int32_t *visit_first; /* [module_count * together + 1] the first leaf that is reduced with a module's, backwards */
    float *near_sums;     /* those away from the device, of one module, while its leaves are added */
    int32_t level_count; /* 0: plain fold */
    int64_t apart_elements;
    float **apart; /* [W] chunks that leaves are kept apart in */
    const dsc_zero_pass_ops *optimizer[DSC_ZERO_PASSES_MAX]; /* those that the run needs, in the order in which they run */
    int32_t optimizer_count;
    dsc_round first_round;  /* of an update's tiles, or of the first walk over them */
    bool matrices_first;    /* only groups of matrices are read there */
    dsc_trust_ratio norms;  /* of a recipe that needs them */
    dsc_adafactor factors;  /* likewise */
    dsc_onebit_lamb coeffs; /* likewise */
    dsc_muon matrices;      /* likewise */
    dsc_sign_compress signs;
    dsc_onebit onebit;
    dsc_onebit_phase turn;     /* this update's */
    bool sums_are_own;         /* leaves stay with the rank that made them */
    dsc_buf sum_buf, sums_buf; /* this rank's sum of squares where the kernel adds to it; every rank's for the host */
    bool sum_started; /* this step's sum of squares has terms already */
    dsc_state_store store;
    dsc_speculative_update early;
    dsc_zero_plan_bytes plan;
    dsc_buf param_buf, grad_buf, master_buf, moment_buf, gather_buf, resident_buf, grad_part_buf;
    dsc_stream *gather_stream, *reduce_stream; /* == o.compute without overlap */
    /* To and from host memory. Of a host_visible device, whose streams read and write files themselves: those two. */
    dsc_stream *fetch_stream, *in_stream, *out_stream;
    dsc_stream *update_stream; /* NULL: the update is done when dsc_zero_update returns */
    /* Storage of the terms of the update under way, which may end after dsc_zero_update has returned. Only
     * dsc_zero_update writes them; all others are given a pointer. */
    dsc_update_terms update_terms;
    atomic_bool cancelled;     /* what the update has not begun is left out */
    int64_t pack_chunk, pack_leaf_chunk; /* elements of a rank that pass packed at a time */
    dsc_buf pack_buf, pack_leaf_buf;     /* of the gather stream, and of the reduce stream */
    dsc_buf error_buf;                   /* a leaf's worth for each leaf: what packing took from it */
    dsc_buf hpz_buf;                     /* what the neighbours gather from this rank */
    dsc_event *compute_mark;   /* where the compute stream stood when another stream was told to start */
    dsc_event *pass_mark;      /* where the gather stream stood when a pass began */
    dsc_event *idle;
    dsc_event *updated; /* all groups */
};

/* gather.c */
dsc_status dsc_gather_plan(dsc_zero *zero, int64_t *window_bytes, dsc_error *err);
dsc_status dsc_gather_open(dsc_zero *zero, dsc_error *err);
void dsc_gather_close(dsc_zero *zero);
/* Whole parameters of a group from the slices of all ranks, in place, on the gather stream. */
dsc_status dsc_gather_params(dsc_zero *zero, int32_t group, dsc_error *err);
/* This rank's slice of a group's sums; of groups whose sums are on the device. */
static inline float *dsc_zero_own_sum(const dsc_zero *zero, int32_t g)
{
    return zero->group[g].grad + (zero->o.layout->group[g].slice * zero->o.rank - zero->group[g].local_first);
}

/* Elements of a group whose sums this rank alone knows, from *first of the group on. Of sums that are on the device. */
static inline const float *dsc_zero_known_sums(const dsc_zero *zero, int32_t g, int64_t *first, int64_t *count)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    *first = zero->sums_are_own ? 0 : slice * zero->o.rank;
    *count = zero->sums_are_own ? zero->o.layout->group[g].padded : slice;
    return zero->sums_are_own ? zero->group[g].grad : dsc_zero_own_sum(zero, g);
}

/* The squares of a group's sum are taken as it gets complete: it may be away afterwards, or be left alone until a
 * forward pass comes to the group. */
static inline bool dsc_sum_is_squared_at_once(const dsc_zero *zero, int32_t g)
{
    return zero->group[g].grad == NULL || zero->group[g].sums_stay;
}

/* grad_parts.c. After gathers and the store are planned; sum_bytes: what sums need beside their own places. */
dsc_status dsc_grad_parts_plan(dsc_zero *zero, int64_t *sum_bytes, dsc_error *err);
dsc_status dsc_grad_parts_open(dsc_zero *zero, dsc_error *err);
void dsc_grad_parts_close(dsc_zero *zero);
/* Those from *first to before *end are reduced when this module has made its own of that micro-batch. */
void dsc_grad_parts_of_visit(const dsc_zero *zero, int32_t module, int32_t lane, int32_t *first, int32_t *end);
/* Elements of each rank's slice that are reduced when a mark is passed. */
int64_t dsc_grad_part_mark_end(const dsc_zero *zero, const dsc_grad_part *leaf, int32_t mark);
/* The leaves of a group that are reduced at once, one behind the other: a run. */
const dsc_grad_part *dsc_grad_part_last_of_run(const dsc_zero *zero, const dsc_grad_part *first);
/* Whether what it is added to comes from where the sum lies away from the device, and goes there. */
bool dsc_grad_part_reads_sum(const dsc_grad_part *leaf, int64_t pass);
bool dsc_grad_part_writes_sum(const dsc_zero *zero, const dsc_grad_part *leaf, int64_t pass);
/* Of its group's leaves of a pass. */
static inline bool dsc_grad_part_is_first(const dsc_grad_part *leaf) { return leaf->first_use && leaf->lane == 0; }
static inline bool dsc_grad_part_is_last(const dsc_zero *zero, const dsc_grad_part *leaf)
{
    return leaf->last_use && leaf->lane == zero->o.together - 1;
}
static inline float *dsc_grad_part_base(const dsc_zero *zero, const dsc_grad_part *leaf)
{
    return (float *)(void *)((char *)zero->grad_part_buf.ptr + zero->grad_part_slot[leaf->place].offset);
}

/* reduce.c */
dsc_status dsc_reduce_open(dsc_zero *zero, dsc_error *err);
void dsc_reduce_close(dsc_zero *zero);
dsc_status dsc_reduce_finish(dsc_zero *zero, dsc_error *err); /* the compute stream has all sums after it */

/* What updates a trainable group. */
static inline dsc_recipe dsc_group_recipe(const dsc_zero *zero, int32_t group)
{
    return dsc_layout_recipe(zero->o.layout, group, zero->o.recipe);
}
static inline int32_t dsc_moment_count(const dsc_zero *zero, int32_t group)
{
    return dsc_recipes[dsc_group_recipe(zero, group)].state_count;
}
/* Of all states of an element that are moments. */
int64_t dsc_moment_bytes_each(const dsc_zero *zero, int32_t group);
static inline int64_t dsc_plane_bytes_each(const dsc_zero *zero, dsc_plane plane)
{
    return (int64_t)dsc_dtype_bytes(dsc_zero_dtype(zero, plane));
}

static inline bool dsc_in_swap(const dsc_zero *zero, int32_t group, dsc_plane plane)
{
    return zero->group[group].swap_at[plane] >= 0;
}

static inline bool dsc_any_in_swap(const dsc_zero *zero, int32_t group)
{
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        if (dsc_in_swap(zero, group, (dsc_plane)p))
            return true;
    return false;
}

static inline bool dsc_trust_ratio_are_used(const dsc_zero *zero)
{
    return (dsc_recipes[zero->o.recipe].needs & (DSC_NEEDS_TENSOR_NORMS | DSC_NEEDS_RMS)) != 0;
}
/* zero.c: buffers that a part of the states' work needs, listed once for the plan, for open and for close. */
typedef struct dsc_need {
    dsc_buf *buf;
    dsc_tag tag;
    dsc_tier tier;
    int64_t bytes;
} dsc_need;
void dsc_needs_plan(dsc_zero *zero, const dsc_need *needs, int count);
dsc_status dsc_needs_open(dsc_zero *zero, const dsc_need *needs, int count, dsc_error *err);
void dsc_needs_close(dsc_zero *zero, const dsc_need *needs, int count); /* also of those that were never opened */

/* binned_sum.c. After groups are placed. */
static inline bool dsc_adafactor_are_used(const dsc_zero *zero)
{
    return (dsc_recipes[zero->o.recipe].needs & DSC_NEEDS_ROW_COL_STATS) != 0;
}
/* onebit_lamb.c */
static inline bool dsc_onebit_lamb_are_used(const dsc_zero *zero)
{
    return dsc_recipes[zero->o.recipe].tensor_state != NULL;
}
/* This update's are frozen. */
static inline bool dsc_onebit_lamb_are_frozen(const dsc_zero *zero)
{
    return dsc_onebit_lamb_are_used(zero) && zero->turn == DSC_PHASE_MOMENTUM;
}
/* What a tensor's rate is times, once an update: of coefficients that are not frozen that ratio itself, ... */
double dsc_onebit_lamb_average(const dsc_zero *zero, int32_t t, double trust);
/* ... of frozen ones their average times this update's factor. The share is that of a direction's norm which it would
 * have if no weights decayed. */
double dsc_onebit_lamb_frozen_ratio(const dsc_zero *zero, int32_t t, double bare_share);

/* muon.c. After states are planned. */
static inline bool dsc_muon_are_used(const dsc_zero *zero)
{
    return (dsc_recipes[zero->o.recipe].needs & DSC_NEEDS_WHOLE_MATRIX) != 0;
}
/* sign_compress.c */
bool dsc_sign_compress_are_used(const dsc_zero *zero);
dsc_status dsc_sign_compress_forget(dsc_zero *zero, dsc_error *err);
/* Calls fn for all whole trainable tensors; `terms` may be NULL outside an update. */
dsc_status dsc_sign_compress_each(dsc_zero *zero, const dsc_update_terms *terms, dsc_part_fn fn, dsc_error *err);
/* x of a whole group is 0 where the variance is. */
dsc_status dsc_sign_compress_mask(dsc_zero *zero, int32_t group, float *x, dsc_error *err);
/* Collective. `fill` adds to a tensor's errors what this rank would have the others know; signs of the mean of all
 * ranks' are what all have in their moments (or else their sums) then. */
dsc_status dsc_sign_compress_exchange(dsc_zero *zero, const dsc_update_terms *terms, dsc_part_fn fill, bool to_moments,
                                      dsc_error *err);
/* Collective: the mean of all ranks' errors of a group, and what its owners have left out, times a factor, in each
 * rank's errors of it. */
dsc_status dsc_sign_compress_mean(dsc_zero *zero, int32_t group, double factor, dsc_error *err);

/* tile_update.c: the arguments of elements [first, end) of a tile, which belong to tensor t. */
void dsc_update_args_fill(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, int64_t first,
                          int64_t end, int32_t t, dsc_update_args *out);

void dsc_update_terms_fill(const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                           dsc_update_terms *out);
DSC_MUST_USE dsc_status dsc_update_tile(dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile,
                                        dsc_error *err);
/* Updates the next tile of dsc_state_store_begin's, from files and back. */
DSC_MUST_USE dsc_status dsc_update_next_tile(dsc_zero *zero, const dsc_update_terms *terms, dsc_tile *tile,
                                             dsc_error *err);

/* speculative_update.c. Opened after grad parts are. */
dsc_status dsc_speculative_update_open(dsc_zero *zero, dsc_error *err);
void dsc_speculative_update_close(dsc_zero *zero);
/* Under the head of a step's last pass: the update begins if it is expected; or what it will begin with is read. */
dsc_status dsc_speculative_update_begin(dsc_zero *zero, dsc_error *err);
/* The update comes, with these terms. Nothing of it is under way then. */
dsc_status dsc_speculative_update_settle(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err);
/* On the out stream: that tile of a group's sums is in a buffer that is lent to the update. */
void dsc_speculative_update_deliver(dsc_zero *zero, int32_t group, int64_t first, int64_t count, int32_t slot);
/* Of a step that is skipped, a tile of a group whose sums were handed: what is not finite where the sum was not. */
dsc_status dsc_speculative_update_view(dsc_zero *zero, int32_t group, int64_t first, int64_t *count, const float **x,
                                       dsc_error *err);
/* On the out stream: a leaf of a pass is in; sums may have come to their files; all have, until the next step. */
void dsc_speculative_update_count_grad_part(dsc_zero *zero, const dsc_grad_part *leaf, int64_t pass);
void dsc_speculative_update_publish(dsc_zero *zero);
void dsc_speculative_update_mark_published(dsc_zero *zero);

/* compress.c: what a group's parameters are packed in on the way to its windows; windows hold what came out again. */
dsc_quant dsc_pack_of_params(const dsc_zero *zero, int32_t group);
/* After leaves are planned: where their errors lie, and what these take. */
int64_t dsc_pack_error_bytes(dsc_zero *zero);
void dsc_pack_plan(dsc_zero *zero, int64_t *gather_bytes, int64_t *grad_part_bytes);
dsc_status dsc_pack_open(dsc_zero *zero, dsc_error *err);
void dsc_pack_close(dsc_zero *zero);
/* On the gather stream: the window, from this rank's slice (which may lie in it) and everybody's. */
dsc_status dsc_pack_gather(dsc_zero *zero, int32_t group, char *window, const char *mine, dsc_error *err);
/* On the reduce stream: a reduce_scatter of elements of that leaf, packed if the options say so. */
dsc_status dsc_pack_reduce(dsc_zero *zero, const dsc_grad_part *leaf, const dsc_reduce_scatter_args *args,
                           dsc_error *err);

/* param_prefetch.c. After the store is planned: its buffers. */
bool dsc_param_prefetch_is_used(const dsc_zero *zero);
int32_t dsc_param_prefetch_slots(const dsc_zero *zero);
dsc_status dsc_param_prefetch_open(dsc_zero *zero, dsc_error *err);
void dsc_param_prefetch_close(dsc_zero *zero);
/* Under the head of a pass that is not a step's last one, the update's buffers are lent; before the update reads ahead,
 * they are given back. */
dsc_status dsc_param_prefetch_begin(dsc_zero *zero, dsc_error *err);
dsc_status dsc_param_prefetch_end(dsc_zero *zero, dsc_error *err);
/* Behind what was queued on the fetch stream: between the two, reading goes on. */
dsc_status dsc_param_prefetch_continue(dsc_zero *zero, dsc_error *err);
/* Something is about to be queued on the fetch stream. */
void dsc_param_prefetch_request(dsc_zero *zero);
/* On the fetch stream: so many of a group's slice, from its start, were ahead and are at `to` now. */
dsc_status dsc_param_prefetch_consume(dsc_zero *zero, int32_t group, int64_t elements, char *to, int64_t *taken,
                                      dsc_error *err);

/* borrowed_memory.c. After the store and leaves are planned; opened when the store's rings and the places of sums
 * are. */
void dsc_borrowed_memory_plan(dsc_zero *zero);
dsc_status dsc_borrowed_memory_open(dsc_zero *zero, dsc_error *err);
void dsc_borrowed_memory_close(dsc_zero *zero);
/* Before an early update begins: the reductions wait for rooms until they are vacant. */
void dsc_borrowed_memory_lend(dsc_zero *zero);
bool dsc_borrowed_memory_is_vacant(const dsc_zero *zero, int32_t group);
/* On the update's thread: rings go through their further slots, as far as they come to tiles of these groups; rooms
 * that tiles have left are vacant; all are. */
dsc_status dsc_borrowed_memory_begin(dsc_zero *zero, const int32_t *group, int32_t count, dsc_error *err);
void dsc_borrowed_memory_publish(dsc_zero *zero);
dsc_status dsc_borrowed_memory_end(dsc_zero *zero, dsc_error *err);

/* hpz.c. After gathers are planned: where groups' parts lie; what they take. */
int64_t dsc_hpz_plan(dsc_zero *zero);
dsc_status dsc_hpz_open(dsc_zero *zero, dsc_error *err);
void dsc_hpz_close(dsc_zero *zero);
/* On the gather stream: this rank's part of a window that was gathered from all ranks, if neighbours keep any; a window
 * from the parts of neighbours who have kept theirs. */
dsc_status dsc_hpz_keep(dsc_zero *zero, int32_t group, const char *window, dsc_error *err);
dsc_status dsc_hpz_gather(dsc_zero *zero, int32_t group, char *window, dsc_error *err);
/* What comes next is gathered from all ranks: trainable parameters have changed, or frozen ones too. */
void dsc_hpz_forget(dsc_zero *zero, bool frozen);

/* traffic.c: after gathers and leaves are planned */
void dsc_traffic_plan(const dsc_zero *zero, dsc_zero_traffic *out);
void dsc_kept_plan(const dsc_zero *zero, dsc_zero_kept *out);

/* A group that stage 3 brings to a window for each use. */
bool dsc_gather_is_windowed(const dsc_zero *zero, int32_t group);
/* Some come to their windows from the memory or the files of a device's host. */
bool dsc_gather_fetches(const dsc_zero *zero);
/* Its parameters are not on the device but in windows. */
static inline bool dsc_zero_param_is_away(const dsc_zero *zero, int32_t group)
{
    return zero->group[group].swap_param && !zero->group[group].resident;
}

/* zero.c: cuts a group's moments off `from`; returns what follows them. */
char *dsc_zero_place_moments(const dsc_zero *zero, int32_t group, char *from);

/* `after` goes on only after all that `before` was given so far. */
dsc_status dsc_zero_order(dsc_event *event, dsc_stream *before, dsc_stream *after, dsc_error *err);
dsc_status dsc_zero_after_compute(dsc_zero *zero, dsc_stream *stream, dsc_error *err);
/* `stream` goes on only after the last update of the group's parameters, or of all groups (-1). */
static inline dsc_status dsc_zero_after_update(dsc_zero *zero, int32_t group, dsc_stream *stream, dsc_error *err)
{
    if (zero->update_stream == NULL)
        return DSC_OK;
    return dsc_stream_wait(stream, group < 0 ? zero->updated : zero->group[group].updated, err);
}
static inline int32_t dsc_backward_step(const dsc_zero *zero, int32_t module)
{
    return 2 * zero->o.model->module_count - 2 - module;
}

#endif
