/* wordpiece.c - see wordpiece.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/wordpiece.h"

static bool is_too_long(const dsc_wordpiece *model, const char *word, int64_t bytes)
{
    int64_t chars = 0;
    if (bytes > 4 * model->chars_max)
        return true;
    for (int64_t i = 0; i < bytes; i++)
        chars += ((unsigned char)word[i] & 0xc0) != 0x80;
    return chars > model->chars_max;
}

dsc_status dsc_wordpiece_encode(const dsc_wordpiece *model, const char *word, int64_t bytes, dsc_ids *out,
                                dsc_error *err)
{
    const int64_t before = out->count;
    const bool too_long = is_too_long(model, word, bytes);
    int64_t at = 0, length = 0;
    while (at < bytes && !too_long) {
        const int32_t node = at == 0 ? 0 : model->inside;
        const int32_t id = node < 0 ? -1 : dsc_tree_longest(&model->pieces, node, word + at, bytes - at, &length);
        if (id < 0)
            break;
        DSC_TRY(dsc_ids_add(out, id, err));
        at += length;
    }
    if (at == bytes)
        return DSC_OK;
    out->count = before;
    return dsc_ids_add(out, model->unk, err);
}
