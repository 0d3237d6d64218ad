/* list.c - see list.h: lists, classes, and folders of classes. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/list.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/data/images/decode.h"
#include "engine/data/images/list_internal.h"

#define TEXT_BYTES_MAX (INT64_C(1) << 36)

/* ---- growth ------------------------------------------------------------------------------------------------------ */

dsc_status dsc_image_list_room(dsc_image_list *list, void *array, int64_t count, int64_t *room, size_t bytes_each,
                               int64_t more, dsc_error *err)
{
    void *grown = NULL, *old = NULL;
    if (count + more <= *room)
        return DSC_OK;
    const int64_t wanted = dsc_max_i64(count + more, *room + *room / 2 + 256);
    DSC_TRY(dsc_alloc_zeroed(list->alloc, DSC_TAG_CONTROL, wanted, bytes_each, &grown, err));
    memcpy(&old, array, sizeof old);
    if (count > 0)
        memcpy(grown, old, (size_t)count * bytes_each);
    dsc_alloc_free(list->alloc, old);
    memcpy(array, &grown, sizeof grown);
    *room = wanted;
    return DSC_OK;
}

dsc_status dsc_image_list_text(dsc_image_list *list, const char *text, int64_t bytes, int64_t *at, dsc_error *err)
{
    if (list->text_bytes + bytes + 1 > TEXT_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "data", "the names of pictures have more than 64 GiB");
    DSC_TRY(dsc_image_list_room(list, &list->text, list->text_bytes, &list->text_room, 1, bytes + 1, err));
    *at = list->text_bytes;
    memcpy(list->text + *at, text, (size_t)bytes);
    list->text[*at + bytes] = 0;
    list->text_bytes += bytes + 1;
    return DSC_OK;
}

dsc_status dsc_image_list_root(dsc_image_list *list, const char *path, int32_t *root, dsc_error *err)
{
    DSC_ASSERT(list->root_count < INT32_MAX);
    DSC_TRY(dsc_image_list_room(list, &list->root, list->root_count, &list->root_room, sizeof *list->root, 1, err));
    *root = (int32_t)list->root_count;
    return dsc_image_list_text(list, path, (int64_t)strlen(path), &list->root[list->root_count++], err);
}

dsc_status dsc_image_list_item(dsc_image_list *list, const dsc_image_item *item, dsc_error *err)
{
    if (list->count >= DSC_IMAGE_ITEMS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "data", "more than %lld pictures", (long long)DSC_IMAGE_ITEMS_MAX);
    DSC_TRY(dsc_image_list_room(list, &list->item, list->count, &list->item_room, sizeof *list->item, 1, err));
    list->item[list->count++] = *item;
    return DSC_OK;
}

void dsc_image_list_free(dsc_image_list *list)
{
    dsc_alloc_free(list->alloc, list->item);
    dsc_alloc_free(list->alloc, list->text);
    dsc_alloc_free(list->alloc, list->root);
    dsc_alloc_free(list->alloc, list->label_name);
    dsc_alloc_free(list->alloc, list->label_order);
    *list = (dsc_image_list) { .alloc = list->alloc, .io = list->io };
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

dsc_status dsc_image_list_labels(dsc_image_list *list, const char *path, dsc_image_labels kind, dsc_error *err)
{
    if (list->labels == DSC_IMAGE_LABELS_NONE) {
        list->labels = kind;
        list->labels_from = path;
    }
    if (list->labels == kind)
        return DSC_OK;
    const bool named = kind == DSC_IMAGE_LABELS_NAMES;
    return DSC_FAIL(err, DSC_ERR_INPUT, path,
                    "its classes are %s, and those of %.200s are %s; expected one kind in all "
                    "files",
                    named ? "names" : "numbers", list->labels_from, named ? "numbers" : "names");
}

const char *dsc_image_list_class(const dsc_image_list *list, int64_t i)
{
    DSC_ASSERT(i >= 0 && i < list->label_count);
    return list->text + list->label_name[list->label_order[i]];
}

dsc_status dsc_image_list_label(dsc_image_list *list, const char *path, const char *name, int64_t bytes, int32_t *label,
                                dsc_error *err)
{
    int64_t low = 0, high = list->label_count, order_count = list->label_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const char *other = dsc_image_list_class(list, middle);
        const int64_t other_bytes = (int64_t)strlen(other);
        int side = memcmp(other, name, (size_t)dsc_min_i64(bytes, other_bytes));
        side = side != 0 ? side : (other_bytes > bytes) - (other_bytes < bytes);
        if (side == 0) {
            *label = list->label_order[middle];
            return DSC_OK;
        }
        if (side < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (bytes == 0 || memchr(name, 0, (size_t)bytes) != NULL || list->label_count >= DSC_IMAGE_CLASSES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "%s",
                        bytes == 0                                   ? "a class without a name"
                        : list->label_count >= DSC_IMAGE_CLASSES_MAX ? "more than 65536 classes"
                                                                     : "the name of a class has a zero byte");
    DSC_TRY(dsc_image_list_room(list, &list->label_name, list->label_count, &list->label_room, sizeof *list->label_name,
                                1, err));
    DSC_TRY(dsc_image_list_room(list, &list->label_order, order_count, &list->order_room, sizeof *list->label_order, 1,
                                err));
    DSC_TRY(dsc_image_list_text(list, name, bytes, &list->label_name[list->label_count], err));
    memmove(list->label_order + low + 1, list->label_order + low,
            (size_t)(list->label_count - low) * sizeof *list->label_order);
    *label = list->label_order[low] = (int32_t)list->label_count++;
    return DSC_OK;
}

bool dsc_image_label_number(const char *text, int64_t bytes, int32_t *out)
{
    int64_t value = 0, at = 0, digits = 0;
    while (at < bytes && (text[at] == ' ' || text[at] == '\t'))
        at++;
    for (; at < bytes && text[at] >= '0' && text[at] <= '9'; at++, digits++) {
        value = value * 10 + (text[at] - '0');
        if (value > INT32_MAX)
            return false;
    }
    while (at < bytes && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
        at++;
    *out = (int32_t)value;
    return digits > 0 && at == bytes;
}

/* class_of[label] <- the model's class. */
static dsc_status find_classes(const dsc_image_list *list, const char *const *names, int64_t classes, int32_t *class_of,
                               dsc_error *err)
{
    if (names == NULL && list->label_count > classes)
        return DSC_FAIL(
            err, DSC_ERR_INPUT, list->labels_from,
            "%lld classes, and the model has %lld: give a model with more (\"id2label\" of its config.json)",
            (long long)list->label_count, (long long)classes);
    for (int64_t i = 0; i < list->label_count; i++) {
        int64_t found = names == NULL ? i : -1;
        for (int64_t k = 0; found < 0 && k < classes; k++)
            if (strcmp(names[k], dsc_image_list_class(list, i)) == 0)
                found = k;
        if (found < 0)
            return DSC_FAIL(
                err, DSC_ERR_INPUT, list->labels_from,
                "the class \"%.100s\" is unknown to the model; expected one of the names in \"id2label\" of "
                "its config.json, such as \"%.100s\"",
                dsc_image_list_class(list, i), names[0]);
        class_of[list->label_order[i]] = (int32_t)found;
    }
    return DSC_OK;
}

static dsc_status check_numbers(const dsc_image_list *list, int64_t classes, dsc_error *err)
{
    char path[1200];
    for (int64_t i = 0; i < list->count; i++)
        if (list->item[i].label < 0 || list->item[i].label >= classes) {
            dsc_image_list_path(list, i, path, sizeof path);
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "the picture has class %d, and the model has %lld classes: give a model with more "
                            "(\"id2label\" of its config.json)",
                            (int)list->item[i].label, (long long)classes);
        }
    return DSC_OK;
}

dsc_status dsc_image_list_number(dsc_image_list *list, const char *const *names, int64_t classes, dsc_error *err)
{
    int32_t *class_of = NULL;
    if (list->labels != DSC_IMAGE_LABELS_NAMES)
        return check_numbers(list, classes, err);
    DSC_TRY(dsc_alloc_zeroed(list->alloc, DSC_TAG_CONTROL, dsc_max_i64(1, list->label_count), sizeof *class_of,
                             &class_of, err));
    const dsc_status status = find_classes(list, names, classes, class_of, err);
    for (int64_t i = 0; i < list->count && status == DSC_OK; i++)
        list->item[i].label = class_of[list->item[i].label];
    dsc_alloc_free(list->alloc, class_of);
    return status;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* `relative`: below the root. */
static dsc_status add_below(dsc_image_list *list, int32_t root, const char *relative, int32_t label, int depth,
                            dsc_error *err);

static dsc_status add_entry(dsc_image_list *list, int32_t root, const char *relative, int32_t label, int depth,
                            dsc_error *err)
{
    char path[1024];
    dsc_image_item item = { .offset = -1, .root = root, .label = label };
    DSC_TRY(dsc_path_join(path, sizeof path, list->text + list->root[root], relative, err));
    const dsc_path_kind kind = dsc_io_kind(path);
    if (kind == DSC_PATH_DIR)
        return add_below(list, root, relative, label, depth + 1, err);
    if (!dsc_image_name_is_picture(relative)) {
        int64_t at = 0;
        if (list->left_out++ == 0) {
            DSC_TRY(dsc_image_list_text(list, path, (int64_t)strlen(path), &at, err));
            list->first_left_out = at;
        }
        return DSC_OK;
    }
    if (kind != DSC_PATH_FILE)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "%s",
                        kind == DSC_PATH_MISSING ? "the link leads to no file" : "not a regular file");
    DSC_TRY(dsc_image_list_text(list, relative, (int64_t)strlen(relative), &item.name, err));
    return dsc_image_list_item(list, &item, err);
}

static dsc_status add_below(dsc_image_list *list, int32_t root, const char *relative, int32_t label, int depth,
                            dsc_error *err)
{
    char path[1024], **names = NULL;
    int64_t count = 0;
    DSC_TRY(dsc_path_join(path, sizeof path, list->text + list->root[root], relative, err));
    if (depth > DSC_IMAGE_DEPTH_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "more than %d folders in each other", DSC_IMAGE_DEPTH_MAX);
    DSC_TRY(dsc_io_list(list->io, list->alloc, path, &names, &count, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++) {
        char below[1024];
        if (names[i][0] == '.')
            continue;
        status = dsc_path_join(below, sizeof below, relative, names[i], err);
        if (status == DSC_OK)
            status = add_entry(list, root, below, label, depth, err);
    }
    dsc_io_list_free(list->alloc, names, count);
    return status;
}

static dsc_status add_class(dsc_image_list *list, int32_t root, const char *name, bool *is_class, dsc_error *err)
{
    char path[1024];
    int32_t label = 0;
    const int64_t before = list->count;
    *is_class = false;
    DSC_TRY(dsc_path_join(path, sizeof path, list->text + list->root[root], name, err));
    if (dsc_io_kind(path) != DSC_PATH_DIR)
        return !dsc_image_name_is_picture(name)
                   ? DSC_OK
                   : DSC_FAIL(err, DSC_ERR_INPUT, path,
                              "a picture beside the folders of classes; expected all pictures "
                              "in the folder of their class");
    *is_class = true;
    DSC_TRY(dsc_image_list_label(list, path, name, (int64_t)strlen(name), &label, err));
    DSC_TRY(add_below(list, root, name, label, 1, err));
    if (list->count == before)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "the class has no picture (*.jpg, *.jpeg, *.png, *.webp); remove its "
                        "folder, or give it one");
    return DSC_OK;
}

static dsc_status add_folder(dsc_image_list *list, const char *path, dsc_error *err)
{
    char **names = NULL;
    int64_t count = 0, classes = 0;
    int32_t root = 0;
    DSC_TRY(dsc_image_list_labels(list, path, DSC_IMAGE_LABELS_NAMES, err));
    DSC_TRY(dsc_image_list_root(list, path, &root, err));
    DSC_TRY(dsc_io_list(list->io, list->alloc, path, &names, &count, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++) {
        bool is_class = false;
        if (names[i][0] != '.')
            status = add_class(list, root, names[i], &is_class, err);
        classes += is_class;
    }
    dsc_io_list_free(list->alloc, names, count);
    if (status == DSC_OK && classes == 0)
        status = DSC_FAIL(err, DSC_ERR_INPUT, path,
                          "the folder has no folders of classes; expected one for each class, "
                          "with its pictures");
    return status;
}

/* ---- all kinds --------------------------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *ending)
{
    const size_t bytes = strlen(path), end = strlen(ending);
    return bytes > end && strcasecmp(path + bytes - end, ending) == 0;
}

bool dsc_image_list_is(const char *path)
{
    return dsc_io_kind(path) == DSC_PATH_DIR || ends_in(path, ".csv") || ends_in(path, ".tar");
}

dsc_status dsc_image_list_add(dsc_image_list *list, const char *path, dsc_error *err)
{
    if (dsc_io_kind(path) == DSC_PATH_DIR)
        return add_folder(list, path, err);
    return ends_in(path, ".csv") ? dsc_image_add_csv(list, path, err) : dsc_image_add_tar(list, path, err);
}

bool dsc_image_list_is_loose(const char *path)
{
    DIR *folder;
    bool found = false;
    if (dsc_io_kind(path) != DSC_PATH_DIR)
        return dsc_image_name_is_picture(path);
    folder = opendir(path);
    for (struct dirent *entry = NULL; folder != NULL && !found && (entry = readdir(folder)) != NULL;)
        found = entry->d_name[0] != '.' && dsc_image_name_is_picture(entry->d_name);
    if (folder != NULL)
        closedir(folder);
    return found;
}

dsc_status dsc_image_list_add_loose(dsc_image_list *list, const char *path, dsc_error *err)
{
    char **names = NULL, folder[1024];
    int64_t count = 0;
    int32_t root = 0;
    const char *slash = strrchr(path, '/');
    const dsc_path_kind kind = dsc_io_kind(path);
    if (kind == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "there is no such picture; give the path of one, or of a folder");
    if (kind != DSC_PATH_DIR) {
        const int bytes = slash == NULL || slash == path ? 1 : (int)(slash - path);
        snprintf(folder, sizeof folder, "%.*s", bytes, slash == NULL ? "." : path);
        DSC_TRY(dsc_image_list_root(list, folder, &root, err));
        return add_entry(list, root, slash != NULL ? slash + 1 : path, 0, 1, err);
    }
    DSC_TRY(dsc_image_list_root(list, path, &root, err));
    DSC_TRY(dsc_io_list(list->io, list->alloc, path, &names, &count, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        if (names[i][0] != '.')
            status = add_entry(list, root, names[i], 0, 1, err);
    dsc_io_list_free(list->alloc, names, count);
    return status;
}

void dsc_image_list_path(const dsc_image_list *list, int64_t i, char *out, size_t out_bytes)
{
    DSC_ASSERT(i >= 0 && i < list->count);
    const dsc_image_item *item = &list->item[i];
    const char *root = list->text + list->root[item->root], *name = list->text + item->name;
    if (item->offset < 0 && name[0] == '/')
        snprintf(out, out_bytes, "%s", name);
    else
        snprintf(out, out_bytes, item->offset < 0 ? "%s/%s" : "%s: %s", root, name);
}

static dsc_status read_open(const dsc_image_list *list, const dsc_image_item *item, const char *name, dsc_file *file,
                            uint8_t **data, int64_t *room, int64_t *bytes, dsc_error *err)
{
    *bytes = item->bytes;
    if (item->offset < 0)
        DSC_TRY(dsc_io_size(list->io, file, bytes, err));
    if (*bytes > DSC_IMAGE_FILE_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "an encoded picture of %lld bytes; at most %lld are possible",
                        (long long)*bytes, (long long)DSC_IMAGE_FILE_BYTES_MAX);
    if (*bytes > *room) {
        free(*data);
        *room = 0;
        *data = malloc((size_t)*bytes);
        if (*data == NULL)
            return DSC_FAIL(err, DSC_ERR_NOMEM, name, "no memory for %lld bytes of a picture", (long long)*bytes);
        *room = *bytes;
    }
    return dsc_io_read(list->io, file, *data, *bytes, item->offset < 0 ? 0 : item->offset, err);
}

dsc_status dsc_image_list_read(const dsc_image_list *list, int64_t i, uint8_t **data, int64_t *room, int64_t *bytes,
                               dsc_error *err)
{
    char name[1200];
    dsc_file file = DSC_FILE_INIT;
    const dsc_image_item *item = &list->item[i];
    dsc_image_list_path(list, i, name, sizeof name);
    DSC_TRY(dsc_io_open(list->io, item->offset < 0 ? name : list->text + list->root[item->root], DSC_IO_READ_ONLY,
                        &file, err));
    const dsc_status status = read_open(list, item, name, &file, data, room, bytes, err);
    (void)dsc_io_close(list->io, &file, NULL); /* only read */
    return status;
}
