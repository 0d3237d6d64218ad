/* utf8.h - one character of UTF-8, strictly (RFC 3629). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FORMATS_UTF8_H
#define DSC_BASE_FORMATS_UTF8_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the valid character at `at`, 0 when there is none: truncated, overlong, surrogate, above U+10FFFF. */
int dsc_utf8_char_bytes(const char *at, const char *end);
/* Writes the character of a code point up to U+10FFFF that is not a surrogate; returns its bytes. */
int dsc_utf8_encode(uint32_t code, char out[4]);

#ifdef __cplusplus
}
#endif
#endif
