/* vocab.c - the tokens of an open tokenizer, by name and by id. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/tokenizer_internal.h"

#include <string.h>

int64_t dsc_tokenizer_vocab_size(const dsc_tokenizer *tokenizer)
{
    return tokenizer->vocab.size;
}

int32_t dsc_tokenizer_find(const dsc_tokenizer *tokenizer, const char *token)
{
    return dsc_names_find(&tokenizer->vocab.by_text, token, (int64_t)strlen(token));
}

const char *dsc_tokenizer_token(const dsc_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->vocab.size ? tokenizer->vocab.token[id].text : NULL;
}

int32_t dsc_tokenizer_text_end(const dsc_tokenizer *tokenizer)
{
    static const char *const known[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]" };
    int32_t id = -1;
    for (size_t i = 0; i < DSC_COUNT(known) && id < 0; i++)
        id = dsc_tokenizer_find(tokenizer, known[i]);
    return id;
}
