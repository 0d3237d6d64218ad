/* unpack.c - see unpack.h. The structures are those of zlib's and zstd's stable interfaces, so that a build needs
 * neither's headers. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/unpack.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_BYTES (1 << 17)
#define GZIP_WINDOW_BITS (15 + 16) /* the largest window; a gzip header is expected */

enum { Z_OK = 0, Z_STREAM_END = 1, Z_BUF_ERROR = -5, Z_MEM_ERROR = -4 };

typedef struct z_stream {
    const unsigned char *next_in;
    unsigned avail_in;
    unsigned long total_in;
    unsigned char *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *state;
    void *(*zalloc)(void *, unsigned, unsigned);
    void (*zfree)(void *, void *);
    void *opaque;
    int data_type;
    unsigned long adler, reserved;
} z_stream;

typedef struct zstd_in {
    const void *src;
    size_t size, pos;
} zstd_in;

typedef struct zstd_out {
    void *dst;
    size_t size, pos;
} zstd_out;

struct dsc_unpacker {
    const dsc_io *io;
    dsc_file *file;
    dsc_packing packing;
    void *library;
    int64_t file_bytes, read_bytes, text_bytes;
    size_t in_at, in_bytes; /* of `in` */
    bool between;           /* members or frames: none is open */
    z_stream z;
    bool z_open;
    int (*z_init)(z_stream *z, int window_bits, const char *version, int bytes);
    int (*z_inflate)(z_stream *z, int flush);
    int (*z_reset)(z_stream *z);
    int (*z_end)(z_stream *z);
    void *d;
    void *(*d_create)(void);
    size_t (*d_free)(void *d);
    size_t (*d_step)(void *d, zstd_out *out, zstd_in *in);
    unsigned (*d_is_error)(size_t code);
    const char *(*d_error_name)(size_t code);
    unsigned char in[INPUT_BYTES];
};

dsc_packing dsc_packing_find(const void *bytes, int64_t count)
{
    if (count >= 2 && memcmp(bytes, "\x1f\x8b", 2) == 0)
        return DSC_PACKING_GZIP;
    return count >= 4 && memcmp(bytes, "\x28\xb5\x2f\xfd", 4) == 0 ? DSC_PACKING_ZSTD : DSC_PACKING_NONE;
}

int64_t dsc_unpacker_position(const dsc_unpacker *u)
{
    DSC_ASSERT(u->in_at <= u->in_bytes);
    return u->read_bytes - (int64_t)(u->in_bytes - u->in_at);
}

/* ---- Libraries ---- */

static dsc_status fail_missing(const dsc_unpacker *u, dsc_error *err)
{
    const bool gzip = u->packing == DSC_PACKING_GZIP;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, u->file->path,
                    "the content is %s, and %s is not installed; install the "
                    "package %s, or give the file that %s makes",
                    gzip ? "gzip" : "zstd", gzip ? "libz.so.1" : "libzstd.so.1",
                    gzip ? "zlib1g (zlib)" : "libzstd1 (libzstd)", gzip ? "gunzip -k FILE" : "zstd -d FILE");
}

static dsc_status open_gzip(dsc_unpacker *u, dsc_error *err)
{
    /* POSIX's way to read a function's address */
    *(void **)&u->z_init = dlsym(u->library, "inflateInit2_");
    *(void **)&u->z_inflate = dlsym(u->library, "inflate");
    *(void **)&u->z_reset = dlsym(u->library, "inflateReset");
    *(void **)&u->z_end = dlsym(u->library, "inflateEnd");
    if (u->z_init == NULL || u->z_inflate == NULL || u->z_reset == NULL || u->z_end == NULL)
        return fail_missing(u, err);
    u->z_open = u->z_init(&u->z, GZIP_WINDOW_BITS, "1.2.3", (int)sizeof u->z) == Z_OK;
    return u->z_open ? DSC_OK : DSC_FAIL(err, DSC_ERR_NOMEM, u->file->path, "no memory to read gzip");
}

static dsc_status open_zstd(dsc_unpacker *u, dsc_error *err)
{
    *(void **)&u->d_create = dlsym(u->library, "ZSTD_createDStream");
    *(void **)&u->d_free = dlsym(u->library, "ZSTD_freeDStream");
    *(void **)&u->d_step = dlsym(u->library, "ZSTD_decompressStream");
    *(void **)&u->d_is_error = dlsym(u->library, "ZSTD_isError");
    *(void **)&u->d_error_name = dlsym(u->library, "ZSTD_getErrorName");
    if (u->d_create == NULL || u->d_free == NULL || u->d_step == NULL || u->d_is_error == NULL ||
        u->d_error_name == NULL)
        return fail_missing(u, err);
    u->d = u->d_create();
    return u->d != NULL ? DSC_OK : DSC_FAIL(err, DSC_ERR_NOMEM, u->file->path, "no memory to read zstd");
}

static dsc_status open_parts(dsc_unpacker *u, dsc_error *err)
{
    const bool gzip = u->packing == DSC_PACKING_GZIP;
    DSC_TRY(dsc_io_size(u->io, u->file, &u->file_bytes, err));
    u->library = dlopen(gzip ? "libz.so.1" : "libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (u->library == NULL)
        return fail_missing(u, err);
    return gzip ? open_gzip(u, err) : open_zstd(u, err);
}

dsc_status dsc_unpacker_open(const dsc_io *io, dsc_file *file, dsc_packing packing, dsc_unpacker **out, dsc_error *err)
{
    DSC_ASSERT(packing != DSC_PACKING_NONE);
    dsc_unpacker *u = calloc(1, sizeof *u);
    *out = NULL;
    if (u == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, file->path, "no memory to decompress it");
    u->io = io;
    u->file = file;
    u->packing = packing;
    dsc_status status = open_parts(u, err);
    if (status != DSC_OK)
        dsc_unpacker_close(&u);
    *out = u;
    return status;
}

void dsc_unpacker_close(dsc_unpacker **u)
{
    if (*u == NULL)
        return;
    if ((*u)->z_open)
        (void)(*u)->z_end(&(*u)->z);
    if ((*u)->d != NULL)
        (void)(*u)->d_free((*u)->d);
    if ((*u)->library != NULL)
        (void)dlclose((*u)->library);
    free(*u);
    *u = NULL;
}

/* ---- Reading ---- */

static const char *format_of(const dsc_unpacker *u) { return u->packing == DSC_PACKING_GZIP ? "gzip" : "zstd"; }

static dsc_status fail_damaged(const dsc_unpacker *u, const char *reason, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, u->file->path,
                    "the %s stream is damaged at byte %lld: %s; compress the text "
                    "again, or copy the file again",
                    format_of(u), (long long)dsc_unpacker_position(u), reason != NULL ? reason : "invalid data");
}

static dsc_status fill(dsc_unpacker *u, dsc_error *err)
{
    const int64_t bytes = dsc_min_i64(INPUT_BYTES, u->file_bytes - u->read_bytes);
    DSC_ASSERT(u->in_at == u->in_bytes);
    DSC_TRY(dsc_io_read(u->io, u->file, u->in, bytes, u->read_bytes, err));
    u->in_at = 0;
    u->in_bytes = (size_t)bytes;
    u->read_bytes += bytes;
    return DSC_OK;
}

static dsc_status step_gzip(dsc_unpacker *u, void *to, size_t bytes, size_t *got, dsc_error *err)
{
    if (u->between && u->in[u->in_at] == 0) { /* tapes and blocks are filled with zeros behind the last member */
        u->in_at++;
        return DSC_OK;
    }
    if (u->between && u->z_reset(&u->z) != Z_OK)
        return fail_damaged(u, u->z.msg, err);
    u->between = false;
    u->z.next_in = u->in + u->in_at;
    u->z.avail_in = (unsigned)(u->in_bytes - u->in_at);
    u->z.next_out = to;
    u->z.avail_out = (unsigned)bytes;
    const int result = u->z_inflate(&u->z, 0);
    u->in_at = u->in_bytes - u->z.avail_in;
    *got = bytes - u->z.avail_out;
    u->between = result == Z_STREAM_END;
    if (result == Z_MEM_ERROR)
        return DSC_FAIL(err, DSC_ERR_NOMEM, u->file->path, "no memory to read gzip");
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return fail_damaged(u, u->z.msg, err);
    return DSC_OK;
}

static dsc_status step_zstd(dsc_unpacker *u, void *to, size_t bytes, size_t *got, dsc_error *err)
{
    zstd_out out = { to, bytes, 0 };
    zstd_in in = { u->in, u->in_bytes, u->in_at };
    const size_t result = u->d_step(u->d, &out, &in);
    u->in_at = in.pos;
    *got = out.pos;
    if (u->d_is_error(result))
        return fail_damaged(u, u->d_error_name(result), err);
    u->between = result == 0;
    return DSC_OK;
}

/* Some bytes, or none at the end. */
static dsc_status read_some(dsc_unpacker *u, void *to, int64_t bytes, size_t *got, dsc_error *err)
{
    const size_t most = (size_t)dsc_min_i64(bytes, INT64_C(1) << 30);
    *got = 0;
    while (*got == 0) {
        const bool whole = u->read_bytes == u->file_bytes && u->in_at == u->in_bytes;
        if (whole && u->between)
            return DSC_OK;
        if (u->in_at == u->in_bytes && !whole)
            DSC_TRY(fill(u, err));
        DSC_TRY(u->packing == DSC_PACKING_GZIP ? step_gzip(u, to, most, got, err) : step_zstd(u, to, most, got, err));
        if (whole && *got == 0 && !u->between)
            return DSC_FAIL(err, DSC_ERR_INPUT, u->file->path,
                            "the %s stream is truncated at byte %lld: it has no "
                            "end; copy the file again",
                            format_of(u), (long long)u->file_bytes);
    }
    return DSC_OK;
}

dsc_status dsc_unpacker_read(dsc_unpacker *u, void *to, int64_t bytes, int64_t *got, dsc_error *err)
{
    size_t more = 1;
    for (*got = 0; *got < bytes && more > 0; *got += (int64_t)more) {
        DSC_TRY(read_some(u, (char *)to + *got, dsc_min_i64(bytes - *got, INT64_C(1) << 20), &more, err));
        u->text_bytes += (int64_t)more;
        const int64_t used = dsc_unpacker_position(u);
        if ((u->text_bytes - DSC_UNPACK_FREE_BYTES) / DSC_UNPACK_RATIO_MAX > used)
            return DSC_FAIL(err, DSC_ERR_INPUT, u->file->path,
                            "the first %lld bytes of the %s stream make %lld bytes; "
                            "at most %d for each byte, and %lld MiB, are expected of text; decompress the file before "
                            "the run if that is meant",
                            (long long)used, format_of(u), (long long)u->text_bytes, DSC_UNPACK_RATIO_MAX,
                            (long long)(DSC_UNPACK_FREE_BYTES >> 20));
    }
    return DSC_OK;
}
