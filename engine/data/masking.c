/* masking.c - see masking.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/masking.h"

#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/io.h"
#include "base/rng.h"

/* Those of engine/text/load.c: what the largest published tokenizer.json has. */
#define FILE_BYTES_MAX (INT64_C(64) << 20)
#define VALUES_MAX 4000000

int64_t dsc_model_predictions(const dsc_model *model)
{
    const int32_t last = model->batch_count - 1;
    if (model->batch_count < 2 || strcmp(model->batch[last].name, DSC_BATCH_PREDICTED) != 0)
        return 0;
    return model->batch[last].dim_count == 1 ? model->batch[last].dim[0] : 0;
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */

static bool is_special(const dsc_masking *m, int32_t token)
{
    for (int32_t i = 0; i < m->special_count; i++)
        if (m->special[i] == token)
            return true;
    return token == m->mask_token;
}

/* Places of a text's tokens in order, then the others'; how many are a text's. */
static int64_t find_candidates(const dsc_masking *m, const dsc_mask_sample *s)
{
    int64_t count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0, at = pass == 0 ? 0 : count; t < s->sequence; t++)
            if (is_special(m, s->tokens[t]) == (pass == 1)) {
                s->order[at++] = (int32_t)t;
                count += pass == 0;
            }
    return count;
}

static int by_value(const void *a, const void *b)
{
    const int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    return (left > right) - (left < right);
}

/* The replacement of a predicted token. */
static int32_t seen(const dsc_masking *m, const dsc_mask_sample *s, uint64_t seed, int32_t place)
{
    const uint32_t mask_below = 3435973837u, other_below = 3865470567u; /* 0.8 and 0.9 of 2^32 */
    uint32_t word[4];
    dsc_rng_block(seed, dsc_rng_stream(DSC_RNG_MASK, 1), (uint64_t)place, word);
    if (is_special(m, s->tokens[place]) || word[0] >= other_below)
        return s->tokens[place];
    return word[0] < mask_below ? m->mask_token : (int32_t)(((uint64_t)word[1] * (uint64_t)s->vocab) >> 32);
}

void dsc_mask(const dsc_masking *m, dsc_mask_key key, const dsc_mask_sample *s)
{
    uint32_t word[4];
    dsc_rng_block(key.seed, dsc_rng_stream(DSC_RNG_MASK, key.epoch), key.sample, word);
    const uint64_t seed = (uint64_t)word[0] | (uint64_t)word[1] << 32;
    const int64_t candidates = find_candidates(m, s);
    DSC_ASSERT(m->predictions >= 1);
    DSC_ASSERT(m->predictions <= s->sequence);
    for (int64_t k = 0; k < m->predictions; k++) {
        const uint64_t at = m->predictions > candidates ? (uint64_t)k
                                                        : dsc_rng_permute(seed, dsc_rng_stream(DSC_RNG_MASK, 0),
                                                                          (uint64_t)candidates, (uint64_t)k);
        s->predicted[k] = s->order[at];
    }
    qsort(s->predicted, (size_t)m->predictions, sizeof *s->predicted, by_value);
    for (int64_t k = 0; k < m->predictions; k++) {
        const int32_t place = s->predicted[k];
        s->targets[k] = s->tokens[place];
        s->tokens[place] = seen(m, s, seed, place);
    }
}

/* ---- a tokenizer's special tokens -------------------------------------------------------------------------------- */

static dsc_status take_added(dsc_masking *m, const dsc_json *json, const cJSON *added, dsc_error *err)
{
    static const char *const masks[] = { "[MASK]", "<mask>" }; /* BERT's and RoBERTa's */
    char where[256];
    for (const cJSON *each = added != NULL ? added->child : NULL; each != NULL; each = each->next) {
        const cJSON *id = cJSON_GetObjectItemCaseSensitive(each, "id");
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(each, "content");
        int64_t token = 0;
        if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(each, "special")))
            continue;
        if (!dsc_json_integer(id, 0, INT32_MAX, &token) || !cJSON_IsString(text) ||
            m->special_count == DSC_MASK_SPECIAL_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_json_where(json, each, where, sizeof where),
                            "expected at most %d special tokens, each with its \"id\" and \"content\"",
                            DSC_MASK_SPECIAL_MAX);
        m->special[m->special_count++] = (int32_t)token;
        for (size_t i = 0; i < DSC_COUNT(masks); i++)
            if (strcmp(text->valuestring, masks[i]) == 0)
                m->mask_token = (int32_t)token;
    }
    return DSC_OK;
}

dsc_status dsc_masking_read(dsc_masking *m, const struct dsc_io *io, struct dsc_alloc *alloc, const char *path,
                            dsc_error *err)
{
    const dsc_json_limits limits = { FILE_BYTES_MAX, 32, VALUES_MAX };
    char *text = NULL;
    int64_t bytes = 0;
    dsc_json *json = NULL;
    DSC_TRY(dsc_io_read_all(io, alloc, path, limits.bytes, &text, &bytes, err));
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_DATA, &limits, &json, err);
    if (status == DSC_OK)
        status = take_added(m, json, cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), "added_tokens"), err);
    dsc_json_close(&json);
    dsc_alloc_free(alloc, text);
    return status;
}
