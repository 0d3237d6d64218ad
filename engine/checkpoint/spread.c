/* spread.c - see spread.h.
 *
 * Each rank looks into the folder that it sees and says what it found; from all these words every rank comes to the
 * same choice. A save that was cut short between two hosts leaves one that is whole on all of them: the one before or
 * the new one (save.h). The file `latest` of some host names it. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/spread.h"

#define NAMED INT64_MAX /* the folder itself is a checkpoint */

/* View that a rank has of a checkpoint. */
typedef struct holding {
    int32_t part, parts; /* parts 0: nothing */
    uint8_t id[32];
} holding;

static dsc_status gather(const dsc_ckpt_ctx *c, void *all, const void *mine, size_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes > 0);
    return dsc_comm_all_gather(c->comm, DSC_CHANNEL_CONTROL, all, mine, (int64_t)bytes, DSC_U8, NULL, err);
}

/* ---- what is there ---- */

static dsc_status look(const dsc_ckpt_ctx *c, const char *step_dir, holding *out, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_ckpt_manifest manifest;
    DSC_ASSERT(out->parts == 0); /* nothing is seen yet */
    DSC_TRY(dsc_path_join(path, sizeof path, step_dir, DSC_CKPT_MANIFEST_FILE, err));
    if (dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_manifest_read(c->io, c->alloc, step_dir, &manifest, err));
    out->part = manifest.parts.index;
    out->parts = manifest.parts.count;
    dsc_ckpt_manifest_id(&manifest, out->id);
    dsc_ckpt_manifest_close(&manifest);
    return DSC_OK;
}

static dsc_status look_on_all_ranks(const dsc_ckpt_ctx *c, const char *step_dir, holding *all, dsc_error *err)
{
    holding own = { .parts = 0 };
    dsc_error mine = DSC_ERROR_INIT;
    const dsc_status status = look(c, step_dir, &own, &mine);
    DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
    return gather(c, all, &own, sizeof own, err);
}

static bool of_one_save(const holding *a, const holding *b)
{
    return a->parts == b->parts && memcmp(a->id, b->id, sizeof a->id) == 0;
}

/* The first part of what rank `of` sees that no rank sees; -1: all are seen. */
static int32_t missing_part(const holding *all, int32_t size, int32_t of)
{
    DSC_ASSERT(of >= 0);
    DSC_ASSERT(of < size);
    for (int32_t p = 0; p < all[of].parts; p++) {
        int32_t r = 0;
        while (r < size && !(of_one_save(&all[r], &all[of]) && all[r].part == p))
            r++;
        if (r == size)
            return p;
    }
    return -1;
}

/* A rank that sees a part of one that is whole over all; -1: there is none. */
static int32_t find_root(const holding *all, int32_t size)
{
    DSC_ASSERT(size >= 1);
    for (int32_t r = 0; r < size; r++)
        if (all[r].parts > 0 && missing_part(all, size, r) < 0)
            return r;
    return -1;
}

dsc_status dsc_ckpt_parts_there(const dsc_ckpt_ctx *c, const char *step_dir, bool *there, dsc_error *err)
{
    const int32_t size = dsc_comm_size(c->comm);
    holding *all = NULL;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *all, &all, &mine);
    status = dsc_ckpt_agree(c, status, &mine, err);
    if (status == DSC_OK)
        status = look_on_all_ranks(c, step_dir, all, err);
    *there = status == DSC_OK && find_root(all, size) >= 0;
    dsc_alloc_free(c->alloc, all);
    return status;
}

/* ---- which one ---- */

typedef struct choice {
    const dsc_ckpt_ctx *c;
    const char *dir;
    int64_t *step; /* [W] what each rank's `latest` names; NAMED, or -1: nothing */
    holding *all;  /* [W] */
    int32_t root;
    dsc_status refused; /* this rank's word on the newest one, that it is not whole */
    dsc_error why;
} choice;

static dsc_status find_steps(choice *ch, dsc_error *err)
{
    const dsc_ckpt_ctx *c = ch->c;
    char found[DSC_CKPT_PATH_BYTES];
    dsc_error mine = DSC_ERROR_INIT;
    int64_t own = -1;
    bool any = false;
    DSC_ASSERT(ch->root < 0); /* nothing is chosen yet */
    const dsc_status status = dsc_ckpt_find(c->io, c->alloc, ch->dir, found, sizeof found, &mine);
    if (status == DSC_OK)
        own = strcmp(found, ch->dir) == 0 ? NAMED : dsc_ckpt_step_of(found);
    DSC_TRY(gather(c, ch->step, &own, sizeof own, err));
    for (int32_t r = 0; r < dsc_comm_size(c->comm); r++)
        any |= ch->step[r] >= 0;
    return any ? DSC_OK : dsc_ckpt_agree(c, status, &mine, err);
}

/* The newest of them, or the newest before `before`; -1: none. */
static int64_t newest(const choice *ch, int64_t before)
{
    int64_t best = -1;
    for (int32_t r = 0; r < dsc_comm_size(ch->c->comm); r++)
        if (ch->step[r] > best && (before < 0 || ch->step[r] < before))
            best = ch->step[r];
    DSC_ASSERT(before < 0 || best < before);
    return best;
}

static dsc_status name_step(const choice *ch, int64_t step, char step_dir[DSC_CKPT_PATH_BYTES], dsc_error *err)
{
    DSC_ASSERT(step >= 0);
    char name[64];
    snprintf(name, sizeof name, "step-%lld", (long long)step);
    if (step != NAMED)
        return dsc_ckpt_file_path(step_dir, ch->dir, name, err);
    if ((size_t)snprintf(step_dir, DSC_CKPT_PATH_BYTES, "%s", ch->dir) >= DSC_CKPT_PATH_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, ch->dir, "the path is too long");
    return DSC_OK;
}

/* The first rank that sees some of it says what is missing. */
static void refuse(choice *ch, int64_t step, const char *step_dir)
{
    const dsc_ckpt_ctx *c = ch->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    dsc_ckpt_manifest manifest;
    int32_t teller = 0;
    DSC_ASSERT(step >= 0);
    DSC_ASSERT(ch->refused == DSC_OK);
    while (teller < size && ch->all[teller].parts == 0)
        teller++;
    if (teller == size) { /* nobody has its manifest */
        for (teller = 0; ch->step[teller] != step;)
            teller++;
        if (rank == teller)
            ch->refused = DSC_FAIL(&ch->why, DSC_ERR_INPUT, step_dir, "is not a checkpoint: it has no manifest.json");
        return;
    }
    if (rank != teller)
        return;
    const int32_t part = missing_part(ch->all, size, rank);
    ch->refused = dsc_ckpt_manifest_read(c->io, c->alloc, step_dir, &manifest, &ch->why);
    if (ch->refused != DSC_OK)
        return;
    ch->refused = DSC_FAIL(&ch->why, DSC_ERR_INPUT, step_dir, "part %d of %d, which host %s saved, is on no host of "
                           "this job; run there too, copy it to one of them, or load an older checkpoint by name",
                           (int)part + 1, (int)ch->all[rank].parts, manifest.parts.host[part]);
    dsc_ckpt_manifest_close(&manifest);
}

static dsc_status choose(choice *ch, char step_dir[DSC_CKPT_PATH_BYTES], dsc_error *err)
{
    const dsc_ckpt_ctx *c = ch->c;
    const int32_t size = dsc_comm_size(c->comm);
    int64_t first, step;
    DSC_TRY(find_steps(ch, err));
    first = step = newest(ch, -1);
    for (; step >= 0; step = step == NAMED ? -1 : newest(ch, step)) { /* one that was named is that one or none */
        dsc_error mine = DSC_ERROR_INIT;
        const dsc_status status = name_step(ch, step, step_dir, &mine);
        DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
        DSC_TRY(look_on_all_ranks(c, step_dir, ch->all, err));
        ch->root = find_root(ch->all, size);
        DSC_ASSERT(ch->root < size);
        if (ch->root >= 0)
            break;
        if (step == first)
            refuse(ch, step, step_dir);
    }
    if (step < 0)
        return dsc_ckpt_agree(c, ch->refused, &ch->why, err);
    if (ch->refused != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "%s: %s; the run goes on from step %lld, which is whole", ch->why.where,
                       ch->why.message, (long long)step);
    return DSC_OK;
}

/* ---- opened everywhere ---- */

static bool sees_it(const choice *ch, int32_t rank)
{
    DSC_ASSERT(ch->root >= 0); /* one was chosen */
    return of_one_save(&ch->all[rank], &ch->all[ch->root]);
}

/* Rank `root` gives its texts to those who see nothing of the checkpoint. */
static dsc_status give_texts(const choice *ch, dsc_ckpt_texts *texts, dsc_error *err)
{
    const dsc_ckpt_ctx *c = ch->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    DSC_ASSERT(sees_it(ch, ch->root));
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, texts->bytes, (int64_t)sizeof texts->bytes, ch->root, NULL,
                               err));
    for (size_t i = 0; i < DSC_COUNT(texts->text) && !sees_it(ch, rank) && status == DSC_OK; i++)
        status = dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, texts->bytes[i] + 1, 1, &texts->text[i], &mine);
    DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
    for (int32_t to = 0; to < size; to++)
        for (size_t i = 0; i < DSC_COUNT(texts->text) && !sees_it(ch, to); i++) {
            if (rank == ch->root)
                DSC_TRY(dsc_comm_send(c->comm, DSC_CHANNEL_CONTROL, texts->text[i], texts->bytes[i], to, NULL, err));
            if (rank == to)
                DSC_TRY(dsc_comm_recv(c->comm, DSC_CHANNEL_CONTROL, texts->text[i], texts->bytes[i], ch->root, NULL,
                                      err));
        }
    return DSC_OK;
}

static dsc_status open_far(const choice *ch, const char *step_dir, dsc_ckpt_texts *texts, dsc_ckpt_reader *reader,
                           bool *open, dsc_error *err)
{
    const dsc_ckpt_ctx *c = ch->c;
    DSC_ASSERT(ch->root < dsc_comm_size(c->comm));
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    if (dsc_comm_rank(c->comm) == ch->root)
        status = dsc_ckpt_texts_read(reader, step_dir, texts, &mine);
    DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
    DSC_TRY(give_texts(ch, texts, err));
    if (!sees_it(ch, dsc_comm_rank(c->comm))) {
        status = dsc_ckpt_reader_open_texts(c->alloc, step_dir, texts, reader, &mine);
        *open = status == DSC_OK;
    }
    return dsc_ckpt_agree(c, status, &mine, err);
}

static dsc_status open_all(const choice *ch, const char *step_dir, dsc_ckpt_reader *reader, bool *open, dsc_error *err)
{
    const dsc_ckpt_ctx *c = ch->c;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    bool far = false;
    DSC_ASSERT(!*open);
    for (int32_t r = 0; r < dsc_comm_size(c->comm); r++)
        far |= !sees_it(ch, r);
    if (sees_it(ch, dsc_comm_rank(c->comm))) {
        status = dsc_ckpt_reader_open(c->io, c->alloc, step_dir, reader, &mine);
        *open = status == DSC_OK;
    }
    DSC_TRY(dsc_ckpt_agree(c, status, &mine, err));
    if (!far)
        return DSC_OK;
    dsc_ckpt_texts texts = { .bytes = { 0 } };
    status = open_far(ch, step_dir, &texts, reader, open, err);
    dsc_ckpt_texts_close(&texts, c->alloc);
    return status;
}

static void tell_who(const choice *ch, dsc_ckpt_spread *out)
{
    const int32_t parts = ch->all[ch->root].parts;
    DSC_ASSERT(parts >= 1);
    DSC_ASSERT(parts <= dsc_comm_size(ch->c->comm)); /* each is some rank's */
    out->everywhere = parts == 1;
    for (int32_t r = dsc_comm_size(ch->c->comm); r-- > 0;) {
        out->part_of_rank[r] = sees_it(ch, r) ? ch->all[r].part : -1;
        out->everywhere &= sees_it(ch, r);
        if (sees_it(ch, r))
            out->first_with[ch->all[r].part] = r;
    }
}

static dsc_status take_room(const dsc_ckpt_ctx *c, choice *ch, dsc_ckpt_spread *out, dsc_error *err)
{
    const int64_t size = dsc_comm_size(c->comm);
    DSC_ASSERT(ch->step == NULL);
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *ch->step, &ch->step, err));
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *ch->all, &ch->all, err));
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *out->part_of_rank, &out->part_of_rank, err));
    /* Every part of the one that is chosen is some rank's. */
    return dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size, sizeof *out->first_with, &out->first_with, err);
}

dsc_status dsc_ckpt_spread_open(const dsc_ckpt_ctx *c, const char *dir, char step_dir[DSC_CKPT_PATH_BYTES],
                                dsc_ckpt_reader *reader, dsc_ckpt_spread *out, dsc_error *err)
{
    choice ch = { .c = c, .dir = dir, .root = -1, .why = DSC_ERROR_INIT };
    dsc_error mine = DSC_ERROR_INIT;
    bool open = false;
    *out = (dsc_ckpt_spread) { .alloc = c->alloc };
    dsc_status status = take_room(c, &ch, out, &mine);
    status = dsc_ckpt_agree(c, status, &mine, err);
    if (status == DSC_OK)
        status = choose(&ch, step_dir, err);
    if (status == DSC_OK)
        status = open_all(&ch, step_dir, reader, &open, err);
    if (status == DSC_OK)
        tell_who(&ch, out);
    DSC_ASSERT(status != DSC_OK || ch.root >= 0);
    dsc_alloc_free(c->alloc, ch.all);
    dsc_alloc_free(c->alloc, ch.step);
    if (status == DSC_OK)
        return DSC_OK;
    if (open)
        dsc_ckpt_reader_close(reader);
    dsc_ckpt_spread_close(out);
    return status;
}

void dsc_ckpt_spread_close(dsc_ckpt_spread *spread)
{
    if (spread->alloc != NULL) {
        dsc_alloc_free(spread->alloc, spread->part_of_rank);
        dsc_alloc_free(spread->alloc, spread->first_with);
    }
    *spread = (dsc_ckpt_spread) { 0 };
}
