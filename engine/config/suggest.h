/* suggest.h - how close two strings are, for "did you mean" in messages. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CONFIG_SUGGEST_H
#define DSC_ENGINE_CONFIG_SUGGEST_H

#include "base/base.h"
#include "base/strings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Same but for case or letters that look alike, or one change apart. */
bool dsc_string_is_near_miss(const char *a, const char *b);
/* [A-Za-z_][A-Za-z0-9_-]*, at most 128. Real files hold keys with hyphens, of the scripts around DeepSpeed. */
bool dsc_string_is_identifier(const char *name);
/* The string of the list that `word` was probably meant to be, else `otherwise`. */
const char *dsc_config_nearest_string(const char *word, const char *const *words, size_t count, const char *otherwise);

#ifdef __cplusplus
}
#endif
#endif
