/* name_regex.h - Python's regular expressions over names of modules, as PEFT gives them to re.match and re.fullmatch.
 *
 * Read are letters, escapes (\d \w \s \D \W \S \b \B \A \Z), the point, classes, groups ((...), (?:...), (?P<n>...)),
 * alternatives, anchors, lookahead, and the quantifiers ? * + {m,n}, also lazy ones. Refused by name: lookbehind,
 * references to groups, flags, possessive quantifiers, atomic groups, characters beyond ASCII.
 *
 * A match is followed as a set of positions, so that no pattern needs time that is exponential in the name.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_NAME_REGEX_H
#define DSC_BASE_NAME_REGEX_H

#include <dsc/error.h>
#include <dsc/types.h>

#define DSC_NAME_REGEX_BYTES 1024 /* longest pattern, with its NUL */

/* *matches: the pattern fits the whole name (re.fullmatch). Names are of at most 255 bytes. Each part of a pattern that
 * is tried costs a step of *steps_left; below 0 the pattern is refused. `where` is what errors name. A pattern is
 * DSC_ERR_INPUT or DSC_ERR_UNSUPPORTED with any name if it is with one. */
DSC_MUST_USE dsc_status dsc_name_regex_match(const char *pattern, const char *name, const char *where,
                                             int64_t *steps_left, bool *matches, dsc_error *err);

#endif
