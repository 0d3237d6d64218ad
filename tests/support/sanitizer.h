/* sanitizer.h - which sanitizer a test was built with, and how long a test waits for what the program does in time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SANITIZER_H
#define DSC_TESTS_SANITIZER_H

#include <stdlib.h>

#if !defined(__has_feature)
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define SANITIZE_THREAD 1
#else
#define SANITIZE_THREAD 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SANITIZE_ADDRESS 1
#else
#define SANITIZE_ADDRESS 0
#endif

/* How much slower a sanitized program is. */
#define SANITIZE_SLOWER (SANITIZE_THREAD ? 20.0 : SANITIZE_ADDRESS ? 5.0 : 1.0)

/* Factor of time bounds. On a shared machine a bound detects waits that would last ten times as long or for ever. With
 * DSC_TEST_STRICT=1, on an idle machine, the bound is the promise itself. */
static inline double test_patience(void)
{
    return SANITIZE_SLOWER * (getenv("DSC_TEST_STRICT") != NULL ? 1.0 : 5.0);
}

#endif
