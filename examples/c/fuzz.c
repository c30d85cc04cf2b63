#include <qcowfuzz.h>
#include "reader.h"

static int read_file(void *files, uint64_t offset, void *into, size_t length) {
    return qcowfuzz_file_read(files, 0, offset, into, length);
}
static int open_image(void *context, const qcowfuzz_files *files, void **disk) {
    return (*disk = reader_open(read_file, (void *)files)) ? QCOWFUZZ_OK : -1;
}
static uint64_t size(void *disk) { return reader_size(disk); }
static int read_disk(void *disk, uint64_t offset, uint8_t *into, size_t length) {
    return reader_read(disk, offset, into, length);
}
static int close_image(void *disk) { return reader_close(disk), QCOWFUZZ_OK; }

static const qcowfuzz_engine READER = {
    .struct_size = sizeof READER, .name = "reader", .open = open_image, .size = size, .read = read_disk,
    .close = close_image, .claims = "no compressed clusters\nno extended L2 entries\nno a qcow2 backing file\n"
                                    "no a raw backing file\nno an external data file"};
QCOWFUZZ_FUZZ_TARGET("map_extents", READER)
