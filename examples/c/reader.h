/* A small reader of qcow2 images: the code under test of fuzz.c. It knows nothing of qcowfuzz. */
#include <stddef.h>
#include <stdint.h>

/* Reads bytes of the image file. Returns 0, or another value on an error. */
typedef int reader_file(void *file, uint64_t offset, void *into, size_t length);

struct reader;

/* Opens an image. Returns null if it is no image that the reader knows. */
struct reader *reader_open(reader_file *read_file, void *file);
uint64_t reader_size(const struct reader *reader);
/* Fills `into` with bytes of the disk. Returns 0, or -1 on an error. */
int reader_read(struct reader *reader, uint64_t offset, uint8_t *into, size_t length);
void reader_close(struct reader *reader);
