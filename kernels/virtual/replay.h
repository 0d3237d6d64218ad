/* replay.h - the items of one step of a rank, replayed on the virtual clocks of many ranks.
 *
 * All ranks have the same items in the same order (virtual.h). A collective starts when the last rank has reached it,
 * so that a slow rank delays all others. Without slow ranks and noise the result is that of one rank.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_VIRTUAL_REPLAY_H
#define DSC_KERNELS_VIRTUAL_REPLAY_H

#include "kernels/virtual/virtual.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_replay_options {
    dsc_alloc *alloc;
    const dsc_card_rates *rates;
    const dsc_virtual_trace *trace; /* of one step */
    int32_t streams, events;        /* the clock's, at the end of the trace */
    int32_t ranks;
    int32_t steps; /* measured, behind one that is not */
    int32_t slow_ranks;
    double slow_factor; /* kernels of the first `slow_ranks` ranks take so many times as long; 1: none is slow */
    /* Each kernel of each rank takes (1 + noise * x) times as long, x from the exponential distribution of mean 1. */
    double noise;
    uint64_t seed;
} dsc_replay_options;

typedef struct dsc_replay_result {
    double step_s;   /* step of the slowest rank, mean of the steps */
    double most_s;   /* the longest step */
    double exposed_s; /* time of a step that computation waited for exchanges; mean of ranks and steps */
    double waited_s; /* waits of a step, from arrival at a collective to its start; mean of ranks and steps */
} dsc_replay_result;

/* DSC_ERR_UNSUPPORTED: a collective is between some of the ranks only. DSC_ERR_NOMEM. */
DSC_MUST_USE dsc_status dsc_virtual_replay(const dsc_replay_options *options, dsc_replay_result *out, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
