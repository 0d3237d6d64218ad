/* sample_file.c - see sample_file.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/sample_file.h"
#include "engine/data/sft/sft.h"

#include <stdio.h>
#include <string.h>

#define MAGIC "dscsmpl1"
#define SEQUENCE_MAX INT32_MAX

/* Bytes of a sample; 0: no sample is so. */
static int64_t sample_bytes(const dsc_sample_summary *s)
{
    const bool possible =
        s->sequence >= 1 && s->sequence <= SEQUENCE_MAX && s->label_words >= 0 && s->label_words <= DSC_LABELS_MAX;
    return possible ? 4 * (s->sequence + s->label_words) : 0;
}

typedef struct header {
    char magic[8];
    dsc_sample_summary summary;
    char rest[DSC_SAMPLE_HEADER_BYTES - 8 - sizeof(dsc_sample_summary)];
} header;
_Static_assert(sizeof(header) == DSC_SAMPLE_HEADER_BYTES, "the samples begin behind the header");

bool dsc_sample_path(const char *path)
{
    const size_t bytes = strlen(path), end = strlen(DSC_SAMPLE_ENDING);
    return bytes > end && strcmp(path + bytes - end, DSC_SAMPLE_ENDING) == 0;
}

/* ---- Reading ---- */

/* Texts that are compared are whole rows, with a place and a score for each. */
static bool has_sound_texts(const dsc_sample_summary *s)
{
    if (s->texts == 0)
        return true;
    return s->texts >= 2 && s->texts <= DSC_TEXTS_MAX && s->samples % s->texts == 0 && s->label_words == 2 &&
           s->pairs == 0;
}

static bool is_sound(const header *h, int64_t bytes)
{
    const dsc_sample_summary *s = &h->summary;
    const int64_t body = bytes - DSC_SAMPLE_HEADER_BYTES, each = sample_bytes(s);
    return memcmp(h->magic, MAGIC, sizeof h->magic) == 0 && each > 0 && s->samples >= 1 && body % each == 0 &&
           body / each == s->samples && (s->pairs == 0 || (s->samples % 2 == 0 && s->pairs == s->samples / 2)) &&
           has_sound_texts(s) && s->largest_id >= 0 && s->largest_id < DSC_SAMPLE_ID &&
           memchr(s->description, 0, sizeof s->description) != NULL;
}

dsc_status dsc_sample_file_open(const dsc_io *io, const char *path, dsc_sample_file *out, dsc_error *err)
{
    header h;
    int64_t bytes = 0;
    *out = (dsc_sample_file)DSC_SAMPLE_FILE_INIT;
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &out->file, err));
    DSC_TRY(dsc_io_size(io, &out->file, &bytes, err));
    memset(&h, 0, sizeof h);
    if (bytes >= DSC_SAMPLE_HEADER_BYTES)
        DSC_TRY(dsc_io_read(io, &out->file, &h, (int64_t)sizeof h, 0, err));
    if (!is_sound(&h, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "is not a whole file of samples; remove it, and the run makes it again "
                        "from its data");
    out->summary = h.summary;
    return DSC_OK;
}

void dsc_sample_file_close(const dsc_io *io, dsc_sample_file *file) { (void)dsc_io_close(io, &file->file, NULL); }

dsc_status dsc_sample_file_resume(const dsc_io *io, dsc_sample_file *file, dsc_error *err)
{
    const dsc_sample_summary before = file->summary;
    char path[sizeof file->file.path];
    snprintf(path, sizeof path, "%s", file->file.path);
    DSC_TRY(dsc_sample_file_open(io, path, file, err));
    if (memcmp(&before, &file->summary, sizeof before) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "has other samples than when the run began: data must not change while a run reads it");
    return DSC_OK;
}

dsc_status dsc_sample_file_read(const dsc_io *io, dsc_sample_file *file, int64_t index, uint32_t *words, dsc_error *err)
{
    const int64_t bytes = sample_bytes(&file->summary);
    DSC_ASSERT(index >= 0);
    DSC_ASSERT(index < file->summary.samples);
    return dsc_io_read(io, &file->file, words, bytes, DSC_SAMPLE_HEADER_BYTES + index * bytes, err);
}

void dsc_sample_unpack(const uint32_t *words, int64_t sequence, int32_t *tokens, int32_t *targets, int32_t *places)
{
    int32_t place = 0;
    for (int64_t i = 0; i < sequence; i++) {
        const uint32_t next = i + 1 < sequence ? words[i + 1] : DSC_SAMPLE_BEGINS;
        const bool counts = (next & DSC_SAMPLE_COUNTED) != 0 && (next & DSC_SAMPLE_BEGINS) == 0;
        place = (words[i] & DSC_SAMPLE_BEGINS) != 0 ? 0 : place;
        tokens[i] = (int32_t)(words[i] & DSC_SAMPLE_ID);
        targets[i] = counts ? (int32_t)(next & DSC_SAMPLE_ID) : -1;
        if (places != NULL)
            places[i] = place;
        place++;
    }
}

int32_t dsc_sample_unpack_text(const uint32_t *words, int64_t sequence, int32_t *tokens, int32_t *places,
                               int32_t *segments)
{
    int32_t place = 0;
    int64_t count = 1; /* tokens of the text, behind which padding begins */
    while (count < sequence && (words[count] & DSC_SAMPLE_BEGINS) == 0)
        count++;
    for (int64_t i = 0; i < sequence; i++) {
        place = i == count ? 0 : place;
        tokens[i] = (int32_t)(words[i] & DSC_SAMPLE_ID);
        places[i] = place++;
        if (segments != NULL)
            segments[i] = (words[i] & DSC_SAMPLE_COUNTED) != 0 ? 1 : 0;
    }
    return (int32_t)count - 1;
}

/* ---- Writing ---- */

dsc_status dsc_sample_writer_open(const dsc_io *io, const char *path, int64_t sequence, int64_t label_words,
                                  dsc_sample_writer *out, dsc_error *err)
{
    *out = (dsc_sample_writer) { .io = io, .file = DSC_FILE_INIT, .sequence = sequence, .label_words = label_words };
    DSC_ASSERT(sequence >= 1);
    if (strlen(path) >= sizeof out->path)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long; expected less than %zu bytes",
                        sizeof out->path);
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->temporary, sizeof out->temporary, "%s.tmp", path);
    return dsc_io_open(io, out->temporary, DSC_IO_CREATE, &out->file, err);
}

dsc_status dsc_sample_writer_add(dsc_sample_writer *w, const uint32_t *words, dsc_error *err)
{
    const int64_t bytes = 4 * (w->sequence + w->label_words);
    DSC_TRY(dsc_io_write(w->io, &w->file, words, bytes, DSC_SAMPLE_HEADER_BYTES + w->samples * bytes, err));
    w->samples++;
    return DSC_OK;
}

dsc_status dsc_sample_writer_commit(dsc_sample_writer *w, const dsc_sample_summary *summary, dsc_error *err)
{
    header h;
    char folder[sizeof w->path];
    memset(&h, 0, sizeof h);
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.summary = *summary;
    h.summary.sequence = w->sequence;
    h.summary.label_words = w->label_words;
    h.summary.samples = w->samples;
    DSC_TRY(dsc_io_write(w->io, &w->file, &h, (int64_t)sizeof h, 0, err));
    DSC_TRY(dsc_io_fsync(w->io, &w->file, err));
    DSC_TRY(dsc_io_close(w->io, &w->file, err));
    DSC_TRY(dsc_io_rename(w->io, w->temporary, w->path, err));
    w->temporary[0] = 0; /* nothing is left to remove */
    snprintf(folder, sizeof folder, "%s", w->path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = 0;
    return dsc_io_fsync_dir(w->io, slash != NULL ? folder : ".", err);
}

void dsc_sample_writer_close(dsc_sample_writer *w)
{
    const bool opened = w->file.path[0] != 0;
    (void)dsc_io_close(w->io, &w->file, NULL);
    if (opened && w->temporary[0] != 0)
        (void)!dsc_io_unlink(NULL, w->temporary, NULL);
}
