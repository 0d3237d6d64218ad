/* tokenize.c - the calling thread reads parts of files into a ring of jobs and takes their ids out again in order; the
 * threads encode.
 *
 * A job is free, then filled (whoever comes first encodes it), then done. The caller fills jobs up to `given` and takes
 * them from `taken` on; threads claim them between, in order. The first failure in the files' order is the one that is
 * reported, as with one thread. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/tokenize.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/utf8.h"
#include "engine/text/buffer.h"
#include "engine/text/tokenizer_internal.h"
#include "engine/text/unicode.h"

#define PART_BYTES (INT64_C(1) << 20)
#define THREADS_MAX 256
#define JOBS_PER_THREAD 3

typedef struct job {
    dsc_text text;
    dsc_documents documents; /* of its file */
    dsc_document_part part;
    int64_t first_byte; /* of the file */
    bool starts, ends;  /* each text that is added is the beginning, the end of a document */
    bool done;
    int64_t bytes_read;
    dsc_ids ids, document_ends;
    dsc_status status;
    dsc_error error;
} job;

typedef struct tokenizing {
    const dsc_tokenize_options *o;
    job *jobs; /* [job_count] */
    int64_t job_count;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t given, claimed, taken; /* under the mutex */
    bool stop;
    /* The caller's: the file that is being read. */
    int32_t path_index;
    dsc_source source;
    int64_t line, bytes_before; /* bytes of the files before this one */
    dsc_documents documents;
    dsc_document_cut cut;
    bool goes_on;
    dsc_text rest; /* read and not yet given */
} tokenizing;

/* ---- Encoding a job ---- */

static dsc_status add_id(dsc_ids *ids, int32_t id, dsc_error *err)
{
    return id >= 0 ? dsc_ids_add(ids, id, err) : DSC_OK;
}

static dsc_status add_ids(dsc_ids *to, const int32_t *ids, int64_t count, dsc_error *err)
{
    DSC_TRY(dsc_ids_reserve(to, count, err));
    if (count > 0)
        memcpy(to->ptr + to->count, ids, (size_t)count * sizeof *ids);
    to->count += count;
    return DSC_OK;
}

static dsc_status add_text(const tokenizing *t, dsc_encoder *encoder, job *j, const char *text, int64_t bytes,
                           dsc_error *err)
{
    const int32_t *ids = NULL;
    int64_t count = 0;
    const dsc_tokenizer *tokenizer = t->o->tokenizer;
    if (j->starts && t->o->begin == DSC_BEGIN_TEMPLATE)
        DSC_TRY(add_ids(&j->ids, tokenizer->before, tokenizer->before_count, err));
    else if (j->starts)
        DSC_TRY(add_id(&j->ids, t->o->begin, err));
    DSC_TRY(dsc_encode(encoder, text, bytes, j->starts ? 0 : DSC_ENCODE_GOES_ON, &ids, &count, err));
    DSC_TRY(add_ids(&j->ids, ids, count, err));
    if (!j->ends)
        return DSC_OK;
    const int32_t behind = tokenizer->after_count;
    DSC_TRY(add_ids(&j->ids, tokenizer->after, behind, err));
    if (behind == 0 || tokenizer->after[behind - 1] != t->o->separator)
        DSC_TRY(add_id(&j->ids, t->o->separator, err));
    return dsc_ids_add(&j->document_ends, (int32_t)j->ids.count, err);
}

typedef struct adding {
    const tokenizing *t;
    dsc_encoder *encoder;
    job *j;
} adding;

static dsc_status add_document(void *user, const char *text, int64_t bytes, dsc_error *err)
{
    const adding *a = user;
    return add_text(a->t, a->encoder, a->j, text, bytes, err);
}

static dsc_status check_encoding(const job *j, dsc_error *err)
{
    const char *const text = j->text.ptr, *const end = text + j->text.bytes;
    if (dsc_utf8_is_valid(text, j->text.bytes))
        return DSC_OK;
    const char *at = text;
    for (int length; at < end && (length = dsc_utf8_char_bytes(at, end)) > 0;)
        at += length;
    return dsc_content_refuse_encoding(j->part.path, j->first_byte + (at - text), err);
}

static dsc_status encode_job(const tokenizing *t, dsc_encoder *encoder, job *j, dsc_error *err)
{
    adding user = { t, encoder, j };
    j->ids.count = j->document_ends.count = 0;
    j->part.text = j->text.ptr;
    j->part.bytes = j->text.bytes;
    DSC_TRY(check_encoding(j, err));
    if (j->documents.content.kind == DSC_CONTENT_TEXT)
        return add_text(t, encoder, j, j->text.ptr, j->text.bytes, err);
    return dsc_documents_each(&j->documents, t->o->alloc, &j->part, add_document, &user, err);
}

static void *work(void *argument)
{
    tokenizing *t = argument;
    dsc_encoder *encoder = NULL;
    dsc_error opening = DSC_ERROR_INIT;
    const dsc_status opened = dsc_encoder_open(&encoder, t->o->tokenizer, &opening);
    pthread_mutex_lock(&t->mutex);
    for (;;) {
        while (!t->stop && t->claimed == t->given)
            pthread_cond_wait(&t->changed, &t->mutex);
        if (t->stop)
            break;
        job *j = &t->jobs[t->claimed++ % t->job_count];
        pthread_mutex_unlock(&t->mutex);
        j->error = opening;
        j->status = opened == DSC_OK ? encode_job(t, encoder, j, &j->error) : opened;
        pthread_mutex_lock(&t->mutex);
        j->done = true;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->mutex);
    dsc_encoder_close(&encoder);
    return NULL;
}

/* ---- Reading ---- */

static bool is_text(const tokenizing *t) { return t->documents.content.kind == DSC_CONTENT_TEXT; }

static dsc_status open_next(tokenizing *t, dsc_error *err)
{
    const char *path = t->o->paths[t->path_index];
    DSC_TRY(dsc_documents_open(t->o->io, t->o->alloc, path, t->o->field, &t->documents, err));
    DSC_TRY(dsc_source_open(t->o->io, path, &t->source, err));
    DSC_TRY(dsc_source_skip(&t->source, t->documents.start, err));
    t->line = t->documents.first_line;
    t->cut = (dsc_document_cut) { 0 };
    t->goes_on = false;
    t->rest.bytes = 0;
    return DSC_OK;
}

/* Last valid cut of the bytes read; 0: more bytes are needed. */
static int64_t find_end(tokenizing *t)
{
    if (t->source.ended)
        return t->rest.bytes;
    if (is_text(t))
        return dsc_tokenizer_cut(t->o->tokenizer, t->rest.ptr, t->rest.bytes);
    return dsc_documents_find_cut(&t->documents, &t->cut, t->rest.ptr, t->rest.bytes);
}

static int64_t count_lines(const dsc_text *text)
{
    int64_t lines = 0;
    for (const char *at = text->ptr, *end = at + text->bytes; at < end; lines++) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        if (line == NULL)
            break;
        at = line + 1;
    }
    return lines;
}

static dsc_status close_file(tokenizing *t, dsc_error *err)
{
    t->bytes_before += t->source.file_bytes;
    t->path_index++;
    return dsc_source_close(&t->source, err);
}

/* Bytes of all files behind those of the ids. A compressed file may be read further than that. */
static int64_t bytes_used(const tokenizing *t)
{
    const int64_t rest = !dsc_source_is_packed(&t->source) ? t->rest.bytes : 0;
    return t->bytes_before + dsc_source_position(&t->source) - rest;
}

/* The next part of the open file into the job; the file is closed behind its last one. */
static dsc_status fill_job(tokenizing *t, job *j, dsc_error *err)
{
    int64_t end = 0;
    do {
        /* Twice as much when a part has no end: a long document is not searched again and again. */
        int64_t more = dsc_max_i64(PART_BYTES, t->rest.bytes);
        if (!dsc_source_is_packed(&t->source))
            more = dsc_min_i64(more, t->source.file_bytes - t->source.at);
        if (t->rest.bytes + more > DSC_DOCUMENT_BYTES_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, t->source.file.path,
                            "a document of more than %lld bytes, which this tokenizer cannot cut: give smaller files",
                            (long long)DSC_DOCUMENT_BYTES_MAX);
        DSC_TRY(dsc_text_reserve(&t->rest, more + 1, err));
        DSC_TRY(dsc_source_read(&t->source, t->rest.ptr + t->rest.bytes, more, &more, err));
        t->rest.bytes += more;
        end = find_end(t);
    } while (end == 0 && !t->source.ended);
    j->text.bytes = 0;
    DSC_TRY(dsc_text_reserve(&j->text, end + 1, err));
    DSC_TRY(dsc_text_add(&j->text, t->rest.ptr, end, err));
    j->first_byte = t->source.at - t->rest.bytes;
    memmove(t->rest.ptr, t->rest.ptr + end, (size_t)(t->rest.bytes - end));
    t->rest.bytes -= end;
    if (!t->source.ended && !is_text(t))
        dsc_documents_drop(&t->cut, end);
    const bool last = t->source.ended && t->rest.bytes == 0;
    j->documents = t->documents;
    j->part = (dsc_document_part) {
        .path = t->o->paths[t->path_index], .first_line = t->line, .first = !t->goes_on, .last = last
    };
    j->bytes_read = bytes_used(t);
    j->starts = !is_text(t) || !t->goes_on;
    j->ends = !is_text(t) || last;
    t->line += is_text(t) ? 0 : count_lines(&j->text);
    t->goes_on = true;
    return last ? close_file(t, err) : DSC_OK;
}

/* ---- The ring ---- */

/* The oldest job that was given: waits for it and hands its ids over. */
static dsc_status take_job(tokenizing *t, dsc_error *err)
{
    job *j = &t->jobs[t->taken % t->job_count];
    pthread_mutex_lock(&t->mutex);
    while (!j->done)
        pthread_cond_wait(&t->changed, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
    t->taken++;
    if (j->status != DSC_OK) {
        if (err != NULL)
            *err = j->error;
        return j->status;
    }
    const dsc_token_batch batch = { .ids = j->ids.ptr, .count = j->ids.count, .ends = j->document_ends.ptr,
                                    .end_count = j->document_ends.count, .bytes_read = j->bytes_read };
    return t->o->take(t->o->user, &batch, err);
}

static dsc_status run(tokenizing *t, dsc_error *err)
{
    dsc_error reading = DSC_ERROR_INIT;
    dsc_status status = DSC_OK; /* status of reading; earlier blocks are encoded first */
    while (status == DSC_OK && t->path_index < t->o->path_count) {
        if (t->given - t->taken == t->job_count)
            DSC_TRY(take_job(t, err));
        job *j = &t->jobs[t->given % t->job_count];
        if (t->source.file.fd < 0)
            status = open_next(t, &reading);
        if (status == DSC_OK && t->documents.content.kind == DSC_CONTENT_EMPTY) {
            status = close_file(t, &reading); /* a file without a document */
            continue;
        }
        if (status == DSC_OK)
            status = fill_job(t, j, &reading);
        if (status != DSC_OK)
            break;
        pthread_mutex_lock(&t->mutex);
        j->done = false;
        t->given++;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->mutex);
    }
    while (t->taken < t->given)
        DSC_TRY(take_job(t, err));
    if (status != DSC_OK && err != NULL)
        *err = reading;
    return status;
}

static dsc_status run_threads(tokenizing *t, dsc_error *err)
{
    pthread_t thread[THREADS_MAX];
    int32_t started = 0;
    const int32_t threads = (int32_t)dsc_min_i64(dsc_max_i64(t->o->threads, 1), THREADS_MAX);
    while (started < threads && pthread_create(&thread[started], NULL, work, t) == 0)
        started++;
    const dsc_status status =
        started > 0 ? run(t, err) : DSC_FAIL(err, DSC_ERR_NOMEM, "tokenize", "no thread could be started");
    pthread_mutex_lock(&t->mutex);
    t->stop = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    for (int32_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    return status;
}

dsc_status dsc_tokenize(const dsc_tokenize_options *options, dsc_error *err)
{
    tokenizing t = { .o = options, .source = DSC_SOURCE_INIT, .rest = { .alloc = options->alloc } };
    t.job_count = JOBS_PER_THREAD * dsc_min_i64(dsc_max_i64(options->threads, 1), THREADS_MAX);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, t.job_count, sizeof *t.jobs, &t.jobs, err));
    for (int64_t i = 0; i < t.job_count; i++)
        t.jobs[i].text.alloc = t.jobs[i].ids.alloc = t.jobs[i].document_ends.alloc = options->alloc;
    pthread_mutex_init(&t.mutex, NULL);
    pthread_cond_init(&t.changed, NULL);
    const dsc_status status = run_threads(&t, err);
    (void)dsc_source_close(&t.source, NULL);
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.mutex);
    for (int64_t i = 0; i < t.job_count; i++) {
        dsc_text_free(&t.jobs[i].text);
        dsc_ids_free(&t.jobs[i].ids);
        dsc_ids_free(&t.jobs[i].document_ends);
    }
    dsc_text_free(&t.rest);
    dsc_alloc_free(options->alloc, t.jobs);
    return status;
}
