/* lm_grow.c - tables of tokens with more rows than their file: added tokens. The rows that the file lacks begin as the
 * mean of those that it has: transformers' resize_token_embeddings with mean_resizing, without its noise of 1e-9 of the
 * covariance. A head with a bias begins likewise. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/lm_parts.h"

#define PIECE 4096 /* elements on the stack */

/* The table in the file of an adapter; NULL: it has none. */
static const dsc_weight *adapter_table(const dsc_lora_config *lora, const char *base, const char *name)
{
    char whole[512];
    if (lora == NULL || lora->weights == NULL)
        return NULL;
    snprintf(whole, sizeof whole, DSC_LORA_PREFIX "%s%s", base, name);
    return dsc_weights_find(lora->weights, whole);
}

int64_t dsc_lm_adapter_rows(const dsc_lm_family *family, const dsc_lora_config *lora)
{
    const dsc_weight *const tables[] = { adapter_table(lora, family->base, family->token_table),
                                         family->classifies ? NULL : adapter_table(lora, "", family->head_table) };
    int64_t rows = 0;
    for (size_t i = 0; i < DSC_COUNT(tables); i++)
        if (tables[i] != NULL && tables[i]->entry->desc.dim_count == 2)
            rows = dsc_max_i64(rows, tables[i]->entry->desc.dim[0]);
    return rows;
}

void dsc_lm_warn_grown(const dsc_lm_config *config, bool fresh, char *warnings, size_t bytes)
{
    const int64_t added = config->vocab - config->file_vocab;
    if (added > 0)
        dsc_hf_warn(warnings, bytes, "the table of tokens grows from %lld to %lld rows: %lld were added%s",
                    (long long)config->file_vocab, (long long)config->vocab, (long long)added,
                    config->adapter_vocab >= config->vocab ? ", which the adapter's file has"
                    : fresh                                ? ""
                                                           : ", which begin as the mean of the others");
}

/* ---- the means ---- */

static bool is_table(const dsc_lm *lm, int64_t i)
{
    if (i > DSC_LM_TOKEN_TABLE && (lm->config->classes > 0 || lm->family->emit_last != NULL))
        return false;
    return (i == DSC_LM_TOKEN_TABLE && lm->family->emit_first == NULL) || i == lm->param_count - 1 ||
           (lm->family->head_bias != NULL && i == lm->param_count - 2);
}

/* Elements of a parameter without its rows of padding. */
static int64_t real_elements(const dsc_lm *lm, const dsc_param_spec *spec)
{
    return lm->config->vocab * (spec->dim_count == 2 ? spec->dim[1] : 1);
}

dsc_status dsc_lm_open_means(dsc_lm *lm, dsc_error *err)
{
    int32_t count = 0;
    for (int64_t i = 0; i < lm->param_count && lm->sources != NULL; i++) {
        const dsc_param_spec *spec = &lm->params[i];
        const dsc_weight *source = lm->sources[i];
        if (!is_table(lm, i) || source == NULL || source->entry->count >= real_elements(lm, spec))
            continue;
        DSC_ASSERT(count < LM_MEANS_MAX);
        lm_mean *mean = &lm->means[count++];
        *mean = (lm_mean) { .of = source, .columns = spec->dim_count == 2 ? spec->dim[1] : 1 };
        DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, mean->columns, sizeof *mean->sum, &mean->sum, err));
    }
    return DSC_OK;
}

/* By one of the threads; in double, in the order of rows. */
static dsc_status find_mean(lm_mean *mean, dsc_error *err)
{
    const int64_t count = mean->of->entry->count;
    float x[PIECE];
    memset(mean->sum, 0, (size_t)mean->columns * sizeof *mean->sum);
    for (int64_t first = 0, column = 0; first < count; first += PIECE) {
        const int64_t some = dsc_min_i64(PIECE, count - first);
        DSC_TRY(dsc_weight_read_f32(mean->of, first, some, x, err));
        for (int64_t i = 0; i < some; i++) {
            mean->sum[column] += (double)x[i];
            column = column + 1 == mean->columns ? 0 : column + 1;
        }
    }
    for (int64_t c = 0; c < mean->columns; c++)
        mean->sum[c] /= (double)(count / mean->columns);
    mean->known = true;
    return DSC_OK;
}

dsc_status dsc_lm_fill_grown(dsc_lm *lm, const dsc_param_spec *spec, const dsc_weight *source, lm_span span, float *out,
                             dsc_error *err)
{
    lm_mean *mean = NULL;
    dsc_status status = DSC_OK;
    for (int32_t i = 0; i < LM_MEANS_MAX && mean == NULL; i++)
        if (lm->means[i].of == source)
            mean = &lm->means[i];
    if (mean == NULL)
        return DSC_OK;
    pthread_mutex_lock(&lm->means_lock);
    if (!mean->known)
        status = find_mean(mean, err);
    pthread_mutex_unlock(&lm->means_lock);
    const int64_t end = dsc_min_i64(span.end, real_elements(lm, spec) - span.first);
    for (int64_t i = span.begin; i < end && status == DSC_OK; i++)
        out[i] = (float)mean->sum[(span.first + i) % mean->columns];
    return status;
}

/* ---- adapters ---- */

int32_t dsc_lm_saved_tables(const dsc_lm *lm, const char *names[LM_TABLES_MAX])
{
    const bool grown = lm->config->vocab > lm->config->file_vocab;
    const dsc_param_spec *const tables[LM_TABLES_MAX] = { &lm->params[DSC_LM_TOKEN_TABLE],
                                                          &lm->params[lm->param_count - 1] };
    int32_t count = 0;
    for (int32_t i = 0; i < LM_TABLES_MAX; i++)
        if (!tables[i]->trainable && tables[i]->shared_module < 0 &&
            (grown || adapter_table(lm->lora, "", tables[i]->name) != NULL))
            names[count++] = tables[i]->name;
    return count;
}
