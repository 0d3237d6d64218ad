/* aio_open.c - asynchronous files: opening, the choice of the engine, what it keeps mapped and open, closing.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "offload/aio_internal.h"

static const int64_t second_ns = 1000000000;

/* ---- files ---- */

dsc_status dsc_aio_file_open(const char *path, bool create, dsc_aio_file *out, dsc_error *err)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_TRUNC : 0);
    struct stat info;
    out->keeper = NULL;
    out->direct = true;
    out->fd = open(path, flags | O_DIRECT, 0600);
    if (out->fd < 0 && errno == EINVAL) { /* tmpfs and others have no O_DIRECT */
        out->direct = false;
        out->fd = open(path, flags, 0600);
    }
    snprintf(out->path, sizeof out->path, "%s", path);
    if (out->fd < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "cannot be opened: %s", strerror(errno));
    if (fstat(out->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        dsc_aio_file_close(out);
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is not a regular file");
    }
    DSC_ASSERT(out->fd >= 0);
    return DSC_OK;
}

void dsc_aio_file_close(dsc_aio_file *file)
{
    dsc_aio_drop_file(file);
    DSC_ASSERT(file->keeper == NULL); /* the engine does not use the descriptor any more */
    if (file->fd >= 0)
        (void)close(file->fd);
    file->fd = -1;
}

/* ---- open and close ---- */

static const dsc_aio_engine_ops *const engines[] = { &dsc_aio_uring, &dsc_aio_libaio, &dsc_aio_threads };

static dsc_status choose(dsc_aio *aio, dsc_error *err)
{
    const char *wanted = aio->options.engine != NULL ? aio->options.engine : "auto";
    size_t used = 0;
    for (size_t i = 0; i < DSC_COUNT(engines); i++) {
        dsc_error reason = DSC_ERROR_INIT;
        const bool named = strcmp(wanted, engines[i]->name) == 0;
        if (!named && strcmp(wanted, "auto") != 0)
            continue;
        const dsc_status status = engines[i]->open(&aio->options, &aio->state, named ? err : &reason);
        if (status == DSC_OK) {
            DSC_ASSERT(aio->state != NULL);
            aio->ops = engines[i];
            char found[sizeof aio->why];
            snprintf(found, sizeof found, "%s%s%.*s", engines[i]->name,
                     named      ? ", as asked for"
                     : used > 0 ? "; "
                                : ", the first that is tried",
                     (int)used, aio->why);
            memcpy(aio->why, found, sizeof found);
            return DSC_OK;
        }
        if (named || status != DSC_ERR_UNSUPPORTED) {
            if (!named && err != NULL)
                *err = reason;
            return status;
        }
        const int n = snprintf(aio->why + used, sizeof aio->why - used, "%s%s: %.150s", used > 0 ? ", " : "not ",
                               engines[i]->name, reason.message);
        used = (size_t)dsc_min_i64((int64_t)sizeof aio->why - 1, (int64_t)used + n);
        DSC_ASSERT(used < sizeof aio->why);
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "aio engine",
                    "\"%.40s\" is unknown; what exists: auto, io_uring, libaio, threads", wanted);
}

static dsc_status check_options(const dsc_aio_options *options, dsc_error *err)
{
    if (options->block_bytes < 1 || options->block_bytes > (int64_t)1 << 30)
        return DSC_FAIL(err, DSC_ERR_INPUT, "aio.block_size", "%lld is not between 1 and 2^30",
                        (long long)options->block_bytes);
    if (options->queue_depth < 1 || options->queue_depth > DSC_AIO_DEPTH_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "aio.queue_depth", "%d is not between 1 and %d", (int)options->queue_depth,
                        DSC_AIO_DEPTH_MAX);
    if (options->thread_count < 1 || options->thread_count > 256)
        return DSC_FAIL(err, DSC_ERR_INPUT, "aio.thread_count", "%d is not between 1 and 256",
                        (int)options->thread_count);
    return DSC_OK;
}

dsc_status dsc_aio_open(const dsc_aio_options *options, dsc_aio **out, dsc_error *err)
{
    dsc_aio *aio = NULL;
    *out = NULL;
    DSC_TRY(check_options(options, err));
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_IO, 1, sizeof *aio, &aio, err));
    aio->alloc = options->alloc;
    aio->options = *options;
    aio->options.block_bytes = dsc_align_up(options->block_bytes, DSC_AIO_ALIGN);
    if (aio->options.timeout_ns == 0)
        aio->options.timeout_ns = 60 * second_ns;
    DSC_ASSERT(aio->options.block_bytes % DSC_AIO_ALIGN == 0);
    dsc_status status = dsc_alloc_zeroed(aio->alloc, DSC_TAG_IO, options->queue_depth, sizeof *aio->slots, &aio->slots,
                                         err);
    if (status == DSC_OK)
        status = choose(aio, err);
    if (status != DSC_OK) {
        dsc_alloc_free(aio->alloc, aio->slots);
        dsc_alloc_free(aio->alloc, aio);
        return status;
    }
    DSC_ASSERT(aio->ops != NULL);
    *out = aio;
    return DSC_OK;
}

const char *dsc_aio_engine(const dsc_aio *aio) { return aio->ops->name; }
const char *dsc_aio_why(const dsc_aio *aio) { return aio->why; }

const char *dsc_aio_warning(const dsc_aio *aio) { return aio->word; }
bool dsc_aio_is_broken(const dsc_aio *aio) { return aio->broken; }

/* ---- what the engine keeps mapped and open ---- */

static void say_refused(dsc_aio *aio, int64_t bytes, int errno_value)
{
    DSC_ASSERT(errno_value > 0);
    DSC_ASSERT(bytes > 0);
    char reason[96], remedy[128] = "";
    if (errno_value == ENOMEM || errno_value == EPERM || errno_value == EAGAIN)
        dsc_locked_limit_text(remedy, sizeof remedy);
    snprintf(aio->word, sizeof aio->word,
             "%s maps buffers anew for each block, which costs processor time: %.1f MiB are not kept mapped (%s)%s",
             aio->ops->name, (double)bytes / (1 << 20), strerror_r(errno_value, reason, sizeof reason), remedy);
}

dsc_status dsc_aio_register(dsc_aio *aio, void *buf, int64_t bytes, dsc_error *err)
{
    const int64_t most = (int64_t)1 << 30; /* io_uring's for one region */
    if (aio->with_engine > 0 || bytes < 1)
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc_aio_register", "called with operations under way or no bytes");
    for (int64_t at = 0; at < bytes && aio->ops->add_region != NULL; at += most) {
        char *begin = (char *)buf + at;
        const int64_t size = dsc_min_i64(most, bytes - at);
        DSC_ASSERT(size > 0);
        if (aio->region_count == DSC_AIO_REGIONS_MAX)
            break;
        const int failed = aio->ops->add_region(aio->state, begin, size);
        DSC_ASSERT(failed <= 0); /* 0 or -errno */
        if (failed != 0) {
            say_refused(aio, bytes - at, -failed);
            break;
        }
        aio->regions[aio->region_count].begin = begin;
        aio->regions[aio->region_count].end = begin + size;
        aio->region_count++;
    }
    return DSC_OK;
}

bool dsc_aio_keep_file(dsc_aio *aio, dsc_aio_file *file)
{
    const int32_t place = dsc_aio_fixed_fd(aio, NULL);
    if (file->fd < 0 || aio->ops->set_file == NULL)
        return false;
    if (file->keeper != NULL)
        return file->keeper == aio;
    if (place < 0 || !aio->ops->set_file(aio->state, place, file->fd))
        return false;
    DSC_ASSERT(place < DSC_AIO_FILES_MAX);
    DSC_ASSERT(aio->files[place] == NULL);
    aio->files[place] = file;
    file->keeper = aio;
    return true;
}

void dsc_aio_drop_file(dsc_aio_file *file)
{
    dsc_aio *aio = file->keeper;
    file->keeper = NULL;
    const int32_t place = aio != NULL ? dsc_aio_fixed_fd(aio, file) : -1;
    if (place < 0)
        return;
    DSC_ASSERT(aio->files[place] == file);
    DSC_ASSERT(aio->ops->set_file != NULL); /* a file has an index only if the engine keeps files */
    (void)aio->ops->set_file(aio->state, place, -1); /* a place that cannot be emptied is not used until it is set */
    aio->files[place] = NULL;
}

/* ---- close ---- */

static void drain_until(dsc_aio *aio, int64_t end_ns)
{
    DSC_ASSERT(aio->with_engine >= 0);
    while (aio->with_engine > 0 && dsc_clock_ns() < end_ns)
        if (dsc_aio_drain(aio, second_ns / 10) < 0)
            return;
}

void dsc_aio_close(dsc_aio **pointer)
{
    dsc_aio *aio = *pointer;
    if (aio == NULL)
        return;
    *pointer = NULL;
    DSC_ASSERT(aio->ops != NULL);
    if (!aio->broken)
        drain_until(aio, dsc_clock_ns() + aio->options.timeout_ns);
    if (aio->with_engine > 0 && aio->ops->cancel != NULL) {
        aio->ops->cancel(aio->state);
        drain_until(aio, dsc_clock_ns() + dsc_min_i64(aio->options.timeout_ns, 5 * second_ns));
    }
    /* One by one: with the engine itself the kernel lets them go only later, and their space is not free until then. */
    for (int32_t i = 0; i < DSC_AIO_FILES_MAX; i++)
        if (aio->files[i] != NULL)
            dsc_aio_drop_file(aio->files[i]);
    DSC_ASSERT(aio->with_engine <= aio->options.queue_depth);
    aio->ops->close(aio->state);
    dsc_alloc_free(aio->alloc, aio->slots);
    dsc_alloc_free(aio->alloc, aio);
}
