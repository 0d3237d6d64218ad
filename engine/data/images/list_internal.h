/* list_internal.h - how the kinds of lists add items; only for list*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_LIST_INTERNAL_H
#define DSC_ENGINE_DATA_IMAGES_LIST_INTERNAL_H

#include "engine/data/images/list.h"

DSC_MUST_USE dsc_status dsc_image_add_csv(dsc_image_list *list, const char *path, dsc_error *err);
DSC_MUST_USE dsc_status dsc_image_add_tar(dsc_image_list *list, const char *path, dsc_error *err);

/* Room for one more of `count` elements. */
DSC_MUST_USE dsc_status dsc_image_list_room(dsc_image_list *list, void *array, int64_t count, int64_t *room,
                                            size_t bytes_each, int64_t more, dsc_error *err);
DSC_MUST_USE dsc_status dsc_image_list_text(dsc_image_list *list, const char *text, int64_t bytes, int64_t *at,
                                            dsc_error *err);
DSC_MUST_USE dsc_status dsc_image_list_root(dsc_image_list *list, const char *path, int32_t *root, dsc_error *err);
DSC_MUST_USE dsc_status dsc_image_list_item(dsc_image_list *list, const dsc_image_item *item, dsc_error *err);
/* The index of a class by its name, which is added if it is new. */
DSC_MUST_USE dsc_status dsc_image_list_label(dsc_image_list *list, const char *path, const char *name, int64_t bytes,
                                             int32_t *label, dsc_error *err);
DSC_MUST_USE dsc_status dsc_image_list_labels(dsc_image_list *list, const char *path, dsc_image_labels kind,
                                              dsc_error *err);
/* A number of a class, with spaces around it; false: another text. */
bool dsc_image_label_number(const char *text, int64_t bytes, int32_t *out);

#endif
