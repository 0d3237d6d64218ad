/* plan_grid.c - see plan_grid.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/plan_grid.h"

#include <stdio.h>

#include "tools/dsc/tool.h"

#define MIB 1048576.0

static void print_stage(const dsc_engine_planned *p)
{
    const dsc_planned_stage *s = &p->stage;
    printf("  stage %-4d %-18s %-18s %10.2f %12.2f %12.2f %16.2f", (int)s->index, s->first_module, s->last_module,
           (double)s->parameters * 1e-6, (double)p->total_bytes / MIB, (double)p->traffic.wire_bytes / MIB,
           (double)s->sent_bytes / MIB);
    if (p->grid.tensor > 1)
        printf(" %15.2f", (double)s->tensor_sent_bytes / MIB);
    printf("\n");
}

static void print_stage_json(const dsc_engine_planned *p)
{
    const dsc_planned_stage *s = &p->stage;
    printf("%s{\"stage\":%d,\"first_module\":", s->index > 0 ? "," : "", (int)s->index);
    dsc_tool_json_text(s->first_module);
    printf(",\"last_module\":");
    dsc_tool_json_text(s->last_module);
    printf(",\"modules\":%d,\"parameters\":%lld,\"total_bytes\":%lld,\"data_received_bytes\":%lld,"
           "\"pipeline_sent_bytes\":%lld,\"tensor_sent_bytes\":%lld}",
           (int)s->modules, (long long)s->parameters, (long long)p->total_bytes, (long long)p->traffic.wire_bytes,
           (long long)s->sent_bytes, (long long)s->tensor_sent_bytes);
}

dsc_status plan_grid_print(const dsc_engine_options *options, const dsc_engine_planned *first, bool json,
                           dsc_error *err)
{
    const dsc_grid grid = first->grid;
    dsc_engine_options one = *options;
    one.log = (dsc_log) { NULL, NULL };
    if (grid.pipeline == 1 && grid.tensor == 1)
        return DSC_OK;
    if (json)
        printf(",\"grid\":{\"pipeline\":%d,\"data\":%d,\"sequence\":%d,\"tensor\":%d},\"stages\":[", (int)grid.pipeline,
               (int)grid.data, (int)grid.sequence, (int)grid.tensor);
    else
        printf("grid: pipeline %d x data %d x tensor %d; the table above is of a rank of stage 0; a rank of each "
               "stage:\n             first module       last module       M parameters  total MiB  data MiB/step  "
               "pipeline MiB/step%s\n",
               (int)grid.pipeline, (int)grid.data, (int)grid.tensor, grid.tensor > 1 ? "  tensor MiB/step" : "");
    for (int32_t s = 0; s < grid.pipeline; s++) {
        dsc_engine *engine = NULL;
        dsc_engine_planned planned;
        one.rank = s * grid.data * grid.tensor;
        one.plan_world_size = grid.pipeline * grid.data * grid.tensor;
        DSC_TRY(dsc_engine_open(&engine, &one, err));
        dsc_engine_planned_get(engine, &planned);
        (json ? print_stage_json : print_stage)(&planned);
        dsc_engine_close(&engine);
    }
    if (json)
        printf("]");
    return DSC_OK;
}
