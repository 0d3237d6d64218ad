/* strings.h - edit distance, the nearest of several names, and a quoted text for a message.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_STRINGS_H
#define DSC_BASE_STRINGS_H

#include <dsc/types.h>

/* Longest text, in bytes, that takes part in a comparison. */
#define DSC_STRING_BYTES_MAX 128

/* Optimal string alignment distance: changed, missing, added and swapped neighbouring bytes. Returns limit + 1 when the
 * distance is above `limit` or a text is longer than DSC_STRING_BYTES_MAX. */
int dsc_string_distance(const char *a, const char *b, int limit);

/* The name at the smallest distance from `text`, at most `limit`; the first one of several. name_of(user, i) returns
 * name i of `count`, or NULL for a name to leave out. Returns NULL when no name is near. */
typedef const char *(*dsc_string_name_fn)(const void *user, int32_t i);
const char *dsc_string_nearest(const char *text, dsc_string_name_fn name_of, const void *user, int32_t count,
                               int limit);

/* `text` between double quotes, with a backslash before a quote and a backslash, and "..." where it is cut off.
 * Always terminated; out_bytes is at least 8. Returns out. */
const char *dsc_string_quote(char *out, size_t out_bytes, const char *text);

#endif
