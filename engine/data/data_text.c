/* data_text.c - see data_text.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/data_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/lock_file.h"
#include "engine/data/sft/pack.h"
#include "engine/data/token_writer.h"

#define TOKENIZER_BYTES_MAX (INT64_C(64) << 20)
#define KEPT_VERSION "dsc tokens 2" /* format of a cached token file; a change makes a new file */
#define KEPT_SAMPLES "dsc samples 2" /* format of a cached file of samples, likewise */
#define KEPT_LABELS "dsc labels 2"   /* format of one with labels, likewise */
#define KEPT_BYTES "dsc bytes 1"     /* format of a decompressed text file, likewise */
#define UNPACK_BYTES (1 << 20)
#define NAME_BYTES 64 /* prefix from the text's name */

/* ---- The kept file's name ---- */

static dsc_status find_folder(const dsc_data_text *text, char *out, size_t out_bytes, dsc_error *err)
{
    const char *const caches = getenv("XDG_CACHE_HOME"), *const home = getenv("HOME");
    int length = -1;
    if (text->folder[0] != 0)
        length = snprintf(out, out_bytes, "%s", text->folder);
    else if (caches != NULL && caches[0] == '/')
        length = snprintf(out, out_bytes, "%s/dsc", caches);
    else if (home != NULL && home[0] == '/')
        length = snprintf(out, out_bytes, "%s/.cache/dsc", home);
    if (length < 0 || (size_t)length >= out_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.data_cache", "tokens of texts need a folder, and there is no HOME; "
                        "give this key");
    return dsc_io_make_dirs(text->io, out, err);
}

static void add_text(dsc_sha256 *sha, const char *part) { dsc_sha256_update(sha, part, strlen(part) + 1); }

static dsc_status add_tokenizer(const dsc_data_text *text, dsc_alloc *alloc, dsc_sha256 *sha, dsc_error *err)
{
    char file[1024], *json = NULL;
    int64_t bytes = 0;
    const char *path = text->tokenizer;
    if (dsc_io_kind(path) == DSC_PATH_DIR) {
        DSC_TRY(dsc_path_join(file, sizeof file, path, "tokenizer.json", err));
        path = file;
    }
    dsc_data_text_shared *shared = text->shared;
    if (!shared->hashed) {
        dsc_sha256 own;
        DSC_TRY(dsc_io_read_all(text->io, alloc, path, TOKENIZER_BYTES_MAX, &json, &bytes, err));
        dsc_sha256_init(&own);
        dsc_sha256_update(&own, json, (size_t)bytes);
        dsc_sha256_final(&own, shared->digest);
        shared->hashed = true;
        dsc_alloc_free(alloc, json);
    }
    dsc_sha256_update(sha, shared->digest, sizeof shared->digest);
    return DSC_OK;
}

dsc_status dsc_data_text_tokenizer(dsc_data_text_shared *shared, const char *path, dsc_error *err)
{
    return shared->tokenizer != NULL ? DSC_OK : dsc_tokenizer_open(&shared->tokenizer, path, err);
}

void dsc_data_text_shared_close(dsc_data_text_shared *shared) { dsc_tokenizer_close(&shared->tokenizer); }

static dsc_status add_file(const char *path, dsc_sha256 *sha, dsc_error *err)
{
    struct stat now;
    char *whole = realpath(path, NULL);
    if (whole == NULL || stat(whole, &now) != 0) {
        free(whole);
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "cannot be read: %s", strerror(errno));
    }
    const int64_t state[] = { now.st_size, (int64_t)now.st_ino, now.st_mtim.tv_sec, now.st_mtim.tv_nsec,
                              now.st_ctim.tv_sec, now.st_ctim.tv_nsec };
    add_text(sha, whole);
    dsc_sha256_update(sha, state, sizeof state);
    free(whole);
    return DSC_OK;
}

/* The files beside the tokenizer that a chat template may be in. */
static dsc_status add_templates(const dsc_data_text *text, dsc_sha256 *sha, dsc_error *err)
{
    static const char *const names[] = { "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json" };
    const char *slash = strrchr(text->tokenizer, '/');
    char folder[900], path[1024];
    snprintf(folder, sizeof folder, "%.*s", (int)(slash != NULL ? slash - text->tokenizer + 1 : 1),
             slash != NULL ? text->tokenizer : ".");
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        DSC_TRY(dsc_path_join(path, sizeof path,
                              dsc_io_kind(text->tokenizer) == DSC_PATH_DIR ? text->tokenizer : folder, names[i], err));
        if (dsc_io_kind(path) == DSC_PATH_FILE)
            DSC_TRY(add_file(path, sha, err));
    }
    return text->examples->template_file[0] != 0 ? add_file(text->examples->template_file, sha, err) : DSC_OK;
}

static void add_labels(const dsc_sft_section *s, dsc_sha256 *sha)
{
    const int64_t numbers[] = { s->labels.kind, s->labels.count, s->labels.tokens };
    add_text(sha, KEPT_LABELS);
    dsc_sha256_update(sha, numbers, sizeof numbers);
    for (int64_t i = 0; i < s->labels.count && s->labels.names != NULL; i++)
        add_text(sha, s->labels.names[i]);
    add_text(sha, s->column[DSC_SFT_COLUMN_TEXT_PAIR]);
    add_text(sha, s->column[DSC_SFT_COLUMN_LABEL]);
    if (!dsc_label_kind_pairs(s->labels.kind))
        return;
    add_text(sha, s->column[DSC_SFT_COLUMN_NEGATIVE]);
    add_text(sha, s->prompt[0]);
    add_text(sha, s->prompt[1]);
}

/* All settings that samples of examples hang on. */
static dsc_status add_settings(const dsc_data_text *text, dsc_sha256 *sha, dsc_error *err)
{
    const dsc_sft_section *s = text->examples;
    const int64_t numbers[] = { s->format, s->end_token, s->packing, s->drop_long, s->train_on_count, text->sequence };
    add_text(sha, KEPT_SAMPLES);
    dsc_sha256_update(sha, numbers, sizeof numbers);
    const int columns =
        s->pairs ? DSC_SFT_COLUMN_TEXT_PAIR : DSC_SFT_COLUMN_CHOSEN; /* other data has no use for the last */
    for (int i = 0; i < columns; i++)
        add_text(sha, dsc_sft_column_name(s, (dsc_sft_column)i));
    for (int i = 0; i < s->train_on_count; i++)
        add_text(sha, s->train_on[i]);
    add_text(sha, s->system);
    if (s->pairs)
        add_text(sha, "pairs");
    if (s->labels.kind != DSC_LABELS_NONE)
        add_labels(s, sha);
    return add_templates(text, sha, err);
}

/* PREFIX of the kept pair. */
static dsc_status name_kept(const dsc_data_text *text, dsc_alloc *alloc, const char *path, char *out, size_t out_bytes,
                            dsc_error *err)
{
    dsc_sha256 sha;
    uint8_t digest[32];
    char folder[900], hash[33], name[NAME_BYTES + sizeof hash + 1];
    const char *slash = strrchr(path, '/');
    DSC_TRY(find_folder(text, folder, sizeof folder, err));
    dsc_sha256_init(&sha);
    add_text(&sha, text->tokenizer[0] != 0 ? KEPT_VERSION : KEPT_BYTES);
    add_text(&sha, text->field != NULL ? text->field : "");
    DSC_TRY(add_file(path, &sha, err));
    if (text->tokenizer[0] != 0)
        DSC_TRY(add_tokenizer(text, alloc, &sha, err));
    if (text->examples != NULL)
        DSC_TRY(add_settings(text, &sha, err));
    dsc_sha256_final(&sha, digest);
    dsc_hex(hash, digest, sizeof hash / 2);
    snprintf(name, sizeof name, "%.*s-%s", NAME_BYTES, slash != NULL ? slash + 1 : path, hash);
    return dsc_path_join(out, out_bytes, folder, name, err);
}

/* ---- Making it ---- */

static void tell(const dsc_data_text *text, const char *path, const char *what, const char *more)
{
    if (text->log != NULL)
        dsc_log_printf(text->log, DSC_LOG_INFO, "%s: %s%s", path, what, more);
}

static dsc_status take(void *user, const dsc_token_batch *batch, dsc_error *err)
{
    return dsc_token_writer_add(user, batch, err);
}

static dsc_status tokenize(const dsc_data_text *text, dsc_alloc *alloc, const dsc_tokenizer *tokenizer,
                           const char *path, const char *kept, dsc_error *err)
{
    dsc_token_writer writer;
    const dsc_tokenize_options options = { .alloc = alloc,
                                           .io = text->io,
                                           .tokenizer = tokenizer,
                                           .paths = &path,
                                           .path_count = 1,
                                           .field = text->field,
                                           .begin = DSC_BEGIN_TEMPLATE,
                                           .separator = dsc_tokenizer_text_end(tokenizer),
                                           .threads = text->threads,
                                           .take = take,
                                           .user = &writer };
    if (options.separator < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, text->tokenizer,
                        "none of the usual tokens ends a text here; tokenize it "
                        "before the run: dsc data tokenize --separator TOKEN|none");
    dsc_status status = dsc_token_writer_open(alloc, text->io, kept, DSC_TOKEN_MEGATRON,
                                              dsc_tokenizer_vocab_size(tokenizer), &writer, err);
    if (status == DSC_OK)
        status = dsc_tokenize(&options, err);
    if (status == DSC_OK)
        status = dsc_token_writer_commit(&writer, err);
    dsc_token_writer_close(&writer);
    return status;
}

static dsc_status make_samples(const dsc_data_text *text, dsc_alloc *alloc, const dsc_tokenizer *tokenizer,
                               const char *path, const char *kept, dsc_error *err)
{
    const dsc_sft_options options = { .alloc = alloc,
                                      .io = text->io,
                                      .path = path,
                                      .tokenizer_path = text->tokenizer,
                                      .tokenizer = tokenizer,
                                      .section = text->examples,
                                      .now_s = (int64_t)time(NULL),
                                      .threads = text->threads,
                                      .sequence = text->sequence };
    return dsc_sft_pack_write(&options, text->sequence, kept, err);
}

static dsc_status copy_all(dsc_source *from, dsc_file *to, char *block, dsc_error *err)
{
    int64_t got = 0;
    for (int64_t at = 0; !from->ended; at += got) {
        DSC_TRY(dsc_source_read(from, block, UNPACK_BYTES, &got, err));
        DSC_TRY(dsc_io_write(from->io, to, block, got, at, err));
    }
    return dsc_io_fsync(from->io, to, err);
}

/* Writes the bytes in a compressed text to `kept`. A damaged text leaves no file. */
static dsc_status unpack(const dsc_data_text *text, dsc_alloc *alloc, const char *path, const char *kept,
                         dsc_error *err)
{
    dsc_source source = DSC_SOURCE_INIT;
    dsc_file file = DSC_FILE_INIT;
    char temporary[1024], *block = NULL;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", kept) >= sizeof temporary)
        return DSC_FAIL(err, DSC_ERR_INPUT, kept, "the path is too long");
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, UNPACK_BYTES, 1, &block, err));
    dsc_status status = dsc_source_open(text->io, path, &source, err);
    if (status == DSC_OK)
        status = dsc_io_open(text->io, temporary, DSC_IO_CREATE, &file, err);
    const bool made = status == DSC_OK;
    if (made)
        status = copy_all(&source, &file, block, err);
    const dsc_status closed = dsc_io_close(text->io, &file, status == DSC_OK ? err : NULL);
    status = status == DSC_OK ? closed : status;
    if (status == DSC_OK)
        status = dsc_io_rename(text->io, temporary, kept, err);
    if (made && status != DSC_OK && dsc_io_unlink(text->io, temporary, NULL) != DSC_OK)
        tell(text, temporary, "is not whole, and cannot be removed", "");
    (void)dsc_source_close(&source, NULL);
    dsc_alloc_free(alloc, block);
    return status;
}

/* `kept` is made unless another has done so while this one waited. */
static dsc_status make(const dsc_data_text *text, dsc_alloc *alloc, const char *path, const char *kept, dsc_error *err)
{
    char lock_path[1024];
    dsc_lock_file lock = DSC_LOCK_FILE_INIT;
    if ((size_t)snprintf(lock_path, sizeof lock_path, "%s.lock", kept) >= sizeof lock_path)
        return DSC_FAIL(err, DSC_ERR_INPUT, kept, "the path is too long");
    DSC_TRY(dsc_lock_file_take(lock_path, &lock, err));
    dsc_status status = DSC_OK;
    if (dsc_io_kind(kept) != DSC_PATH_FILE && text->tokenizer[0] == 0) {
        status = unpack(text, alloc, path, kept, err);
    } else if (dsc_io_kind(kept) != DSC_PATH_FILE) {
        status = dsc_data_text_tokenizer(text->shared, text->tokenizer, err);
        if (status == DSC_OK)
            status = text->examples != NULL ? make_samples(text, alloc, text->shared->tokenizer, path, kept, err)
                                            : tokenize(text, alloc, text->shared->tokenizer, path, kept, err);
    }
    dsc_lock_file_give(&lock);
    return status;
}

/* Other contents are refused by who opens the file. */
static bool is_packed_text(const dsc_data_text *text, const char *path)
{
    dsc_content content;
    return dsc_content_detect(text->io, path, "text", &content, NULL) == DSC_OK && content.packed &&
           content.kind == DSC_CONTENT_TEXT;
}

/* A format that cannot be read is refused before anything is written. */
static dsc_status check_format(const dsc_data_text *text, dsc_alloc *alloc, const char *path, dsc_error *err)
{
    dsc_documents documents;
    dsc_content content;
    if (text->examples == NULL)
        return dsc_documents_open(text->io, alloc, path, text->field, &documents, err);
    DSC_TRY(dsc_content_detect(text->io, path, DSC_DOCUMENTS_FIELD, &content, err));
    return dsc_content_refuse(&content, path, err);
}

static dsc_status find_or_make(const dsc_data_text *text, dsc_alloc *alloc, const char *path, char *out,
                               size_t out_bytes, dsc_error *err)
{
    char prefix[1000], seconds[32];
    const bool bytes = text->tokenizer[0] == 0;
    if (bytes && !is_packed_text(text, path)) {
        snprintf(out, out_bytes, "%s", path);
        return DSC_OK;
    }
    DSC_TRY(name_kept(text, alloc, path, prefix, sizeof prefix, err));
    const char *ending = bytes ? ".txt" : text->examples != NULL ? DSC_SAMPLE_ENDING : ".bin";
    if ((size_t)snprintf(out, out_bytes, "%s%s", prefix, ending) >= out_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, prefix, "the path is too long");
    if (dsc_io_kind(out) == DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(check_format(text, alloc, path, err));
    const int64_t start = dsc_clock_ns();
    tell(text, path, bytes ? "it is decompressed, once, as " : "its tokens are made, once, as ", out);
    DSC_TRY(make(text, alloc, path, out, err));
    snprintf(seconds, sizeof seconds, "%.1f s", (double)(dsc_clock_ns() - start) * 1e-9);
    tell(text, path, "that took ", seconds);
    return DSC_OK;
}

dsc_status dsc_data_text_tokens(const dsc_data_text *text, const char *path, char *out, size_t out_bytes,
                                dsc_error *err)
{
    dsc_alloc *alloc = NULL; /* given back before the plan's memory is taken: no part of it */
    DSC_TRY(dsc_alloc_open(&alloc, err));
    const dsc_status status = find_or_make(text, alloc, path, out, out_bytes, err);
    dsc_alloc_close(&alloc);
    return status;
}
