/* sanitizer.h - which sanitizer a test was built with, and how much slower that makes it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SANITIZER_H
#define DSC_TESTS_SANITIZER_H

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

/* Time limits are about our algorithms, not about the sanitizer's: they are multiplied by this. */
#define SANITIZE_SLOWER (SANITIZE_THREAD ? 20.0 : SANITIZE_ADDRESS ? 5.0 : 1.0)

#endif
