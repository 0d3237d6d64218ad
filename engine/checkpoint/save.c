/* save.c - collective save: every owner writes its byte ranges, rank 0 makes and commits the folder.
 *
 * After each phase all ranks agree (dsc_ckpt_agree); whatever fails, rank 0 takes the half-made folder away. How
 * a folder becomes a checkpoint, and what happens to one that is there already, is in commit.c. If hosts
 * have folders of their own (hosts.h), the first rank of each does there what rank 0 does of one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/checkpoint/save.h"
#include "engine/checkpoint/spread.h"

/* ---- a folder's first rank: folder and files ---- */

/* Size of the whole folder: a block takes 32 bytes of tensor and 64 of text in the manifest at most. */
static int64_t folder_bytes(const dsc_ckpt_save_state *s)
{
    const dsc_model_carried *carried = s->c->model->carried;
    const int64_t sequences = s->c->reference.train_count + s->c->reference.eval_count;
    int64_t bytes = (1 << 20) + s->buffers_bytes + sequences * (int64_t)sizeof(dsc_data_reference) +
                    (carried != NULL ? carried->file_bytes : 0);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        DSC_ASSERT(s->plan[f].file_bytes >= s->plan[f].header_bytes);
        bytes += s->plan[f].file_bytes + s->info[f].bytes / (DSC_CKPT_BLOCK_BYTES / 64);
    }
    return bytes;
}

/* A disk that is full says so now, not in the middle of a tensor; where the file system cannot be asked, then. */
static dsc_status take_space(const dsc_io *io, dsc_file *file, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    bool taken;
    dsc_error reason = DSC_ERROR_INIT;
    const dsc_status status = dsc_io_reserve(io, file, bytes, &taken, &reason);
    if (status == DSC_OK)
        return DSC_OK;
    /* It is the disk that has not the room, not this machine's memory. */
    return DSC_FAIL(err, status == DSC_ERR_NOFIT ? DSC_ERR_IO : status, reason.where, "%s", reason.message);
}

/* Files of the right size, so that every owner can write its ranges. */
static dsc_status make_files(dsc_ckpt_save_state *s, dsc_error *err)
{
    const dsc_io *io = s->c->io;
    DSC_ASSERT(dsc_ckpt_save_leads(s));
    DSC_TRY(dsc_ckpt_commit_begin(&s->commit, folder_bytes(s), err));
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        char path[DSC_CKPT_PATH_BYTES];
        DSC_TRY(dsc_path_join(path, sizeof path, s->commit.tmp_dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &s->writer.file[f], err));
        DSC_TRY(take_space(io, &s->writer.file[f], s->plan[f].file_bytes, err));
        DSC_TRY(dsc_safetensors_write_header(&s->plan[f], io, &s->writer.file[f], err));
    }
    return DSC_OK;
}

dsc_status dsc_ckpt_save_begin(dsc_ckpt_save_state *s, dsc_error *err)
{
    DSC_ASSERT(s->c != NULL);
    DSC_ASSERT(s->state != NULL);
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_ckpt_save_plan(s, &mine);
    DSC_TRY(dsc_ckpt_agree(s->c, status, &mine, err));
    status = dsc_ckpt_save_leads(s) ? make_files(s, &mine) : DSC_OK;
    return dsc_ckpt_agree(s->c, status, &mine, err);
}

/* ---- the manifest ---- */

/* `to` takes every rank's blocks, in order of ranks. */
static dsc_status collect(dsc_ckpt_save_state *s, int32_t to, dsc_error *err)
{
    const dsc_ckpt_ctx *c = s->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    const int64_t *first = s->first_block, each = (int64_t)sizeof *s->block;
    DSC_ASSERT(to < size);
    DSC_ASSERT(first[rank] <= first[rank + 1]);
    if (rank != to) {
        const int64_t bytes = (first[rank + 1] - first[rank]) * each;
        return dsc_comm_send(c->comm, DSC_CHANNEL_CONTROL, s->block, bytes, to, NULL, err);
    }
    DSC_ASSERT(s->all != NULL); /* first ranks of folders have planned memory for it */
    memcpy(s->all + first[rank], s->block, (size_t)((first[rank + 1] - first[rank]) * each));
    for (int32_t r = 0; r < size; r++)
        if (r != rank)
            DSC_TRY(dsc_comm_recv(c->comm, DSC_CHANNEL_CONTROL, s->all + first[r], (first[r + 1] - first[r]) * each, r,
                                  NULL, err));
    return DSC_OK;
}

dsc_status dsc_ckpt_save_collect(dsc_ckpt_save_state *s, dsc_error *err)
{
    DSC_ASSERT(s->hosts.count >= 1);
    for (int32_t h = 0; h < s->hosts.count; h++)
        DSC_TRY(collect(s, dsc_ckpt_leader(&s->hosts, h), err));
    return DSC_OK;
}

static void tell(void *user, const char *name)
{
    const dsc_ckpt_save_state *s = *(dsc_ckpt_save_state **)user;
    dsc_log_printf(s->c->log, DSC_LOG_DEBUG, "%s/%s is removed", s->commit.dir, name);
}

/* The save has succeeded: whatever goes wrong here is not its failure. */
static void remove_older(dsc_ckpt_save_state *s)
{
    const dsc_ckpt_ctx *c = s->c;
    dsc_ckpt_keep keep = c->keep;
    dsc_error err = DSC_ERROR_INIT;
    DSC_ASSERT(dsc_ckpt_save_leads(s));
    DSC_ASSERT(keep.last >= 0);
    if (keep.last == 0)
        return;
    keep.unfinished = true;
    keep.on_remove = tell;
    keep.user = &s;
    if (dsc_ckpt_prune(c->io, c->alloc, s->commit.dir, &keep, &err) != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "older checkpoints could not be removed: %s: %s", err.where,
                       err.message);
}

static dsc_status copy_companions(dsc_ckpt_save_state *s, dsc_error *err)
{
    const dsc_ckpt_ctx *c = s->c;
    dsc_ckpt_companion_list *list = &s->companions;
    dsc_ckpt_file_info *info = &s->info[DSC_CKPT_COMPANIONS];
    DSC_ASSERT(list->bytes == 0);
    DSC_TRY(dsc_ckpt_copy_companions(c->io, &c->companions, s->commit.tmp_dir, list, err));
    DSC_TRY(dsc_ckpt_write_carried(c->io, c->model->carried, s->commit.tmp_dir, list, err));
    if (list->bytes == 0)
        return DSC_OK;
    *info = (dsc_ckpt_file_info){ .bytes = list->bytes, .head_bytes = list->bytes };
    dsc_ckpt_sha256(list->text, list->bytes, info->sha256);
    return dsc_ckpt_commit_file(&s->commit, dsc_ckpt_file_name[DSC_CKPT_COMPANIONS], list->text, list->bytes, err);
}

static dsc_status prepare(dsc_ckpt_save_state *s, dsc_error *err)
{
    const dsc_ckpt_ctx *c = s->c;
    dsc_ckpt_parts parts;
    char *text = NULL;
    int64_t bytes;
    DSC_ASSERT(dsc_ckpt_save_leads(s));
    DSC_ASSERT(s->sorted != NULL);
    for (int f = DSC_CKPT_TENSOR_FILE_COUNT; f < DSC_CKPT_FILE_COUNT; f++) {
        const char *small = dsc_ckpt_save_text(s, (dsc_ckpt_file)f, &bytes);
        if (small != NULL)
            DSC_TRY(dsc_ckpt_commit_file(&s->commit, dsc_ckpt_file_name[f], small, bytes, err));
    }
    DSC_TRY(copy_companions(s, err));
    DSC_TRY(dsc_ckpt_write_reference(c->io, &c->reference, s->commit.tmp_dir, err));
    dsc_ckpt_save_sort(s);
    DSC_TRY(dsc_ckpt_manifest_write(c->alloc, s->state, &s->entries, s->info, dsc_ckpt_save_parts(s, &parts), s->sorted,
                                    s->first_block[dsc_comm_size(c->comm)], &text, &bytes, err));
    const dsc_status status = dsc_ckpt_commit_prepare(&s->commit, text, bytes, err);
    dsc_alloc_free(c->alloc, text);
    return status;
}

/* ---- the commit ---- */

enum { PREPARE, NAME, ANNOUNCE, REMOVE_OLDER, STAGES };

int dsc_ckpt_save_stages(const dsc_ckpt_save_state *s)
{
    DSC_ASSERT(s->hosts.count >= 1);
    return s->hosts.count > 1 ? STAGES : 1;
}

static dsc_status commit_stage(dsc_ckpt_save_state *s, int stage, dsc_error *err)
{
    DSC_ASSERT(stage < STAGES);
    switch (stage) {
    case PREPARE: return prepare(s, err);
    case NAME: return dsc_ckpt_commit_name(&s->commit, err);
    case ANNOUNCE: return dsc_ckpt_commit_announce(&s->commit, err);
    default: break;
    }
    remove_older(s);
    return DSC_OK;
}

dsc_status dsc_ckpt_save_commit(dsc_ckpt_save_state *s, int stage, dsc_error *err)
{
    DSC_ASSERT(stage >= 0);
    const int last = s->hosts.count > 1 ? stage : STAGES - 1;
    for (; stage <= last && dsc_ckpt_save_leads(s); stage++)
        DSC_TRY(commit_stage(s, stage, err));
    return DSC_OK;
}

static bool is_peers(dsc_status status)
{
    return status == DSC_ERR_PEER || status == DSC_ERR_STUCK || status == DSC_ERR_COMM;
}

/* When a rank is lost while others learn the verdict, they may have gone on. A folder that has its name then stays,
 * since another host may have announced it and removed what is older. */
dsc_status dsc_ckpt_save_agree(dsc_ckpt_save_state *s, int stage, dsc_status mine, const dsc_error *my_error,
                               dsc_error *err)
{
    DSC_ASSERT(stage >= 0);
    DSC_ASSERT(stage < dsc_ckpt_save_stages(s));
    const dsc_status status = dsc_ckpt_agree(s->c, mine, my_error, err);
    if (s->hosts.count > 1 && (status == DSC_OK ? stage >= ANNOUNCE : stage >= NAME && is_peers(status)))
        dsc_ckpt_commit_settle(&s->commit);
    return status;
}

bool dsc_ckpt_save_undoes(const dsc_ckpt_save_state *s, int stage, bool done)
{
    DSC_ASSERT(stage >= 0);
    return dsc_ckpt_save_leads(s) && (s->hosts.count > 1 ? stage < ANNOUNCE : !done);
}

/* ---- the whole ---- */

void dsc_ckpt_save_undo(dsc_ckpt_save_state *s)
{
    dsc_ckpt_commit_undo(&s->commit);
    /* The others stay until rank 0 is done: a launcher ends all ranks when the first one ends. */
    (void)!dsc_ckpt_agree(s->c, DSC_OK, NULL, NULL);
}

dsc_status dsc_ckpt_save_synchronize(dsc_ckpt_save_state *s, dsc_error *err)
{
    DSC_TRY(dsc_ckpt_hosts_open(s->c, s->commit.dir, &s->hosts, err));
    DSC_ASSERT(s->hosts.mine < s->hosts.count);
    s->commit.part = s->hosts.count > 1;
    return DSC_OK;
}

/* The checkpoint that this run was loaded from is what it would save now: is it still there? A host that has no folder
 * of it needs none. */
dsc_status dsc_ckpt_save_keep(dsc_ckpt_save_state *s, bool *kept, dsc_error *err)
{
    const dsc_ckpt_ctx *c = s->c;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    *kept = false;
    if (s->commit.resumed_step != s->state->step)
        return DSC_OK;
    DSC_ASSERT(s->state->step >= 0); /* a resumed step of -1 equals no step */
    if (s->hosts.count > 1)
        DSC_TRY(dsc_ckpt_parts_there(c, s->commit.step_dir, kept, err));
    if (dsc_ckpt_save_leads(s) && (*kept || s->hosts.count == 1))
        status = dsc_ckpt_commit_keep_resumed(&s->commit, kept, &mine);
    DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
    DSC_TRY(dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, kept, (int64_t)sizeof *kept, 0, NULL, err));
    if (!*kept)
        s->commit.resumed_step = -1; /* it was moved away: this save is like any other */
    return DSC_OK;
}

static dsc_status write_and_commit(dsc_ckpt_save_state *s, dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    DSC_TRY(dsc_ckpt_save_begin(s, err));
    DSC_ASSERT(s->first_block != NULL);
    dsc_status status = dsc_ckpt_save_slices(s, &mine);
    DSC_TRY(dsc_ckpt_agree(s->c, status, &mine, err));
    DSC_TRY(dsc_ckpt_save_collect(s, err));
    for (int stage = 0; stage < dsc_ckpt_save_stages(s); stage++) {
        status = dsc_ckpt_save_commit(s, stage, &mine);
        DSC_TRY(dsc_ckpt_save_agree(s, stage, status, &mine, err));
    }
    return DSC_OK;
}

static dsc_status save(dsc_ckpt_save_state *s, dsc_error *err)
{
    bool kept;
    DSC_TRY(dsc_ckpt_save_synchronize(s, err));
    DSC_TRY(dsc_ckpt_save_keep(s, &kept, err));
    DSC_ASSERT(!kept || s->commit.resumed_step == s->state->step);
    if (kept)
        return DSC_OK;
    const dsc_status status = write_and_commit(s, err);
    if (status != DSC_OK)
        dsc_ckpt_save_undo(s);
    return status;
}

dsc_status dsc_ckpt_save(const dsc_ckpt_ctx *ctx, const char *dir, const dsc_run_state *state, int64_t resumed_step,
                         dsc_error *err)
{
    DSC_ASSERT(dir != NULL);
    DSC_ASSERT(state != NULL);
    dsc_ckpt_save_state *s = NULL;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_ckpt_save_open(ctx, dir, state, resumed_step, &s, &mine);
    status = dsc_ckpt_agree(ctx, status, &mine, err);
    if (status == DSC_OK)
        status = save(s, err);
    dsc_ckpt_save_close(&s);
    return status;
}
