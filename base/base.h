/* base.h - arithmetic and assertions that every folder uses.
 *
 * DSC_ASSERT is for our bugs only (never for input) and stays on in release builds.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_BASE_H
#define DSC_BASE_BASE_H

#include <dsc/error.h>
#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Aborts with file:line and the text of the condition. Defined in base/base.c. */
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void dsc_assert_fail(const char *condition, const char *file, int line);

#define DSC_ASSERT(condition) \
    ((condition) ? (void)0 : dsc_assert_fail(#condition, __FILE__, __LINE__))

/* Text from outside reaches messages and logs; a terminal must not see its control bytes. Replaces each by '?', and
 * drops a UTF-8 character that was cut off at the end. Other UTF-8 stays. */
void dsc_text_printable(char *text);

static inline int64_t dsc_div_ceil(int64_t a, int64_t b) { return a / b + (a % b != 0); }
static inline int64_t dsc_align_up(int64_t a, int64_t b) { return dsc_div_ceil(a, b) * b; }
/* "fp32", "bf16" or "fp16"; "8bit" of the moments that have codes. */
static inline const char *dsc_dtype_text(dsc_dtype dtype)
{
    return dtype == DSC_BF16 ? "bf16" : dtype == DSC_F16 ? "fp16" : dtype == DSC_U8 ? "8bit" : "fp32";
}

static inline int64_t dsc_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t dsc_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* False when the product or sum does not fit; *out is then untouched. Operands must be >= 0. */
static inline bool dsc_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t result;
    if (__builtin_mul_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

static inline bool dsc_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t result;
    if (__builtin_add_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

#ifdef __cplusplus
}
#endif
#endif
