/* tables.c - the modules of one step (flops_profiler) and the collectives of a run (comms_logger) as text.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/profile/internal.h"

/* Lines go to the log, or to the file that the config names. */
typedef struct sink {
    const dsc_profile_options *o;
    dsc_file file;
    int64_t bytes;
} sink;

static void say(sink *to, const char *fmt, ...) DSC_PRINTF(2, 3);
static void say(sink *to, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    const int length = vsnprintf(line, sizeof line - 1, fmt, args);
    va_end(args);
    if (to->file.fd < 0) {
        dsc_log_printf(to->o->log, DSC_LOG_INFO, "%s", line);
        return;
    }
    const int64_t bytes = dsc_min_i64(length, (int64_t)sizeof line - 2) + 1;
    line[bytes - 1] = '\n';
    if (dsc_io_write(to->o->io, &to->file, line, bytes, to->bytes, NULL) == DSC_OK)
        to->bytes += bytes;
}

static double per_s(double count, int64_t ns) { return ns > 0 ? count / ((double)ns * 1e-9) : 0; }
static int64_t all_ns(const dsc_module_times *t) { return t->forward_ns + t->backward_ns; }

/* Numbers of the slowest `wanted` modules, slowest first. */
static int32_t pick(const dsc_module_times *times, int32_t count, int64_t wanted, int32_t *out)
{
    int32_t picked = 0;
    while (picked < count && picked < wanted) {
        int32_t best = -1;
        for (int32_t m = 0; m < count; m++) {
            bool taken = false;
            for (int32_t i = 0; i < picked; i++)
                taken |= out[i] == m;
            if (!taken && (best < 0 || all_ns(&times[m]) > all_ns(&times[best])))
                best = m;
        }
        out[picked++] = best;
    }
    return picked;
}

/* A row of the table; the times of one module, or all of them. */
typedef struct row {
    const char *name;
    int64_t parameters, forward_ns, backward_ns;
    double forward_flops, backward_flops;
} row;

static row row_of(const dsc_profile_module *m, const dsc_module_times *t)
{
    return (row){ .name = m->name,
                  .parameters = m->parameters,
                  .forward_ns = t->forward_ns,
                  .backward_ns = t->backward_ns,
                  .forward_flops = m->forward_flops * (double)t->forward_calls,
                  .backward_flops = m->backward_flops * (double)t->backward_calls +
                                    m->recompute_flops * (double)t->recompute_calls };
}

static void say_row(sink *to, const row *r, int64_t total_ns)
{
    say(to, "  %-14.60s %10.3f M %10.3f %9.2f %9.1f %10.3f %9.2f %9.1f %6.1f %%", r->name, (double)r->parameters * 1e-6,
        r->forward_flops * 1e-9, (double)r->forward_ns * 1e-6, per_s(r->forward_flops, r->forward_ns) * 1e-9,
        r->backward_flops * 1e-9, (double)r->backward_ns * 1e-6, per_s(r->backward_flops, r->backward_ns) * 1e-9,
        total_ns > 0 ? 100.0 * (double)(r->forward_ns + r->backward_ns) / (double)total_ns : 0);
}

static void open_sink(sink *to, const char *path)
{
    dsc_error err = DSC_ERROR_INIT;
    if (path[0] != 0 && dsc_io_open(to->o->io, path, DSC_IO_CREATE, &to->file, &err) != DSC_OK)
        dsc_log_printf(to->o->log, DSC_LOG_WARNING, "flops_profiler.output_file: %s: %s; the table follows here",
                       err.where, err.message);
}

void dsc_profile_modules_table(const dsc_profile_options *o, int64_t step, const dsc_profile_module *modules,
                               const dsc_module_times *times, int32_t count)
{
    enum { PICKED_MAX = 64 };
    const dsc_flops_profiler_config *config = &o->config->flops_profiler;
    sink to = { .o = o, .file = DSC_FILE_INIT };
    row all = { .name = "all" };
    int32_t picked[PICKED_MAX];
    open_sink(&to, config->output_file);
    for (int32_t m = 0; m < count; m++) {
        const row r = row_of(&modules[m], &times[m]);
        all.parameters += r.parameters;
        all.forward_ns += r.forward_ns;
        all.backward_ns += r.backward_ns;
        all.forward_flops += r.forward_flops;
        all.backward_flops += r.backward_flops;
    }
    const int64_t total_ns = all.forward_ns + all.backward_ns;
    const int32_t most = (int32_t)dsc_min_i64(config->top_modules, PICKED_MAX);
    const int32_t shown = config->detailed ? count : pick(times, count, most, picked);
    say(&to, "modules of rank 0 in step %lld (all micro-steps; backward with what is computed again):",
        (long long)step);
    say(&to, "  %-14s %12s %10s %9s %9s %10s %9s %9s %8s", "module", "parameters", "fwd GFLOP", "ms", "GFLOP/s",
        "bwd GFLOP", "ms", "GFLOP/s", "share");
    for (int32_t i = 0; i < shown; i++) {
        const int32_t m = config->detailed ? i : picked[i];
        const row r = row_of(&modules[m], &times[m]);
        say_row(&to, &r, total_ns);
    }
    say_row(&to, &all, total_ns);
    (void)dsc_io_close(o->io, &to.file, NULL);
}

/* ---- collectives ---- */

static int by_op_and_size(const void *a, const void *b)
{
    const dsc_comm_row *x = a, *y = b;
    return x->op != y->op ? (x->op < y->op ? -1 : 1) : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

void dsc_profile_comm_table(const dsc_profile_options *o, dsc_comm_row *rows, int32_t count)
{
    sink to = { .o = o, .file = DSC_FILE_INIT };
    qsort(rows, (size_t)count, sizeof *rows, by_op_and_size);
    say(&to, "collectives of rank 0 (bytes: received from other ranks; ms: with waiting for them):");
    say(&to, "  %-15s %14s %9s %12s %10s %9s", "operation", "bytes each", "calls", "ms in all", "ms each", "GB/s");
    for (int32_t i = 0; i < count; i++) {
        const dsc_comm_row *r = &rows[i];
        say(&to, "  %-15s %14lld %9lld %12.2f %10.3f %9.3f", dsc_comm_op_text(r->op), (long long)r->bytes,
            (long long)r->calls, (double)r->ns * 1e-6, (double)r->ns * 1e-6 / (double)r->calls,
            per_s((double)r->bytes * (double)r->calls, r->ns) * 1e-9);
    }
}
