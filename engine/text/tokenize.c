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

#include "base/formats/json.h"
#include "engine/text/buffer.h"

#define PART_BYTES (INT64_C(1) << 20)
#define THREADS_MAX 256
#define JOBS_PER_THREAD 3

typedef struct job {
    dsc_text text;
    const char *path;
    int64_t first_line; /* line of a *.jsonl, from 1 */
    bool jsonl, starts, ends;
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
    dsc_file file;
    int64_t file_bytes, at, line, bytes_read;
    bool jsonl, goes_on;
    dsc_text rest; /* read and not yet given */
} tokenizing;

bool dsc_path_is_jsonl(const char *path)
{
    const size_t bytes = strlen(path);
    return bytes > 6 && strcmp(path + bytes - 6, ".jsonl") == 0;
}

/* ---- Encoding a job ---- */

static dsc_status add_id(dsc_ids *ids, int32_t id, dsc_error *err)
{
    return id >= 0 ? dsc_ids_add(ids, id, err) : DSC_OK;
}

static dsc_status add_text(const tokenizing *t, dsc_encoder *encoder, job *j, const char *text, int64_t bytes,
                           dsc_error *err)
{
    const int32_t *ids = NULL;
    int64_t count = 0;
    if (j->starts)
        DSC_TRY(add_id(&j->ids, t->o->begin, err));
    DSC_TRY(dsc_encode(encoder, text, bytes, j->starts ? 0 : DSC_ENCODE_GOES_ON, &ids, &count, err));
    DSC_TRY(dsc_ids_reserve(&j->ids, count, err));
    if (count > 0)
        memcpy(j->ids.ptr + j->ids.count, ids, (size_t)count * sizeof *ids);
    j->ids.count += count;
    if (!j->ends)
        return DSC_OK;
    DSC_TRY(add_id(&j->ids, t->o->separator, err));
    return dsc_ids_add(&j->document_ends, (int32_t)j->ids.count, err);
}

static dsc_status add_line(const tokenizing *t, dsc_encoder *encoder, job *j, const char *line, int64_t bytes,
                           int64_t number, dsc_error *err)
{
    const dsc_json_limits limits = { DSC_DOCUMENT_BYTES_MAX, 64, 1000000 };
    char name[300];
    dsc_json *json = NULL;
    snprintf(name, sizeof name, "%.200s, line %lld", j->path, (long long)number);
    DSC_TRY(dsc_json_open(t->o->alloc, name, line, bytes, DSC_JSON_DATA, &limits, &json, err));
    const cJSON *root = dsc_json_root(json);
    const cJSON *text = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, t->o->field) : NULL;
    const dsc_status status =
        cJSON_IsString(text)
            ? add_text(t, encoder, j, text->valuestring, (int64_t)strlen(text->valuestring), err)
            : DSC_FAIL(err, DSC_ERR_INPUT, name, "expected an object with a string \"%.60s\" (--field, "
                       "dsc.data_field)", t->o->field);
    dsc_json_close(&json);
    return status;
}

static bool is_blank(const char *text, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (strchr(" \t\r\n", text[i]) == NULL || text[i] == 0)
            return false;
    return true;
}

static dsc_status encode_job(const tokenizing *t, dsc_encoder *encoder, job *j, dsc_error *err)
{
    j->ids.count = j->document_ends.count = 0;
    if (!j->jsonl)
        return add_text(t, encoder, j, j->text.ptr, j->text.bytes, err);
    int64_t line = j->first_line;
    for (int64_t at = 0; at < j->text.bytes; line++) {
        const char *start = j->text.ptr + at, *end = memchr(start, '\n', (size_t)(j->text.bytes - at));
        const int64_t bytes = end != NULL ? end - start : j->text.bytes - at;
        if (!is_blank(start, bytes))
            DSC_TRY(add_line(t, encoder, j, start, bytes, line, err));
        at += bytes + 1;
    }
    return DSC_OK;
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

static dsc_status open_next(tokenizing *t, dsc_error *err)
{
    const char *path = t->o->paths[t->path_index];
    DSC_TRY(dsc_io_open(t->o->io, path, DSC_IO_READ_ONLY, &t->file, err));
    DSC_TRY(dsc_io_size(t->o->io, &t->file, &t->file_bytes, err));
    t->at = 0;
    t->line = 1;
    t->jsonl = dsc_path_is_jsonl(path);
    t->goes_on = false;
    t->rest.bytes = 0;
    return DSC_OK;
}

/* Last valid cut of the bytes read; 0: more bytes are needed. */
static int64_t find_end(const tokenizing *t)
{
    if (t->at == t->file_bytes)
        return t->rest.bytes;
    if (!t->jsonl)
        return dsc_tokenizer_cut(t->o->tokenizer, t->rest.ptr, t->rest.bytes);
    const char *line = memrchr(t->rest.ptr, '\n', (size_t)t->rest.bytes);
    return line != NULL ? line - t->rest.ptr + 1 : 0;
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

/* The next part of the open file into the job; the file is closed behind its last one. */
static dsc_status fill_job(tokenizing *t, job *j, dsc_error *err)
{
    int64_t end = 0;
    do {
        /* Twice as much when a part has no end: a long document is not searched again and again. */
        const int64_t more = dsc_min_i64(dsc_max_i64(PART_BYTES, t->rest.bytes), t->file_bytes - t->at);
        if (t->rest.bytes + more > DSC_DOCUMENT_BYTES_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, t->file.path,
                            "a document of more than %lld bytes, which this tokenizer cannot cut: give smaller files",
                            (long long)DSC_DOCUMENT_BYTES_MAX);
        DSC_TRY(dsc_text_reserve(&t->rest, more + 1, err));
        DSC_TRY(dsc_io_read(t->o->io, &t->file, t->rest.ptr + t->rest.bytes, more, t->at, err));
        t->rest.bytes += more;
        t->at += more;
        end = find_end(t);
    } while (end == 0 && t->at < t->file_bytes);
    j->text.bytes = 0;
    DSC_TRY(dsc_text_reserve(&j->text, end + 1, err));
    DSC_TRY(dsc_text_add(&j->text, t->rest.ptr, end, err));
    memmove(t->rest.ptr, t->rest.ptr + end, (size_t)(t->rest.bytes - end));
    t->rest.bytes -= end;
    t->bytes_read += end;
    j->path = t->o->paths[t->path_index];
    j->bytes_read = t->bytes_read;
    j->jsonl = t->jsonl;
    j->first_line = t->line;
    j->starts = t->jsonl || !t->goes_on;
    j->ends = t->jsonl || (t->at == t->file_bytes && t->rest.bytes == 0);
    t->line += t->jsonl ? count_lines(&j->text) : 0;
    t->goes_on = true;
    if (t->at < t->file_bytes || t->rest.bytes > 0)
        return DSC_OK;
    t->path_index++;
    return dsc_io_close(t->o->io, &t->file, err);
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
        if (t->file.fd < 0)
            status = open_next(t, &reading);
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
    tokenizing t = { .o = options, .file = DSC_FILE_INIT, .rest = { .alloc = options->alloc } };
    t.job_count = JOBS_PER_THREAD * dsc_min_i64(dsc_max_i64(options->threads, 1), THREADS_MAX);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, t.job_count, sizeof *t.jobs, &t.jobs, err));
    for (int64_t i = 0; i < t.job_count; i++)
        t.jobs[i].text.alloc = t.jobs[i].ids.alloc = t.jobs[i].document_ends.alloc = options->alloc;
    pthread_mutex_init(&t.mutex, NULL);
    pthread_cond_init(&t.changed, NULL);
    const dsc_status status = run_threads(&t, err);
    (void)dsc_io_close(options->io, &t.file, NULL);
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
