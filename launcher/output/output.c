/* output.c - lines in, merged lines out (see output.h).
 *
 * Invariants: (1) a sink's line is finished before another stream's begins, by a newline or, on a terminal, by wiping;
 *             (2) `line` of a stream holds what has come since its last newline, `shown` of it is on the sink already;
 *             (3) every byte of a stream reaches its log file, its sink (held error lines excepted) and the tail.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/output/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/process/loop.h"

static const char error_prefix[] = "dsc: error:";
static const char wipe[] = "\r\x1b[K";
static const int64_t hold_ns = 2000000000;

typedef struct stream {
    int32_t rank; /* -1: the launcher itself */
    int which;
    char *line;
    size_t bytes, capacity;
    size_t shown;
} stream;

typedef struct rank_output {
    stream stream[2];
    char *tail; /* ring of DSC_OUTPUT_TAIL_BYTES */
    uint64_t tail_bytes; /* ever written */
    char error[1024]; /* more than a whole dsc_error */
    int64_t error_ns; /* when it came */
    dsc_file log;
    int64_t log_bytes;
} rank_output;

/* State of the current line of a sink. */
typedef struct cursor {
    bool midline;
    stream *owner; /* writer of the unfinished line */
} cursor;

struct dsc_output {
    dsc_alloc *alloc;
    dsc_output_options opt;
    dsc_sink sink[2];
    cursor cursor[2];
    int sink_count;
    const char *error_shown; /* the one line that the user has seen, in some rank's `error`; or NULL */
    stream self;
    rank_output *rank;
};

/* ---- opening and closing ---- */

/* The folder and its parents, as mkdir -p. */
static dsc_status make_folders(const char *dir, dsc_error *err)
{
    char path[1024];
    if (strlen(dir) >= sizeof path - 64)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--enable_each_rank_log", "the path is too long");
    for (size_t i = 1; i <= strlen(dir); i++) {
        if (dir[i] != '/' && dir[i] != 0)
            continue;
        snprintf(path, sizeof path, "%.*s", (int)i, dir);
        if (dsc_io_kind(path) == DSC_PATH_MISSING)
            DSC_TRY(dsc_io_mkdir(NULL, path, err));
        else if (dsc_io_kind(path) != DSC_PATH_DIR)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--enable_each_rank_log", "\"%.200s\" is not a folder", path);
    }
    return DSC_OK;
}

static dsc_status open_logs(dsc_output *out, dsc_error *err)
{
    char path[1024], stamp[32];
    DSC_TRY(make_folders(out->opt.log_dir, err));
    const time_t now = (time_t)(dsc_clock_wall_ns() / 1000000000);
    struct tm parts;
    localtime_r(&now, &parts);
    strftime(stamp, sizeof stamp, "%Y%m%d%H%M%S", &parts);
    for (int32_t i = 0; i < out->opt.rank_count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_rank%d.log", stamp, out->opt.first_rank + i);
        DSC_TRY(dsc_path_join(path, sizeof path, out->opt.log_dir, name, err));
        DSC_TRY(dsc_io_open(NULL, path, DSC_IO_CREATE, &out->rank[i].log, err));
    }
    return DSC_OK;
}

dsc_status dsc_output_open(dsc_alloc *alloc, const dsc_output_options *opt, dsc_output **result, dsc_error *err)
{
    dsc_output *out = NULL;
    dsc_status status = DSC_OK;
    *result = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *out, &out, err));
    out->alloc = alloc;
    out->opt = *opt;
    out->self = (stream){ .rank = -1 };
    out->sink_count = dsc_same_file(1, 2) ? 1 : 2;
    out->self.which = out->sink_count - 1;
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, opt->rank_count, (int64_t)sizeof *out->rank, &out->rank, err));
    for (int32_t i = 0; i < opt->rank_count; i++) {
        out->rank[i].log = (dsc_file)DSC_FILE_INIT;
        for (int w = 0; w < 2; w++)
            out->rank[i].stream[w] = (stream){ .rank = i, .which = w };
    }
    DSC_TRY_OUT(dsc_sink_open(alloc, 1, &out->sink[0], err));
    if (out->sink_count == 2)
        DSC_TRY_OUT(dsc_sink_open(alloc, 2, &out->sink[1], err));
    for (int32_t i = 0; i < opt->rank_count; i++)
        DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, DSC_OUTPUT_TAIL_BYTES, 1, &out->rank[i].tail, err));
    if (opt->log_dir != NULL)
        DSC_TRY_OUT(open_logs(out, err));
    *result = out;
    return DSC_OK;
out:
    dsc_output_close(&out);
    return status;
}

void dsc_output_close(dsc_output **result)
{
    dsc_output *out = *result;
    if (out == NULL)
        return;
    for (int32_t i = 0; out->rank != NULL && i < out->opt.rank_count; i++) {
        dsc_alloc_free(out->alloc, out->rank[i].tail);
        dsc_alloc_free(out->alloc, out->rank[i].stream[0].line);
        dsc_alloc_free(out->alloc, out->rank[i].stream[1].line);
        dsc_io_close(NULL, &out->rank[i].log, NULL);
    }
    dsc_sink_close(&out->sink[0]);
    dsc_sink_close(&out->sink[1]);
    dsc_alloc_free(out->alloc, out->rank);
    dsc_alloc_free(out->alloc, out);
    *result = NULL;
}

int dsc_output_sink_count(const dsc_output *out) { return out->sink_count; }
dsc_sink *dsc_output_sink(dsc_output *out, int which) { return &out->sink[which]; }

void dsc_output_flush(dsc_output *out, int epoll_fd)
{
    for (int which = 0; which < out->sink_count; which++) {
        dsc_sink *sink = &out->sink[which];
        dsc_sink_flush(sink);
        if (sink->waiting == sink->polled)
            continue;
        if (sink->waiting)
            dsc_loop_add(epoll_fd, sink->fd, (dsc_loop_event){ DSC_LOOP_SINK, 0, which }, EPOLLOUT);
        else
            dsc_loop_remove(epoll_fd, sink->fd);
        sink->polled = sink->waiting;
    }
}

bool dsc_output_full(const dsc_output *out, int which)
{
    return which < out->sink_count && dsc_sink_queued(&out->sink[which]) >= DSC_SINK_FULL_BYTES;
}

size_t dsc_output_queued(const dsc_output *out)
{
    size_t queued = 0;
    for (int which = 0; which < out->sink_count; which++)
        queued += dsc_sink_queued(&out->sink[which]);
    return queued;
}

int32_t dsc_output_columns(const dsc_output *out)
{
    struct winsize size;
    if (!out->sink[0].tty)
        return 0;
    return ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* ---- showing ---- */

/* Start of the part of text[0..bytes) that a terminal would still show: after the last '\r' that text follows. */
static size_t last_segment(const char *text, size_t bytes)
{
    size_t end = bytes;
    while (end > 0 && (text[end - 1] == '\r' || text[end - 1] == '\n'))
        end--;
    const char *cr = end > 0 ? memrchr(text, '\r', end) : NULL;
    return cr != NULL ? (size_t)(cr - text) + 1 : 0;
}

static size_t prefix_of(const dsc_output *out, int32_t rank, char text[DSC_HOST_NAME_BYTES + 32])
{
    const int32_t number = out->opt.first_rank + rank;
    if (out->opt.plan == NULL)
        return (size_t)sprintf(text, "[rank %d] ", number);
    return (size_t)sprintf(text, "[rank %d %s] ", number,
                           out->opt.plan->pool.host[out->opt.plan->place[number].host].name);
}

/* Passes on a piece of the stream's current line; `ends` when its newline is the last byte. */
static void show(dsc_output *out, stream *s, const char *text, size_t bytes, bool ends)
{
    dsc_sink *sink = &out->sink[s->which];
    cursor *at = &out->cursor[s->which];
    stream *redraw = NULL;
    char prefix[DSC_HOST_NAME_BYTES + 32];
    if (out->opt.only_rank0 && s->rank > 0)
        return;
    if (at->midline && at->owner != s) {
        redraw = sink->tty && ends ? at->owner : NULL;
        dsc_sink_put(sink, redraw != NULL ? wipe : "\n", redraw != NULL ? sizeof wipe - 1 : 1);
        at->midline = false;
    }
    if (!at->midline && s->rank >= 0 && out->opt.first_rank + s->rank > 0)
        dsc_sink_put(sink, prefix, prefix_of(out, s->rank, prefix));
    dsc_sink_put(sink, text, bytes);
    at->midline = !ends;
    at->owner = ends ? NULL : s;
    if (redraw == NULL)
        return;
    const size_t from = last_segment(redraw->line, redraw->shown);
    dsc_sink_put(sink, redraw->line + from, redraw->shown - from);
    at->midline = true;
    at->owner = redraw;
}

static void tail_put(rank_output *r, const char *text, size_t bytes)
{
    const size_t skip = bytes > DSC_OUTPUT_TAIL_BYTES ? bytes - DSC_OUTPUT_TAIL_BYTES : 0;
    for (size_t i = skip; i < bytes;) {
        const size_t at = (size_t)(r->tail_bytes % DSC_OUTPUT_TAIL_BYTES);
        const size_t room = DSC_OUTPUT_TAIL_BYTES - at;
        const size_t part = bytes - i < room ? bytes - i : room;
        memcpy(r->tail + at, text + i, part);
        r->tail_bytes += part;
        i += part;
    }
}

/* Offset of an error line in text[from..bytes), where `from` bytes are on the sink already; `bytes` when there is none.
 * `maybe`: a beginning of the prefix counts. A bar that is cleared right before the line is skipped. */
static size_t find_error(const char *text, size_t from, size_t bytes, bool maybe)
{
    size_t at = last_segment(text, bytes);
    if (at < from && from > 0)
        return bytes;
    for (size_t i = 0; i < 2; i++) {
        static const char *const clears[] = { "\x1b[K", "\x1b[2K" };
        if (bytes - at >= strlen(clears[i]) && memcmp(text + at, clears[i], strlen(clears[i])) == 0)
            at += strlen(clears[i]);
    }
    const size_t have = bytes - at < sizeof error_prefix - 1 ? bytes - at : sizeof error_prefix - 1;
    if (memcmp(text + at, error_prefix, have) != 0 || (!maybe && have < sizeof error_prefix - 1))
        return bytes;
    return at;
}

/* Room for `more` bytes; false: the line has to leave first. */
static bool reserve(dsc_output *out, stream *s, size_t more)
{
    size_t capacity = s->capacity > 0 ? s->capacity : 4096;
    char *line = NULL;
    if (s->bytes + more <= s->capacity)
        return true;
    if (s->bytes + more > DSC_OUTPUT_LINE_BYTES)
        return false;
    while (capacity < s->bytes + more)
        capacity *= 2;
    if (dsc_alloc_zeroed(out->alloc, DSC_TAG_CONTROL, (int64_t)capacity, 1, &line, NULL) != DSC_OK)
        return false;
    if (s->bytes > 0)
        memcpy(line, s->line, s->bytes);
    dsc_alloc_free(out->alloc, s->line);
    s->line = line;
    s->capacity = capacity;
    return true;
}

static void note_error(dsc_output *out, rank_output *r, const char *text, size_t bytes, int64_t now_ns)
{
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
        bytes--;
    snprintf(r->error, sizeof r->error, "%.*s", (int)dsc_min_i64((int64_t)bytes, sizeof r->error), text);
    dsc_text_printable(r->error);
    r->error_ns = now_ns;
    if (out->opt.raw)
        out->error_shown = r->error;
}

/* Whole lines, also of a rank whose stdout and stderr come through two pipes. */
static void write_log(dsc_output *out, rank_output *r, const char *text, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    char reason[800];
    if (r->log.fd < 0)
        return;
    if (dsc_io_write(NULL, &r->log, text, (int64_t)bytes, r->log_bytes, &err) != DSC_OK) {
        dsc_output_log(out, "dsc-launch: log ends here: %s", dsc_error_format(&err, reason, sizeof reason));
        dsc_io_close(NULL, &r->log, NULL);
        return;
    }
    r->log_bytes += (int64_t)bytes;
}

/* The line is complete (its newline is the last byte). */
static void finish_line(dsc_output *out, stream *s, int64_t now_ns)
{
    rank_output *r = &out->rank[s->rank];
    cursor *at = &out->cursor[s->which];
    dsc_sink *sink = &out->sink[s->which];
    const size_t error_at = find_error(s->line, s->shown, s->bytes, false);
    write_log(out, r, s->line, s->bytes);
    if (error_at < s->bytes && r->error[0] == 0) {
        note_error(out, r, s->line + error_at, s->bytes - error_at, now_ns);
        if (at->midline && at->owner == s) { /* the bar in whose place the line came */
            dsc_sink_put(sink, sink->tty ? wipe : "\n", sink->tty ? sizeof wipe - 1 : 1);
            *at = (cursor){ false, NULL };
        }
    } else {
        const size_t segment = last_segment(s->line, s->bytes);
        tail_put(r, s->line + segment, s->bytes - segment);
        if (error_at == s->bytes) /* a second error line of one rank is in its tail only: one such line a job */
            show(out, s, s->line + s->shown, s->bytes - s->shown, true);
    }
    s->bytes = 0;
    s->shown = 0;
}

/* Raw streams pass as they are; their lines are only looked at. Keeps as much of a line as an error line can have. */
static void watch_raw(dsc_output *out, stream *s, const char *text, size_t bytes, int64_t now_ns)
{
    rank_output *r = &out->rank[s->rank];
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n' || text[i] == '\r') {
            if (s->bytes > 0 && r->error[0] == 0 && find_error(s->line, 0, s->bytes, false) < s->bytes)
                note_error(out, r, s->line, s->bytes, now_ns);
            s->bytes = 0;
        } else if (s->bytes < sizeof r->error && reserve(out, s, 1)) {
            s->line[s->bytes++] = text[i];
        }
    }
}

/* The line is not complete, but is passed on as far as it is here: bars, raw streams, very long lines. */
static void show_partial(dsc_output *out, stream *s)
{
    show(out, s, s->line + s->shown, s->bytes - s->shown, false);
    s->shown = s->bytes;
    const size_t from = last_segment(s->line, s->bytes);
    if (from > 0) { /* overdrawn by the terminal, and so by us */
        memmove(s->line, s->line + from, s->bytes - from);
        s->bytes -= from;
        s->shown = s->bytes;
    }
}

static void append(dsc_output *out, stream *s, const char *text, size_t bytes)
{
    while (bytes > 0) {
        size_t part = bytes;
        if (!reserve(out, s, part)) {
            write_log(out, &out->rank[s->rank], s->line, s->bytes);
            tail_put(&out->rank[s->rank], s->line, s->bytes);
            show_partial(out, s);
            s->bytes = 0;
            s->shown = 0;
            if (!reserve(out, s, 1)) { /* no memory at all: the piece passes without being kept */
                write_log(out, &out->rank[s->rank], text, bytes);
                show(out, s, text, bytes, text[bytes - 1] == '\n');
                return;
            }
            part = bytes < s->capacity ? bytes : s->capacity;
        }
        memcpy(s->line + s->bytes, text, part);
        s->bytes += part;
        text += part;
        bytes -= part;
    }
}

void dsc_output_feed(dsc_output *out, int32_t rank, int which, const char *text, size_t bytes, int64_t now_ns)
{
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes <= DSC_OUTPUT_READ_BYTES);
    stream *s = &out->rank[rank].stream[which];
    if (out->opt.raw) {
        show(out, s, text, bytes, text[bytes - 1] == '\n');
        watch_raw(out, s, text, bytes, now_ns);
        return;
    }
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        const size_t part = newline != NULL ? (size_t)(newline - text) + 1 : bytes;
        append(out, s, text, part);
        if (newline != NULL && s->bytes > 0)
            finish_line(out, s, now_ns);
        text += part;
        bytes -= part;
    }
    if (s->bytes > s->shown && rank == 0 && out->sink[which].tty &&
        find_error(s->line, s->shown, s->bytes, true) == s->bytes)
        show_partial(out, s);
}

void dsc_output_end(dsc_output *out, int32_t rank, int which, int64_t now_ns)
{
    stream *s = &out->rank[rank].stream[which];
    if (out->opt.raw) {
        watch_raw(out, s, "\n", 1, now_ns);
        return;
    }
    if (s->bytes == 0 && out->cursor[which].owner != s)
        return;
    append(out, s, "\n", 1);
    if (s->bytes > 0)
        finish_line(out, s, now_ns);
}

/* ---- the launcher's own lines ---- */

void dsc_output_log(dsc_output *out, const char *fmt, ...)
{
    char text[1600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text - 1, fmt, args);
    va_end(args);
    strcat(text, "\n");
    show(out, &out->self, text, strlen(text), true);
}

const char *dsc_output_error_of(const dsc_output *out, int32_t rank)
{
    return out->rank[rank].error[0] != 0 ? out->rank[rank].error : NULL;
}

bool dsc_output_error_shown(const dsc_output *out) { return out->error_shown != NULL; }

bool dsc_output_show_error(dsc_output *out, int32_t rank)
{
    const char *error = out->rank[rank].error;
    if (error[0] == 0)
        return false;
    if (out->error_shown == NULL) {
        dsc_output_log(out, "%s", error);
        out->error_shown = error;
    }
    return strcmp(out->error_shown, error) == 0;
}

void dsc_output_forget(dsc_output *out)
{
    out->error_shown = NULL;
    for (int32_t i = 0; i < out->opt.rank_count; i++) {
        out->rank[i].error[0] = 0;
        out->rank[i].tail_bytes = 0;
    }
}

int64_t dsc_output_release(dsc_output *out, int64_t now_ns)
{
    int64_t next_ns = INT64_MAX;
    for (int32_t i = 0; i < out->opt.rank_count && out->error_shown == NULL; i++) {
        if (out->rank[i].error[0] == 0)
            continue;
        if (now_ns - out->rank[i].error_ns >= hold_ns)
            dsc_output_show_error(out, i);
        else
            next_ns = dsc_min_i64(next_ns, out->rank[i].error_ns + hold_ns);
    }
    return out->error_shown != NULL ? INT64_MAX : next_ns;
}

void dsc_output_replay(dsc_output *out, int32_t rank)
{
    const rank_output *r = &out->rank[rank];
    char text[DSC_OUTPUT_TAIL_BYTES];
    const size_t bytes = r->tail_bytes < sizeof text ? (size_t)r->tail_bytes : sizeof text;
    for (size_t i = 0; i < bytes; i++)
        text[i] = r->tail[(r->tail_bytes - bytes + i) % sizeof text];
    const size_t end = bytes > 0 && text[bytes - 1] == '\n' ? bytes - 1 : bytes;
    size_t from = end;
    for (int lines = 0; from > 0; from--)
        if (text[from - 1] == '\n' && ++lines == DSC_OUTPUT_TAIL_LINES)
            break;
    if (bytes == 0)
        return;
    if (from == 0 && r->tail_bytes > sizeof text && memchr(text, '\n', end) != NULL) /* the ring cut the first line */
        from = (size_t)((char *)memchr(text, '\n', end) - text) + 1;
    dsc_output_log(out, "dsc-launch: the last lines of rank %d:", out->opt.first_rank + rank);
    while (from <= end) {
        const char *newline = memchr(text + from, '\n', end - from);
        const size_t line_end = newline != NULL ? (size_t)(newline - text) : end;
        show(out, &out->self, "  | ", 4, false);
        show(out, &out->self, text + from, line_end - from, false);
        show(out, &out->self, "\n", 1, true);
        from = line_end + 1;
    }
}
