/* internal.h - struct dsc_zero and the state of a group, which all files of zero/ share.
 *
 * A feature of zero/offload or zero/optimizer declares its own part in its own header, and only the source files of the
 * feature write that part. This folder knows such a part by its name alone; zero.c allocates all parts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_INTERNAL_H
#define DSC_ZERO_CORE_INTERNAL_H

#include <stdatomic.h>

#include "comm/pipeline.h"
#include "kernels/needs.h"
#include "zero/core/gather_state.h"
#include "zero/core/grad_part.h"
#include "zero/core/pass.h"
#include "zero/core/planes.h"

#define DSC_COUNTER_LEVELS_MAX 48

/* One trainable or frozen group's memory on this rank. */
typedef struct dsc_group_state {
    int32_t first_user, last_user; /* modules */
    char *param;                   /* whole group, or this rank's slice at stage 3 */
    bool param_whole;
    float *master;                       /* [local_count] from element local_first */
    char *moment[DSC_UPDATE_STATES_MAX]; /* [local_count] of moment_dtype; NULL: the recipe has fewer */
    float *absmax[DSC_UPDATE_STATES_U8]; /* [local_count / DSC_Q8_BLOCK] moments in U8: always in memory */
    float *grad; /* [local_count]: the sum of parts; meaningful on the own slice before publish */
    int64_t local_first, local_count; /* elements that this rank updates: all at stage 0, else its slice */
    dsc_group_gather gather;
    dsc_group_hpz hpz;
    dsc_group_sums sums;
    dsc_group_tiers tiers;
    struct dsc_group_staging *staging;         /* zero/offload/grad_staging.h */
    struct dsc_group_speculative *speculative; /* zero/offload/speculative_update.h */
    struct dsc_group_second *early;            /* zero/offload/speculative_memory.h */
    struct dsc_group_signs *signs;             /* zero/optimizer/sign_compress.h */
    struct dsc_group_onebit *onebit;           /* zero/optimizer/onebit.h */
} dsc_group_state;

/* State of an optimizer step (zero.h); only assertions read it. */
typedef enum dsc_zero_state { DSC_ZERO_IDLE, DSC_ZERO_ACCUMULATING, DSC_ZERO_SUMMED } dsc_zero_state;

typedef struct dsc_zero_streams {
    dsc_stream *gather, *reduce; /* == o.compute without overlap */
    /* To and from host memory. A host_visible device uses its gather and reduce streams for its files instead. */
    dsc_stream *fetch, *in, *out;
    dsc_stream *update; /* NULL: the update is on the compute stream, or done when dsc_zero_update returns */
} dsc_zero_streams;

typedef struct dsc_zero_events {
    dsc_event *compute_mark; /* position of the compute stream when another stream had to wait for it */
    dsc_event *pass_mark;    /* position of the gather stream when a pass began */
    dsc_event *idle;         /* position of the gather or the reduce stream that the compute stream waits for */
    dsc_event *updated;      /* on the update stream: the update of all groups has ended */
} dsc_zero_events;

/* Device memory, except `sums`. */
typedef struct dsc_zero_buffers {
    dsc_buf param, grad, master, moment; /* planes of the groups that are not offloaded, in group order */
    dsc_buf gather;                      /* windows */
    dsc_buf resident;                    /* whole parameters of resident groups */
    dsc_buf grad_part;                   /* slots of gradient parts */
    dsc_buf sum, sums; /* this rank's sum of squares where the kernel adds to it; those of all ranks for the host */
    dsc_buf pack, pack_part; /* for the gather stream; for the reduce stream */
    dsc_buf error;           /* rounding errors of packed parts, one buffer for each use */
    dsc_buf packed_chunk;    /* packed parameters of all ranks, a part of each slice at a time */
    dsc_buf packed_tops;     /* scales of scales of all packed tensors, on every rank */
    dsc_buf fp8_tops;        /* of each group in fp8: bits of each matrix's largest number in each rank's slice */
    dsc_buf fp8_scales;      /* [fp8_count] dsc_fp8_scale */
    dsc_buf hpz;             /* the hpZ parts, which the neighbours gather from this rank */
} dsc_zero_buffers;

struct dsc_zero {
    dsc_zero_options o;
    dsc_zero_state state;
    int32_t world_size, step_count;
    int64_t param_bytes_each;
    int64_t window_bytes, grad_part_bytes;
    int64_t resident_bytes, resident_slice_bytes; /* whole parameters of resident groups; of them this rank's slices */
    dsc_group_state *group;
    dsc_gathers gathers;
    dsc_grad_parts parts;
    int64_t pass_count;     /* passes of an optimizer step */
    int64_t pass;           /* the pass of the last reductions */
    bool more_follow;       /* that pass is not the last one before an update */
    const dsc_zero_pass_ops *optimizer[DSC_ZERO_PASSES_MAX]; /* passes that the run needs, in their order */
    int32_t optimizer_count;
    dsc_round first_round;          /* groups of the first tiles of an update, or of the first walk of a pass */
    bool first_round_matrices_only; /* only groups of matrices are read there */
    /* Parts of the passes, in headers of the same names in zero/optimizer/. */
    struct dsc_trust_ratio *trust_ratio;
    struct dsc_adafactor *adafactor;
    struct dsc_onebit_lamb *onebit_lamb;
    struct dsc_muon *muon;
    struct dsc_sign_compress *sign_compress;
    struct dsc_onebit *onebit;
    struct dsc_average *average;
    struct dsc_power_sgd *power_sgd;
    struct dsc_fingerprints *fingerprints; /* zero/fingerprints.h */
    struct dsc_outer_step *outer_step;     /* zero/outer_step.h */
    dsc_zero_hooks hooks;
    dsc_onebit_phase phase;    /* of this update */
    bool sums_are_own;         /* gradient parts stay with the rank that made them */
    bool sums_are_shared;      /* every rank has the sums of all ranks, of whole groups */
    bool sum_started; /* this step's sum of squares has terms already */
    struct dsc_state_store *store;              /* zero/offload/state_store.h */
    struct dsc_speculative_update *speculative; /* zero/offload/speculative_update.h */
    struct dsc_speculative_memory *early;       /* zero/offload/speculative_memory.h */
    dsc_zero_plan_bytes plan;
    dsc_needs needs;
    int64_t lent_bytes; /* planned bytes of dsc_comm_mem_open */
    int64_t state_bytes[DSC_TAG_COUNT]; /* sizes of buf.param, buf.grad, buf.master and buf.moment */
    bool resident_retagged; /* the slices in buf.resident count as parameters */
    dsc_zero_buffers buf;
    dsc_zero_streams stream;
    dsc_zero_events event;
    /* Storage of the terms of the update under way, which may end after dsc_zero_update has returned. Only
     * dsc_zero_update writes them; all others are given a pointer. */
    dsc_update_terms update_terms;
    int64_t pack_chunk, pack_part_chunk; /* elements of a rank that pass packed at a time */
    dsc_pipeline pack_pipeline, pack_part_pipeline; /* of the gather stream; of the reduce stream */
    int64_t packed_chunk;                /* elements of a rank's slice of a packed group that are gathered at a time */
    struct dsc_packed_tensor *packed;    /* [tensor_count] zero/packed.h; NULL: no group is packed */
    int32_t fp8_count;                   /* matrices that are gathered in fp8 (zero/fp8_gather.h), of all groups */
};

/* This rank's slice of a group's sums; of groups whose sums are on the device. */
static inline float *dsc_zero_own_sum(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(zero->group[g].grad != NULL);
    return zero->group[g].grad + (zero->o.layout->group[g].slice * zero->o.rank - zero->group[g].local_first);
}

/* Readers of a group's sums round them to this dtype first; F32: they do not. */
static inline dsc_dtype dsc_zero_sum_rounding(const dsc_zero *zero, int32_t g)
{
    return zero->group[g].sums.is_unrounded ? zero->o.wire_dtype : DSC_F32;
}

/* Elements of a group whose sums this rank alone knows, from *first of the group on. The sums are on the device. */
static inline const float *dsc_zero_known_sums(const dsc_zero *zero, int32_t g, int64_t *first, int64_t *count)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    *first = zero->sums_are_own ? 0 : slice * zero->o.rank;
    *count = zero->sums_are_own ? zero->o.layout->group[g].padded : slice;
    DSC_ASSERT(*first + *count <= zero->o.layout->group[g].padded);
    return zero->sums_are_own ? zero->group[g].grad : dsc_zero_own_sum(zero, g);
}

/* The squares of a group's sum are added when the sum is complete: the sum may be offloaded afterwards, or be updated
 * only under the next forward pass. */
static inline bool dsc_sum_is_squared_at_once(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g < zero->o.layout->group_count);
    return zero->group[g].grad == NULL || zero->group[g].tiers.sum_in_memory;
}

/* The recipe that updates a trainable group. */
static inline dsc_recipe dsc_group_recipe(const dsc_zero *zero, int32_t group)
{
    return dsc_layout_recipe(zero->o.layout, group, zero->o.recipe);
}
static inline int32_t dsc_moment_count(const dsc_zero *zero, int32_t group)
{
    return dsc_recipes[dsc_group_recipe(zero, group)].state_count;
}
/* Bytes of all moments of so many elements, with the absmax of their blocks. */
int64_t dsc_moments_bytes(const dsc_zero *zero, int32_t group, int64_t elements);
/* Bytes of the absmax alone: 0 unless moments are in U8. */
int64_t dsc_absmax_bytes(const dsc_zero *zero, int32_t group, int64_t elements);
/* Places the absmax of a group from `from` on. Returns the end. */
char *dsc_zero_place_absmax(const dsc_zero *zero, int32_t group, char *from);
static inline int64_t dsc_plane_bytes_each(const dsc_zero *zero, dsc_plane plane)
{
    DSC_ASSERT(plane < DSC_PLANE_COUNT);
    return (int64_t)dsc_dtype_bytes(dsc_zero_dtype(zero, plane));
}

static inline bool dsc_in_swap(const dsc_zero *zero, int32_t group, dsc_plane plane)
{
    DSC_ASSERT(group >= 0);
    DSC_ASSERT(group < zero->o.layout->group_count);
    DSC_ASSERT(plane < DSC_PLANE_COUNT);
    return zero->group[group].tiers.at[plane] >= 0;
}

static inline bool dsc_any_in_swap(const dsc_zero *zero, int32_t group)
{
    for (int p = 0; p < DSC_PLANE_COUNT; p++)
        if (dsc_in_swap(zero, group, (dsc_plane)p))
            return true;
    return false;
}

/* Adds a list to the plan, and to lent_bytes what a transport gives. */
void dsc_zero_plan_needs(dsc_zero *zero, const dsc_need *list, int count);
/* Kinds of memory that peers read in place, with the tier DEVICE. Every buffer and array of zero/ is in a list of needs
 * (kernels/needs.h), whose owner is the dsc_zero. */
extern const dsc_need_kind dsc_zero_need_comm, dsc_zero_need_neighbours;
#define DSC_NEED_COMM (&dsc_zero_need_comm)
#define DSC_NEED_NEIGHBOURS (&dsc_zero_need_neighbours)

/* A frozen group whose parameters are stored in 4 bits, and unpacked into windows at every stage (packed.h). */
static inline bool dsc_is_packed(const dsc_zero *zero, int32_t group)
{
    DSC_ASSERT(group >= 0 && group < zero->o.layout->group_count);
    return zero->o.layout->group[group].packed != DSC_NF4_NONE;
}
/* Length of a rank's slice in a plane as it is stored, in elements of the plane's dtype. Parameters that are packed
 * take fewer of them than the slice has. Transfers and views count in these elements. */
static inline int64_t dsc_stored_slice(const dsc_zero *zero, int32_t group, dsc_plane plane)
{
    const dsc_layout_group *layout = &zero->o.layout->group[group];
    if (!dsc_is_packed(zero, group))
        return layout->slice;
    DSC_ASSERT(plane == DSC_PLANE_PARAM);
    DSC_ASSERT(dsc_layout_packed_bytes(layout) % zero->param_bytes_each == 0);
    return dsc_layout_packed_bytes(layout) / zero->param_bytes_each;
}

/* A group whose matrices arrive in its windows as E4M3 numbers (fp8_gather.h). */
static inline bool dsc_is_gathered_in_fp8(const dsc_zero *zero, int32_t group)
{
    DSC_ASSERT(group >= 0 && group < zero->o.layout->group_count);
    return zero->o.gather_fp8 && zero->o.stage == 3 && zero->world_size > 1 && zero->o.layout->group[group].fp8;
}
/* Bytes of an element in windows. */
static inline int64_t dsc_window_bytes_each(const dsc_zero *zero, int32_t group)
{
    return dsc_is_gathered_in_fp8(zero, group) ? 1 : zero->param_bytes_each;
}

/* The quantization of a group's parameters on the way to its windows. */
dsc_quant dsc_pack_of_params(const dsc_zero *zero, int32_t group);
/* A group that is brought to a window for each use: by stage 3, or because it is packed. */
bool dsc_gather_is_windowed(const dsc_zero *zero, int32_t group);
/* Its parameters are not on the device but in windows. */
static inline bool dsc_zero_param_is_away(const dsc_zero *zero, int32_t group)
{
    DSC_ASSERT(group < zero->o.layout->group_count);
    return zero->group[group].tiers.swap_param && !zero->group[group].gather.resident;
}

/* Cuts a group's moments off `from`; returns what follows them. */
char *dsc_zero_place_moments(const dsc_zero *zero, int32_t group, char *from);

dsc_status dsc_zero_after_compute(dsc_zero *zero, dsc_stream *stream, dsc_error *err);
/* The compute stream waits for what the gather or the reduce stream `by` has done up to the event. The wait counts as
 * the step's wait for exchanges. */
dsc_status dsc_zero_after_exchange(dsc_zero *zero, const dsc_stream *by, dsc_event *event, dsc_error *err);
static inline int32_t dsc_backward_step(const dsc_zero *zero, int32_t module)
{
    DSC_ASSERT(module >= 0);
    DSC_ASSERT(module < zero->o.model->module_count);
    return 2 * zero->o.model->module_count - 2 - module;
}

#endif
