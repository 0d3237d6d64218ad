/* progress.c - see progress.h. SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS_MAX 500 /* largest width of a bar, for any terminal */

int64_t train_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Parents of a log file that do not exist yet ("logs/" of logs/training.log). Where the first of them ends, or 0. */
static size_t make_parents(char *path)
{
    size_t first = 0;
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0777) == 0 && first == 0) /* opening the file tells when this did not help */
            first = (size_t)(slash - path);
        *slash = '/';
    }
    return first;
}

static void remove_parents(char *path, size_t first)
{
    char *slash = strrchr(path, '/');
    while (first > 0 && slash != NULL && (size_t)(slash - path) >= first) {
        *slash = 0;
        (void)rmdir(path);
        slash = strrchr(path, '/');
    }
}

/* Does not wait for the reader of a pipe: one that nobody reads is an error. */
static dsc_status open_log(FILE **out, const char *given, const char *name, bool append, dsc_error *err)
{
    char path[4096];
    *out = NULL;
    if (given[0] == 0)
        return DSC_OK;
    if ((size_t)snprintf(path, sizeof path, "%s", given) >= sizeof path)
        return DSC_FAIL(err, DSC_ERR_INPUT, given, "the path of the log (%s) is too long", name);
    const size_t first = make_parents(path);
    const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (append ? O_APPEND : O_TRUNC);
    const int fd = open(path, flags, 0666);
    if (fd >= 0 && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0)
        *out = fdopen(fd, append ? "a" : "w");
    if (*out != NULL)
        return DSC_OK;
    const int reason = errno;
    if (fd >= 0)
        close(fd);
    remove_parents(path, first);
    return DSC_FAIL(err, DSC_ERR_INPUT, given, "the log (%s) cannot be written: %s", name,
                    reason == ENXIO ? "a pipe that nobody reads" : strerror(reason));
}

/* A launcher that shows rank 0's output on a terminal says how wide it is. */
static void find_terminal(train_progress *p)
{
    struct winsize size = { 0 };
    const char *launch = getenv("DSC_LAUNCH_TTY");
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
        p->terminal = true;
        p->columns = size.ws_col > 0 ? size.ws_col : 80;
    } else if (launch != NULL && atoi(launch) > 0) {
        p->terminal = true;
        p->columns = atoi(launch);
    }
    p->columns = p->columns < COLUMNS_MAX ? p->columns : COLUMNS_MAX;
}

dsc_status train_progress_open(train_progress *p, const dsc_run_info *info, const dsc_engine_stats *stats,
                               int64_t first_step, dsc_error *err)
{
    *p = (train_progress) { .first_step = first_step,
                            .last_step = info->steps,
                            .steps_per_epoch = info->steps_per_epoch,
                            .every = info->steps_per_print,
                            .start_ns = train_now_ns(),
                            .flops_per_step = stats->flops_per_step,
                            .seq_length = info->curriculum ? info->seq_length : 0,
                            .pairs = info->pairs,
                            .routers = info->routers,
                            .experts = info->experts,
                            .router_losses = info->router_losses,
                            .pictures = info->pictures };
    p->epoch_start_ns = p->start_ns;
    p->epoch = info->steps_per_epoch > 0 ? first_step / info->steps_per_epoch : 0;
    find_terminal(p);
    DSC_TRY(open_log(&p->jsonl, info->log_path, "--log, dsc.log", first_step > 0, err));
    DSC_TRY(open_log(&p->text, info->log_text_path, "dsc.log_text", true, err));
    if (info->steps > first_step && info->steps - first_step < 10000000)
        p->loss = calloc((size_t)(info->steps - first_step), sizeof *p->loss);
    return DSC_OK;
}

/* Clears the bar, so that a line can stand in its place. */
static void clear_bar(const train_progress *p)
{
    if (p->terminal)
        fputs("\r\033[K", stdout);
}

static void say_va(train_progress *p, const char *fmt, va_list args)
{
    char line[2048];
    vsnprintf(line, sizeof line, fmt, args);
    clear_bar(p);
    puts(line);
    fflush(stdout);
    if (p->text != NULL) {
        fprintf(p->text, "%s\n", line);
        fflush(p->text);
    }
}

void train_progress_say(train_progress *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say_va(p, fmt, args);
    va_end(args);
}

static void format_duration(char *out, size_t out_bytes, double seconds)
{
    const long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, out_bytes, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(out, out_bytes, "%ldm%02lds", s / 60, s % 60);
}

static void json_number(FILE *file, const char *name, double value)
{
    if (isfinite(value))
        fprintf(file, "\"%s\":%.17g,", name, value);
    else
        fprintf(file, "\"%s\":null,", name);
}

/* Router by router. */
static void write_loads(const train_progress *p, const int64_t *load)
{
    for (int32_t r = 0; r < p->routers; r++)
        for (int32_t e = 0; e < p->experts; e++) {
            const char *before = e > 0 ? "," : r > 0 ? "],[" : "\"expert_load\":[[";
            fprintf(p->jsonl, "%s%lld", before, (long long)load[(int64_t)r * p->experts + e]);
        }
    fputs("]],", p->jsonl);
}

static void write_experts(const train_progress *p, const dsc_step_result *r)
{
    const int64_t *load = p->loads != NULL ? dsc_engine_expert_load(p->loads) : NULL;
    if (p->router_losses) {
        json_number(p->jsonl, "aux_loss", r->aux_loss);
        json_number(p->jsonl, "z_loss", r->z_loss);
    }
    json_number(p->jsonl, "expert_load_ratio", r->expert_load_ratio);
    fprintf(p->jsonl, "\"busiest_expert\":[%d,%d],\"experts_idle\":%lld,", (int)r->busiest_router,
            (int)r->busiest_expert, (long long)r->experts_idle);
    if (load != NULL)
        write_loads(p, load);
}

static dsc_status write_json(train_progress *p, const dsc_step_result *r, dsc_error *err)
{
    if (p->jsonl == NULL)
        return DSC_OK;
    fprintf(p->jsonl, "{\"step\":%lld,", (long long)r->step);
    json_number(p->jsonl, "loss", r->loss);
    json_number(p->jsonl, "lr", r->lr);
    json_number(p->jsonl, "grad_norm", r->grad_norm);
    fprintf(p->jsonl, "\"tokens\":%lld,\"counted_tokens\":%lld,", (long long)r->tokens, (long long)r->counted_tokens);
    if (p->pairs) {
        json_number(p->jsonl, "reward_chosen", r->reward_chosen);
        json_number(p->jsonl, "reward_rejected", r->reward_rejected);
        json_number(p->jsonl, "reward_margin", r->reward_margin);
        json_number(p->jsonl, "reward_accuracy", r->reward_accuracy);
    }
    if (p->routers > 0)
        write_experts(p, r);
    if (p->seq_length > 0)
        fprintf(p->jsonl, "\"seq_length\":%lld,", (long long)r->seq_length);
    json_number(p->jsonl, "step_ms", (double)r->step_ns * 1e-6);
    json_number(p->jsonl, "data_wait_ms", (double)r->data_wait_ns * 1e-6);
    for (int kind = 0; kind < 3; kind++) {
        static const char *const kinds[] = { "gather", "reduce", "other" };
        fprintf(p->jsonl, "\"%s_sent_bytes\":%lld,\"%s_received_bytes\":%lld,", kinds[kind],
                (long long)r->sent_bytes[kind], kinds[kind], (long long)r->received_bytes[kind]);
    }
    json_number(p->jsonl, "exchange_wait_ms", (double)r->exchange_wait_ns * 1e-6);
    if (p->ranks > 1) {
        fprintf(p->jsonl, "\"slowest_rank\":%d,", (int)r->slowest_rank);
        json_number(p->jsonl, "slowest_share", r->slowest_share);
    }
    json_number(p->jsonl, "tokens_per_s", (double)r->tokens / ((double)r->step_ns * 1e-9));
    if (p->pictures)
        json_number(p->jsonl, "images_per_s", (double)r->tokens / ((double)r->step_ns * 1e-9));
    if (p->steps_per_epoch > 0)
        json_number(p->jsonl, "epoch", (double)r->step / (double)p->steps_per_epoch);
    if (r->spike)
        fputs("\"spike\":true,", p->jsonl);
    fprintf(p->jsonl, "\"skipped\":%s,\"loss_scale\":%.17g}\n", r->skipped ? "true" : "false", r->loss_scale);
    if (fflush(p->jsonl) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc.log", "the log cannot be written: %s", strerror(errno));
    return DSC_OK;
}

dsc_status train_progress_world(train_progress *p, uint32_t generation, int64_t step, double seconds, dsc_error *err)
{
    if (p->jsonl == NULL)
        return DSC_OK;
    fprintf(p->jsonl, "{\"world\":%u,\"ranks\":%d,\"after_step\":%lld", generation, (int)p->ranks, (long long)step);
    fprintf(p->jsonl, seconds >= 0 ? ",\"seconds\":%.3f}\n" : "}\n", seconds);
    if (fflush(p->jsonl) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc.log", "the log cannot be written: %s", strerror(errno));
    return DSC_OK;
}

dsc_status train_progress_evaluated(train_progress *p, int64_t step, double loss, const dsc_engine_stats *stats,
                                    dsc_error *err)
{
    if (p->jsonl == NULL || !p->pictures)
        return DSC_OK;
    fprintf(p->jsonl, "{\"eval_step\":%lld,", (long long)step);
    if (isfinite(stats->eval_accuracy))
        json_number(p->jsonl, "eval_accuracy", stats->eval_accuracy);
    if (isfinite(stats->eval_accuracy_top5))
        json_number(p->jsonl, "eval_accuracy_top5", stats->eval_accuracy_top5);
    fprintf(p->jsonl, isfinite(loss) ? "\"eval_loss\":%.17g}\n" : "\"eval_loss\":null}\n", loss);
    if (fflush(p->jsonl) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc.log", "the log cannot be written: %s", strerror(errno));
    return DSC_OK;
}

static void draw_bar(const train_progress *p, const dsc_step_result *r, const char *eta)
{
    if (!p->terminal || p->last_step <= p->first_step)
        return;
    const double share = (double)(r->step - p->first_step) / (double)(p->last_step - p->first_step);
    char tail[160];
    snprintf(tail, sizeof tail, " %3.0f%%  step %lld/%lld  loss %.4f  ETA %s", share * 100, (long long)r->step,
             (long long)p->last_step, r->loss, eta);
    const int width = p->columns - (int)strlen(tail) - 4;
    if (width < 5)
        return;
    const int full = (int)(share * width);
    fputs("\r\033[K[", stdout);
    for (int i = 0; i < width; i++)
        fputc(i < full ? '#' : '.', stdout);
    printf("]%s", tail);
    fflush(stdout);
}

static void end_epoch(train_progress *p, const dsc_step_result *r)
{
    if (p->steps_per_epoch <= 0 || r->step % p->steps_per_epoch != 0)
        return;
    const int64_t now = train_now_ns();
    train_progress_say(p, "epoch %lld done in %.1f s", (long long)(r->step / p->steps_per_epoch),
                       (double)(now - p->epoch_start_ns) * 1e-9);
    p->epoch_start_ns = now;
}

static const char *describe_skip(const dsc_step_result *r)
{
    if (!r->skipped)
        return "";
    if (r->spike)
        return "  SKIPPED: spike";
    return r->counted_tokens == 0 ? "  SKIPPED: no counted target" : "  SKIPPED: gradient not finite";
}

static void describe_experts(const train_progress *p, const dsc_step_result *r, char *out, size_t out_bytes)
{
    char losses[40] = "";
    if (p->router_losses)
        snprintf(losses, sizeof losses, "  aux %.4f", r->aux_loss);
    snprintf(out, out_bytes, "%s  load %.2f  idle %lld", losses, r->expert_load_ratio, (long long)r->experts_idle);
}

/* Below this share of a step, waits are those of an even run. */
#define SLOW_SHARE 0.1

/* Both directions; nothing with one rank. */
static void describe_exchange(const dsc_step_result *r, char *out, size_t out_bytes)
{
    int64_t bytes = 0;
    int used = 0;
    for (int kind = 0; kind < 3; kind++)
        bytes += r->sent_bytes[kind] + r->received_bytes[kind];
    if (bytes > 0)
        used = snprintf(out, out_bytes, "  exchanged %.2f MiB  waited %.1f ms", (double)bytes / 1048576.0,
                        (double)r->exchange_wait_ns * 1e-6);
    if (r->slowest_share >= SLOW_SHARE)
        snprintf(out + used, out_bytes - (size_t)used, "  others wait %.0f %% for rank %d", r->slowest_share * 100,
                 (int)r->slowest_rank);
}

dsc_status train_progress_step(train_progress *p, const dsc_step_result *r, dsc_error *err)
{
    char eta[32] = "?", epoch[48] = "", length[48] = "", pairs[128] = "", experts[80] = "", exchange[112] = "";
    const double seconds = (double)r->step_ns * 1e-9;
    p->tokens += r->tokens;
    p->step_ns_smooth =
        p->step_ns_smooth == 0 ? (double)r->step_ns : 0.9 * p->step_ns_smooth + 0.1 * (double)r->step_ns;
    if (p->loss != NULL && r->step > p->first_step && r->step <= p->last_step) { /* may be made again, after a rewind */
        p->loss_count = r->step - p->first_step;
        p->loss[p->loss_count - 1] = r->loss;
    }
    if (p->last_step > 0)
        format_duration(eta, sizeof eta, p->step_ns_smooth * 1e-9 * (double)(p->last_step - r->step));
    if (p->steps_per_epoch > 0)
        snprintf(epoch, sizeof epoch, "  epoch %.2f", (double)r->step / (double)p->steps_per_epoch);
    if (p->seq_length > 0)
        snprintf(length, sizeof length, "  seqlen %lld", (long long)r->seq_length);
    if (p->pairs)
        snprintf(pairs, sizeof pairs, "  accuracy %.3f  margin %.4f  rewards %.4f %.4f", r->reward_accuracy,
                 r->reward_margin, r->reward_chosen, r->reward_rejected);
    if (p->routers > 0)
        describe_experts(p, r, experts, sizeof experts);
    describe_exchange(r, exchange, sizeof exchange);
    p->flops_per_step = r->flops;
    DSC_TRY(write_json(p, r, err));
    if ((p->every > 0 && r->step % p->every == 0) || r->step == p->first_step + 1 || r->step == p->last_step ||
        r->skipped)
        train_progress_say(p,
                           "step %lld/%lld  loss %.6f%s%s  lr %.3e  norm %.4f%s  %.0f ms  %.0f %s/s  %.1f GFLOP/s  "
                           "%.0f MiB%s%s  ETA %s%s",
                           (long long)r->step, (long long)p->last_step, r->loss, pairs, experts, r->lr, r->grad_norm,
                           length, seconds * 1e3, (double)r->tokens / seconds, p->pictures ? "images" : "tokens",
                           p->flops_per_step / seconds * 1e-9,
                           (double)p->memory_bytes / 1048576.0, epoch, exchange, eta, describe_skip(r));
    draw_bar(p, r, eta);
    end_epoch(p, r);
    return DSC_OK;
}

/* Mean of the losses in one column's share of the run. */
static double column_mean(const train_progress *p, int column, int columns)
{
    int64_t first = p->loss_count * column / columns, end = p->loss_count * (column + 1) / columns;
    double sum = 0;
    if (end <= first)
        end = first + 1;
    for (int64_t i = first; i < end; i++)
        sum += p->loss[i];
    return sum / (double)(end - first);
}

void train_progress_curve(train_progress *p, int rows)
{
    const int columns = p->loss_count < 64 ? (int)p->loss_count : 64;
    double high = -1e300, low = 1e300, mean[64];
    if (p->loss == NULL || columns < 2 || rows < 2)
        return;
    for (int c = 0; c < columns; c++) {
        mean[c] = column_mean(p, c, columns);
        high = mean[c] > high ? mean[c] : high;
        low = mean[c] < low ? mean[c] : low;
    }
    const double span = high > low ? high - low : 1;
    for (int row = 0; row < rows; row++) {
        char line[128];
        int at = snprintf(line, sizeof line, "%8.3f |", high - span * row / (rows - 1));
        for (int c = 0; c < columns; c++)
            line[at++] = (int)((high - mean[c]) / span * (rows - 1) + 0.5) == row ? '*' : ' ';
        while (at > 0 && line[at - 1] == ' ')
            at--;
        line[at] = 0;
        train_progress_say(p, "%s", line);
    }
    train_progress_say(p, "    loss +%.*s", columns,
                       "----------------------------------------------------------------");
    train_progress_say(p, "          step %lld%*lld", (long long)p->first_step + 1,
                       columns - 6 > 0 ? columns - 6 : 1, (long long)(p->first_step + p->loss_count));
}

void train_progress_close(train_progress *p)
{
    clear_bar(p);
    if (p->jsonl != NULL)
        fclose(p->jsonl);
    if (p->text != NULL)
        fclose(p->text);
    free(p->loss);
    *p = (train_progress){ 0 };
}
