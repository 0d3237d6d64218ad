/* picture_file_fuzz.c - any bytes as a packed file, as IDX, as a file of CIFAR and as names of classes: no crash, and
 * pictures that lie in the file. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/class_names.h"
#include "engine/data/picture_file.h"
#include "tests/fuzz/fuzz_folder.h"

enum { PIXEL_BYTES_MAX = 1 << 16, CLASSES = 10 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static fuzz_folder packed, idx, cifar;

static void close_folders(void)
{
    fuzz_folder_close(&packed);
    fuzz_folder_close(&idx);
    fuzz_folder_close(&cifar);
}

static void read_all(dsc_picture_file *file)
{
    static uint8_t pixels[PIXEL_BYTES_MAX];
    dsc_error err = DSC_ERROR_INIT;
    int32_t label = 0;
    DSC_ASSERT(file->count >= 1 && file->height >= 1 && file->width >= 1 && file->channels >= 1);
    dsc_status status = dsc_picture_file_check(NULL, file, CLASSES, &err);
    for (int64_t i = 0; i < file->count && i < 4 && status == DSC_OK; i++) {
        if (file->height * file->width * file->channels > PIXEL_BYTES_MAX)
            return;
        status = dsc_picture_file_read(NULL, file, i, CLASSES, pixels, &label, &err);
        DSC_ASSERT(status != DSC_OK || (label >= 0 && label < CLASSES));
    }
    DSC_ASSERT(status == DSC_OK || err.message[0] != 0);
}

static void run(const fuzz_folder *folder, const uint8_t *data, size_t bytes)
{
    dsc_picture_file file = DSC_PICTURE_FILE_INIT;
    dsc_error err = DSC_ERROR_INIT;
    fuzz_folder_set(folder, data, bytes);
    const dsc_status status = dsc_picture_file_open(NULL, folder->input, &file, &err);
    DSC_ASSERT(status == DSC_OK || err.message[0] != 0);
    if (status == DSC_OK)
        read_all(&file);
    dsc_picture_file_close(NULL, &file);
}

static void run_names(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_class_names names = { .alloc = NULL };
    fuzz_folder_set(&packed, data, bytes);
    DSC_ASSERT(dsc_alloc_open(&names.alloc, NULL) == DSC_OK);
    const dsc_status status = dsc_class_names_read(NULL, packed.input, &names, &err);
    DSC_ASSERT((status == DSC_OK) == (names.count > 0));
    dsc_alloc *alloc = names.alloc;
    dsc_class_names_free(&names);
    dsc_alloc_close(&alloc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint8_t labels[] = { 0, 0, 8, 1, 0, 0, 0, 2, 3, 1 };
    if (packed.input[0] == 0) {
        fuzz_folder_open(&packed, "x.pictures");
        fuzz_folder_open(&idx, "x-images-idx3-ubyte");
        fuzz_folder_open(&cifar, "x.bin");
        fuzz_folder_write(&idx, "x-labels-idx1-ubyte", labels, sizeof labels);
        atexit(close_folders);
    }
    run(&packed, data, bytes);
    run(&idx, data, bytes);
    run(&cifar, data, bytes);
    run_names(data, bytes);
    return 0;
}
