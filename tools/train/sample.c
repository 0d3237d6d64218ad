/* sample.c - see sample.h. SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <stdio.h>
#include <string.h>

#define NEW_TOKENS 300

static dsc_status take_bytes(train_sample *s, int64_t vocab_size, dsc_error *err)
{
    s->token_count = (int64_t)strlen(s->text);
    for (int64_t i = 0; i < s->token_count && i < TRAIN_PROMPT_TOKENS_MAX; i++) {
        s->token[i] = (unsigned char)s->text[i];
        if (s->token[i] >= vocab_size)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--sample", "byte %d at %lld is outside the model's vocabulary of %lld",
                            (int)s->token[i], (long long)i, (long long)vocab_size);
    }
    return DSC_OK;
}

static dsc_status take_tokens(train_sample *s, const dsc_run_info *info, dsc_error *err)
{
    const int32_t *ids = NULL;
    DSC_TRY(dsc_tokenizer_open(&s->tokenizer, info->tokenizer, err));
    DSC_TRY(dsc_encoder_open(&s->encoder, s->tokenizer, err));
    DSC_TRY(dsc_encode(s->encoder, s->text, (int64_t)strlen(s->text), 0, &ids, &s->token_count, err));
    for (int64_t i = 0; i < s->token_count && i < TRAIN_PROMPT_TOKENS_MAX; i++) {
        s->token[i] = ids[i];
        if (s->token[i] >= info->vocab_size)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--sample", "token %d is outside the model's vocabulary of %lld; %s is "
                            "another model's", (int)s->token[i], (long long)info->vocab_size, info->tokenizer);
    }
    return DSC_OK;
}

dsc_status train_sample_open(train_sample *s, const char *text, const dsc_run_info *info, dsc_error *err)
{
    *s = (train_sample){ .text = text, .seed = info->seed };
    DSC_TRY(info->tokenizer[0] != 0 ? take_tokens(s, info, err) : take_bytes(s, info->vocab_size, err));
    return s->token_count >= 1 && s->token_count <= TRAIN_PROMPT_TOKENS_MAX
               ? DSC_OK
               : DSC_FAIL(err, DSC_ERR_INPUT, "--sample", "%lld tokens; a text of 1 to %d is needed",
                          (long long)s->token_count, TRAIN_PROMPT_TOKENS_MAX);
}

static dsc_status decode(train_sample *s, const int32_t *ids, char *bytes, const char **text, dsc_error *err)
{
    int64_t length = 0;
    if (s->encoder != NULL)
        return dsc_decode(s->encoder, ids, NEW_TOKENS, true, text, &length, err);
    for (int i = 0; i < NEW_TOKENS; i++)
        bytes[i] = ids[i] > 0 && ids[i] < 256 ? (char)ids[i] : '?';
    bytes[NEW_TOKENS] = 0;
    *text = bytes;
    return DSC_OK;
}

/* Nothing that a terminal would obey. */
static void make_plain(char *out, size_t out_bytes, const char *text, bool keep_wide)
{
    size_t used = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c != 0 && used + 1 < out_bytes; c++) {
        const bool c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0; /* U+0080 to U+009F */
        const bool plain = *c == '\n' || (*c >= 32 && *c < 127) || (keep_wide && *c >= 128 && !c1);
        out[used++] = plain ? (char)*c : '?';
        c += c1;
    }
    out[used] = 0;
}

dsc_status train_sample_print(train_sample *s, dsc_engine *engine, train_progress *progress, dsc_error *err)
{
    int32_t ids[NEW_TOKENS];
    char bytes[NEW_TOKENS + 1], plain[8192];
    const char *text = "";
    DSC_TRY(dsc_engine_generate(engine, s->token, s->token_count, NEW_TOKENS, 0.7, (uint64_t)s->seed, ids, err));
    DSC_TRY(decode(s, ids, bytes, &text, err));
    make_plain(plain, sizeof plain, text, s->encoder != NULL);
    if (progress != NULL)
        train_progress_say(progress, "the model continues \"%s\":\n%s%s", s->text, s->text, plain);
    return DSC_OK;
}

void train_sample_close(train_sample *s)
{
    dsc_encoder_close(&s->encoder);
    dsc_tokenizer_close(&s->tokenizer);
}
