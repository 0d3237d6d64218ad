/* comet.c - Comet's offline experiments, $COMET_OFFLINE_DIRECTORY/KEY.zip, which `comet upload` sends to its service.
 *
 * The archive (PKWARE's APPNOTE.TXT) holds experiment.json, the description of the experiment, and messages.json, one
 * JSON object per line. No entry is compressed, so each write replaces the archive's directory by new lines and a new
 * directory. The file is complete after every write, also if the run is killed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/formats/json.h"
#include "base/hash.h"
#include "engine/monitor/monitor.h"

enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, VERSION = 20, DATE_1980 = 1 << 5 | 1 };
enum { TAGS_MAX = 64, KEY_BYTES = 64, LINE_BYTES = 320, LINES_BYTES = DSC_MONITOR_SCALARS_MAX * LINE_BYTES + 512 };
#define ARCHIVE_BYTES_MAX ((INT64_C(1) << 32) - (1 << 20))

typedef struct entry {
    const char *name;
    uint32_t crc;
    int64_t offset, bytes; /* the local header's offset; the data's bytes */
} entry;

typedef struct comet {
    dsc_monitor monitor;
    const dsc_comet_config *config;
    dsc_file file;
    char key[KEY_BYTES];
    int64_t start_ms, messages;
    entry experiment, lines;
    struct {
        const char *tag;
        int64_t samples;
    } logged[TAGS_MAX]; /* when each was last */
    int logged_count;
} comet;

static int64_t now_ms(void) { return dsc_clock_wall_ns() / 1000000; }

/* ---- the archive ---- */

static uint8_t *put16(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    return to + 2;
}

static uint8_t *put32(uint8_t *to, uint64_t value) { return put16(put16(to, value & 0xffff), value >> 16 & 0xffff); }

/* Fields of an entry that the local header and the directory share. */
static uint8_t *put_entry(uint8_t *to, const entry *e)
{
    to = put16(put16(put16(to, VERSION), 0), 0); /* no flags, stored */
    to = put16(put16(to, 0), DATE_1980);
    to = put32(put32(put32(to, e->crc), (uint64_t)e->bytes), (uint64_t)e->bytes);
    return put16(put16(to, (uint32_t)strlen(e->name)), 0);
}

static uint8_t *put_name(uint8_t *to, const entry *e)
{
    memcpy(to, e->name, strlen(e->name));
    return to + strlen(e->name);
}

static uint8_t *put_local(uint8_t *to, const entry *e)
{
    return put_name(put_entry(put32(to, 0x04034b50), e), e);
}

static uint8_t *put_central(uint8_t *to, const entry *e)
{
    to = put_entry(put16(put32(to, 0x02014b50), VERSION), e);
    to = put16(put16(put16(to, 0), 0), 0); /* no comment, first disk, no attributes */
    return put_name(put32(put32(to, 0), (uint64_t)e->offset), e);
}

static int64_t data_of(const entry *e) { return e->offset + LOCAL_BYTES + (int64_t)strlen(e->name); }

static uint8_t *put_directory(const comet *c, uint8_t *to)
{
    const uint8_t *const first = to;
    const int64_t offset = data_of(&c->lines) + c->lines.bytes;
    to = put_central(put_central(to, &c->experiment), &c->lines);
    const uint64_t bytes = (uint64_t)(to - first);
    to = put16(put16(put32(to, 0x06054b50), 0), 0);
    to = put32(put32(put16(put16(to, 2), 2), bytes), (uint64_t)offset);
    return put16(to, 0);
}

/* Its length is the same each time: times are 13 digits until 2286. */
static dsc_status describe_experiment(const comet *c, char *out, size_t out_bytes, dsc_error *err)
{
    static const char form[] =
        "{\"offline_id\": %s, \"project_name\": %s, \"start_time\": %lld, \"stop_time\": %lld, \"tags\": [], "
        "\"workspace\": %s, \"resume_strategy\": \"%s\", \"customer_error_reported\": false, "
        "\"customer_error_message\": null, \"user_provided_experiment_key\": %s, \"comet_start_sourced\": false}";
    const dsc_comet_config *config = c->config;
    char text[3][1024] = { "null", "null", "null" };
    const char *const from[3] = { c->key, config->project, config->workspace };
    for (int i = 0; i < 3; i++)
        if (from[i][0] != 0 && dsc_json_quote(text[i], sizeof text[i], from[i]) >= sizeof text[i])
            return DSC_FAIL(err, DSC_ERR_INPUT, "comet", "\"%.40s...\" is too long", from[i]);
    const int bytes = snprintf(out, out_bytes, form, text[0], text[1], (long long)c->start_ms, (long long)now_ms(),
                               text[2], config->mode[0] != 0 ? config->mode : "create",
                               config->experiment_key[0] != 0 ? "true" : "false");
    DSC_ASSERT(bytes > 0 && (size_t)bytes < out_bytes);
    return DSC_OK;
}

/* Lines at the end, with the directory; then the heads that are before them. */
static dsc_status append(comet *c, const char *lines, size_t bytes, dsc_error *err)
{
    uint8_t tail[LINES_BYTES + 2 * (CENTRAL_BYTES + 32) + END_BYTES], head[4096];
    char experiment[4096 - 512];
    const int64_t at = data_of(&c->lines) + c->lines.bytes;
    if (at > ARCHIVE_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_IO, c->monitor.folder, "an archive of 4 GiB can hold no more");
    DSC_TRY(describe_experiment(c, experiment, sizeof experiment, err));
    c->experiment.bytes = (int64_t)strlen(experiment);
    c->experiment.crc = dsc_crc32(0, experiment, strlen(experiment));
    memcpy(tail, lines, bytes);
    c->lines.crc = dsc_crc32(c->lines.crc, lines, bytes);
    c->lines.bytes += (int64_t)bytes;
    const uint8_t *const end = put_directory(c, tail + bytes);
    DSC_TRY(dsc_io_write(c->monitor.io, &c->file, tail, end - tail, at, err));
    uint8_t *to = put_local(head, &c->experiment);
    memcpy(to, experiment, strlen(experiment));
    to = put_local(to + strlen(experiment), &c->lines);
    return dsc_io_write(c->monitor.io, &c->file, head, to - head, 0, err);
}

/* ---- the monitor ---- */

/* A key that another start of the run had too has an archive already: this one's has a name beside it. */
static dsc_status choose_path(const comet *c, const uint8_t random[16], char path[4096], dsc_error *err)
{
    char name[KEY_BYTES + 48], more[33];
    snprintf(name, sizeof name, "%s.zip", c->key);
    DSC_TRY(dsc_path_join(path, 4096, c->monitor.folder, name, err));
    if (dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_OK;
    dsc_hex(more, random, 16);
    snprintf(name, sizeof name, "%s-%s.zip", c->key, more);
    return dsc_path_join(path, 4096, c->monitor.folder, name, err);
}

static dsc_status open_file(comet *c, dsc_error *err)
{
    char path[4096], experiment[4096 - 512], quoted[1024], line[1200];
    uint8_t random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return DSC_FAIL(err, DSC_ERR_IO, "getrandom", "no random numbers for the key of an experiment");
    dsc_hex(c->key, random, sizeof random);
    if (c->config->experiment_key[0] != 0)
        snprintf(c->key, sizeof c->key, "%s", c->config->experiment_key);
    c->start_ms = now_ms();
    DSC_TRY(choose_path(c, random, path, err));
    DSC_TRY(dsc_io_open(c->monitor.io, path, DSC_IO_CREATE, &c->file, err));
    DSC_TRY(describe_experiment(c, experiment, sizeof experiment, err));
    c->experiment = (entry){ .name = "experiment.json", .bytes = (int64_t)strlen(experiment) };
    c->lines = (entry){ .name = "messages.json", .offset = data_of(&c->experiment) + c->experiment.bytes };
    if (c->config->experiment_name[0] == 0)
        return DSC_OK;
    if (dsc_json_quote(quoted, sizeof quoted, c->config->experiment_name) >= sizeof quoted)
        return DSC_FAIL(err, DSC_ERR_INPUT, "comet.experiment_name", "is too long");
    const int bytes = snprintf(line, sizeof line, "{\"payload\":{\"key\":\"Name\",\"message_id\":%lld,\"value\":%s},"
                               "\"type\":\"log_other\"}\n", (long long)++c->messages, quoted);
    return append(c, line, (size_t)bytes, err);
}

/* As DeepSpeed's: the first one, and then those that are so many samples later. */
static bool is_due(comet *c, const char *tag, int64_t samples)
{
    int i = 0;
    while (i < c->logged_count && strcmp(c->logged[i].tag, tag) != 0)
        i++;
    if (i < c->logged_count && samples - c->logged[i].samples < c->config->samples_log_interval)
        return false;
    if (i == TAGS_MAX)
        return true;
    c->logged_count += i == c->logged_count;
    c->logged[i].tag = tag;
    c->logged[i].samples = samples;
    return true;
}

static int put_line(comet *c, char *to, size_t capacity, const dsc_scalar *scalar, int64_t samples)
{
    char number[32];
    const double value = scalar->value;
    snprintf(number, sizeof number, "%.17g", value);
    return snprintf(to, capacity,
                    "{\"payload\":{\"local_timestamp\":%lld,\"message_id\":%lld,\"metric\":{\"epoch\":null,"
                    "\"metricName\":\"%s\",\"metricValue\":%s,\"step\":%lld}},\"type\":\"metric_msg\"}\n",
                    (long long)now_ms(), (long long)++c->messages, scalar->tag,
                    isnan(value)   ? "NaN"
                    : isinf(value) ? (value > 0 ? "Infinity" : "-Infinity")
                                   : number,
                    (long long)samples);
}

static dsc_status write_comet(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count,
                              dsc_error *err)
{
    comet *c = (comet *)monitor;
    char lines[LINES_BYTES];
    size_t bytes = 0;
    if (c->file.fd < 0)
        DSC_TRY(open_file(c, err));
    for (int i = 0; i < count; i++)
        if (is_due(c, scalars[i].tag, samples))
            bytes += (size_t)put_line(c, lines + bytes, sizeof lines - bytes, &scalars[i], samples);
    return bytes > 0 ? append(c, lines, bytes, err) : DSC_OK;
}

static void close_comet(dsc_monitor *monitor)
{
    (void)dsc_io_close(monitor->io, &((comet *)monitor)->file, NULL);
    dsc_alloc_free(monitor->alloc, monitor);
}

/* As Comet asks; it is a file's name, too. */
static bool is_key(const char *key)
{
    const size_t bytes = strlen(key);
    for (size_t i = 0; i < bytes; i++)
        if (!((key[i] >= '0' && key[i] <= '9') || ((key[i] | 32) >= 'a' && (key[i] | 32) <= 'z')))
            return false;
    return bytes == 0 || (bytes >= 32 && bytes <= 50);
}

dsc_status dsc_monitor_comet(dsc_alloc *alloc, const dsc_io *io, const dsc_comet_config *config, dsc_monitor **out,
                             dsc_error *err)
{
    static const dsc_monitor_ops ops = { .name = "comet", .write = write_comet, .close = close_comet };
    comet *c = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *c, &c, err));
    *out = &c->monitor;
    c->monitor.ops = &ops;
    c->monitor.alloc = alloc;
    c->monitor.io = io;
    c->config = config;
    c->file = (dsc_file)DSC_FILE_INIT;
    if (!is_key(config->experiment_key))
        return DSC_FAIL(err, DSC_ERR_CONFIG, "comet.experiment_key",
                        "\"%.60s\" is not a key; give 32 to 50 letters and "
                        "digits, or leave it out",
                        config->experiment_key);
    return dsc_monitor_make_folder(&c->monitor, getenv("COMET_OFFLINE_DIRECTORY"), "", err);
}
