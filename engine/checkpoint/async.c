/* async.c - a save beside training. A thread of each rank copies and hashes the states of the step before the next
 * update may change them, then writes the copy. The first rank of each folder commits after all ranks have written.
 *
 * Ranks exchange messages of a save at step boundaries only, never between the collectives of a step.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/save.h"

typedef enum phase { PHASE_WRITE, PHASE_COMMIT, PHASE_ENDED } phase;

#define LINES_MOST 4

/* Logs are not called from two threads at once: lines of the thread wait for the next boundary. */
typedef struct waiting_line {
    dsc_log_level level;
    char text[512];
} waiting_line;

struct dsc_ckpt_async {
    dsc_ckpt_ctx c;
    dsc_run_state state;
    char dir[DSC_CKPT_PATH_BYTES];
    const dsc_log *log; /* the engine's */
    dsc_log own_log;
    waiting_line line[LINES_MOST];
    int line_count;
    dsc_ckpt_save_state *save;
    dsc_ckpt_portion all;
    phase phase;
    int stage; /* of PHASE_COMMIT */
    pthread_t thread;
    bool started; /* the thread, and not joined */
    atomic_bool busy, stop;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool snapped; /* under the mutex */
    dsc_status status; /* the thread's, of this phase; at the end the save's */
    dsc_error error;
};

int64_t dsc_ckpt_snapshot_bytes(const dsc_layout *layout, dsc_dtype compute_dtype, dsc_dtype moment_dtype,
                                dsc_recipe recipe, bool averages, int32_t rank)
{
    const dsc_run_state kept = {
        .compute_dtype = compute_dtype, .moment_dtype = moment_dtype, .recipe = recipe, .averages = averages
    };
    DSC_ASSERT(rank >= 0);
    int64_t bytes = DSC_AIO_ALIGN;
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        const int64_t slice = layout->group[tensor->group].slice;
        int64_t first = 0;
        const int64_t span = dsc_layout_span(tensor, rank * slice, slice, &first);
        for (int plane = DSC_CKPT_WEIGHTS; plane < DSC_CKPT_PLANE_COUNT; plane++) {
            const bool shared = dsc_ckpt_is_shared((dsc_ckpt_plane)plane);
            const int64_t each = dsc_ckpt_elements_each((dsc_ckpt_plane)plane);
            const int64_t whole = rank == 0 ? dsc_ckpt_count((dsc_ckpt_plane)plane, tensor) : 0;
            const int64_t count = shared ? whole : dsc_div_ceil(span, each);
            if (count > 0 && dsc_ckpt_saved_planes(&kept, (dsc_ckpt_plane)plane, layout, tensor))
                /* At worst it lies apart from its neighbours. */
                bytes +=
                    count * (int64_t)dsc_dtype_bytes(dsc_ckpt_dtype(&kept, (dsc_ckpt_plane)plane)) + 2 * DSC_AIO_ALIGN;
        }
    }
    return bytes;
}

/* ---- the thread ---- */

static void keep_line(void *user, dsc_log_level level, const char *text)
{
    dsc_ckpt_async *a = user;
    DSC_ASSERT(a->line_count <= LINES_MOST);
    if (a->line_count == LINES_MOST)
        return;
    a->line[a->line_count].level = level;
    snprintf(a->line[a->line_count++].text, sizeof a->line[0].text, "%s", text);
}

static void tell_lines(dsc_ckpt_async *a)
{
    DSC_ASSERT(!a->started); /* the log is not the thread's any more */
    for (int i = 0; i < a->line_count; i++)
        dsc_log_printf(a->log, a->line[i].level, "%s", a->line[i].text);
    a->line_count = 0;
}

static void set_snapped(dsc_ckpt_async *a)
{
    pthread_mutex_lock(&a->mutex);
    a->snapped = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

void dsc_ckpt_async_snapped(dsc_ckpt_async *a)
{
    pthread_mutex_lock(&a->mutex);
    while (!a->snapped)
        pthread_cond_wait(&a->changed, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
}

static dsc_status write_all(dsc_ckpt_async *a, dsc_error *err)
{
    dsc_ckpt_save_state *s = a->save;
    DSC_ASSERT(a->phase == PHASE_WRITE);
    DSC_ASSERT(a->all.count == dsc_ckpt_block_count(s));
    const dsc_status fetched = dsc_ckpt_portion_fetch(s, &a->all, true, err);
    set_snapped(a); /* also after a failure: training must not wait for it */
    DSC_TRY(fetched);
    dsc_ckpt_portion_hash(s, &a->all);
    DSC_TRY(dsc_ckpt_writer_files(&s->writer, s->commit.tmp_dir, err));
    DSC_TRY(dsc_ckpt_portion_write(s, &a->all, &a->stop, err));
    return dsc_ckpt_writer_sync(&s->writer, err);
}

static void *run(void *argument)
{
    dsc_ckpt_async *a = argument;
    DSC_ASSERT(a->phase != PHASE_ENDED);
    a->status =
        a->phase == PHASE_WRITE ? write_all(a, &a->error) : dsc_ckpt_save_commit(a->save, a->stage, &a->error);
    atomic_store(&a->busy, false);
    return NULL;
}

static dsc_status start_thread(dsc_ckpt_async *a, dsc_error *err)
{
    DSC_ASSERT(!a->started);
    DSC_ASSERT(!atomic_load(&a->busy));
    a->error = (dsc_error)DSC_ERROR_INIT;
    atomic_store(&a->busy, true);
    a->started = pthread_create(&a->thread, NULL, run, a) == 0;
    if (a->started)
        return DSC_OK;
    atomic_store(&a->busy, false);
    return DSC_FAIL(err, DSC_ERR_NOMEM, a->dir, "the thread of a save could not be started");
}

static void join(dsc_ckpt_async *a)
{
    if (a->started)
        pthread_join(a->thread, NULL);
    DSC_ASSERT(!a->started || !atomic_load(&a->busy));
    a->started = false;
}

/* ---- start ---- */

/* Copies now the states that another thread cannot fetch: states in files, and those of a device out of the host's
 * reach. */
static dsc_status take_rest(dsc_ckpt_async *a, const dsc_buf *snapshot, dsc_error *err)
{
    char *const buffer = (char *)dsc_align_up((int64_t)(intptr_t)snapshot->ptr, DSC_AIO_ALIGN);
    DSC_ASSERT(buffer - (char *)snapshot->ptr < DSC_AIO_ALIGN);
    a->all = (dsc_ckpt_portion) { .buffer = buffer, .bytes = snapshot->bytes - (buffer - (char *)snapshot->ptr) };
    dsc_ckpt_portion_plan(a->save, &a->all);
    DSC_ASSERT(a->all.count == dsc_ckpt_block_count(a->save));
    DSC_TRY(dsc_ckpt_portion_fetch(a->save, &a->all, false, err));
    return dsc_stream_sync(a->c.stream, err);
}

/* *kept: there is nothing to do. */
static dsc_status begin(dsc_ckpt_async *a, const dsc_buf *snapshot, dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    bool kept;
    DSC_ASSERT(a->phase == PHASE_WRITE);
    DSC_ASSERT(a->save != NULL);
    DSC_TRY(dsc_ckpt_save_synchronize(a->save, err));
    DSC_TRY(dsc_ckpt_save_keep(a->save, &kept, err));
    if (kept) {
        a->phase = PHASE_ENDED;
        a->snapped = true;
        return DSC_OK;
    }
    dsc_status status = dsc_ckpt_save_begin(a->save, err);
    if (status == DSC_OK) {
        status = take_rest(a, snapshot, &mine);
        status = status == DSC_OK ? start_thread(a, &mine) : status;
        status = dsc_ckpt_agree(&a->c, status, &mine, err);
    }
    if (status != DSC_OK) {
        atomic_store(&a->stop, true);
        join(a);
        dsc_ckpt_save_undo(a->save);
    }
    return status;
}

static dsc_status open_async(const dsc_ckpt_ctx *ctx, const char *dir, const dsc_run_state *state, int64_t resumed_step,
                             dsc_ckpt_async **out, dsc_error *err)
{
    dsc_ckpt_async *a = NULL;
    DSC_TRY(dsc_alloc_zeroed(ctx->alloc, DSC_TAG_IO, 1, sizeof *a, &a, err));
    *out = a;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->c = *ctx;
    a->state = *state;
    DSC_ASSERT(a->phase == PHASE_WRITE); /* the first phase of a zeroed job */
    a->log = ctx->log;
    a->own_log = (dsc_log){ keep_line, a };
    a->c.log = &a->own_log;
    if ((size_t)snprintf(a->dir, sizeof a->dir, "%s", dir) >= sizeof a->dir)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "the path is too long");
    return dsc_ckpt_save_open(&a->c, a->dir, &a->state, resumed_step, &a->save, err);
}

static void free_async(dsc_ckpt_async **async)
{
    dsc_ckpt_async *a = *async;
    if (a == NULL)
        return;
    DSC_ASSERT(!a->started);
    tell_lines(a);
    dsc_ckpt_save_close(&a->save);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    dsc_alloc_free(a->c.alloc, a);
    *async = NULL;
}

dsc_status dsc_ckpt_async_start(const dsc_ckpt_ctx *ctx, const char *dir, const dsc_run_state *state,
                                int64_t resumed_step, const dsc_buf *snapshot, dsc_ckpt_async **out, dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    *out = NULL;
    dsc_status status = open_async(ctx, dir, state, resumed_step, out, &mine);
    status = dsc_ckpt_agree(ctx, status, &mine, err);
    if (status == DSC_OK)
        status = begin(*out, snapshot, err);
    if (status != DSC_OK)
        free_async(out);
    return status;
}

/* ---- at step boundaries ---- */

bool dsc_ckpt_async_busy(const dsc_ckpt_async *a) { return atomic_load(&a->busy); }

/* The thread of a stage, on ranks that have something to do in it. */
static dsc_status start_stage(dsc_ckpt_async *a, dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    DSC_ASSERT(a->phase == PHASE_COMMIT);
    DSC_ASSERT(!a->started);
    a->status = DSC_OK;
    const dsc_status status = dsc_ckpt_save_leads(a->save) ? start_thread(a, &mine) : DSC_OK;
    return dsc_ckpt_agree(&a->c, status, &mine, err);
}

/* The thread of the phase has ended everywhere; now the verdict, and the next phase or stage. */
static dsc_status next_phase(dsc_ckpt_async *a, dsc_error *err)
{
    dsc_error mine = a->error;
    DSC_ASSERT(!a->started);
    DSC_ASSERT(a->phase != PHASE_ENDED);
    if (a->phase == PHASE_WRITE) {
        DSC_TRY(dsc_ckpt_agree(&a->c, a->status, &mine, err));
        DSC_TRY(dsc_ckpt_save_collect(a->save, err));
        a->phase = PHASE_COMMIT;
        return start_stage(a, err);
    }
    DSC_TRY(dsc_ckpt_save_agree(a->save, a->stage, a->status, &mine, err));
    DSC_ASSERT(a->stage < dsc_ckpt_save_stages(a->save));
    if (++a->stage < dsc_ckpt_save_stages(a->save))
        return start_stage(a, err);
    a->phase = PHASE_ENDED;
    return DSC_OK;
}

bool dsc_ckpt_async_advance(dsc_ckpt_async *a, dsc_status *status, dsc_error *err)
{
    *status = DSC_OK;
    if (a->phase == PHASE_ENDED)
        return true;
    join(a);
    DSC_ASSERT(!atomic_load(&a->busy));
    tell_lines(a);
    *status = next_phase(a, err);
    if (*status != DSC_OK) {
        join(a); /* another rank's thread did not start, and this one's goes by the phase */
        a->phase = PHASE_ENDED;
        dsc_ckpt_save_undo(a->save);
        tell_lines(a);
    }
    return a->phase == PHASE_ENDED;
}

void dsc_ckpt_async_close(dsc_ckpt_async **async)
{
    dsc_ckpt_async *a = *async;
    if (a == NULL)
        return;
    atomic_store(&a->stop, true);
    join(a);
    DSC_ASSERT(!atomic_load(&a->busy));
    /* A commit that came to its end is a checkpoint; it is not announced, as if the power had gone. */
    const bool committed = a->phase == PHASE_COMMIT && a->status == DSC_OK;
    if (a->phase != PHASE_ENDED && dsc_ckpt_save_undoes(a->save, a->stage, committed))
        dsc_ckpt_commit_undo(&a->save->commit);
    free_async(async);
}
