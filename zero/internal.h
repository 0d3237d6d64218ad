/* internal.h - struct dsc_zero and the state of a group, which all files of zero/ share.
 *
 * The core is declared here. Each optimizer and each offload feature declares its own part in its own header, and only
 * its own source file writes that part. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_INTERNAL_H
#define DSC_ZERO_INTERNAL_H

#include <stdatomic.h>

#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/optimizer/adafactor.h"
#include "zero/optimizer/muon.h"
#include "zero/optimizer/onebit_lamb.h"
#include "zero/optimizer/onebit_state.h"
#include "zero/optimizer/sign_compress.h"
#include "zero/optimizer/trust_ratio.h"
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
    const dsc_zero_pass_ops *optimizer[DSC_ZERO_PASSES_MAX]; /* passes that the run needs, in their order */
    int32_t optimizer_count;
    dsc_round first_round; /* of an update's tiles, or of the first walk over them */
    bool matrices_first;   /* only groups of matrices are read there */
    dsc_trust_ratio trust_ratio;
    dsc_adafactor adafactor;
    dsc_onebit_lamb onebit_lamb;
    dsc_muon muon;
    dsc_sign_compress sign_compress;
    dsc_onebit onebit;
    dsc_onebit_phase turn;     /* this update's */
    bool sums_are_own;         /* leaves stay with the rank that made them */
    dsc_buf sum_buf, sums_buf; /* this rank's sum of squares where the kernel adds to it; every rank's for the host */
    bool sum_started; /* this step's sum of squares has terms already */
    dsc_state_store store;
    dsc_speculative_update speculative;
    dsc_zero_plan_bytes plan;
    int64_t needs_planned[DSC_TAG_COUNT][DSC_TIER_COUNT], needs_taken[DSC_TAG_COUNT][DSC_TIER_COUNT];
    int64_t state_bytes[DSC_TAG_COUNT]; /* of param_buf, grad_buf, master_buf and moment_buf */
    bool resident_retagged; /* the slices in resident_buf count as parameters */
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

/* core.c: buffers, listed once for the plan, for open and for close. Every buffer of zero/ is in such a list. */
typedef enum dsc_need_memory { DSC_NEED_DEVICE, DSC_NEED_COMM, DSC_NEED_NEIGHBOURS } dsc_need_memory;
typedef struct dsc_need {
    dsc_buf *buf;
    dsc_tag tag;
    dsc_tier tier;
    int64_t bytes;
    dsc_need_memory memory; /* COMM, NEIGHBOURS: memory that peers read; its tier is DEVICE */
} dsc_need;
void dsc_needs_plan(dsc_zero *zero, const dsc_need *needs, int count);
dsc_status dsc_needs_open(dsc_zero *zero, const dsc_need *needs, int count, dsc_error *err);
void dsc_needs_close(dsc_zero *zero, const dsc_need *needs, int count); /* also of those that were never opened */
/* After all lists are open: each tag and tier has taken the bytes that were planned for it. */
void dsc_needs_check(const dsc_zero *zero);

/* The quantization of a group's parameters on the way to its windows. */
dsc_quant dsc_pack_of_params(const dsc_zero *zero, int32_t group);
/* A group that stage 3 brings to a window for each use. */
bool dsc_gather_is_windowed(const dsc_zero *zero, int32_t group);
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
