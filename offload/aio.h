/* aio.h - asynchronous reads and writes of files, by io_uring, libaio or threads behind one table.
 *
 * The front cuts an operation into blocks and keeps `queue_depth` of them under way. It reads every result, and goes on
 * after short results, EINTR and EAGAIN. An operation ends in order, or with one error that names file and offset. All
 * engines give equal bytes. Files are opened with O_DIRECT where the file system has it, so that swap is not held in
 * memory twice; buffers, offsets and sizes are then multiples of DSC_AIO_ALIGN. One thread at a time uses a dsc_aio.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_OFFLOAD_AIO_H
#define DSC_OFFLOAD_AIO_H

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_AIO_ALIGN 4096
#define DSC_AIO_DEPTH_MAX 1024

typedef struct dsc_aio dsc_aio;

/* One block on its way. */
typedef struct dsc_aio_piece {
    int fd;
    bool write;
    void *buf;
    int64_t bytes, offset;
    int32_t region; /* index of the registered memory that holds buf, or -1 */
    int32_t place;  /* index of the kept file with this fd, or -1 */
    int64_t result; /* bytes moved, or -errno */
} dsc_aio_piece;

/* Test hook, called on the thread that uses the dsc_aio, for the n-th block (from 1) that is given to the engine. */
typedef enum dsc_aio_fault_kind {
    DSC_AIO_FAULT_NONE,
    DSC_AIO_FAULT_RESULT, /* `result` instead of what happened: -EIO, fewer bytes, ... */
    DSC_AIO_FAULT_REFUSE, /* the engine does not take it this time: EAGAIN at submission */
    DSC_AIO_FAULT_LATE,   /* its completion is reported after later ones */
    DSC_AIO_FAULT_NEVER   /* its completion is never reported */
} dsc_aio_fault_kind;
typedef struct dsc_aio_hook {
    dsc_aio_fault_kind (*before)(void *user, int64_t n, const dsc_aio_piece *piece, int64_t *result);
    void *user;
} dsc_aio_hook;

typedef struct dsc_aio_options {
    dsc_alloc *alloc;      /* borrowed until close */
    const char *engine;    /* "auto", "io_uring", "libaio", "threads" */
    int64_t block_bytes;   /* aio.block_size; rounded up to DSC_AIO_ALIGN */
    int32_t queue_depth;   /* aio.queue_depth, 1..DSC_AIO_DEPTH_MAX: blocks under way */
    int32_t thread_count;  /* aio.thread_count; of the threads engine, >= 1 */
    bool single_submit;    /* aio.single_submit: a system call per block */
    bool overlap_events;   /* aio.overlap_events: refill while others are under way; else wait for all first */
    bool poll;             /* io_uring's kernel thread (SQPOLL); off: no core is burnt */
    int64_t timeout_ns;    /* no completion for so long is DSC_ERR_STUCK; 0: 60 s */
    dsc_aio_hook hook;     /* before = NULL: none */
} dsc_aio_options;

/* A file for dsc_aio; the descriptor is owned by whoever opened it. */
typedef struct dsc_aio_file {
    int fd;          /* -1: not open */
    bool direct;     /* O_DIRECT: see DSC_AIO_ALIGN */
    char path[1024]; /* for messages */
    dsc_aio *keeper; /* engine that keeps the file open, or NULL */
} dsc_aio_file;
#define DSC_AIO_FILE_INIT { -1, false, "", NULL }

/* Opens a regular file for reading and writing, O_DIRECT when the file system takes it. `create`: made or emptied, mode
 * 0600. Refusals of the system are DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_aio_file_open(const char *path, bool create, dsc_aio_file *out, dsc_error *err);
void dsc_aio_file_close(dsc_aio_file *file); /* before or after the close of the dsc_aio that keeps it */

/* One operation. The caller fills the first part and keeps it and the buffer alive until it has waited. */
typedef struct dsc_aio_op {
    const dsc_aio_file *file;
    bool write;
    void *buf;
    int64_t bytes, offset;
    bool soon;             /* a write whose caller is about to wait for it */
    /* the front's: */
    int64_t given, done;   /* bytes given to the engine; bytes moved */
    int32_t under_way;     /* blocks */
    dsc_status status;     /* DSC_OK so far */
    int32_t errno_value;
    int64_t failed_offset;
    struct dsc_aio_op *next;
} dsc_aio_op;

/* "auto" takes the first of io_uring, libaio, threads that works; dsc_aio_why says which and what kept the others. A
 * named engine that does not work is DSC_ERR_UNSUPPORTED with the reason. */
DSC_MUST_USE dsc_status dsc_aio_open(const dsc_aio_options *options, dsc_aio **out, dsc_error *err);
/* Waits for blocks under way (bounded by the timeout), then cancels those that can be cancelled. A device that never
 * answers holds libaio's and the threads' requests for good; this waits for them then. */
void dsc_aio_close(dsc_aio **aio);
const char *dsc_aio_engine(const dsc_aio *aio);
const char *dsc_aio_why(const dsc_aio *aio); /* "io_uring: libaio is older ..." one line */
/* Memory that many operations will use: engines that can, keep it mapped until close. At most 64 regions of 1 GiB;
 * buffers outside them work too. Nothing is under way. When the system refuses, dsc_aio_warning says so. */
DSC_MUST_USE dsc_status dsc_aio_register(dsc_aio *aio, void *buf, int64_t bytes, dsc_error *err);
/* A file that many operations will use: engines that can, keep it open for themselves, which saves looking it up for
 * each block. Until dsc_aio_file_close *file stays where it is in memory and its descriptor the same. False: it is used
 * by its descriptor, as files that are not kept. At most 64. */
bool dsc_aio_keep_file(dsc_aio *aio, dsc_aio_file *file);
void dsc_aio_drop_file(dsc_aio_file *file); /* one that is not kept: nothing happens */
/* One line: a setting that makes it slower, and the remedy; "": none. Valid until the next call on `aio`. */
const char *dsc_aio_warning(const dsc_aio *aio);
/* After a timeout, or when answers cannot be read: every operation fails from then on. Close it. */
bool dsc_aio_is_broken(const dsc_aio *aio);

/* Starts it. An operation of 0 bytes is done at once. If more blocks wait than queue_depth allows, reads go first, then
 * writes with `soon`. */
void dsc_aio_submit(dsc_aio *aio, dsc_aio_op *op);
/* Until it is done: its verdict. Others go on meanwhile, and what waits has been given when it returns. DSC_ERR_IO (the
 * system's reason), DSC_ERR_INPUT (the file ends before), DSC_ERR_STUCK. Once dsc_aio_is_broken, the buffer may still
 * be written to: keep it until after close. */
DSC_MUST_USE dsc_status dsc_aio_wait(dsc_aio *aio, dsc_aio_op *op, dsc_error *err);
/* Handles completions without waiting. True: it is done and dsc_aio_wait returns at once. */
bool dsc_aio_test(dsc_aio *aio, dsc_aio_op *op);
/* For a caller without other work: submits waiting blocks as others complete, for about timeout_ns or until one block
 * has completed. False: nothing is under way. */
bool dsc_aio_pump(dsc_aio *aio, int64_t timeout_ns);

/* ---- engines: one const table per file ---- */

typedef struct dsc_aio_engine_state dsc_aio_engine_state;
typedef struct dsc_aio_engine_ops {
    const char *name;
    /* DSC_ERR_UNSUPPORTED with the reason when this system does not have it. */
    dsc_status (*open)(const dsc_aio_options *options, dsc_aio_engine_state **out, dsc_error *err);
    void (*close)(dsc_aio_engine_state *state); /* nothing is under way, or it is cancelled */
    /* Takes the first n of count pieces and returns n, or 0 when none can be taken now, or -errno: the first one can
     * never be taken. Pieces live until they come back, each exactly once. */
    int (*submit)(dsc_aio_engine_state *state, dsc_aio_piece *const *pieces, int count);
    /* Up to `most` completed pieces with their results; waits up to timeout_ns for the first. -errno on failure. */
    int (*reap)(dsc_aio_engine_state *state, dsc_aio_piece **out, int most, int64_t timeout_ns);
    /* Optional. Keeps memory of at most 1 GiB mapped, as region 0, 1, ...: 0, or -errno: go on without. */
    int (*add_region)(dsc_aio_engine_state *state, void *buf, int64_t bytes);
    /* Optional. Keeps a descriptor (-1: none any more) in place 0..63; false: go on without. */
    bool (*set_file)(dsc_aio_engine_state *state, int32_t place, int fd);
    /* Optional. Blocks under way shall complete soon, whatever their results. */
    void (*cancel)(dsc_aio_engine_state *state);
} dsc_aio_engine_ops;
extern const dsc_aio_engine_ops dsc_aio_uring, dsc_aio_libaio, dsc_aio_threads;

#ifdef __cplusplus
}
#endif
#endif
