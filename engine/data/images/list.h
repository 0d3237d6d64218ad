/* list.h - the encoded pictures that names of a config mean, with their classes.
 *
 * A name is one of
 *   a folder     of folders, one for each class; pictures lie in them at any depth up to DSC_IMAGE_DEPTH_MAX
 *   FILE.csv     with the columns path and label; paths are relative to its folder
 *   SHARD.tar    with KEY.jpg, KEY.jpeg, KEY.png or KEY.webp and KEY.cls of each sample beside each other, as
 * webdataset writes it. A .cls has the number of a class. Other members of a sample are left out.
 *
 * Classes are names (folders, a CSV with a label that is no number) or numbers; all files of a list have the same kind.
 * Names are numbered in the order of their bytes, or as a list of names says. Samples are in the order of the config's
 * names and, in a folder, of the bytes of paths. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_LIST_H
#define DSC_ENGINE_DATA_IMAGES_LIST_H

#include "base/io.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_IMAGE_DEPTH_MAX = 8, DSC_IMAGE_CLASSES_MAX = 65536 };
#define DSC_IMAGE_ITEMS_MAX (INT64_C(1) << 32)

typedef struct dsc_image_item {
    int64_t name;          /* place in the list's text: relative to the root, or a member of the shard */
    int64_t offset, bytes; /* in a shard; offset -1: the whole file */
    int32_t root;
    int32_t label; /* the class; before dsc_image_list_number an index of label_name, or the number */
} dsc_image_item;

typedef enum dsc_image_labels {
    DSC_IMAGE_LABELS_NONE,
    DSC_IMAGE_LABELS_NAMES,
    DSC_IMAGE_LABELS_NUMBERS
} dsc_image_labels;

/* Zeroed but for alloc and io: empty. */
typedef struct dsc_image_list {
    dsc_alloc *alloc;
    const dsc_io *io;
    dsc_image_item *item; /* [count] */
    int64_t count, item_room;
    char *text; /* names, each with its end */
    int64_t text_bytes, text_room;
    int64_t *root; /* [root_count] folders and shards: places in the text */
    int64_t root_count, root_room;
    dsc_image_labels labels;
    const char *labels_from; /* borrowed: the first name of the config, for messages */
    int64_t *label_name;     /* [label_count] places in the text, in the order in which they came */
    int32_t *label_order;    /* [label_count] their indices in the order of their bytes */
    int64_t label_count, label_room, order_room;
    int64_t left_out;       /* files of class folders that are no pictures */
    int64_t first_left_out; /* place in the text of the first of them */
} dsc_image_list;

/* The name is one of a list of encoded pictures: a folder, *.csv or *.tar. */
bool dsc_image_list_is(const char *path);
/* `path` is borrowed until the list is freed. DSC_ERR_INPUT: anything that is not as above; a folder, shard or file
 * without a picture; another kind of classes than that of earlier names. */
DSC_MUST_USE dsc_status dsc_image_list_add(dsc_image_list *list, const char *path, dsc_error *err);
/* A picture without a class, or a folder with pictures and none of classes. */
bool dsc_image_list_is_loose(const char *path);
/* Appends the pictures of such a path; their class is 0. */
DSC_MUST_USE dsc_status dsc_image_list_add_loose(dsc_image_list *list, const char *path, dsc_error *err);
/* Classes of all items, once all names are added. `names` [count]: classes in the model's order, or NULL: any;
 * `classes` is their number. DSC_ERR_INPUT: a class that is not among them, or too many. */
DSC_MUST_USE dsc_status dsc_image_list_number(dsc_image_list *list, const char *const *names, int64_t classes,
                                              dsc_error *err);
/* Name of class i in the order of the bytes; borrowed. */
const char *dsc_image_list_class(const dsc_image_list *list, int64_t i);
/* For messages, and for whole files the path. */
void dsc_image_list_path(const dsc_image_list *list, int64_t i, char *out, size_t out_bytes);
/* The bytes of item i into *data, which has room for *room bytes and is malloc'ed again for more. */
DSC_MUST_USE dsc_status dsc_image_list_read(const dsc_image_list *list, int64_t i, uint8_t **data, int64_t *room,
                                            int64_t *bytes, dsc_error *err);
void dsc_image_list_free(dsc_image_list *list);

#ifdef __cplusplus
}
#endif
#endif
