/* tokenizer_internal.h - the parts of a tokenizer.json. Only engine/text/ includes it.
 *
 * A text goes through: repair of UTF-8, added tokens that stand as written, normalizer, added tokens that are
 * normalised, pre-tokenizer, model, post-processor. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_TOKENIZER_INTERNAL_H
#define DSC_ENGINE_TEXT_TOKENIZER_INTERNAL_H

#include <dsc/text.h>

#include "engine/text/bpe.h"
#include "engine/text/pair.h"
#include "engine/text/charsmap.h"
#include "engine/text/regex.h"
#include "engine/text/tree.h"
#include "engine/text/unicode.h"
#include "engine/text/unigram.h"
#include "engine/text/vocab.h"
#include "engine/text/wordpiece.h"

#define TOK_STEPS_MAX 16   /* steps of a normalizer, a pre-tokenizer or a decoder */
#define TOK_AROUND_MAX 16  /* ids that a post-processor puts before or after a text */
#define TOK_ADDED_MAX 100000

/* A string of the file. Borrowed from the tokenizer's strings. */
typedef struct tok_string {
    const char *ptr;
    int64_t bytes;
} tok_string;

/* Replacement of one character: `out` holds its bytes and the text around it, at most TOK_CHAR_BYTES_MAX. */
#define TOK_CHAR_BYTES_MAX 8
typedef int (*tok_change_char)(uint32_t code, char *out);

typedef enum tok_normalizer_kind {
    TOK_UNICODE, TOK_PREPEND, TOK_REPLACE, TOK_CHARS, TOK_STRIP, TOK_CHARSMAP
} tok_normalizer_kind;
typedef struct tok_normalizer {
    tok_normalizer_kind kind;
    dsc_normal_form form;
    tok_string from, to; /* PREPEND: to */
    dsc_regex *regex;    /* REPLACE: what is replaced; NULL: `from` */
    tok_change_char change;     /* CHARS */
    bool lines_become_blanks;   /* CHARS */
    dsc_charsmap *charsmap;     /* CHARSMAP */
    bool left, right;           /* STRIP: white space at these ends of a text */
} tok_normalizer;

typedef enum tok_split_kind { TOK_SPLIT, TOK_BYTE_LEVEL, TOK_METASPACE } tok_split_kind;
typedef enum tok_behavior {
    TOK_REMOVED, TOK_ISOLATED, TOK_MERGED_WITH_PREVIOUS, TOK_MERGED_WITH_NEXT, TOK_CONTIGUOUS
} tok_behavior;
typedef enum tok_prepend { TOK_PREPEND_ALWAYS, TOK_PREPEND_FIRST, TOK_PREPEND_NEVER } tok_prepend;
typedef struct tok_splitter {
    tok_split_kind kind;
    dsc_regex *regex;   /* SPLIT, BYTE_LEVEL; NULL: one of the next three, and for BYTE_LEVEL no split */
    bool (*is_match)(uint32_t code); /* SPLIT: characters that match, each for itself */
    int (*class_of)(uint32_t code);  /* SPLIT: characters of one class in a row match; 0: none */
    tok_string literal; /* METASPACE: what stands for a space */
    tok_behavior behavior;
    bool invert;
    tok_prepend prepend; /* BYTE_LEVEL: a space, ALWAYS or NEVER */
    bool split;          /* METASPACE */
} tok_splitter;

typedef struct tok_added {
    tok_string text;
    int32_t id;
    bool single_word, strip_left, strip_right, normalized, special;
} tok_added;

typedef enum tok_decoder_kind {
    TOK_DECODE_BYTE_LEVEL, TOK_DECODE_REPLACE, TOK_DECODE_BYTE_FALLBACK, TOK_DECODE_FUSE, TOK_DECODE_STRIP,
    TOK_DECODE_METASPACE, TOK_DECODE_WORDPIECE, TOK_DECODE_BPE
} tok_decoder_kind;
typedef struct tok_decoder {
    tok_decoder_kind kind;
    tok_string from, to; /* REPLACE; STRIP: from is the character; METASPACE, WORDPIECE, BPE: from */
    int64_t start, stop; /* STRIP */
    tok_prepend prepend; /* METASPACE */
    bool cleanup;        /* WORDPIECE */
} tok_decoder;

#define TOK_PIECES_MAX (3 * TOK_AROUND_MAX + 2)
typedef struct tok_form {
    dsc_pair_piece piece[TOK_PIECES_MAX];
    int32_t count; /* 0: none */
} tok_form;

typedef enum tok_model { TOK_BPE, TOK_WORDPIECE, TOK_UNIGRAM } tok_model;

struct dsc_tokenizer {
    dsc_alloc *alloc;
    dsc_vocab vocab;
    tok_model model;
    dsc_bpe bpe;
    dsc_wordpiece wordpiece;
    dsc_unigram unigram;
    tok_normalizer normalizer[TOK_STEPS_MAX];
    tok_splitter splitter[TOK_STEPS_MAX];
    tok_decoder decoder[TOK_STEPS_MAX];
    int32_t normalizer_count, splitter_count, decoder_count;
    bool has_decoder;
    tok_added *added; /* [added_count] */
    int32_t added_count;
    dsc_tree as_written, normalized; /* of added tokens */
    int32_t before[TOK_AROUND_MAX], after[TOK_AROUND_MAX];
    int32_t before_count, after_count;
    tok_form form[2]; /* forms of one text and of two; a later processor's form replaces an earlier one */
    dsc_text strings; /* all that tok_string and added point into: reserved whole before */
    bool of_byte_chars; /* steps behind ByteLevel see the printable characters that stand for bytes */
    bool may_cut;
};

/* Reads the text of a file into a zeroed tokenizer with an allocator. On failure the caller closes it. load.c */
dsc_status tok_load(dsc_tokenizer *t, const char *name, const char *text, int64_t bytes, dsc_error *err);

/* The added token at or behind `at`: its first and last byte, with blanks that it strips. added.c */
typedef struct tok_match {
    const tok_added *token; /* NULL: none */
    int64_t start, end;
} tok_match;
dsc_status tok_added_open(dsc_tokenizer *t, bool normalized, dsc_tree *out, dsc_error *err);
/* From `*at` on; what begins before `floor` is not part of a match. *at moves behind it. */
tok_match tok_added_find(const dsc_tokenizer *t, const dsc_tree *tree, const char *text, int64_t bytes, int64_t *at,
                         int64_t floor);

/* *text <- the normalised text, in one of `buffer` or unmoved. *lead <- bytes at the start that come from the first
 * character; 0: the normalizer removed that character. normalize.c */
#define TOK_NORMAL_BUFFERS 3
dsc_status tok_normalize(const dsc_tokenizer *t, tok_string *text, bool goes_on, int64_t *lead,
                         dsc_text buffer[TOK_NORMAL_BUFFERS], dsc_error *err);
/* For TOK_CHARS. */
int tok_clean_char(uint32_t code, char *out);           /* BERT's clean_text */
int tok_nmt_char(uint32_t code, char *out);             /* Nmt */
int tok_space_ideograph(uint32_t code, char *out);      /* BERT's handle_chinese_chars */
int tok_drop_nonspacing_mark(uint32_t code, char *out); /* BERT's strip_accents, behind NFD */
int tok_drop_mark(uint32_t code, char *out);            /* StripAccents */
int tok_lower_char(uint32_t code, char *out);
dsc_status tok_replace_all(tok_string in, tok_string from, tok_string to, dsc_text *out, dsc_error *err);

/* Pieces of a splitter, in order. split.c */
typedef struct tok_pieces {
    const tok_splitter *splitter;
    const char *text, *end;
    dsc_regex_search search;
    const char *match_start, *match_end; /* found and not yet handed out */
    bool match_known;
    const char *at;
} tok_pieces;
void tok_pieces_open(tok_pieces *pieces, const tok_splitter *splitter, tok_string text);
/* *piece is empty behind the last one. */
dsc_status tok_pieces_next(tok_pieces *pieces, tok_string *piece, dsc_error *err);

#endif
