/* unigram.c - the best split is found from the left: each position keeps the best split that ends there (Viterbi). Sums
 * and ties are those of the tokenizers package, so that equal scores give equal splits.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/unigram.h"

#include "engine/text/unicode.h"

void dsc_unigram_work_free(dsc_unigram_work *work)
{
    dsc_alloc_free(work->alloc, work->node);
    *work = (dsc_unigram_work){ .alloc = work->alloc };
}

static dsc_status reserve(dsc_unigram_work *work, int64_t count, dsc_error *err)
{
    if (count <= work->capacity)
        return DSC_OK;
    if (count > INT32_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer", "one text of %lld bytes after its normalizer; at most %d are "
                        "encoded", (long long)count, INT32_MAX);
    dsc_unigram_work_free(work);
    const int64_t capacity = dsc_max_i64(count, dsc_min_i64(2 * count, 4096));
    DSC_TRY(dsc_alloc_zeroed(work->alloc, DSC_TAG_DATA, capacity, sizeof *work->node, &work->node, err));
    work->capacity = capacity;
    return DSC_OK;
}

static void offer(dsc_unigram_node *end, double score, int32_t id, int32_t from)
{
    if (end->from < 0 || score > end->score)
        *end = (dsc_unigram_node){ .score = score, .id = id, .from = from };
}

/* Each position's best split. A position inside a character stays without one. */
static dsc_status find_best(const dsc_unigram *model, dsc_unigram_node *best, const char *text, int64_t bytes,
                            dsc_error *err)
{
    int length;
    for (int64_t i = 0; i <= bytes; i++)
        best[i] = (dsc_unigram_node){ .from = -1 };
    for (int64_t at = 0; at < bytes; at += length) {
        const double here = best[at].score;
        int32_t node = 0, id = -1;
        bool covered = false;
        (void)dsc_char_at(text + at, &length);
        for (int64_t end = at; end < bytes; end++) {
            node = dsc_tree_step(&model->pieces, node, text[end], &id);
            if (node < 0)
                break;
            if (id < 0)
                continue;
            offer(&best[end + 1], model->score[id] + here, id, (int32_t)at);
            covered |= end + 1 - at == length;
        }
        if (covered)
            continue;
        const double score = model->unknown_score + here;
        if (model->unk < 0 && (best[at + length].from < 0 || score > best[at + length].score))
            return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer", "the character \"%.*s\" is not in the vocabulary, and the "
                            "model has no unk_id for it", length, text + at);
        offer(&best[at + length], score, model->unk, (int32_t)at);
    }
    return DSC_OK;
}

static int32_t find_piece(const dsc_unigram *model, const char *text, int64_t bytes)
{
    int32_t node = 0, id = -1;
    for (int64_t i = 0; i < bytes && node >= 0; i++)
        node = dsc_tree_step(&model->pieces, node, text[i], &id);
    return node < 0 ? -1 : id;
}

/* Unknown characters in a row, which may together be a piece, as in the tokenizers package. */
static dsc_status add_unknown(const dsc_unigram *model, const char *text, int64_t bytes, dsc_ids *out, dsc_error *err)
{
    const int32_t piece = find_piece(model, text, bytes);
    bool known = model->byte_fallback && piece < 0;
    for (int64_t i = 0; i < bytes && known; i++)
        known = model->byte_id[(unsigned char)text[i]] >= 0;
    if (!known)
        return dsc_ids_add(out, piece >= 0 ? piece : model->unk, err);
    DSC_TRY(dsc_ids_reserve(out, bytes, err));
    for (int64_t i = 0; i < bytes; i++)
        DSC_TRY(dsc_ids_add(out, model->byte_id[(unsigned char)text[i]], err));
    return DSC_OK;
}

/* Turns the links of the best split around: best[at].from <- the end of the piece at `at`. */
static void turn_around(dsc_unigram_node *best, int64_t bytes)
{
    int32_t next = -1;
    for (int32_t end = (int32_t)bytes; end >= 0;) {
        const int32_t from = end > 0 ? best[end].from : -1;
        best[end].from = next;
        next = end;
        end = from;
    }
}

dsc_status dsc_unigram_encode(const dsc_unigram *model, dsc_unigram_work *work, const char *text, int64_t bytes,
                              dsc_ids *out, dsc_error *err)
{
    DSC_ASSERT(bytes > 0);
    DSC_TRY(reserve(work, bytes + 1, err));
    dsc_unigram_node *const best = work->node;
    DSC_TRY(find_best(model, best, text, bytes, err));
    turn_around(best, bytes);
    for (int64_t at = 0, end; at < bytes; at = end) {
        end = best[at].from;
        const int32_t id = best[end].id;
        if (id != model->unk) {
            DSC_TRY(dsc_ids_add(out, id, err));
            continue;
        }
        while (end < bytes && best[best[end].from].id == model->unk)
            end = best[end].from;
        DSC_TRY(add_unknown(model, text + at, end - at, out, err));
    }
    return DSC_OK;
}
