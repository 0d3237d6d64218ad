/* text.h - text to token ids and back, as a Hugging Face tokenizer.json says.
 *
 *     dsc_tokenizer *tokenizer = NULL;
 *     dsc_encoder *encoder = NULL;
 *     if (dsc_tokenizer_open(&tokenizer, "model-folder", &err) != DSC_OK || ...
 *         dsc_encoder_open(&encoder, tokenizer, &err) != DSC_OK || ...
 *         dsc_encode(encoder, text, bytes, DSC_ENCODE_SPECIAL, &ids, &count, &err) != DSC_OK) ...
 *
 * Read are byte-pair encoders, byte-level ones (GPT-2, Llama 3, Qwen) and those in SentencePiece's manner (Llama 2,
 * Mistral), and WordPiece (BERT). The ids are those of the `tokenizers` package. A part of a tokenizer.json that is
 * not built is refused with its name, never left out. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TEXT_H
#define DSC_TEXT_H

#include <dsc/error.h>
#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tokenizer.json, or a folder that holds one. Does not change once it is open: any threads may use it, each with an
 * encoder of its own. Owned; outlives its encoders. */
typedef struct dsc_tokenizer dsc_tokenizer;
DSC_API DSC_MUST_USE dsc_status dsc_tokenizer_open(dsc_tokenizer **out, const char *path, dsc_error *err);
DSC_API void dsc_tokenizer_close(dsc_tokenizer **tokenizer); /* safe on NULL */

DSC_API int64_t dsc_tokenizer_vocab_size(const dsc_tokenizer *tokenizer); /* the largest id + 1 */
/* The id of a token by its name in the file ("<|endoftext|>"), -1: none. */
DSC_API int32_t dsc_tokenizer_find(const dsc_tokenizer *tokenizer, const char *token);
/* The token that usually ends a text: "<|endoftext|>", "</s>", "[SEP]" or the like; -1: none. */
DSC_API int32_t dsc_tokenizer_text_end(const dsc_tokenizer *tokenizer);
/* A token's name, NULL: no such id. Borrowed until close. */
DSC_API const char *dsc_tokenizer_token(const dsc_tokenizer *tokenizer, int32_t id);

/* State of one thread for encoding and decoding. Owned; used by one thread at a time. */
typedef struct dsc_encoder dsc_encoder;
DSC_API DSC_MUST_USE dsc_status dsc_encoder_open(dsc_encoder **out, const dsc_tokenizer *tokenizer, dsc_error *err);
DSC_API void dsc_encoder_close(dsc_encoder **encoder); /* safe on NULL */

enum {
    DSC_ENCODE_SPECIAL = 1u, /* with the tokens that the file puts around a text (its post-processor) */
    DSC_ENCODE_GOES_ON = 2u  /* the text goes on one that was cut by dsc_tokenizer_cut */
};
/* The ids of a text. Bytes of invalid UTF-8 count as U+FFFD, as in Python's decode(errors="replace"). *ids is borrowed
 * until the encoder's next call. */
DSC_API DSC_MUST_USE dsc_status dsc_encode(dsc_encoder *encoder, const char *text, int64_t bytes, unsigned flags,
                                           const int32_t **ids, int64_t *count, dsc_error *err);
/* The text of ids, with special tokens or without. *text is borrowed until the encoder's next call and ends with a NUL
 * that *bytes does not count; where the ids end inside a character it ends with U+FFFD. */
DSC_API DSC_MUST_USE dsc_status dsc_decode(dsc_encoder *encoder, const int32_t *ids, int64_t count, bool skip_special,
                                           const char **text, int64_t *bytes, dsc_error *err);

/* The last position of text[0, bytes) at which it may be cut; 0: none. The ids of the part before it and of the part
 * after it, encoded with DSC_ENCODE_GOES_ON, then form the ids of the whole. `bytes` may be inside a longer text. */
DSC_API int64_t dsc_tokenizer_cut(const dsc_tokenizer *tokenizer, const char *text, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
