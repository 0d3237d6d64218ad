/* dsc_launch.c - the program: reads the command, resolves hosts and PROGRAM, then starts the ranks or says why not.
 *
 * Everything that can be wrong with the command is found here, before any process is started.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "launcher/coordinator/coordinator.h"
#include "launcher/dry_run.h"
#include "launcher/plan/grid.h"
#include "launcher/node/host_agent.h"
#include "launcher/plan/exports.h"
#include "launcher/plan/program.h"
#include "launcher/process/job.h"
#include "launcher/runners/runner.h"
#include "launcher/runners/sbatch.h"

static int fail(const dsc_error *err)
{
    char text[800];
    fprintf(stderr, "dsc: error: %s\n", dsc_error_format(err, text, sizeof text));
    return dsc_status_exit_code(err->status);
}

/* The file of PROGRAM. `optional`: the text "PROGRAM" when no program is given. */
static dsc_status find_program(const dsc_launcher_options *opt, bool optional, char *out, size_t bytes, dsc_error *err)
{
    if (opt->program.argc > 0)
        return dsc_program_find(opt->program.argv[0], out, bytes, err);
    snprintf(out, bytes, "PROGRAM");
    return optional ? DSC_OK : DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM", "is missing");
}

/* For --dry-run; otherwise ranks refuse such a grid. */
static dsc_status check_grid(const dsc_launcher_plan *plan, dsc_error *err)
{
    const int stages = plan->grid.stages, tensor = plan->grid.tensor, least = stages * tensor;
    if (plan->world_size % least == 0)
        return DSC_OK;
    if (tensor > 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM",
                        "%d tensor ranks in %d stage%s do not divide %d ranks; start %d, %d, %d, ... ranks, or give "
                        "--tensor-ranks another number",
                        tensor, stages, stages == 1 ? "" : "s", (int)plan->world_size, least, 2 * least, 3 * least);
    return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM",
                    "%d stages of a pipeline do not divide %d ranks; start %d, %d, %d, ... "
                    "ranks, or give --pipeline-ranks another number",
                    stages, (int)plan->world_size, stages, 2 * stages, 3 * stages);
}

/* --launcher: another one starts the ranks; or, --dry-run, what would be started is printed. */
static int run_other(dsc_alloc *alloc, const dsc_launcher_plan *plan, const dsc_launcher_options *opt)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_runner_command command = { .alloc = NULL };
    char program[4096];
    dsc_status status = find_program(opt, opt->dry_run, program, sizeof program, &err);
    if (status == DSC_OK && opt->dry_run)
        status = check_grid(plan, &err);
    if (status == DSC_OK)
        status = dsc_runner_build(alloc, plan, opt, program, &command, &err);
    if (status == DSC_OK && opt->dry_run)
        dsc_launcher_dry_run(plan, opt, command.argv, stdout);
    else if (status == DSC_OK)
        status = dsc_runner_exec(&command, &err);
    dsc_runner_close(&command);
    if (status != DSC_OK)
        return fail(&err);
    return fflush(stdout) != 0 || ferror(stdout) != 0;
}

static int print_script(const dsc_launcher_options *opt)
{
    dsc_error err = DSC_ERROR_INIT;
    char program[4096];
    if (find_program(opt, false, program, sizeof program, &err) != DSC_OK ||
        dsc_sbatch_write(opt, program, stdout, &err) != DSC_OK)
        return fail(&err);
    return fflush(stdout) != 0 || ferror(stdout) != 0;
}

/* Refuses everything that a start would refuse before it contacts a host. */
static int dry_run(dsc_alloc *alloc, const dsc_launcher_plan *plan, const dsc_launcher_options *opt)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_exports exports;
    dsc_status status = dsc_exports_open(alloc, opt, !dsc_job_is_local(plan, opt), &exports, &err);
    dsc_exports_close(&exports);
    if (status == DSC_OK)
        status = check_grid(plan, &err);
    if (status != DSC_OK)
        return fail(&err);
    dsc_launcher_dry_run(plan, opt, NULL, stdout);
    return fflush(stdout) != 0 || ferror(stdout) != 0;
}

static int start(dsc_job *job)
{
    dsc_error err = DSC_ERROR_INIT;
    char program[4096];
    if (job->opt->program.argc == 0) {
        dsc_launcher_usage(stderr);
        DSC_FAIL(&err, DSC_ERR_INPUT, "PROGRAM",
                 "is missing; for example dsc-launch --num_gpus=4 train --config ds_config.json");
        return fail(&err);
    }
    const bool local = dsc_job_is_local(job->plan, job->opt);
    if (local && dsc_program_find(job->opt->program.argv[0], program, sizeof program, &err) != DSC_OK)
        return fail(&err);
    for (int32_t i = 0; i < job->plan->note_count; i++)
        if (job->opt->log_level >= job->plan->note[i].level)
            fprintf(stderr, "dsc-launch: %s\n", job->plan->note[i].text);
    job->program = local ? program : "";
    job->work = dsc_coordinator_work;
    job->worker_name = local ? "dsc-supervisor" : "dsc-coordinator";
    return dsc_guardian_run(job);
}

/* argv is copied: the memory of the original shows the supervisor's title later. */
static int launch(dsc_alloc *alloc, int argc, char **argv, char *title, size_t title_bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_launcher_options opt;
    dsc_launcher_plan plan = DSC_LAUNCHER_PLAN_INIT;
    dsc_machine machine;
    int code = 0;
    if (argc == 2 && strcmp(argv[1], "--agent") == 0) { /* not a user's flag: a launcher elsewhere started us */
        opt = (dsc_launcher_options){ .grace_s = 0 };
        dsc_job job = { .alloc = alloc, .opt = &opt, .program = "", .title = title, .title_bytes = title_bytes,
                        .work = dsc_agent_work, .worker_name = "dsc-agent" };
        return dsc_guardian_run(&job);
    }
    if (dsc_launcher_options_parse(argc, argv, &opt, &err) != DSC_OK)
        return fail(&err);
    if (opt.action == DSC_LAUNCHER_VERSION) {
        printf("dsc-launch " DSC_VERSION_TEXT "\n");
        return 0;
    }
    if (opt.action == DSC_LAUNCHER_HELP) {
        dsc_launcher_usage(stdout);
        return 0;
    }
    if (opt.sbatch)
        return print_script(&opt);
    dsc_machine_read(&machine);
    const dsc_status resolved = dsc_launcher_resolve(alloc, &opt, &machine, &plan, &err);
    plan.grid = dsc_grid_asked(alloc, &opt.program);
    if (resolved != DSC_OK) {
        code = fail(&err);
    } else if (dsc_runner_of(&opt) != DSC_RUNNER_NONE) {
        code = run_other(alloc, &plan, &opt);
    } else if (opt.dry_run) {
        code = dry_run(alloc, &plan, &opt);
    } else {
        dsc_job job = { .alloc = alloc, .plan = &plan, .opt = &opt, .title = title, .title_bytes = title_bytes };
        code = start(&job);
    }
    dsc_launcher_plan_close(&plan);
    return code;
}

int main(int argc, char **argv)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_open_standard_files();
    if (argc < 1)
        return 2;
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    bool copied = copy != NULL && dsc_alloc_open(&alloc, &err) == DSC_OK;
    for (int i = 0; i < argc && copied; i++)
        copied = (copy[i] = strdup(argv[i])) != NULL;
    if (!copied) {
        fprintf(stderr, "dsc: error: dsc-launch: out of memory\n");
        return dsc_status_exit_code(DSC_ERR_NOMEM);
    }
    const size_t title_bytes = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]);
    const int code = launch(alloc, argc, copy, argv[0], title_bytes);
    dsc_alloc_close(&alloc);
    for (int i = 0; i < argc; i++)
        free(copy[i]);
    free(copy);
    return code;
}
