/* output.h - merges the output of the ranks into the launcher's own, in whole lines.
 *
 * Rank 0's lines pass as they are, the others' get "[rank N] ", on several hosts "[rank N host] ". With one rank every
 * byte passes at once ("raw"). Towards a terminal rank 0's unfinished line (a progress bar) passes too; it is wiped and
 * drawn again around other lines.
 *
 * A line that starts with "dsc: error:" is held back. When one rank dies its peers report errors too, but a job shows
 * only the line of the rank that failed first. The worker chooses that rank; until then no such line is shown.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_OUTPUT_OUTPUT_H
#define DSC_LAUNCHER_OUTPUT_OUTPUT_H

#include "base/io.h"
#include "launcher/output/sink.h"
#include "launcher/plan/resources.h"

enum {
    DSC_OUTPUT_READ_BYTES = 16 * 1024,    /* most given to dsc_output_feed at once */
    DSC_OUTPUT_LINE_BYTES = 1024 * 1024,  /* a longer line is passed on in pieces */
    DSC_OUTPUT_TAIL_BYTES = 16 * 1024,    /* end of each rank's output that is kept for the report */
    DSC_OUTPUT_TAIL_LINES = 50,
};

typedef struct dsc_output dsc_output;

typedef struct dsc_output_options {
    int32_t rank_count;
    int32_t first_rank;       /* number of the first one; below, ranks are counted from 0 */
    const dsc_launcher_plan *plan; /* several hosts: whose name stands behind the rank's number; else NULL */
    bool raw;                 /* one rank: bytes pass unchanged and at once */
    bool only_rank0;          /* the others' output goes to their logs only */
    const char *log_dir;      /* NULL: no files */
} dsc_output_options;

DSC_MUST_USE dsc_status dsc_output_open(dsc_alloc *alloc, const dsc_output_options *opt, dsc_output **out,
                                        dsc_error *err);
void dsc_output_close(dsc_output **out); /* safe on NULL */

/* Sinks: 0 stdout, 1 stderr. When both end in the same place there is one, and `which` below is always 0, so that what
 * a rank writes to both keeps its order. */
int dsc_output_sink_count(const dsc_output *out);
dsc_sink *dsc_output_sink(dsc_output *out, int which);
/* Writes what goes without waiting; the rest when epoll_fd says so (DSC_LOOP_SINK). */
void dsc_output_flush(dsc_output *out, int epoll_fd);
/* True: no more may be fed for this sink until it is not. */
bool dsc_output_full(const dsc_output *out, int which);
size_t dsc_output_queued(const dsc_output *out); /* bytes of all sinks */
int32_t dsc_output_columns(const dsc_output *out); /* width of the terminal at stdout; 0: no terminal */

/* Bytes from a rank, and the end of its stream. bytes <= DSC_OUTPUT_READ_BYTES. */
void dsc_output_feed(dsc_output *out, int32_t rank, int which, const char *text, size_t bytes, int64_t now_ns);
void dsc_output_end(dsc_output *out, int32_t rank, int which, int64_t now_ns);

/* The launcher's own lines, on stderr; without newline. */
void dsc_output_log(dsc_output *out, const char *fmt, ...) DSC_PRINTF(2, 3);

/* The first "dsc: error:" line of a rank without newline, or NULL. */
const char *dsc_output_error_of(const dsc_output *out, int32_t rank);
/* Shows that line, unless one is shown already. True when the line that is shown now reads the same. */
bool dsc_output_show_error(dsc_output *out, int32_t rank);
bool dsc_output_error_shown(const dsc_output *out);
/* When a held line has waited for two seconds and the job still runs, its reader should see it. Returns when to be
 * called again, or INT64_MAX. */
int64_t dsc_output_release(dsc_output *out, int64_t now_ns);

/* Before the ranks start again: nothing was said. */
void dsc_output_forget(dsc_output *out);

/* The last lines of a rank, each after "  | ". Nothing when there are none. */
void dsc_output_replay(dsc_output *out, int32_t rank);

#endif
