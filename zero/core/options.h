/* options.h - the options of the model states of a rank, and the bytes that the states take and move.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_CORE_OPTIONS_H
#define DSC_ZERO_CORE_OPTIONS_H

#include "base/quota.h"
#include "comm/comm.h"
#include "kernels/device.h"
#include "offload/swap.h"
#include "zero/core/layout.h"
#include "zero/core/onebit_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_zero dsc_zero;

/* Numbers of bits that a rank can take (fingerprints.h). */
enum { DSC_FINGERPRINTS_PARTS = 1u, DSC_FINGERPRINTS_PARAMS = 2u };

#define DSC_UPDATE_CLASSES_MAX 64 /* classes of tensors with scalars of their own in an update */

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
    double sums_on_device;            /* share of the sums of states in host memory that stays on the device between
                                         the passes of a step, 0..1 */
    int64_t param_elements_in_memory; /* this rank's parameters in memory (of the host if not host_visible) instead of
                                         files; those of the first groups */
    bool params_with_states;          /* and parameters of groups whose states stay in memory */
    int64_t persistent_elements;      /* groups of at most this length keep their parameters on the device */
    int64_t window_elements;          /* limit of parameter windows, unless one module needs more; 0: none */
    int64_t tile_elements;            /* most elements of one tile buffer; a group may be cut into several tiles */
    int32_t slot_count;               /* buffers for each kind of state, 1..DSC_TILE_BUFFERS_MAX */
    bool read_ahead, write_behind;    /* a tile is read, and another written, while one is worked on */
    bool early_update;                /* the update of dsc_zero_expect begins under the last backward pass */
    double early_share;               /* states in host memory: share of elements that may be updated then, 0..1 */
    bool unclipped;                   /* only a skipped step changes the update: its sums need no file */
    dsc_aio_options aio;              /* alloc is not read */
    bool pin_states, pin_params;      /* their buffers are locked in memory, where the system lets us */
    const dsc_io *io;                 /* may be NULL */
    const dsc_log *log;               /* file engine with its reason, slow settings; may be NULL */
} dsc_zero_swap;

/* PowerSGD (zero/optimizer/power_sgd.h); rank 0: not used. */
typedef struct dsc_power_sgd_options {
    int32_t rank;        /* columns of the thin matrices */
    int64_t first;       /* the first update whose gradients are compressed, from 1 */
    double min_rate;     /* a matrix is compressed if its factors, times this, have fewer elements */
} dsc_power_sgd_options;

/* Local SGD (zero/outer_step.h): copies of the states that exchange weights instead of sums; every 0: not used. */
typedef struct dsc_outer_options {
    int64_t every; /* updates of a copy between exchanges */
    float lr, momentum;
    bool nesterov;
} dsc_outer_options;

/* Functions on gradients (zero/grad_hooks.h), on a host_visible device. values[count] are of the group from element
 * `first` on. */
typedef struct dsc_zero_hooks {
    void *user;
    dsc_status (*before_send)(void *user, int32_t module, int32_t group, int64_t micro_step, float *values,
                              int64_t count, dsc_error *err);
    dsc_status (*after_reduce)(void *user, int32_t group, int64_t first, float *values, int64_t count, dsc_error *err);
} dsc_zero_hooks;

typedef struct dsc_zero_options {
    dsc_alloc *alloc;
    const dsc_model *model;
    const dsc_layout *layout;
    int32_t stage, rank;
    dsc_dtype compute_dtype;          /* F32, BF16 or F16 */
    dsc_dtype wire_dtype;             /* dtype of gradient parts on the wire: F32, BF16 or F16 */
    float grad_part_factor;           /* factor of gradient parts before they are sent; 0 is 1 */
    dsc_recipe recipe;                /* recipe of the update; it has 0 to 3 moments an element */
    int64_t round_elements;           /* most elements of this rank's matrices per round of Muon; one group may exceed
                                         the limit */
    dsc_dtype moment_dtype;           /* F32, or BF16: rounded by chance, keyed by seed, update and element; or U8 with
                                         recipe ADAMW: codes and an absmax for each block (kernels/update.h) */
    float average_share;              /* share of an update's weights in their moving averages, 0..1; 0: no averages.
                                         Not with `signs` */
    dsc_dtype sum_dtype;              /* gradient sums; BF16: rounded to nearest after each gradient part. Sums outside
                                         the device have this type too */
    /* ZeRO++: packing of parameters, and of frozen ones, for gathers at stage 3 (NONE or INT8), and of gradient parts
     * for the reduction. */
    dsc_quant quant_params, quant_frozen, quant_grad_parts;
    bool gather_fp8; /* stage 3: windows of the layout's groups in fp8 have E4M3 numbers (fp8_gather.h). Not with
                        quantized or offloaded parameters, nor with neighbours */
    int64_t packed_gather_elements, packed_grad_part_elements; /* limit per collective, of all ranks; 0: none */
    bool grad_part_errors;   /* this rank adds the rounding error of a packed part to the next part of the same use */
    dsc_power_sgd_options power_sgd; /* stage 0, not with `signs` */
    dsc_outer_options outer;         /* with replicas */
    dsc_onebit_policy signs; /* exchange of signs; recipes ADAMW and ONEBIT_LAMB at stage 0 */
    uint32_t fingerprints;   /* DSC_FINGERPRINTS_*, 0: none */
    uint64_t seed;
    bool overlap;
    bool late_update;                  /* GPUs: the update goes on behind its call, under the next forward pass */
    int64_t prefetch_elements;         /* prefetch: limit of elements in unfinished gathers; 0: no prefetch */
    bool prefetch_within_limit;        /* false: the next module may exceed the limit if its window has room */
    int64_t reuse_elements;            /* a window stays until its next use if fewer elements are used between */
    int64_t live_elements;             /* limit of all open windows; a single module may exceed the limit */
    dsc_quota quota;                   /* micro-batches of a step of one copy of the states; not even: one copy, no
                                          `signs`. A list is borrowed until close */
    int32_t micro_batch_group;         /* size of a micro-batch group; a divisor of the micro-steps */
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

/* Bytes that dsc_zero_open will take, by tag and tier. */
typedef struct dsc_zero_plan_bytes {
    int64_t bytes[DSC_TAG_COUNT][DSC_TIER_COUNT];
    int64_t lent_bytes; /* of these, device memory that the communicators may take from their libraries */
    dsc_zero_traffic traffic;
    dsc_zero_kept kept;
    bool prefetch_exceeds; /* modules of more than prefetch_elements are gathered in advance */
    bool prefetch_held;    /* they would be, but their windows would exceed a limit of the options */
} dsc_zero_plan_bytes;

#ifdef __cplusplus
}
#endif
#endif
