/* generate_run.c - tokens of one text and their output. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/rng.h"
#include "engine/text/unicode.h"
#include "tools/dsc/generate.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* ---- Settings ---- */

dsc_status generation_settle(generation *g, dsc_error *err)
{
    dsc_generation_settings *s = &g->settings;
    const bool asked = g->sample.top_k > 0 || (g->sample.top_p > 0 && g->sample.top_p < 1);
    DSC_TRY(dsc_generation_settings_read(g->alloc, g->model, s, err));
    if (s->ignored[0] != 0)
        fprintf(stderr, "dsc: warning: %s/generation_config.json: %s change the text in transformers and are not "
                "supported; the text is generated without them\n", g->model, s->ignored);
    if (g->ignore_end)
        s->end_count = 0;
    if (g->sample.temperature < 0)
        g->sample.temperature = asked && !s->samples ? 1 : s->temperature;
    if (g->sample.top_k < 0)
        g->sample.top_k = s->top_k;
    if (g->sample.top_p < 0)
        g->sample.top_p = s->top_p;
    if (g->repetition_penalty < 0)
        g->repetition_penalty = s->repetition_penalty;
    return DSC_OK;
}

/* The tokenizer beside the weights; a vocabulary of 256 without one is of bytes, as train reads raw text. */
dsc_status generation_open_tokenizer(generation *g, dsc_error *err)
{
    char path[1024];
    if (g->prompt_ids != NULL)
        return DSC_OK;
    DSC_TRY(dsc_path_join(path, sizeof path, g->model, "tokenizer.json", err));
    const bool none = g->tokenizer_path == NULL && dsc_io_kind(path) == DSC_PATH_MISSING;
    if (none && !g->chat && dsc_infer_vocab(g->infer) == 256)
        return DSC_OK;
    if (none)
        return DSC_FAIL(err, DSC_ERR_INPUT, g->model, "no tokenizer.json is here; name the one that the model was "
                        "trained with: --tokenizer DIR|FILE.json");
    DSC_TRY(dsc_tokenizer_open(&g->tokenizer, g->tokenizer_path != NULL ? g->tokenizer_path : path, err));
    DSC_TRY(dsc_encoder_open(&g->encoder, g->tokenizer, err));
    const int32_t usual = dsc_tokenizer_text_end(g->tokenizer);
    if (g->settings.end_count > 0 || g->ignore_end || usual < 0 || dsc_io_kind(g->model) != DSC_PATH_DIR)
        return DSC_OK;
    return dsc_generation_add_end(&g->settings, usual, err);
}

dsc_status generation_start(generation *g, int64_t tokens, dsc_error *err)
{
    const int64_t vocab = dsc_infer_vocab(g->infer);
    DSC_TRY(dsc_infer_start(g->infer, tokens, NULL, err));
    DSC_TRY(dsc_alloc_zeroed(g->alloc, DSC_TAG_CONTROL, vocab, sizeof *g->logits, &g->logits, err));
    return dsc_alloc_zeroed(g->alloc, DSC_TAG_CONTROL, vocab, sizeof *g->work, &g->work, err);
}

/* ---- Tokens ---- */

dsc_status generation_next(generation *g, int32_t *id, dsc_error *err)
{
    const float *logits = NULL;
    const int64_t vocab = dsc_infer_vocab(g->infer);
    DSC_TRY(dsc_infer_logits(g->infer, g->ids.ptr, g->ids.count, &logits, err));
    if (g->repetition_penalty < 1 || g->repetition_penalty > 1) {
        dsc_sample_penalize(logits, vocab, g->ids.ptr, g->ids.count, g->repetition_penalty, g->logits);
        logits = g->logits;
    }
    const double uniform =
        dsc_rng_u32((uint64_t)g->seed, dsc_rng_stream(DSC_RNG_SAMPLE, 0), (uint64_t)g->drawn++) / 4294967296.0;
    *id = dsc_sample(logits, vocab, &g->sample, uniform, g->work);
    return DSC_OK;
}

/* ---- Text ---- */

dsc_status generation_text(generation *g, const char **text, int64_t *bytes, dsc_error *err)
{
    const int64_t count = g->ids.count - g->first;
    if (g->tokenizer != NULL)
        return dsc_decode(g->encoder, g->ids.ptr + g->first, count, true, text, bytes, err);
    char *raw = NULL;
    DSC_TRY(dsc_alloc_zeroed(g->alloc, DSC_TAG_DATA, count, 1, &raw, err));
    for (int64_t i = 0; i < count; i++)
        raw[i] = (char)g->ids.ptr[g->first + i];
    g->bytes.bytes = 0;
    const dsc_status status = dsc_utf8_repair(raw, count, &g->bytes, err);
    dsc_alloc_free(g->alloc, raw);
    *text = g->bytes.ptr;
    *bytes = g->bytes.bytes;
    return status;
}

/* Prints what is new. U+FFFD at the end may be a character whose last bytes are still to come: it waits for them. */
static dsc_status print_new(generation *g, bool all, dsc_error *err)
{
    const char *text = NULL;
    int64_t bytes = 0;
    if (g->prompt_ids != NULL) {
        if (!all && (printf("%s%d", g->printed > 0 ? " " : "", (int)g->ids.ptr[g->ids.count - 1]) < 0 ||
                     fflush(stdout) != 0))
            return DSC_FAIL(err, DSC_ERR_IO, "stdout", "the tokens cannot be written");
        g->printed = 1;
        return DSC_OK;
    }
    DSC_TRY(generation_text(g, &text, &bytes, err));
    while (!all && bytes >= 3 && memcmp(text + bytes - 3, REPLACEMENT, 3) == 0)
        bytes -= 3;
    if (bytes > g->printed) {
        if (fwrite(text + g->printed, 1, (size_t)(bytes - g->printed), stdout) == 0 || fflush(stdout) != 0)
            return DSC_FAIL(err, DSC_ERR_IO, "stdout", "the text cannot be written");
        g->printed = bytes;
    }
    return DSC_OK;
}

dsc_status generation_go_on(generation *g, bool *ended, dsc_error *err)
{
    *ended = false;
    for (int64_t i = 0; i < g->new_count; i++) {
        int32_t id = 0;
        DSC_TRY(generation_next(g, &id, err));
        *ended = dsc_generation_ends(&g->settings, id);
        if (*ended)
            break;
        if (g->tokenizer != NULL && dsc_tokenizer_token(g->tokenizer, id) == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, g->model, "the model predicted token %d, which its tokenizer does not "
                            "have; check that the tokenizer belongs to this model", (int)id);
        DSC_TRY(dsc_ids_add(&g->ids, id, err));
        DSC_TRY(print_new(g, false, err));
    }
    return print_new(g, true, err);
}
