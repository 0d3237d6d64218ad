/* tsan.h - edges between threads that ThreadSanitizer does not see, told in a build for it; nothing in all others.
 *
 * What is before DSC_TSAN_RELEASE(x) on one thread is before what follows DSC_TSAN_ACQUIRE(x) on another, as of a lock
 * x. Only where something that the sanitizer does not look into makes it so. SPDX-License-Identifier: Apache-2.0 */
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
