/* regex.h - the regular expressions of tokenizers: how a pre-tokenizer cuts text into words.
 *
 * The syntax is the part of Oniguruma's that published tokenizers use:
 *   groups       alternatives, (?:...) (?i:...) (?=...) (?!...)
 *   characters   classes with ranges, classes in classes, &&, \s \S \d \D \w \W \p{L} \P{Nd} \p{Han},
 *                one-character escapes
 *   quantifiers  ? * + {m,n} and possessive ?+ *+ ++ on characters, ? on groups
 *   places       $, the end of a line or of the text
 * All other syntax is refused by name: other anchors, repeated groups, lookbehind, other scripts, patterns that match
 * nothing.
 * Matching backtracks within a budget of steps, far above the need of patterns in use. The time of a match is therefore
 * at most proportional to the length of the text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_REGEX_H
#define DSC_ENGINE_TEXT_REGEX_H

#include "base/alloc.h"

typedef struct dsc_regex dsc_regex;

/* `where` names the pattern's place in errors; a pattern that is not read is DSC_ERR_UNSUPPORTED. Owned. */
DSC_MUST_USE dsc_status dsc_regex_open(dsc_alloc *alloc, const char *pattern, const char *where, dsc_regex **out,
                                       dsc_error *err);
void dsc_regex_close(dsc_regex **regex);

/* A search in valid UTF-8: `at` moves behind each match. */
typedef struct dsc_regex_search {
    const char *text, *end; /* lookahead sees up to `end` */
    const char *at;
    int64_t steps_left;
} dsc_regex_search;
dsc_regex_search dsc_regex_start(const char *text, int64_t bytes);
/* The next match into *start and *end; *found = false behind the last one. */
DSC_MUST_USE dsc_status dsc_regex_next(const dsc_regex *regex, dsc_regex_search *search, const char **start,
                                       const char **end, bool *found, dsc_error *err);

/* True when text may be cut after a line end without adjacent white space, with the matches of the whole in both parts.
 * This holds if no match continues from a line end to another character, and lookahead tests only for white space. */
bool dsc_regex_cuts_at_lines(const dsc_regex *regex);
/* True when no match holds or sees a line end. */
bool dsc_regex_ignores_lines(const dsc_regex *regex);

#endif
