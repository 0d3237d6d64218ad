/* needs.h - memory that a feature needs, listed once: the plan, open and close follow from one list.
 *
 * A feature has one function that fills an array of dsc_need. Planning adds the array to a dsc_needs, open takes its
 * entries in order, and close gives them back in reverse order. After all lists are open, dsc_needs_check compares the
 * planned bytes with the taken bytes of each tag and tier. A kind of memory is one const table, in the lowest folder
 * that knows the memory. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_NEEDS_H
#define DSC_KERNELS_NEEDS_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_needs dsc_needs;
typedef struct dsc_need_kind dsc_need_kind;

typedef struct dsc_need {
    void *out; /* filled by open: a dsc_buf, or the pointer that the kind names; borrowed until close */
    dsc_tag tag;
    dsc_tier tier;
    int64_t bytes;
    const dsc_need_kind *kind;
} dsc_need;

struct dsc_need_kind {
    int64_t (*counted)(int64_t bytes); /* bytes in the plan; NULL: as many */
    /* NULL: another module takes the memory when it is opened, and gives it back itself. */
    dsc_status (*open)(const dsc_needs *needs, const dsc_need *need, dsc_error *err);
    void (*close)(const dsc_needs *needs, const dsc_need *need); /* also of an entry that was never opened */
};

/* The sum of all lists of one owner. Zeroed at first; planned bytes are the owner's plan. */
struct dsc_needs {
    dsc_alloc *alloc;
    dsc_device *device; /* for DSC_NEED_DEVICE */
    void *owner;        /* for the owner's kinds of memory */
    int64_t planned[DSC_TAG_COUNT][DSC_TIER_COUNT], taken[DSC_TAG_COUNT][DSC_TIER_COUNT];
};

/* A dsc_buf of needs->device (DEVICE or PINNED), and one of needs->alloc, which is host memory. */
extern const dsc_need_kind dsc_need_device, dsc_need_host;
/* A zeroed array of needs->alloc; `out` is the address of its pointer. SMALL: an array whose length a model bounds, so
 * that the plan does not count it. */
extern const dsc_need_kind dsc_need_array, dsc_need_small;
/* Memory that somebody else maps and that is counted here; `out` is an int64_t that keeps the counted bytes. */
extern const dsc_need_kind dsc_need_noted;
/* Memory that another module takes and counts when it is opened. `out` is NULL. */
extern const dsc_need_kind dsc_need_inside;
#define DSC_NEED_DEVICE (&dsc_need_device)
#define DSC_NEED_HOST (&dsc_need_host)
#define DSC_NEED_ARRAY (&dsc_need_array)
#define DSC_NEED_SMALL (&dsc_need_small)
#define DSC_NEED_NOTED (&dsc_need_noted)
#define DSC_NEED_INSIDE (&dsc_need_inside)

/* Bytes that the plan counts for an entry. */
int64_t dsc_need_planned_bytes(const dsc_need *need);
void dsc_needs_plan(dsc_needs *needs, const dsc_need *list, int count);
/* After a failure the caller closes the whole list. */
DSC_MUST_USE dsc_status dsc_needs_open(dsc_needs *needs, const dsc_need *list, int count, dsc_error *err);
/* Both, for memory that planning itself uses. */
DSC_MUST_USE dsc_status dsc_needs_plan_and_open(dsc_needs *needs, const dsc_need *list, int count, dsc_error *err);
void dsc_needs_close(const dsc_needs *needs, const dsc_need *list, int count); /* `bytes` are not read */
/* After all lists are open: each tag and tier has taken the bytes that were planned for it. */
void dsc_needs_check(const dsc_needs *needs);

#ifdef __cplusplus
}
#endif
#endif
