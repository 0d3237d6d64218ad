/* wandb.c - Weights & Biases' offline runs, wandb/offline-run-TIME-ID/run-ID.wandb, which `wandb sync` sends to its
 * service.
 *
 * The file is a head and a log in LevelDB's format (github.com/google/leveldb/blob/main/doc/log_format.md), with zlib's
 * CRC. The log holds Record messages (wandb/proto/wandb_internal.proto): a header, the run, a summary and a line of
 * history for each step, and the exit. Numbers of equal samples form one step, so a step is written when the next one
 * begins. Each start of the program is a separate run.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/formats/json.h"
#include "base/hash.h"
#include "engine/monitor/monitor.h"
#include "engine/monitor/protobuf.h"

enum { BLOCK_BYTES = 32768, PART_HEAD_BYTES = 7 };
enum { PART_WHOLE = 1, PART_FIRST, PART_MIDDLE, PART_LAST };
enum { ID_BYTES = 8, ITEM_BYTES = DSC_MONITOR_TAG_BYTES + 48, ITEMS_BYTES = DSC_MESSAGE_BYTES - 8 * ITEM_BYTES };

/* Field numbers and wire types. */
enum {
    RECORD_NUM = 1 << 3 | 0, RECORD_HISTORY = 2 << 3 | 2, RECORD_SUMMARY = 3 << 3 | 2, RECORD_RUN = 17 << 3 | 2,
    RECORD_EXIT = 18 << 3 | 2, RECORD_HEADER = 21 << 3 | 2,
    HEADER_VERSION = 1 << 3 | 2, VERSION_PRODUCER = 1 << 3 | 2, VERSION_MIN_CONSUMER = 2 << 3 | 2,
    RUN_ID = 1 << 3 | 2, RUN_ENTITY = 2 << 3 | 2, RUN_PROJECT = 3 << 3 | 2, RUN_CONFIG = 4 << 3 | 2,
    RUN_GROUP = 6 << 3 | 2, RUN_HOST = 13 << 3 | 2, RUN_START = 17 << 3 | 2,
    TIME_SECONDS = 1 << 3 | 0, TIME_NANOS = 2 << 3 | 0,
    ITEM = 1 << 3 | 2, /* in a config, a history and a summary */
    ITEM_KEY = 1 << 3 | 2, ITEM_JSON = 16 << 3 | 2,
    HISTORY_STEP = 2 << 3 | 2, STEP_NUM = 1 << 3 | 0,
    EXIT_CODE = 1 << 3 | 0, EXIT_RUNTIME = 2 << 3 | 0
};

typedef struct wandb {
    dsc_monitor monitor;
    const dsc_wandb_config *config;
    dsc_file file;
    int64_t bytes, records, start_ns;
    char id[ID_BYTES + 1];
    dsc_message about;  /* items of the run's config */
    dsc_message items;  /* items of the open step */
    int64_t samples;    /* which it is */
    int64_t samples_ns; /* when its first number came */
} wandb;

/* ---- the log ---- */

static dsc_status put(wandb *w, const void *data, size_t bytes, dsc_error *err)
{
    DSC_TRY(dsc_io_write(w->monitor.io, &w->file, data, (int64_t)bytes, w->bytes, err));
    w->bytes += (int64_t)bytes;
    return DSC_OK;
}

static dsc_status put_log_part(wandb *w, uint8_t type, const uint8_t *data, size_t bytes, dsc_error *err)
{
    uint8_t part[PART_HEAD_BYTES + DSC_MESSAGE_BYTES];
    const uint32_t crc = dsc_crc32(dsc_crc32(0, &type, 1), data, bytes);
    const uint16_t length = (uint16_t)bytes;
    memcpy(part, &crc, 4);
    memcpy(part + 4, &length, 2);
    part[6] = type;
    memcpy(part + PART_HEAD_BYTES, data, bytes);
    return put(w, part, PART_HEAD_BYTES + bytes, err);
}

/* One record, cut where blocks end; the head of a part is never cut. */
static dsc_status put_log(wandb *w, const uint8_t *data, size_t bytes, dsc_error *err)
{
    static const uint8_t zeros[PART_HEAD_BYTES];
    size_t done = 0;
    do {
        const size_t left = BLOCK_BYTES - (size_t)(w->bytes % BLOCK_BYTES);
        if (left < PART_HEAD_BYTES) {
            DSC_TRY(put(w, zeros, left, err));
            continue;
        }
        const size_t capacity = left - PART_HEAD_BYTES, now = bytes - done < capacity ? bytes - done : capacity;
        const bool first = done == 0, last = done + now == bytes;
        const uint8_t type = first && last ? PART_WHOLE : first ? PART_FIRST : last ? PART_LAST : PART_MIDDLE;
        DSC_TRY(put_log_part(w, type, data + done, now, err));
        done += now;
    } while (done < bytes);
    return DSC_OK;
}

static dsc_status put_record(wandb *w, uint64_t field, const dsc_message *what, dsc_error *err)
{
    dsc_message record = { .count = 0 };
    dsc_message_number(&record, RECORD_NUM);
    dsc_message_number(&record, (uint64_t)++w->records);
    dsc_message_part(&record, field, what->bytes, what->count);
    return put_log(w, record.bytes, record.count, err);
}

/* ---- messages ---- */

static void add_text(dsc_message *to, uint64_t field, const char *text)
{
    if (text[0] != 0)
        dsc_message_part(to, field, text, strlen(text));
}

static void add_item(dsc_message *to, const char *key, const char *json)
{
    dsc_message item = { .count = 0 };
    add_text(&item, ITEM_KEY, key);
    add_text(&item, ITEM_JSON, json);
    dsc_message_part(to, ITEM, item.bytes, item.count);
}

static void add_value(dsc_message *to, const char *key, double value)
{
    char json[32];
    snprintf(json, sizeof json, "%.17g", value);
    add_item(to, key, isnan(value) ? "NaN" : isinf(value) ? (value > 0 ? "Infinity" : "-Infinity") : json);
}

static dsc_status put_header(wandb *w, dsc_error *err)
{
    static const uint8_t head[7] = { ':', 'W', '&', 'B', 0xE1, 0xBE, 0 };
    dsc_message version = { .count = 0 }, header = { .count = 0 };
    DSC_TRY(put(w, head, sizeof head, err));
    add_text(&version, VERSION_PRODUCER, "dsc " DSC_VERSION_TEXT);
    add_text(&version, VERSION_MIN_CONSUMER, "0.9.0");
    dsc_message_part(&header, HEADER_VERSION, version.bytes, version.count);
    return put_record(w, RECORD_HEADER, &header, err);
}

static dsc_status put_run(wandb *w, dsc_error *err)
{
    char host[65] = "";
    dsc_message run = { .count = 0 }, start = { .count = 0 };
    (void)gethostname(host, sizeof host - 1);
    dsc_message_number(&start, TIME_SECONDS);
    dsc_message_number(&start, (uint64_t)(w->start_ns / 1000000000));
    dsc_message_number(&start, TIME_NANOS);
    dsc_message_number(&start, (uint64_t)(w->start_ns % 1000000000));
    add_text(&run, RUN_ID, w->id);
    add_text(&run, RUN_ENTITY, w->config->team);
    add_text(&run, RUN_PROJECT, w->config->project);
    dsc_message_part(&run, RUN_CONFIG, w->about.bytes, w->about.count);
    add_text(&run, RUN_GROUP, w->config->group);
    add_text(&run, RUN_HOST, host);
    dsc_message_part(&run, RUN_START, start.bytes, start.count);
    return put_record(w, RECORD_RUN, &run, err);
}

/* The step that has begun, if any. */
static dsc_status put_step(wandb *w, dsc_error *err)
{
    dsc_message line = w->items, step = { .count = 0 };
    if (w->items.count == 0)
        return DSC_OK;
    add_value(&line, "_step", (double)w->samples);
    add_value(&line, "_timestamp", (double)w->samples_ns * 1e-9);
    add_value(&line, "_runtime", (double)(w->samples_ns - w->start_ns) * 1e-9);
    DSC_TRY(put_record(w, RECORD_SUMMARY, &line, err));
    dsc_message_number(&step, STEP_NUM);
    dsc_message_number(&step, (uint64_t)w->samples);
    dsc_message_part(&line, HISTORY_STEP, step.bytes, step.count);
    w->items.count = 0;
    return put_record(w, RECORD_HISTORY, &line, err);
}

/* ---- the monitor ---- */

static dsc_status make_id(char id[ID_BYTES + 1], dsc_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t random[ID_BYTES];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return DSC_FAIL(err, DSC_ERR_IO, "getrandom", "no random numbers for the name of a run");
    for (int i = 0; i < ID_BYTES; i++)
        id[i] = letters[random[i] % (sizeof letters - 1)];
    id[ID_BYTES] = 0;
    return DSC_OK;
}

static dsc_status open_file(wandb *w, dsc_error *err)
{
    char day[32], name[80], run[4096], path[4096];
    struct tm time;
    w->start_ns = dsc_clock_wall_ns();
    const time_t seconds = (time_t)(w->start_ns / 1000000000);
    strftime(day, sizeof day, "%Y%m%d_%H%M%S", gmtime_r(&seconds, &time));
    DSC_TRY(make_id(w->id, err));
    snprintf(name, sizeof name, "offline-run-%s-%s", day, w->id);
    DSC_TRY(dsc_path_join(run, sizeof run, w->monitor.folder, name, err));
    snprintf(name, sizeof name, "run-%s.wandb", w->id);
    DSC_TRY(dsc_path_join(path, sizeof path, run, name, err));
    DSC_TRY(dsc_io_make_dirs(w->monitor.io, run, err));
    DSC_TRY(dsc_io_open(w->monitor.io, path, DSC_IO_CREATE, &w->file, err));
    DSC_TRY(put_header(w, err));
    return put_run(w, err);
}

static dsc_status write_wandb(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count,
                              dsc_error *err)
{
    wandb *w = (wandb *)monitor;
    if (w->file.fd < 0)
        DSC_TRY(open_file(w, err));
    if (samples != w->samples || w->items.count + (size_t)count * ITEM_BYTES > ITEMS_BYTES)
        DSC_TRY(put_step(w, err));
    if (w->items.count == 0)
        w->samples_ns = dsc_clock_wall_ns();
    w->samples = samples;
    for (int i = 0; i < count; i++)
        add_value(&w->items, scalars[i].tag, scalars[i].value);
    return DSC_OK;
}

static void describe_wandb(dsc_monitor *monitor, const dsc_monitor_about *about)
{
    dsc_message *to = &((wandb *)monitor)->about;
    const struct { const char *key, *text; } texts[] = {
        { "model", about->model }, { "transport", about->transport }, { "device", about->device },
        { "numerics", about->numerics },
    };
    to->count = 0;
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        char json[512];
        if (dsc_json_quote(json, sizeof json, texts[i].text) < sizeof json)
            add_item(to, texts[i].key, json);
    }
    add_value(to, "zero_stage", about->zero_stage);
    add_value(to, "ranks", about->ranks);
    add_value(to, "train_batch_size", (double)about->batch);
}

static void close_wandb(dsc_monitor *monitor)
{
    wandb *w = (wandb *)monitor;
    dsc_message end = { .count = 0 };
    dsc_message_number(&end, EXIT_CODE);
    dsc_message_number(&end, monitor->run_failed ? 1 : 0);
    dsc_message_number(&end, EXIT_RUNTIME);
    dsc_message_number(&end, (uint64_t)((dsc_clock_wall_ns() - w->start_ns) / 1000000000));
    if (w->file.fd >= 0 && !monitor->failed && put_step(w, NULL) == DSC_OK)
        (void)!put_record(w, RECORD_EXIT, &end, NULL);
    (void)dsc_io_close(monitor->io, &w->file, NULL);
    dsc_alloc_free(monitor->alloc, monitor);
}

dsc_status dsc_monitor_wandb(dsc_alloc *alloc, const dsc_io *io, const dsc_wandb_config *config, dsc_monitor **out,
                             dsc_error *err)
{
    static const dsc_monitor_ops ops = { .name = "wandb", .write = write_wandb, .describe = describe_wandb,
                                         .close = close_wandb };
    wandb *w = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *w, &w, err));
    w->monitor.ops = &ops;
    w->monitor.alloc = alloc;
    w->monitor.io = io;
    w->config = config;
    w->file = (dsc_file)DSC_FILE_INIT;
    *out = &w->monitor;
    return dsc_monitor_make_folder(&w->monitor, getenv("WANDB_DIR"), "wandb", err);
}
