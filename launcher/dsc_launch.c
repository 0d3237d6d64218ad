/* dsc_launch.c - the program: reads the command, resolves hosts and PROGRAM, then starts the ranks or says why not.
 *
 * Everything that can be wrong with the command is found here, before any process is started.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "launcher/dry_run.h"
#include "launcher/job.h"

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static dsc_status check_path(const char *path, dsc_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "no such program: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is no file that can be executed");
    if (access(path, X_OK) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "is not executable; chmod +x it, or start its interpreter, for example python3 %.60s", path);
    return DSC_OK;
}

/* The folder of this very file, so that a build tree and an installation work without PATH. */
static void own_folder(char *out, size_t out_bytes)
{
    const ssize_t n = readlink("/proc/self/exe", out, out_bytes - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash != NULL)
        *slash = 0;
}

/* With a slash: that file. Without: beside dsc-launch, then PATH. */
static dsc_status find_program(const char *name, char *out, size_t out_bytes, dsc_error *err)
{
    char folder[2048];
    if (strchr(name, '/') != NULL) {
        if ((size_t)snprintf(out, out_bytes, "%s", name) >= out_bytes)
            return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM", "its path is too long");
        return check_path(out, err);
    }
    own_folder(folder, sizeof folder);
    if ((size_t)snprintf(out, out_bytes, "%s/%s", folder, name) < out_bytes && is_program(out))
        return DSC_OK;
    const char *path = getenv("PATH");
    for (const char *at = path; at != NULL; at = *at == ':' ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ":");
        const int n = snprintf(out, out_bytes, "%.*s%s%s", (int)bytes, at, bytes > 0 ? "/" : "./", name);
        if (n > 0 && (size_t)n < out_bytes && is_program(out))
            return DSC_OK;
        at += bytes;
    }
    if (access(name, F_OK) == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM",
                        "\"%.100s\" is neither beside dsc-launch nor in PATH; for the file here write ./%.100s", name,
                        name);
    return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM", "\"%.100s\" is neither in %.200s nor in PATH", name, folder);
}

static dsc_status check_hosts(const dsc_launcher_plan *plan, dsc_error *err)
{
    const char *first = plan->pool.host[0].name;
    if (plan->local)
        return DSC_OK;
    if (plan->pool.count == 1)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "hosts",
                        "\"%.100s\" is not this host; starting ranks on other hosts is not "
                        "built yet in this version. What works: localhost, 127.0.0.1 and this host's own name",
                        first);
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "hosts",
                    "%lld hosts (\"%.60s\", \"%.60s\"%s); more than one is not built yet in "
                    "this version. What works: one, this host (--include %.60s where that is this host)",
                    (long long)plan->pool.count, first, plan->pool.host[1].name, plan->pool.count > 2 ? ", ..." : "",
                    first);
}

static int fail(const dsc_error *err)
{
    char text[800];
    fprintf(stderr, "dsc: error: %s\n", dsc_error_format(err, text, sizeof text));
    return dsc_status_exit_code(err->status);
}

static int start(dsc_job *job)
{
    dsc_error err = DSC_ERROR_INIT;
    char program[4096];
    if (job->opt->program_argc == 0) {
        dsc_launcher_usage(stderr);
        DSC_FAIL(&err, DSC_ERR_INPUT, "PROGRAM",
                 "is missing; for example dsc-launch --num_gpus=4 train --config ds_config.json");
        return fail(&err);
    }
    if (check_hosts(job->plan, &err) != DSC_OK ||
        find_program(job->opt->program_argv[0], program, sizeof program, &err) != DSC_OK)
        return fail(&err);
    for (int32_t i = 0; i < job->plan->note_count; i++)
        if (job->opt->log_level >= job->plan->note[i].level)
            fprintf(stderr, "dsc-launch: %s\n", job->plan->note[i].text);
    job->program = program;
    job->work = dsc_supervise;
    job->worker_name = "dsc-supervisor";
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
    dsc_machine_read(&machine);
    if (dsc_launcher_resolve(alloc, &opt, &machine, &plan, &err) != DSC_OK) {
        code = fail(&err);
    } else if (opt.dry_run) {
        dsc_launcher_dry_run(&plan, &opt, stdout);
        code = fflush(stdout) != 0 || ferror(stdout) != 0;
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
