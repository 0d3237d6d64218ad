/* probe_zero.c - access to the state of zero for probe.h: the only file of tests that reads struct dsc_zero.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/support/probe.h"
#include "zero/core/internal.h"
#include "zero/offload/speculative_update.h"
#include "zero/offload/state_store.h"
#include "zero/optimizer/onebit.h"
#include "zero/optimizer/sign_compress.h"

static dsc_probe_memory memory_of(const dsc_buf *buf) { return (dsc_probe_memory){ buf->ptr, buf->bytes }; }

dsc_probe_memory dsc_probe_params(const dsc_zero *zero) { return memory_of(&zero->buf.param); }
dsc_probe_memory dsc_probe_moments(const dsc_zero *zero) { return memory_of(&zero->buf.moment); }
dsc_probe_memory dsc_probe_sign_errors(const dsc_zero *zero) { return memory_of(&zero->sign_compress->error_buf); }
dsc_probe_memory dsc_probe_local_updates(const dsc_zero *zero) { return memory_of(&zero->onebit->local_update_buf); }
int64_t dsc_probe_grad_bytes(const dsc_zero *zero) { return zero->buf.grad.bytes; }

const float *dsc_probe_master(const dsc_zero *zero, int32_t group) { return zero->group[group].master; }

const float *dsc_probe_moment(const dsc_zero *zero, int32_t group, int32_t index)
{
    return (const float *)(const void *)zero->group[group].moment[index];
}

const float *dsc_probe_shared_weights(const dsc_zero *zero, int32_t group) { return zero->group[group].onebit->shared; }

dsc_probe_onebit dsc_probe_onebit_get(const dsc_zero *zero)
{
    dsc_probe_onebit out = { .error_phase = zero->onebit->error_phase,
                             .has_local_steps = zero->onebit->has_local_steps };
    memcpy(out.decays, zero->onebit->decays, sizeof out.decays);
    memcpy(out.rates, zero->onebit->rates, sizeof out.rates);
    return out;
}

dsc_stream *dsc_probe_gather_stream(const dsc_zero *zero) { return zero->stream.gather; }
dsc_stream *dsc_probe_reduce_stream(const dsc_zero *zero) { return zero->stream.reduce; }

void dsc_probe_set_speculative_target_to_all(dsc_zero *zero)
{
    zero->speculative->target = (int32_t)dsc_max_i64(1, zero->speculative->count);
}

int64_t dsc_probe_lent_slots(const dsc_zero *zero) { return atomic_load(&zero->store->borrowed.lent_slots); }

int32_t dsc_probe_gather_count(const dsc_zero *zero) { return zero->gathers.count; }
int32_t dsc_probe_gather_group(const dsc_zero *zero, int32_t index) { return zero->gathers.gather[index].group; }

int32_t dsc_probe_gather_lead(const dsc_zero *zero, int32_t index)
{
    const dsc_layout *layout = zero->o.layout;
    const int32_t modules = layout->module_count, uses = layout->module_first_use[modules];
    int32_t first = zero->step_count;
    for (int32_t m = 0; m < modules; m++)
        for (int32_t u = layout->module_first_use[m]; u < layout->module_first_use[m + 1]; u++) {
            if (zero->gathers.of_use[u] == index && m < first)
                first = m;
            if (zero->gathers.of_use[uses + u] == index && 2 * modules - 2 - m < first)
                first = 2 * modules - 2 - m;
        }
    return first - zero->gathers.gather[index].issue_step;
}

int32_t dsc_probe_grad_part_count(const dsc_zero *zero) { return zero->parts.count; }

dsc_probe_grad_part dsc_probe_grad_part_get(const dsc_zero *zero, int32_t index)
{
    const dsc_grad_part *part = &zero->parts.part[index];
    return (dsc_probe_grad_part) { .module = part->module,
                                   .group = part->group,
                                   .micro_batch = part->mb,
                                   .slot = part->slot,
                                   .slot_offset = part->slot < 0 ? -1 : zero->parts.slot[part->slot].offset,
                                   .after = part->after,
                                   .after_mark = part->after_mark,
                                   .last_of_run = (int32_t)(dsc_grad_part_last_of_run(zero, part) - zero->parts.part) };
}

int64_t dsc_probe_grad_part_mark_end(const dsc_zero *zero, int32_t index, int32_t mark)
{
    return dsc_grad_part_mark_end(zero, &zero->parts.part[index], mark);
}

int32_t dsc_probe_counter_levels(const dsc_zero *zero) { return zero->parts.level_count; }
