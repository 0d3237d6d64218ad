/* examples.c - see examples.h.
 *
 * With one thread a row is made when it is asked for. With more, the caller reads rows into a ring of jobs and takes
 * their examples out again in order, and the threads make them. So examples, their order, and the row whose error is
 * reported are those of one thread. Bytes of rows that are not yet taken have a limit, which bounds the memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/examples.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/data/sft/labeled.h"
#include "engine/data/sft/maker.h"
#include "engine/data/sft/texts.h"

#define THREADS_MAX 64
#define JOBS_PER_THREAD 3
#define JOB_ROWS 64
#define JOB_BYTES (INT64_C(128) << 10)    /* a job takes no more rows from here on */
#define WAITING_BYTES (INT64_C(32) << 20) /* rows in jobs; one row may be larger */

/* A row, or a side of it, and its example in the job's ids. */
typedef struct job_row {
    int64_t text_at, text_bytes, line, first, count, counted_count, label_words, texts;
    bool truncated;
    dsc_sft_side side;
} job_row;

/* A pair does not cross the end of a job. */
_Static_assert(JOB_ROWS % 2 == 0, "a job takes both sides of a row");

typedef struct job {
    dsc_text text; /* of the rows; both sides of one share it */
    job_row row[JOB_ROWS];
    int64_t row_count, made; /* rows; of them examples */
    dsc_ids ids, counted;
    int64_t replaced, in_parts;
    bool conversation, done;
    dsc_status status; /* of row[made] */
    dsc_error error;
} job;

typedef struct worker {
    dsc_sft_reader *reader;
    dsc_sft_maker maker;
    pthread_t thread;
} worker;

struct dsc_sft_reader {
    dsc_sft_options o;
    dsc_records *records;
    dsc_sft_format format; /* format of the first row */
    dsc_chat_folder folder;
    dsc_sft_maker maker; /* without threads, as the next two are */
    const cJSON *object; /* the row */
    dsc_sft_side side;   /* of it that was made last */
    dsc_sft_counts counts;
    bool conversation; /* the last example was one */
    char columns[200]; /* with labels: those of the first row */
    /* Threads. */
    worker *worker; /* [worker_count] */
    int32_t worker_count;
    job *jobs; /* [job_count] */
    int64_t job_count, waiting_bytes;
    int64_t at;        /* next row of the job that is being taken; -1: none */
    bool ended;        /* all rows are in jobs, or reading has failed */
    dsc_status status; /* of reading */
    dsc_error error;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t given, claimed, taken; /* under the mutex */
    bool stop;
};

/* ---- A job ---- */

static dsc_status add_ids(dsc_ids *to, const int32_t *ids, int64_t count, dsc_error *err)
{
    DSC_TRY(dsc_ids_reserve(to, count, err));
    if (count > 0)
        memcpy(to->ptr + to->count, ids, (size_t)count * sizeof *ids);
    to->count += count;
    return DSC_OK;
}

static dsc_status make_row(const dsc_sft_reader *r, dsc_sft_maker *m, job *j, job_row *row, dsc_error *err)
{
    dsc_sft_example example;
    dsc_json *json = NULL;
    char where[400];
    dsc_records_name(r->o.path, row->line, where, sizeof where);
    dsc_status status = dsc_records_parse(r->o.alloc, where, j->text.ptr + row->text_at, row->text_bytes, &json, err);
    if (status == DSC_OK)
        status = dsc_sft_make(m, r->format, row->side, where, dsc_json_root(json), &example, err);
    dsc_json_close(&json);
    DSC_TRY(status);
    row->first = j->ids.count;
    row->count = example.count;
    row->counted_count = example.counted_count;
    row->label_words = example.label_words;
    row->truncated = example.truncated;
    row->texts = example.texts;
    DSC_TRY(add_ids(&j->ids, example.ids, example.count + example.label_words, err));
    return add_ids(&j->counted, example.counted, example.count + example.label_words, err);
}

static void make_job(const dsc_sft_reader *r, dsc_sft_maker *m, job *j)
{
    const int64_t replaced = m->render.replaced, in_parts = m->in_parts;
    j->ids.count = j->counted.count = 0;
    j->status = DSC_OK;
    j->error = (dsc_error)DSC_ERROR_INIT;
    for (j->made = 0; j->made < j->row_count; j->made++) {
        j->status = make_row(r, m, j, &j->row[j->made], &j->error);
        if (j->status != DSC_OK)
            break;
    }
    j->conversation = m->row.conversation;
    j->replaced = m->render.replaced - replaced;
    j->in_parts = m->in_parts - in_parts;
}

static void *work(void *argument)
{
    worker *w = argument;
    dsc_sft_reader *r = w->reader;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (!r->stop && r->claimed == r->given)
            pthread_cond_wait(&r->changed, &r->mutex);
        if (r->stop)
            break;
        job *j = &r->jobs[r->claimed++ % r->job_count];
        pthread_mutex_unlock(&r->mutex);
        make_job(r, &w->maker, j);
        pthread_mutex_lock(&r->mutex);
        j->done = true;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* ---- Open ---- */

static dsc_status open_threads(dsc_sft_reader *r, int32_t threads, dsc_error *err)
{
    dsc_alloc *const alloc = r->o.alloc;
    r->job_count = (int64_t)JOBS_PER_THREAD * threads;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, r->job_count, sizeof *r->jobs, &r->jobs, err));
    for (int64_t i = 0; i < r->job_count; i++)
        r->jobs[i].text.alloc = r->jobs[i].ids.alloc = r->jobs[i].counted.alloc = alloc;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, threads, sizeof *r->worker, &r->worker, err));
    while (r->worker_count < threads) {
        worker *w = &r->worker[r->worker_count];
        w->reader = r;
        dsc_sft_maker_clear(&r->o, &r->folder, &w->maker);
        const dsc_status status = dsc_sft_maker_open(&w->maker, err);
        const bool started = status == DSC_OK && pthread_create(&w->thread, NULL, work, w) == 0;
        if (!started)
            dsc_sft_maker_close(&w->maker);
        DSC_TRY(status);
        if (!started)
            break;
        r->worker_count++;
    }
    return r->worker_count > 0 ? DSC_OK : DSC_FAIL(err, DSC_ERR_NOMEM, r->o.path, "no thread could be started");
}

static dsc_status open_parts(dsc_sft_reader *r, dsc_error *err)
{
    const dsc_sft_options *o = &r->o;
    const int32_t threads = (int32_t)dsc_min_i64(o->threads, THREADS_MAX);
    char folder[1024];
    DSC_TRY(dsc_chat_folder_of(o->tokenizer_path, folder, sizeof folder, err));
    DSC_TRY(dsc_chat_folder_open(o->io, o->alloc, folder, o->section->template_file, o->tokenizer, &r->folder, err));
    DSC_TRY(dsc_records_open(o->io, o->alloc, o->path, &r->records, err));
    dsc_sft_maker_clear(&r->o, &r->folder, &r->maker);
    DSC_TRY(dsc_sft_maker_open(&r->maker, err));
    return threads > 1 ? open_threads(r, threads, err) : DSC_OK;
}

dsc_status dsc_sft_reader_open(const dsc_sft_options *options, dsc_sft_reader **out, dsc_error *err)
{
    dsc_sft_reader *r = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, 1, sizeof *r, &r, err));
    r->o = *options;
    r->at = -1;
    r->folder = (dsc_chat_folder){ .alloc = options->alloc, .special = { .alloc = options->alloc } };
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    const dsc_status status = open_parts(r, err);
    if (status != DSC_OK)
        dsc_sft_reader_close(&r);
    *out = r;
    return status;
}

static void stop_threads(dsc_sft_reader *r)
{
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    for (int32_t i = 0; i < r->worker_count; i++) {
        pthread_join(r->worker[i].thread, NULL);
        dsc_sft_maker_close(&r->worker[i].maker);
    }
    for (int64_t i = 0; r->jobs != NULL && i < r->job_count; i++) {
        dsc_text_free(&r->jobs[i].text);
        dsc_ids_free(&r->jobs[i].ids);
        dsc_ids_free(&r->jobs[i].counted);
    }
    dsc_alloc_free(r->o.alloc, r->worker);
    dsc_alloc_free(r->o.alloc, r->jobs);
}

void dsc_sft_reader_close(dsc_sft_reader **reader)
{
    dsc_sft_reader *r = *reader;
    if (r == NULL)
        return;
    stop_threads(r);
    dsc_records_close(&r->records);
    dsc_sft_maker_close(&r->maker);
    dsc_chat_folder_close(&r->folder);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    dsc_alloc_free(r->o.alloc, r);
    *reader = NULL;
}

static dsc_sft_side first_side(const dsc_sft_reader *r)
{
    return r->format == DSC_SFT_PREFERENCE ? DSC_SFT_CHOSEN : DSC_SFT_ONLY;
}

static dsc_status find_first(dsc_sft_reader *r, const char *where, const cJSON *row, dsc_error *err)
{
    DSC_TRY(dsc_sft_find_format(r->o.section, where, row, &r->format, err));
    if (r->format == DSC_SFT_LABELS)
        dsc_sft_label_columns(r->o.section, row, r->columns, sizeof r->columns);
    if (r->format == DSC_SFT_TEXTS)
        dsc_sft_text_columns(r->o.section, row, r->columns, sizeof r->columns);
    return DSC_OK;
}

/* ---- Threads ---- */

/* The format that the first row has. */
static dsc_status find_format(dsc_sft_reader *r, const char *text, int64_t bytes, dsc_error *err)
{
    dsc_json *json = NULL;
    const char *where = dsc_records_where(r->records);
    DSC_TRY(dsc_records_parse(r->o.alloc, where, text, bytes, &json, err));
    const dsc_status status = find_first(r, where, dsc_json_root(json), err);
    dsc_json_close(&json);
    return status;
}

/* A row of preferences has its text once, and a row of the job for each side. */
static dsc_status add_row(dsc_sft_reader *r, job *j, const char *text, int64_t bytes, dsc_error *err)
{
    job_row row = { .text_at = j->text.bytes, .text_bytes = bytes, .line = dsc_records_line(r->records) };
    DSC_TRY(dsc_text_add(&j->text, text, bytes, err));
    row.side = first_side(r);
    j->row[j->row_count++] = row;
    if (row.side == DSC_SFT_CHOSEN) {
        DSC_ASSERT(j->row_count < JOB_ROWS);
        row.side = DSC_SFT_REJECTED;
        j->row[j->row_count++] = row;
    }
    return DSC_OK;
}

/* The next rows of the file. */
static dsc_status fill_job(dsc_sft_reader *r, job *j, dsc_error *err)
{
    const char *text = NULL;
    int64_t bytes = 0;
    j->text.bytes = j->row_count = 0;
    while (j->row_count < JOB_ROWS && j->text.bytes < JOB_BYTES) {
        DSC_TRY(dsc_records_next_text(r->records, &text, &bytes, err));
        r->ended = text == NULL;
        if (r->ended)
            return DSC_OK;
        if (r->format == DSC_SFT_AUTO)
            DSC_TRY(find_format(r, text, bytes, err));
        DSC_TRY(add_row(r, j, text, bytes, err));
    }
    return DSC_OK;
}

/* Fills and gives as many jobs as there may be. Rows before a failure are given; the failure is kept for its turn. */
static void give_jobs(dsc_sft_reader *r)
{
    while (!r->ended && r->given - r->taken < r->job_count &&
           (r->waiting_bytes < WAITING_BYTES || r->given == r->taken)) {
        job *j = &r->jobs[r->given % r->job_count];
        r->error = (dsc_error)DSC_ERROR_INIT;
        r->status = fill_job(r, j, &r->error);
        r->ended |= r->status != DSC_OK;
        if (j->row_count == 0)
            return;
        r->waiting_bytes += j->text.bytes;
        pthread_mutex_lock(&r->mutex);
        j->done = false;
        r->given++;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->mutex);
    }
}

/* The oldest job, when it is done. */
static job *wait_for_job(dsc_sft_reader *r)
{
    job *j = &r->jobs[r->taken % r->job_count];
    pthread_mutex_lock(&r->mutex);
    while (!j->done)
        pthread_cond_wait(&r->changed, &r->mutex);
    pthread_mutex_unlock(&r->mutex);
    r->counts.replaced += j->replaced;
    r->counts.in_parts += j->in_parts;
    r->conversation = j->conversation;
    r->at = 0;
    return j;
}

/* *j <- the job with the next row; NULL: there is none. */
static dsc_status find_job(dsc_sft_reader *r, job **j, dsc_error *err)
{
    *j = &r->jobs[r->taken % r->job_count];
    if (r->at >= 0 && r->at < (*j)->row_count)
        return DSC_OK;
    if (r->at >= 0) { /* all of its rows are taken */
        r->waiting_bytes -= (*j)->text.bytes;
        r->taken++;
        r->at = -1;
    }
    give_jobs(r);
    *j = r->given > r->taken ? wait_for_job(r) : NULL;
    if (*j == NULL && r->status != DSC_OK && err != NULL)
        *err = r->error;
    return *j != NULL ? DSC_OK : r->status;
}

static dsc_status next_of_jobs(dsc_sft_reader *r, bool *found, dsc_sft_example *out, dsc_error *err)
{
    job *j = NULL;
    DSC_TRY(find_job(r, &j, err));
    if (j == NULL)
        return DSC_OK;
    if (r->at >= j->made) { /* the row that failed; those behind it are not made */
        DSC_ASSERT(j->status != DSC_OK);
        if (err != NULL)
            *err = j->error;
        return j->status;
    }
    const job_row *row = &j->row[r->at++];
    *out = (dsc_sft_example) { .ids = j->ids.ptr + row->first,
                               .counted = j->counted.ptr + row->first,
                               .count = row->count,
                               .counted_count = row->counted_count,
                               .line = row->line,
                               .side = row->side,
                               .label_words = row->label_words,
                               .truncated = row->truncated,
                               .texts = row->texts };
    *found = true;
    return DSC_OK;
}

/* ---- Interface ---- */

/* The example of the next row, or of the other side of this one. */
static dsc_status next_here(dsc_sft_reader *r, bool *found, dsc_sft_example *out, dsc_error *err)
{
    const char *where = dsc_records_where(r->records);
    const bool again = r->side == DSC_SFT_CHOSEN;
    if (!again)
        DSC_TRY(dsc_records_next(r->records, &r->object, err));
    if (r->object == NULL)
        return DSC_OK;
    if (r->format == DSC_SFT_AUTO)
        DSC_TRY(find_first(r, where, r->object, err));
    r->side = again ? DSC_SFT_REJECTED : first_side(r);
    DSC_TRY(dsc_sft_make(&r->maker, r->format, r->side, where, r->object, out, err));
    out->line = dsc_records_line(r->records);
    r->counts.replaced = r->maker.render.replaced;
    r->counts.in_parts = r->maker.in_parts;
    r->conversation = r->maker.row.conversation;
    *found = true;
    return DSC_OK;
}

dsc_status dsc_sft_reader_next(dsc_sft_reader *r, bool *found, dsc_sft_example *out, dsc_error *err)
{
    *found = false;
    DSC_TRY(r->worker_count > 0 ? next_of_jobs(r, found, out, err) : next_here(r, found, out, err));
    if (!*found)
        return DSC_OK;
    r->counts.examples += out->side != DSC_SFT_REJECTED;
    r->counts.tokens += out->count;
    r->counts.counted_tokens += out->counted_count;
    return DSC_OK;
}

dsc_sft_counts dsc_sft_reader_counts(const dsc_sft_reader *r) { return r->counts; }

const char *dsc_sft_reader_describe(const dsc_sft_reader *r, char *out, size_t out_bytes)
{
    const bool templated = r->conversation;
    if (r->format >= DSC_SFT_LABELS) {
        snprintf(out, out_bytes, "format %s: %s", dsc_sft_format_text(r->format), r->columns);
        return out;
    }
    snprintf(out, out_bytes, "format %s%s%s", dsc_sft_format_text(r->format), templated ? ", template " : "",
             templated ? r->folder.source : "");
    return out;
}

bool dsc_sft_reader_lacks_end(const dsc_sft_reader *r) { return r->maker.end_id < 0; }
