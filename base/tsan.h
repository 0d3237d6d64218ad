/* tsan.h - reports edges between threads that ThreadSanitizer does not see; empty in all other builds.
 *
 * Operations before DSC_TSAN_RELEASE(x) on one thread come before operations after DSC_TSAN_ACQUIRE(x) on another, as
 * with a lock x. Use it only for an order that code without instrumentation guarantees.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_TSAN_H
#define DSC_BASE_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define DSC_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DSC_TSAN 1
#endif
#endif

#if defined(DSC_TSAN)
#include <sanitizer/tsan_interface.h>
#include <stdint.h>
#define DSC_TSAN_ACQUIRE(address) __tsan_acquire((void *)(uintptr_t)(address))
#define DSC_TSAN_RELEASE(address) __tsan_release((void *)(uintptr_t)(address))
#else
#define DSC_TSAN_ACQUIRE(address) ((void)(address))
#define DSC_TSAN_RELEASE(address) ((void)(address))
#endif

#endif
