/* skips.h - batches that a run leaves out, so that a step's samples follow from its number and this list alone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SKIPS_H
#define DSC_ENGINE_DATA_SKIPS_H

#include <stdbool.h>
#include <stdint.h>

#define DSC_SKIPS_MAX 64
#define DSC_SKIP_BATCHES_MAX (INT64_C(1) << 40) /* bound of an entry: sample numbers stay below 2^63 */

/* Steps after `after_step` take their samples `batches` batches later. */
typedef struct dsc_skip {
    int64_t after_step, batches;
} dsc_skip;

/* In the order of after_step; entries of one step add up. */
typedef struct dsc_skips {
    int32_t count;
    dsc_skip skip[DSC_SKIPS_MAX];
} dsc_skips;

/* Number of the batch, from 0, of the step with this number, from 0. */
static inline int64_t dsc_skips_batch(const dsc_skips *skips, int64_t step)
{
    int64_t batch = step;
    for (int32_t i = 0; i < skips->count && skips->skip[i].after_step <= step; i++)
        batch += skips->skip[i].batches;
    return batch;
}

/* Forgets entries of steps above `step`, and adds one of this step. False: there is no room. */
static inline bool dsc_skips_add(dsc_skips *skips, int64_t step, int64_t batches)
{
    while (skips->count > 0 && skips->skip[skips->count - 1].after_step > step)
        skips->count--;
    if (skips->count == DSC_SKIPS_MAX)
        return false;
    skips->skip[skips->count++] = (dsc_skip) { step, batches };
    return true;
}

#endif
