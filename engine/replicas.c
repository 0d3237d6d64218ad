/* replicas.c - see replicas.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/replicas.h"

#include <stdio.h>
#include <string.h>

#include "engine/device.h"
#include "engine/internal.h"

static bool is_due(const dsc_engine *engine)
{
    const int64_t every = engine->config.own.check_replicas;
    return every > 0 && (engine->progress.step + 1) % every == 0;
}

/* Ranks with the same parameters: copies of the states and their shards, or those of a stage. */
static dsc_comm *holders(const dsc_engine *engine)
{
    return dsc_stages_are_used(&engine->stages) ? dsc_engine_shards(engine) : engine->comms.all;
}

/* Which ranks hold another number than most. */
typedef struct minority {
    int32_t rank, ranks; /* the first of them, and how many */
    bool is_tie;         /* as many hold each number: nobody knows which is right */
} minority;

/* `column`: the numbers of one slice, `stride` apart. */
static minority find_minority(const uint64_t *column, int64_t stride, int32_t size)
{
    int32_t most = 0, most_rank = 0, second = 0;
    for (int32_t r = 0; r < size; r++) {
        int32_t alike = 0;
        for (int32_t other = 0; other < size; other++)
            alike += column[r * stride] == column[other * stride];
        if (alike > most) {
            most = alike;
            most_rank = r;
        }
    }
    minority out = { .rank = -1 };
    for (int32_t r = size - 1; r >= 0; r--)
        if (column[r * stride] != column[most_rank * stride]) {
            int32_t alike = 0;
            for (int32_t other = 0; other < size; other++)
                alike += column[r * stride] == column[other * stride];
            second = alike > second ? alike : second;
            out.rank = r;
            out.ranks++;
        }
    out.is_tie = out.ranks > 0 && second == most;
    return out;
}

static dsc_status refuse(const dsc_engine *engine, int32_t group, int32_t slice, const minority *found, dsc_error *err)
{
    const int32_t first = dsc_stages_are_used(&engine->stages) ? engine->stages.stage * engine->stages.grid.data : 0;
    const char *module = engine->model->modules[engine->layout.group[group].module].name;
    const long long step = (long long)(engine->progress.step + 1);
    char where[64], more[48] = "";
    if (found->is_tie)
        return DSC_FAIL(err, DSC_ERR_DEVICE, "dsc.check_replicas",
                        "step %lld: ranks read other parameters of %s, and as many have each of them: rank %d or its "
                        "peers are faulty, in the slice of rank %d; go on from the last checkpoint, with more ranks to "
                        "know which", step, module, (int)(first + found->rank), (int)(first + slice));
    if (found->ranks > 1)
        snprintf(more, sizeof more, " and %d more", (int)found->ranks - 1);
    snprintf(where, sizeof where, "rank %d%s", (int)(first + found->rank), more);
    return DSC_FAIL(err, DSC_ERR_DEVICE, where,
                    "step %lld: parameters of %s, in the slice of rank %d, have other bits than those of most ranks "
                    "(dsc.check_replicas): memory, hardware or network is faulty; go on without it from the last "
                    "checkpoint", step, module, (int)(first + slice));
}

dsc_status dsc_replicas_compare(dsc_engine *engine, dsc_error *err)
{
    const uint64_t *parts, *own;
    const dsc_layout *layout = &engine->layout;
    dsc_comm *comm = holders(engine);
    const int64_t count = (int64_t)layout->group_count * layout->world_size;
    if (!is_due(engine) || engine->repeat.is_second)
        return DSC_OK;
    DSC_TRY(dsc_zero_fingerprints(engine->zero, &parts, &own, err));
    uint64_t *const all = engine->work.params_read;
    DSC_TRY(dsc_comm_all_gather(comm, DSC_CHANNEL_CONTROL, all, own, count * (int64_t)sizeof *own, DSC_U8, NULL, err));
    for (int32_t g = 0; g < layout->group_count; g++)
        for (int32_t slice = 0; slice < layout->world_size; slice++) {
            const minority found =
                find_minority(all + (int64_t)g * layout->world_size + slice, count, dsc_comm_size(comm));
            if (found.ranks > 0)
                return refuse(engine, g, slice, &found, err);
        }
    return DSC_OK;
}
