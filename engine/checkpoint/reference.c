/* reference.c - see reference.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/reference.h"

#include <string.h>

#include "base/hash.h"
#include "engine/checkpoint/manifest.h"

#define MAGIC "dscdpo01"
#define BYTES_MAX (INT64_C(16) << 30)

typedef struct header {
    char magic[8];
    int64_t train_count, eval_count;
    uint64_t hash;
} header;
_Static_assert(sizeof(header) == 32, "the references begin behind the header");
_Static_assert(sizeof(dsc_data_reference) == 16, "a reference has no padding");

static const int64_t each = (int64_t)sizeof(dsc_data_reference);

static uint64_t hash_of(const dsc_ckpt_reference *r)
{
    const uint64_t train = dsc_xxh3_128(r->train, (size_t)(r->train_count * each), 0).low;
    DSC_ASSERT(r->train_count >= 0);
    DSC_ASSERT(r->eval_count >= 0);
    return dsc_xxh3_128(r->eval, (size_t)(r->eval_count * each), train).low;
}

static dsc_status write_all(const dsc_io *io, dsc_file *file, const dsc_ckpt_reference *r, dsc_error *err)
{
    header h = { .train_count = r->train_count, .eval_count = r->eval_count, .hash = hash_of(r) };
    memcpy(h.magic, MAGIC, sizeof h.magic);
    const int64_t train = (int64_t)sizeof h, eval = train + r->train_count * each;
    DSC_ASSERT(r->train_count + r->eval_count > 0);
    DSC_TRY(dsc_io_write(io, file, &h, (int64_t)sizeof h, 0, err));
    if (r->train_count > 0)
        DSC_TRY(dsc_io_write(io, file, r->train, r->train_count * each, train, err));
    if (r->eval_count > 0)
        DSC_TRY(dsc_io_write(io, file, r->eval, r->eval_count * each, eval, err));
    return dsc_io_fsync(io, file, err);
}

dsc_status dsc_ckpt_write_reference(const dsc_io *io, const dsc_ckpt_reference *reference, const char *folder,
                                    dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    DSC_ASSERT(folder[0] != 0);
    if (reference->train_count + reference->eval_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_path_join(path, sizeof path, folder, DSC_CKPT_REFERENCE_FILE, err));
    dsc_status status = dsc_io_open(io, path, DSC_IO_CREATE_NEW, &file, err);
    if (status == DSC_OK)
        status = write_all(io, &file, reference, err);
    const dsc_status closed = dsc_io_close(io, &file, status == DSC_OK ? err : NULL);
    return status != DSC_OK ? status : closed;
}

static bool is_sound(const header *h, int64_t bytes)
{
    const int64_t most = BYTES_MAX / each;
    return memcmp(h->magic, MAGIC, sizeof h->magic) == 0 && h->train_count >= 0 && h->train_count <= most &&
           h->eval_count >= 0 && h->eval_count <= most &&
           bytes == (int64_t)sizeof *h + (h->train_count + h->eval_count) * each;
}

static dsc_status read_all(const dsc_io *io, dsc_alloc *alloc, dsc_file *file, dsc_ckpt_reference *out, dsc_error *err)
{
    header h;
    int64_t bytes = 0;
    DSC_ASSERT(out->memory == NULL);
    memset(&h, 0, sizeof h);
    DSC_TRY(dsc_io_size(io, file, &bytes, err));
    if (bytes >= (int64_t)sizeof h)
        DSC_TRY(dsc_io_read(io, file, &h, (int64_t)sizeof h, 0, err));
    if (!is_sound(&h, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, file->path,
                        "is not a whole file of references; load another checkpoint of the run");
    const int64_t count = h.train_count + h.eval_count;
    dsc_data_reference *memory = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, dsc_max_i64(1, count), each, &memory, err));
    out->memory = memory;
    if (count > 0)
        DSC_TRY(dsc_io_read(io, file, memory, count * each, (int64_t)sizeof h, err));
    out->train = memory;
    out->eval = memory + h.train_count;
    out->train_count = h.train_count;
    out->eval_count = h.eval_count;
    if (hash_of(out) != h.hash)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->path,
                        "is damaged: its bytes do not have their hash; load another checkpoint of the run");
    return DSC_OK;
}

dsc_status dsc_ckpt_read_reference(const dsc_io *io, dsc_alloc *alloc, const char *folder, dsc_ckpt_reference *out,
                                   dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    *out = (dsc_ckpt_reference) { 0 };
    DSC_TRY(dsc_path_join(path, sizeof path, folder, DSC_CKPT_REFERENCE_FILE, err));
    if (dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, folder,
                        "is no checkpoint of a run with dsc.dpo: it has no " DSC_CKPT_REFERENCE_FILE "; to start from "
                        "its weights, export them (dsc ckpt export) and give that folder with --model");
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file, err));
    const dsc_status status = read_all(io, alloc, &file, out, err);
    (void)dsc_io_close(io, &file, NULL); /* only read: nothing can be lost */
    if (status != DSC_OK) {
        dsc_alloc_free(alloc, out->memory);
        *out = (dsc_ckpt_reference) { 0 };
    }
    return status;
}
