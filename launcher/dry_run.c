/* dry_run.c - the plan as one JSON object. Names of keys are a contract; keys may be added.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/dry_run.h"

#include <string.h>

#include "base/formats/json.h"
#include "launcher/node/rank_env.h"

/* Quoted in pieces, so that an argument of any length needs no memory. A piece ends between two UTF-8 characters. */
static void print_quoted(FILE *to, const char *text)
{
    char piece[200], quoted[1300]; /* a byte becomes at most six */
    fputc('"', to);
    while (*text != 0) {
        size_t bytes = strnlen(text, sizeof piece - 1);
        if (text[bytes] != 0)
            for (int back = 0; back < 3 && ((unsigned char)text[bytes] & 0xc0) == 0x80; back++)
                bytes--;
        memcpy(piece, text, bytes);
        piece[bytes] = 0;
        const size_t quoted_bytes = dsc_json_quote(quoted, sizeof quoted, piece);
        DSC_ASSERT(quoted_bytes < sizeof quoted);
        fwrite(quoted + 1, 1, quoted_bytes - 2, to);
        text += bytes;
    }
    fputc('"', to);
}

static void print_hosts(const dsc_launcher_plan *plan, FILE *to)
{
    fprintf(to, "{\"hosts\":{");
    for (int64_t i = 0; i < plan->pool.count; i++) {
        const char *between = "";
        fprintf(to, "%s\n  ", i > 0 ? "," : "");
        print_quoted(to, plan->pool.host[i].name);
        fprintf(to, ":[");
        for (int32_t slot = 0; slot < DSC_HOST_SLOTS_MAX; slot++)
            if (dsc_host_has_slot(&plan->pool.host[i], slot)) {
                fprintf(to, "%s%d", between, slot);
                between = ",";
            }
        fputc(']', to);
    }
    fprintf(to, "},\n");
}

static void print_texts(char *const *texts, FILE *to)
{
    fputc('[', to);
    for (int i = 0; texts[i] != NULL; i++) {
        fprintf(to, "%s", i > 0 ? "," : "");
        print_quoted(to, texts[i]);
    }
    fputc(']', to);
}

/* Pipeline varies slowest, and tensor fastest. */
static void print_ranks(const dsc_launcher_plan *plan, FILE *to)
{
    const int32_t stages = plan->grid.stages, tensor = plan->grid.tensor, data = plan->world_size / stages / tensor;
    fprintf(to, "\"world_size\":%d,\n", plan->world_size);
    if (stages * tensor > 1)
        fprintf(to, "\"grid\":{\"pipeline\":%d,\"data\":%d,\"sequence\":1,\"tensor\":%d},\n", stages, data, tensor);
    fprintf(to, "\"ranks\":[");
    for (int32_t i = 0; i < plan->world_size; i++) {
        const dsc_place *place = &plan->place[i];
        fprintf(to, "%s\n  {\"rank\":%d,\"host\":", i > 0 ? "," : "", place->rank);
        print_quoted(to, plan->pool.host[place->host].name);
        fprintf(to, ",\"slot\":%d,\"local_rank\":%d", place->slot, place->local_rank);
        if (stages * tensor > 1)
            fprintf(to, ",\"stage\":%d,\"data_rank\":%d", place->rank / tensor / data, place->rank / tensor % data);
        if (tensor > 1)
            fprintf(to, ",\"tensor_rank\":%d", place->rank % tensor);
        fputc('}', to);
    }
    fprintf(to, "],\n");
}

void dsc_launcher_dry_run(const dsc_launcher_plan *plan, const dsc_launcher_options *opt, char *const *launcher_argv,
                          FILE *to)
{
    dsc_rank_vars vars;
    DSC_ASSERT(plan->grid.stages >= 1 && plan->grid.tensor >= 1);
    DSC_ASSERT(plan->world_size % (plan->grid.stages * plan->grid.tensor) == 0);
    dsc_rank_vars_common(plan, &vars);
    print_hosts(plan, to);
    print_ranks(plan, to);
    fprintf(to, "\"env\":{");
    for (int32_t i = 0; i < vars.count; i++) {
        fprintf(to, "%s\n  \"%s\":", i > 0 ? "," : "", vars.var[i].name);
        print_quoted(to, dsc_rank_var_value(&vars, i));
    }
    fprintf(to, "},\n\"master_addr\":");
    print_quoted(to, plan->master_addr);
    fprintf(to, ",\n\"master_port\":%d,\n\"command\":", plan->master_port);
    print_texts(opt->program.argv, to);
    if (launcher_argv != NULL) {
        fprintf(to, ",\n\"launcher_command\":");
        print_texts(launcher_argv, to);
    }
    fprintf(to, "}\n");
}
