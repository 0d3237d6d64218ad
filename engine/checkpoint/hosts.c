/* hosts.c - see hosts.h.
 *
 * Every rank makes a file with a name that nobody has used before and looks whose it sees: those with the same first
 * one see one folder. Where a file system shows a new file late, ranks of one folder take it for two; their saves then
 * find each other's files and fail, and nothing is spoilt. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/checkpoint/hosts.h"

/* Message of a rank to the others. */
typedef struct word {
    int32_t first; /* rank whose file it sees */
    char host[DSC_CKPT_HOST_BYTES];
} word;

static dsc_status sign_path(char path[DSC_CKPT_PATH_BYTES], const char *dir, uint64_t token, int32_t rank,
                            dsc_error *err)
{
    char name[64];
    DSC_ASSERT(rank >= 0);
    snprintf(name, sizeof name, ".dsc-%016" PRIx64 "-%d", token, (int)rank);
    return dsc_path_join(path, DSC_CKPT_PATH_BYTES, dir, name, err);
}

static dsc_status choose_token(const dsc_ckpt_ctx *c, uint64_t *token, dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    if (dsc_comm_rank(c->comm) == 0 && getrandom(token, sizeof *token, 0) != (ssize_t)sizeof *token)
        status = DSC_FAIL(&mine, DSC_ERR_IO, "getrandom", "no random number: %s", strerror(errno));
    DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
    return dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, token, (int64_t)sizeof *token, 0, NULL, err);
}

static dsc_status make_sign(const dsc_ckpt_ctx *c, const char *dir, const char *path, dsc_error *err)
{
    dsc_file file = DSC_FILE_INIT;
    DSC_TRY(dsc_io_make_dirs(c->io, dir, err));
    DSC_TRY(dsc_io_open(c->io, path, DSC_IO_CREATE_NEW, &file, err));
    return dsc_io_close(c->io, &file, err);
}

static dsc_status look(const dsc_ckpt_ctx *c, const char *dir, uint64_t token, word *mine, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    const int32_t rank = dsc_comm_rank(c->comm);
    for (mine->first = 0; mine->first < rank; mine->first++) {
        DSC_TRY(sign_path(path, dir, token, mine->first, err));
        if (dsc_io_kind(path) == DSC_PATH_FILE)
            break;
    }
    DSC_ASSERT(mine->first <= rank); /* its own file is the last one that it looks for */
    if (gethostname(mine->host, sizeof mine->host - 1) != 0)
        snprintf(mine->host, sizeof mine->host, "rank-%d", (int)rank);
    for (char *at = mine->host; *at != 0; at++) /* as the manifest's reader asks for */
        if ((unsigned char)*at <= 0x20 || (unsigned char)*at >= 0x7f)
            *at = '?';
    return DSC_OK;
}

static dsc_status look_on_all_ranks(const dsc_ckpt_ctx *c, const char *dir, uint64_t token, word *all, dsc_error *err)
{
    word own = { .first = 0 };
    dsc_error mine = DSC_ERROR_INIT;
    DSC_TRY(dsc_ckpt_agree(c, look(c, dir, token, &own, &mine), &mine, err));
    return dsc_comm_all_gather(c->comm, DSC_CHANNEL_CONTROL, all, &own, (int64_t)sizeof own, DSC_U8, NULL, err);
}

static void number(const dsc_ckpt_ctx *c, const word *all, dsc_ckpt_hosts *out)
{
    for (int32_t r = 0; r < dsc_comm_size(c->comm); r++) {
        if (all[r].first == r) {
            out->leader[out->count] = r;
            memcpy(out->name[out->count], all[r].host, DSC_CKPT_HOST_BYTES);
            out->of_rank[r] = out->count++;
        } else {
            out->of_rank[r] = out->of_rank[all[r].first]; /* host of an earlier rank */
        }
    }
    out->mine = out->of_rank[dsc_comm_rank(c->comm)];
    DSC_ASSERT(out->count >= 1);
    DSC_ASSERT(out->count <= dsc_comm_size(c->comm));
}

static dsc_status meet(const dsc_ckpt_ctx *c, const char *dir, word *all, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    uint64_t token = 0;
    dsc_error mine = DSC_ERROR_INIT;
    DSC_TRY(choose_token(c, &token, err));
    dsc_status status = sign_path(path, dir, token, dsc_comm_rank(c->comm), &mine);
    if (status == DSC_OK)
        status = make_sign(c, dir, path, &mine);
    const bool wrote_sign = status == DSC_OK;
    status = dsc_ckpt_agree(c, status, &mine, err);
    if (status == DSC_OK)
        status = look_on_all_ranks(c, dir, token, all, err);
    if (wrote_sign && dsc_io_unlink(c->io, path, &mine) != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "%s was not removed: %s", path, mine.message);
    return status;
}

static dsc_status take_room(const dsc_ckpt_ctx *c, dsc_ckpt_hosts *out, word **all, dsc_error *err)
{
    const int64_t size = dsc_comm_size(c->comm);
    DSC_ASSERT(out->of_rank == NULL);
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *out->of_rank, &out->of_rank, err));
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *out->leader, &out->leader, err));
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *out->name, &out->name, err));
    return dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof **all, all, err);
}

dsc_status dsc_ckpt_hosts_open(const dsc_ckpt_ctx *c, const char *dir, dsc_ckpt_hosts *out, dsc_error *err)
{
    word *all = NULL;
    dsc_error mine = DSC_ERROR_INIT;
    *out = (dsc_ckpt_hosts) { .alloc = c->alloc, .count = c->node_local ? 0 : 1 };
    if (!c->node_local)
        return DSC_OK;
    dsc_status status = take_room(c, out, &all, &mine);
    status = dsc_ckpt_agree(c, status, &mine, err);
    if (status == DSC_OK)
        status = meet(c, dir, all, err);
    if (status == DSC_OK)
        number(c, all, out);
    dsc_alloc_free(c->alloc, all);
    DSC_ASSERT(status != DSC_OK || out->mine < out->count);
    return status;
}

void dsc_ckpt_hosts_close(dsc_ckpt_hosts *hosts)
{
    if (hosts->alloc != NULL) {
        dsc_alloc_free(hosts->alloc, hosts->of_rank);
        dsc_alloc_free(hosts->alloc, hosts->leader);
        dsc_alloc_free(hosts->alloc, hosts->name);
    }
    *hosts = (dsc_ckpt_hosts) { 0 };
}
