/* trial.c - see trial.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/trial.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "tools/dsc/config_tool.h"
#include "tools/dsc/run_log.h"
#include "tools/dsc/tool.h"

enum { ARGUMENTS_MAX = TRIAL_FLAGS_MAX + 16, OUTPUT_BYTES_MAX = 1 << 24 };

/* Keys that save or monitor a run and are not part of its work. */
static const char *const left_out[] = {
    "tensorboard",      "csv_monitor",     "wandb",         "comet",          "comms_logger", "flops_profiler",
    "autotuning",       "dsc.save",        "dsc.load",      "dsc.log",        "dsc.log_text", "wall_clock_breakdown",
    "dsc.save_every",   "dsc.save_async",  "dsc.eval_data", "dsc.eval_every", "dsc.epochs",   "dsc.stop",
    "dsc.keep_last",    "dsc.keep_every",  "dsc.prometheus_port",
};

/* The user's signal, which ends the run under way, then this program. */
static volatile sig_atomic_t ended_by;
static void note_signal(int number) { ended_by = number; }
static const int ending[] = { SIGINT, SIGTERM, SIGHUP };

dsc_status trial_open(trial_setup *setup, dsc_error *err)
{
    const struct sigaction note = { .sa_handler = note_signal };
    const char *base = getenv("TMPDIR");
    if (setup->path == NULL || setup->path[0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--config", "is missing: the ds_config.json to start from");
    DSC_TRY(dsc_alloc_open(&setup->alloc, err));
    DSC_TRY(trial_make_config(setup, err));
    snprintf(setup->folder, sizeof setup->folder, "%s/dsc-trial-XXXXXX", base != NULL && *base == '/' ? base : "/tmp");
    for (size_t i = 0; i < DSC_COUNT(ending); i++)
        sigaction(ending[i], &note, NULL);
    if (mkdtemp(setup->folder) != NULL)
        return DSC_OK;
    const int reason = errno;
    const dsc_status status = DSC_FAIL(err, DSC_ERR_IO, setup->folder, "no folder for the trials' files: %s",
                                       strerror(reason));
    setup->folder[0] = 0;
    return status;
}

dsc_status trial_close(trial_setup *setup, dsc_error *err)
{
    const dsc_status status = setup->folder[0] != 0 ? dsc_io_remove_dir(NULL, setup->folder, err) : DSC_OK;
    setup->folder[0] = 0;
    cJSON_Delete(setup->config);
    setup->config = NULL;
    dsc_json_close(&setup->file);
    dsc_alloc_close(&setup->alloc);
    for (size_t i = 0; i < DSC_COUNT(ending); i++)
        signal(ending[i], SIG_DFL);
    if (ended_by != 0)
        raise(ended_by);
    return status;
}

/* ---- one run ---- */

typedef struct trial_files {
    char config[4200], log[4200], trace[4200], output[4200];
} trial_files;

static dsc_status name_files(const trial_setup *setup, trial_files *f, dsc_error *err)
{
    DSC_TRY(dsc_path_join(f->config, sizeof f->config, setup->folder, "config.json", err));
    DSC_TRY(dsc_path_join(f->log, sizeof f->log, setup->folder, "log.jsonl", err));
    DSC_TRY(dsc_path_join(f->trace, sizeof f->trace, setup->folder, "trace.json", err));
    DSC_TRY(dsc_path_join(f->output, sizeof f->output, setup->folder, "output", err));
    (void)unlink(f->log);
    (void)unlink(f->trace);
    return DSC_OK;
}

static dsc_status change_config(const trial_setup *setup, cJSON *own, const trial_files *files, dsc_error *err)
{
    const double steps = (double)(setup->warm_steps + setup->steps);
    for (size_t i = 0; i < DSC_COUNT(left_out); i++)
        dsc_config_tool_remove(own, left_out[i]);
    DSC_TRY(dsc_config_tool_put(own, "dsc.steps", cJSON_CreateNumber(steps), err));
    DSC_TRY(dsc_config_tool_put(own, "dsc.log", cJSON_CreateString(files->log), err));
    DSC_TRY(dsc_config_tool_put(own, "dsc.trace", cJSON_CreateString(files->trace), err));
    return dsc_config_tool_put(own, "dsc.trace_steps", cJSON_CreateNumber(steps), err);
}

static dsc_status write_config(const trial_setup *setup, const cJSON *config, const trial_files *files, dsc_error *err)
{
    cJSON *own = cJSON_Duplicate(config, true);
    dsc_status status = own != NULL ? change_config(setup, own, files, err) : DSC_ERR_NOMEM;
    char *text = status == DSC_OK ? cJSON_PrintUnformatted(own) : NULL;
    cJSON_Delete(own);
    if (text == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, files->config, "out of host memory: no JSON text");
    status = dsc_io_write_all_atomic(NULL, files->config, text, (int64_t)strlen(text), err);
    cJSON_free(text);
    return status;
}

/* In the child: only what is safe between fork and exec. */
static void become(char *const *argv, int output)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (dup2(output, 1) >= 0 && dup2(output, 2) >= 0)
        execv(argv[0], argv);
    _exit(127);
}

/* Ends with the run; ends it at the limit and when this program is to end. dsc-launch ends its ranks, then itself. */
static int wait_for(pid_t pid, int64_t limit_s, bool *late)
{
    const int64_t began = dsc_clock_ns();
    const struct timespec nap = { 0, 20 * 1000 * 1000 };
    int status = 0;
    bool signalled = false;
    for (;;) {
        const pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (ended < 0 && errno != EINTR)
            return 127;
        *late = dsc_clock_ns() - began > limit_s * INT64_C(1000000000);
        if ((*late || ended_by != 0) && !signalled) {
            kill(pid, SIGTERM);
            signalled = true;
        }
        nanosleep(&nap, NULL);
    }
}

/* Runs dsc-launch with `words` (NULL at their end) behind the user's own flags. */
static dsc_status launch(const trial_setup *setup, const trial_files *files, const char *const *words, int *exit_code,
                         bool *late, dsc_error *err)
{
    char program[4096], *argv[ARGUMENTS_MAX];
    int used = 0;
    DSC_TRY(dsc_tool_beside("dsc-launch", program, sizeof program, err));
    argv[used++] = program;
    for (int i = 0; i < setup->launch_flag_count; i++)
        argv[used++] = (char *)(uintptr_t)setup->launch_flag[i];
    for (; *words != NULL; words++)
        argv[used++] = (char *)(uintptr_t)*words;
    argv[used] = NULL;
    const int output = open(files->output, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (output < 0)
        return DSC_FAIL(err, DSC_ERR_IO, files->output, "cannot be made: %s", strerror(errno));
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0)
        become(argv, output);
    close(output);
    *exit_code = pid > 0 ? wait_for(pid, setup->limit_s, late) : 127;
    if (*exit_code == 127)
        return DSC_FAIL(err, DSC_ERR_IO, program, "cannot be started");
    if (ended_by != 0 || *exit_code == 128 + SIGINT || (*exit_code == 128 + SIGTERM && !*late))
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc-launch", "ended by a signal before all was measured");
    return DSC_OK;
}

/* ---- what it left ---- */

typedef struct words {
    char *out;
    size_t room;
} words;

static dsc_status keep_error(void *user, const char *where, const char *text, int64_t bytes, dsc_error *err)
{
    static const char mark[] = "dsc: error: ";
    const words *w = user;
    (void)where;
    (void)err;
    if (bytes > (int64_t)sizeof mark && strncmp(text, mark, sizeof mark - 1) == 0)
        snprintf(w->out, w->room, "%.*s", (int)dsc_min_i64(bytes - (int64_t)sizeof mark + 1, 400),
                 text + sizeof mark - 1);
    return DSC_OK;
}

/* The run's own error line. */
static void explain(const trial_setup *setup, const trial_files *files, bool late, trial_result *result)
{
    words w = { result->why, sizeof result->why };
    snprintf(result->why, sizeof result->why, "exit code %d without a word", result->exit_code);
    if (dsc_tool_lines(setup->alloc, files->output, OUTPUT_BYTES_MAX, keep_error, &w, NULL) != DSC_OK)
        snprintf(result->why, sizeof result->why, "exit code %d, more output than is read", result->exit_code);
    if (late)
        snprintf(result->why, sizeof result->why, "no end within %lld s", (long long)setup->limit_s);
    dsc_text_printable(result->why);
}

static dsc_status take_log(const trial_setup *setup, const trial_files *files, trial_result *result, dsc_error *err)
{
    run_log log = { 0 };
    dsc_status status = run_log_read(setup->alloc, files->log, &log, err);
    for (int64_t i = 0; status == DSC_OK && i < log.count; i++) {
        const double step = log.value[RUN_LOG_STEP][i], ms = log.value[RUN_LOG_STEP_MS][i];
        if (step <= (double)setup->warm_steps || !isfinite(ms) || result->step_count == TRIAL_STEPS_MAX)
            continue;
        result->step_s[result->step_count++] = ms * 1e-3;
        result->tokens = (int64_t)log.value[RUN_LOG_TOKENS][i];
        result->pictures = isfinite(log.value[RUN_LOG_IMAGES_PER_S][i]);
        if (isfinite(log.value[RUN_LOG_EPOCH][i]) && log.value[RUN_LOG_EPOCH][i] > 0)
            result->steps_per_epoch = step / log.value[RUN_LOG_EPOCH][i];
    }
    if (status == DSC_OK && result->step_count == 0)
        status = DSC_FAIL(err, DSC_ERR_INPUT, "--steps", "the data ended before a step was measured");
    run_log_free(setup->alloc, &log);
    return status;
}

dsc_status trial_run(const trial_setup *setup, const cJSON *config, int64_t ranks, trial_result *result,
                     dsc_error *err)
{
    trial_files files;
    char count[24];
    bool late = false;
    DSC_TRY(name_files(setup, &files, err));
    DSC_TRY(write_config(setup, config, &files, err));
    snprintf(count, sizeof count, "%lld", (long long)ranks);
    /* CPU ranks may be more than cores; a rank that lacks a GPU says so itself. */
    const char *const here[] = { "--num_gpus", count, "--oversubscribe", "train", "--config", files.config, NULL };
    const char *const there[] = { "-np", count, "train", "--config", files.config, NULL };
    DSC_TRY(launch(setup, &files, setup->launch_flag_count > 0 ? there : here, &result->exit_code, &late, err));
    if (result->exit_code != 0) {
        explain(setup, &files, late, result);
        return DSC_OK;
    }
    DSC_TRY(take_log(setup, &files, result, err));
    if (result->waited_s >= 0 && trial_read_waits(setup->alloc, files.trace, setup->warm_steps, &result->waited_s,
                                                  NULL) != DSC_OK)
        result->waited_s = -1;
    result->runs++;
    return DSC_OK;
}

dsc_status trial_usual_ranks(const trial_setup *setup, int64_t *ranks, dsc_error *err)
{
    static const dsc_json_limits limits = { OUTPUT_BYTES_MAX, 8, 1000000 };
    static const char *const dry_run[] = { "--dry-run", NULL };
    trial_result result = { 0 };
    trial_files files;
    char *text = NULL;
    int64_t bytes;
    bool late = false;
    dsc_json *json = NULL;
    DSC_TRY(name_files(setup, &files, err));
    DSC_TRY(launch(setup, &files, dry_run, &result.exit_code, &late, err));
    if (result.exit_code != 0) {
        explain(setup, &files, late, &result);
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc-launch", "%s", result.why);
    }
    DSC_TRY(dsc_io_read_all(NULL, setup->alloc, files.output, OUTPUT_BYTES_MAX, &text, &bytes, err));
    dsc_status status = dsc_json_open(setup->alloc, files.output, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    if (status == DSC_OK)
        *ranks = (int64_t)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), "world_size"));
    dsc_json_close(&json);
    dsc_alloc_free(setup->alloc, text);
    return status;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double trial_quantile_s(const trial_result *result, double q)
{
    static const size_t one = sizeof result->step_s[0];
    double sorted[TRIAL_STEPS_MAX];
    if (result->step_count == 0)
        return 0;
    memcpy(sorted, result->step_s, one * (size_t)result->step_count);
    qsort(sorted, (size_t)result->step_count, one, compare_doubles);
    return sorted[(int64_t)(q * (double)(result->step_count - 1) + 0.5)];
}

double trial_tokens_per_s(const trial_result *result)
{
    const double step_s = trial_quantile_s(result, 0.5);
    return step_s > 0 ? (double)result->tokens / step_s : 0;
}
