/* report.c - see report.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/report.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "launcher/process/job.h"

static const char error_prefix[] = "dsc: error: ";

static void say_exec_failure(const dsc_report *report, const dsc_rank_end *end)
{
    const char *hint = end->exec_errno == ENOEXEC ? " (no program, and a script starts with #!)" : "";
    dsc_output_log(report->out, "dsc: error: %s: cannot be started: %s%s", report->program, strerror(end->exec_errno),
                   hint);
}

/* The places of a rank of a grid. The ranks themselves refuse axes that do not divide them. */
static void describe_place(const dsc_launcher_plan *plan, int32_t rank, char out[96])
{
    const int32_t stages = plan->grid.stages > 1 ? plan->grid.stages : 1;
    const int32_t tensor = plan->grid.tensor > 1 ? plan->grid.tensor : 1, data = plan->world_size / stages / tensor;
    char stage[32] = "", part[32] = "";
    out[0] = 0;
    if (stages * tensor == 1 || plan->world_size % (stages * tensor) != 0)
        return;
    if (stages > 1)
        snprintf(stage, sizeof stage, "stage %d, ", (int)(rank / tensor / data));
    if (tensor > 1)
        snprintf(part, sizeof part, "tensor rank %d, ", (int)(rank % tensor));
    snprintf(out, 96, "%sdata rank %d, %s", stage, (int)(rank / tensor % data), part);
}

/* "rank 3 (stage 1, data rank 1, host a, pid 12) was killed by SIGSEGV" */
static void describe(const dsc_report *report, const dsc_rank_end *end, char *out, size_t out_bytes)
{
    char name[32], place[96];
    const dsc_host *host = &report->plan->pool.host[report->plan->place[end->rank].host];
    describe_place(report->plan, end->rank, place);
    const int used = snprintf(out, out_bytes, "rank %d (%shost %s, pid %d) ", end->rank, place, host->name, end->pid);
    DSC_ASSERT(used > 0 && (size_t)used < out_bytes);
    char *at = out + used;
    const size_t left = out_bytes - (size_t)used;
    if (end->signal == SIGKILL)
        snprintf(at, left, "was killed by SIGKILL; if nobody sent it, it was the kernel, out of memory");
    else if (end->signal != 0)
        snprintf(at, left, "was killed by %s", dsc_signal_name(end->signal, name));
    else
        snprintf(at, left, "ended with code %d", end->code);
}

/* Lines from `first` on; the others than the first begin with who waits. */
static void say_waits(const dsc_report *report, int32_t first)
{
    for (int32_t i = first; i < report->watch->line_count; i++)
        dsc_output_log(report->out, "dsc-launch: %s", report->watch->line[i]);
    if (report->watch->more)
        dsc_output_log(report->out, "dsc-launch: and more ranks wait");
}

void dsc_report_rank(const dsc_report *report, const dsc_rank_end *culprit)
{
    dsc_output *out = report->out;
    const int32_t index = culprit->rank - report->first_rank;
    const char *said = dsc_output_error_of(out, index);
    char who[DSC_HOST_NAME_BYTES + 192];
    if (culprit->exec_errno != 0) {
        say_exec_failure(report, culprit);
        return;
    }
    describe(report, culprit, who, sizeof who);
    dsc_output_replay(out, index);
    if (culprit->code == dsc_status_exit_code(DSC_ERR_STUCK))
        say_waits(report, 0);
    /* Where we do not see its stderr, a rank that ends with a code of the contract has said why. */
    const bool unseen =
        report->stderr_unseen && culprit->signal == 0 && culprit->code <= dsc_status_exit_code(DSC_ERR_STUCK);
    const bool quiet = !report->last || said != NULL || unseen || dsc_output_error_shown(out);
    dsc_output_log(out, "%s%s", quiet ? "dsc-launch: " : error_prefix, who);
    if (said != NULL && (!report->last || !dsc_output_show_error(out, index)))
        dsc_output_log(out, "dsc-launch: rank %d said \"%s\"", culprit->rank, said + strlen(error_prefix));
}

void dsc_report_found(const dsc_report *report)
{
    DSC_ASSERT(report->watch->line_count > 0);
    say_waits(report, 1);
    dsc_output_log(report->out, "%s%s", report->last ? error_prefix : "dsc-launch: ", report->watch->line[0]);
}

void dsc_report_others(const dsc_report *report)
{
    for (int32_t i = 0; i < report->rank_count; i++) {
        const dsc_rank_end *end = &report->end[i];
        const bool victim = end->pid == 0 || end->signal != 0 || dsc_rank_end_is_caused_by_peer(end);
        if (!victim && dsc_output_show_error(report->out, i))
            return;
    }
}

void dsc_report_lost_output(dsc_output *out)
{
    for (int which = 0; which < dsc_output_sink_count(out); which++) {
        const dsc_sink *sink = dsc_output_sink(out, which);
        if (sink->broken && sink->reason != EPIPE && sink->reason != EBADF && sink->reason != EIO)
            dsc_output_log(out, "dsc-launch: output was lost: %s", strerror(sink->reason));
    }
}
