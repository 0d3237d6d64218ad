/* class_names.c - see class_names.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/class_names.h"

#include <string.h>

#define TEXT_BYTES_MAX (16 << 20)

static dsc_status cut_lines(const char *path, int64_t bytes, dsc_class_names *out, dsc_error *err)
{
    int64_t lines = 0;
    for (int64_t i = 0; i < bytes; i++)
        lines += out->text[i] == '\n';
    DSC_TRY(dsc_alloc_zeroed(out->alloc, DSC_TAG_CONTROL, lines + 1, sizeof *out->name, &out->name, err));
    for (char *at = out->text; at < out->text + bytes;) {
        char *end = memchr(at, '\n', (size_t)(out->text + bytes - at));
        if (end == NULL)
            end = out->text + bytes;
        *end = 0;
        if (at == end || strlen(at) != (size_t)(end - at))
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "line %lld is not the name of a class",
                            (long long)out->count + 1);
        out->name[out->count++] = at;
        at = end + 1;
    }
    return out->count > 0 ? DSC_OK : DSC_FAIL(err, DSC_ERR_INPUT, path, "the file has no names of classes");
}

dsc_status dsc_class_names_read(const dsc_io *io, const char *path, dsc_class_names *out, dsc_error *err)
{
    int64_t bytes = 0;
    DSC_ASSERT(out->text == NULL);
    DSC_TRY(dsc_io_read_all(io, out->alloc, path, TEXT_BYTES_MAX, &out->text, &bytes, err));
    const dsc_status status = cut_lines(path, bytes, out, err);
    if (status != DSC_OK)
        dsc_class_names_free(out);
    return status;
}

dsc_status dsc_class_names_compare(const dsc_class_names *names, const char *const *others, int64_t count,
                                   const char *path, dsc_error *err)
{
    for (int64_t i = 0; i < names->count && others != NULL; i++)
        if (i >= count || strcmp(names->name[i], others[i]) != 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "class %lld is \"%.100s\", and the model or another file has \"%.100s\"; pack the "
                            "pictures with their list of classes: dsc data images --classes FILE",
                            (long long)i, names->name[i], i < count ? others[i] : "none");
    return DSC_OK;
}

void dsc_class_names_free(dsc_class_names *names)
{
    dsc_alloc_free(names->alloc, names->name);
    dsc_alloc_free(names->alloc, names->text);
    *names = (dsc_class_names) { .alloc = names->alloc };
}
