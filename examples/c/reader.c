/* The reader has a bug: it takes a cluster that reads as zeros for one with data, if the cluster is still allocated. */
#include "reader.h"

#include <stdlib.h>
#include <string.h>

#define OFFSET 0x00fffffffffffe00ull
#define COMPRESSED (1ull << 62)
#define ZERO 1ull

struct reader {
    reader_file *read_file;
    void *file;
    uint64_t size, l1_offset, l1_entries;
    unsigned cluster_bits;
};

static uint64_t big_endian(const uint8_t *bytes, int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value = value << 8 | bytes[i];
    return value;
}

struct reader *reader_open(reader_file *read_file, void *file) {
    uint8_t header[72];
    if (read_file(file, 0, header, sizeof header) || memcmp(header, "QFI\xfb", 4)) return NULL;
    struct reader *reader = malloc(sizeof *reader);
    if (!reader) return NULL;
    *reader = (struct reader){
        .read_file = read_file, .file = file,
        .cluster_bits = (unsigned)big_endian(header + 20, 4), .size = big_endian(header + 24, 8) / 512 * 512,
        .l1_entries = big_endian(header + 36, 4), .l1_offset = big_endian(header + 40, 8),
    };
    if (reader->cluster_bits < 9 || reader->cluster_bits > 21) return free(reader), NULL;
    return reader;
}

uint64_t reader_size(const struct reader *reader) { return reader->size; }

void reader_close(struct reader *reader) { free(reader); }

static int entry(struct reader *reader, uint64_t table, uint64_t index, uint64_t *value) {
    uint8_t bytes[8];
    if (reader->read_file(reader->file, table + index * 8, bytes, 8)) return -1;
    *value = big_endian(bytes, 8);
    return 0;
}

/* Finds the entry of the cluster at `offset`: 0 if there is none. */
static int lookup(struct reader *reader, uint64_t offset, uint64_t *found) {
    unsigned bits = reader->cluster_bits;
    uint64_t l2_index = offset >> bits & ((1ull << (bits - 3)) - 1), l1_index = offset >> (2 * bits - 3), l2;
    *found = 0;
    if (l1_index >= reader->l1_entries) return 0;
    if (entry(reader, reader->l1_offset, l1_index, &l2)) return -1;
    return (l2 & OFFSET) ? entry(reader, l2 & OFFSET, l2_index, found) : 0;
}

static int is_zero(uint64_t entry) {
#ifdef READER_WITHOUT_BUG
    if (entry & ZERO) return 1;
#endif
    return (entry & OFFSET) == 0;
}

int reader_read(struct reader *reader, uint64_t offset, uint8_t *into, size_t length) {
    if (offset > reader->size || length > reader->size - offset) return -1;
    while (length > 0) {
        uint64_t cluster = 1ull << reader->cluster_bits, inside = offset & (cluster - 1), found;
        size_t part = length < cluster - inside ? length : (size_t)(cluster - inside);
        if (lookup(reader, offset, &found) || found & COMPRESSED) return -1;
        if (is_zero(found)) memset(into, 0, part);
        else if (reader->read_file(reader->file, (found & OFFSET) + inside, into, part)) return -1;
        offset += part, into += part, length -= part;
    }
    return 0;
}
