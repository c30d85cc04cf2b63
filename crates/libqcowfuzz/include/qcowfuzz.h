/* libqcowfuzz: fuzz code that reads or writes disk images, in C and C++. docs/c.md begins with an example.
 *
 * The library: a program (any bytes) builds an image; the harness asks the code under test about it, and judges the
 * answers. The code answers by callbacks (qcowfuzz_run), or step by step (qcowfuzz_begin, qcowfuzz_answer).
 *
 * Memory: the caller frees what a function says that it frees, and nothing else. Threads: each harness is used by one
 * thread at a time; different harnesses are independent. No panic of Rust leaves the library.
 *
 * This file is made from the sources of the library: do not edit it. */

#ifndef QCOWFUZZ_H
#define QCOWFUZZ_H

#include <stddef.h>
#include <stdint.h>
/* The fuzz target of a program: defines the functions that libFuzzer and AFL++ call. TARGET is a string, such as
 * "map_extents", and ENGINE a qcowfuzz_engine. With the argument --engine, the program answers the questions of
 * `qcowfuzz --engine-command`, which replays and minimizes crashes. */
#ifdef __cplusplus
#define QCOWFUZZ_FUNCTION extern "C"
#else
#define QCOWFUZZ_FUNCTION
#endif
#define QCOWFUZZ_FUZZ_TARGET(TARGET, ENGINE) \
    QCOWFUZZ_FUNCTION int LLVMFuzzerInitialize(int *argc, char ***argv) { \
        return qcowfuzz_initialize(argc, (const char *const *const *)argv, &(ENGINE)); \
    } \
    QCOWFUZZ_FUNCTION int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { \
        return qcowfuzz_test_one_input(TARGET, &(ENGINE), data, size); \
    }


// The version of the binary interface. It changes if a function or a field changes its meaning; functions, and fields
// at the end of structures, may be added without a change.
#define QCOWFUZZ_ABI 1

// The question is answered.
#define QCOWFUZZ_OK 0

// The code has no answer to questions of this kind, for any image.
#define QCOWFUZZ_NO_ANSWER 1

// The code does not support a feature of the image.
#define QCOWFUZZ_UNSUPPORTED 2

// A file of the image cannot be read or written.
#define QCOWFUZZ_IO 3

// The image is malformed, or the range lies past the end of the disk. Any other value is an error of no stated kind.
#define QCOWFUZZ_MALFORMED 4

// No layer allocates the bytes, which read as zeros.
#define QCOWFUZZ_HOLE 0

// Bytes that are allocated, and read as zeros.
#define QCOWFUZZ_ZEROS 1

// Data that are not compressed.
#define QCOWFUZZ_DATA 2

// Data that are compressed.
#define QCOWFUZZ_COMPRESSED 3

// Data, compressed or not. Only a status without a depth may be as coarse as this.
#define QCOWFUZZ_STORED 4

// The image to open leaves the bytes to the layers below. Only a status without a depth may say this.
#define QCOWFUZZ_BELOW 5

// There is no host offset, or the code does not know it.
#define QCOWFUZZ_NO_OFFSET UINT64_MAX

// The code does not know the depth of a status: the status is then as coarse as its word.
#define QCOWFUZZ_NO_DEPTH UINT32_MAX

// An image.
#define QCOWFUZZ_IMAGE 0

// The external data file of the image before it.
#define QCOWFUZZ_DATA_FILE 1

// A file of one extent of the VMDK image before it.
#define QCOWFUZZ_EXTENT_FILE 2

// The run goes on: the next question waits for its answer.
#define QCOWFUZZ_ASKS 2

// The run has ended, and an oracle has found a violation: `qcowfuzz_fingerprint` names it.
#define QCOWFUZZ_FINDING 1

// The run has ended without a finding.
#define QCOWFUZZ_NOTHING 0

// The library could not do what was asked: `qcowfuzz_last_error` says why. No input is to blame.
#define QCOWFUZZ_ERROR -1

// Open the image for reading: `files`. The answer: `disk`.
#define QCOWFUZZ_OPEN 1

// Open the snapshot at `index` of the image for reading: `files`. The answer: `disk`.
#define QCOWFUZZ_OPEN_SNAPSHOT 2

// Open the image for reading and writing: `files`. The answer: `disk`.
#define QCOWFUZZ_OPEN_TO_WRITE 3

// Return the size of the disk in bytes: the answer's `size_bytes`.
#define QCOWFUZZ_SIZE 4

// Fill `buffer` with the `length` bytes of the disk from `offset` on.
#define QCOWFUZZ_READ 5

// Return the status of the bytes of the disk from `offset` on: one extent, which begins there.
#define QCOWFUZZ_STATUS 6

// Return all extents of the `length` bytes from `offset` on: `extents`. The length may reach past the disk's end.
#define QCOWFUZZ_MAP 7

// Check the image, and change nothing: `errors`, `leaks`.
#define QCOWFUZZ_CHECK 8

// Write the `length` bytes at `bytes` to the disk from `offset` on.
#define QCOWFUZZ_WRITE 9

// Make `length` bytes from `offset` on read as zeros.
#define QCOWFUZZ_WRITE_ZEROES 10

// Free `length` bytes of whole clusters from `offset` on, which then read as zeros.
#define QCOWFUZZ_DISCARD 11

// Give the disk the size of `length` bytes.
#define QCOWFUZZ_RESIZE 12

// Make all changes survive a power cut.
#define QCOWFUZZ_FLUSH 13

// Take a snapshot, which comes behind all others.
#define QCOWFUZZ_TAKE_SNAPSHOT 14

// Restore the disk from the snapshot at `index`.
#define QCOWFUZZ_APPLY_SNAPSHOT 15

// Delete the snapshot at `index`.
#define QCOWFUZZ_DELETE_SNAPSHOT 16

// Close the image, which then contains all changes. No question about this disk follows.
#define QCOWFUZZ_CLOSE 17

// The extents of an answer, to which `qcowfuzz_emit` appends.
typedef struct qcowfuzz_extents qcowfuzz_extents;

// The files of a case: the image to open, the images below it, and their other files. Functions that get them take an
// index, counted from 0: the image to open, its data file or extents, then the same of each image below.
typedef struct qcowfuzz_files qcowfuzz_files;

// A harness with code under test. Different threads may use different harnesses at the same time, and one after the
// other the same. The thread that begins a run ends it.
typedef struct qcowfuzz qcowfuzz;

// Bytes of the disk with one status.
typedef struct qcowfuzz_extent {
    // The first byte on the disk.
    uint64_t start;
    // The number of bytes, at least 1.
    uint64_t length;
    // The offset of the first byte in the file that stores it, or QCOWFUZZ_NO_OFFSET.
    uint64_t host_offset;
    // The layer that allocates the bytes: 0 for the image to open. In a status: or QCOWFUZZ_NO_DEPTH.
    uint32_t depth;
    // QCOWFUZZ_HOLE to QCOWFUZZ_BELOW.
    int status;
} qcowfuzz_extent;

// The properties of a file.
typedef struct qcowfuzz_file {
    // The layer: 0 for the image to open, 1 for the image below it.
    uint32_t layer;
    // QCOWFUZZ_IMAGE, QCOWFUZZ_DATA_FILE or QCOWFUZZ_EXTENT_FILE.
    int kind;
    // The number of bytes.
    uint64_t length;
    // The name by which another file names this one.
    const char *name;
    // The format of an image: "qcow2", "vhdx", "raw" and others, as QEMU calls them. A file that is no image: "raw".
    const char *format;
} qcowfuzz_file;

// A callback that opens an image: it stores its disk in `disk`.
typedef int (*qcowfuzz_open_callback)(void *context, const struct qcowfuzz_files *files, void **disk);

// A question about an image or a disk, or a request to a disk.
typedef struct qcowfuzz_question {
    // The kind: QCOWFUZZ_OPEN to QCOWFUZZ_CLOSE.
    int kind;
    // The index of a snapshot, counted from 0.
    uint32_t index;
    // The disk of the answer to the last opening.
    void *disk;
    // The files of the image. They stay valid until the image is closed, or could not be opened.
    const struct qcowfuzz_files *files;
    // An offset on the disk in bytes.
    uint64_t offset;
    // A number of bytes.
    uint64_t length;
    // The bytes to fill. The harness has filled them with other bytes.
    uint8_t *buffer;
    // The bytes to write.
    const uint8_t *bytes;
} qcowfuzz_question;

// The code under test: its name, its claims, and its callbacks. Each callback returns QCOWFUZZ_OK or an error. A
// callback that is null has no answer to its question, for any image; `open` and `size` are required to read, and
// `open_to_write`, `size`, `read` and `request` to write. A callback may leave by `longjmp` or a C++ exception: the
// run then ends without a verdict, and the next call begins a new one.
typedef struct qcowfuzz_engine {
    // `sizeof(qcowfuzz_engine)`, so that later versions of the library know which fields there are.
    size_t struct_size;
    // The name, for reports.
    const char *name;
    // Lines about the features that the code supports, or null: `no FEATURE`, `refuse FEATURE`, `yes FEATURE`,
    // `size near`, `version VERSION`. docs/engines.md explains them. Without a line, the code supports all features
    // of qcow2.
    const char *claims;
    // The text of a file of known findings, or null.
    const char *known;
    // An argument of the callbacks that open images.
    void *context;
    // QCOWFUZZ_OPEN.
    qcowfuzz_open_callback open;
    // QCOWFUZZ_OPEN_TO_WRITE.
    qcowfuzz_open_callback open_to_write;
    // QCOWFUZZ_OPEN_SNAPSHOT.
    int (*open_snapshot)(void *context,
                         const struct qcowfuzz_files *files,
                         uint32_t index,
                         void **disk);
    // QCOWFUZZ_SIZE: returns the size of the disk in bytes.
    uint64_t (*size)(void *disk);
    // QCOWFUZZ_READ: fills `into`.
    int (*read)(void *disk, uint64_t offset, uint8_t *into, size_t length);
    // QCOWFUZZ_STATUS: fills `run`.
    int (*status)(void *disk, uint64_t offset, struct qcowfuzz_extent *run);
    // QCOWFUZZ_MAP: calls `qcowfuzz_emit(into, ...)` for each extent.
    int (*map)(void *disk, uint64_t start, uint64_t length, struct qcowfuzz_extents *into);
    // QCOWFUZZ_CHECK.
    int (*check)(void *disk, uint64_t *errors, uint64_t *leaks);
    // QCOWFUZZ_WRITE to QCOWFUZZ_DELETE_SNAPSHOT. It returns QCOWFUZZ_NO_ANSWER for a kind that it does not know.
    int (*request)(void *disk, const struct qcowfuzz_question *request);
    // QCOWFUZZ_CLOSE. The callback frees the disk, even if it returns an error.
    int (*close)(void *disk);
} qcowfuzz_engine;

// The answer to a question. Fields that do not belong to the kind of the question do not count.
typedef struct qcowfuzz_reply {
    // QCOWFUZZ_OK, or an error.
    int code;
    // The text of an error, or null. The library copies it.
    const char *error;
    // QCOWFUZZ_OPEN and others: the disk, which is handed to all questions about it. It may be null.
    void *disk;
    // QCOWFUZZ_SIZE: the number of bytes of the disk.
    uint64_t size_bytes;
    // QCOWFUZZ_MAP and QCOWFUZZ_STATUS: the extents, in order. The library copies them.
    const struct qcowfuzz_extent *extents;
    // The number of extents.
    size_t extent_count;
    // QCOWFUZZ_CHECK: the number of errors.
    uint64_t errors;
    // QCOWFUZZ_CHECK: the number of clusters that are allocated and not used.
    uint64_t leaks;
} qcowfuzz_reply;

// The numbers of the last run without a finding.
typedef struct qcowfuzz_counts {
    // The number of operations of the program.
    size_t operations;
    // The number of images that were built and judged.
    size_t images;
    // The number of images that the code refused, as it may.
    size_t refused;
    // The number of damaged images that the code opened, and did not walk to the end.
    size_t failed;
    // 1 if the harness did not ask about some image: it has a feature that the code does not claim, or its files are
    // too large.
    int unsupported;
} qcowfuzz_counts;

// Reports whether a candidate is interesting: not 0 if it is.
typedef int (*qcowfuzz_is_interesting)(void *context, const uint8_t *data, size_t size);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the binary interface of the library that runs: `QCOWFUZZ_ABI` of its header.
int qcowfuzz_abi(void);

// Returns the version of the library, such as "0.1.0". The text lives as long as the process.
const char *qcowfuzz_version(void);

// Appends an extent to the answer about a map. Returns 0, or -1 if the answer is too long: then the code should end
// its walk.
int qcowfuzz_emit(struct qcowfuzz_extents *into,
                  const struct qcowfuzz_extent *extent);

// Returns the text of the last error of the library in this thread: one line that says what was wrong and what was
// expected. The text is valid until the next call of the library in this thread.
const char *qcowfuzz_last_error(void);

// Notes the text of an error that a callback is about to return, and returns `code`:
// `return qcowfuzz_error(QCOWFUZZ_UNSUPPORTED, "zstd");`. A fingerprint contains the beginning of the text, without
// its numbers. The library copies the text.
int qcowfuzz_error(int code,
                   const char *text);

// Builds the image of a program, writes it to the file `path`, and the files that it names beside it. Files that
// exist are an error. Returns 0 or QCOWFUZZ_ERROR. If the program has requests, the image is that before the first.
int qcowfuzz_export(struct qcowfuzz *handle,
                    const uint8_t *data,
                    size_t size,
                    const char *path);

// Returns the size in bytes of the disk that a guest must see in the image that was exported last; 0 without one.
uint64_t qcowfuzz_expected_size(struct qcowfuzz *handle);

// Fills `into` with the `length` bytes that a guest must read from `offset` on in the image that was exported last;
// behind the end of the disk, with zeros. Returns 0 or QCOWFUZZ_ERROR.
int qcowfuzz_expected(struct qcowfuzz *handle,
                      uint64_t offset,
                      uint8_t *into,
                      size_t length);

// Returns the number of files.
size_t qcowfuzz_file_count(const struct qcowfuzz_files *files);

// Fills `into` with the properties of the file at `index`. Its texts are valid as long as the files. Returns 0, or -1
// if there is no such file.
int qcowfuzz_file_info(const struct qcowfuzz_files *files,
                       size_t index,
                       struct qcowfuzz_file *into);

// Returns the length of the file at `index` in bytes; 0 if there is no such file.
uint64_t qcowfuzz_file_length(const struct qcowfuzz_files *files, size_t index);

// Reads `length` bytes of the file at `index` from `offset` on. Past the end of the file, it reads zeros. Returns 0,
// or QCOWFUZZ_IO: the harness makes some reads fail on purpose, and the code should then report an error.
int qcowfuzz_file_read(const struct qcowfuzz_files *files,
                       size_t index,
                       uint64_t offset,
                       uint8_t *into,
                       size_t length);

// Writes `length` bytes to the file at `index` from `offset` on. The file grows to their end. Only the image to open
// and its data file can be written, after QCOWFUZZ_OPEN_TO_WRITE. Returns 0 or QCOWFUZZ_IO.
int qcowfuzz_file_write(const struct qcowfuzz_files *files,
                        size_t index,
                        uint64_t offset,
                        const uint8_t *bytes,
                        size_t length);

// Cuts the file at `index` to `length` bytes, or appends a hole. Returns 0 or QCOWFUZZ_IO.
int qcowfuzz_file_set_length(const struct qcowfuzz_files *files, size_t index, uint64_t length);

// Has the file at `index` keep all that was written to it so far in a power cut, as `fsync` does. Returns 0 or
// QCOWFUZZ_IO.
int qcowfuzz_file_flush(const struct qcowfuzz_files *files,
                        size_t index);

// Returns the bytes of the file at `index` and stores their number in `length`. They are valid as long as the files.
// Returns null if the file has more than 256 MiB or cannot be read.
const uint8_t *qcowfuzz_file_bytes(const struct qcowfuzz_files *files,
                                   size_t index,
                                   size_t *length);

// Returns the path of the image to open. The first call writes all files of the case to a temporary folder, which the
// library removes at the end of the process. The path is valid until the image is closed. After
// QCOWFUZZ_OPEN_TO_WRITE, the code may change the files: the library reads them after each flush and at the end.
// Returns null if the files cannot be written, or have more than 256 MiB of data: the callback then returns
// QCOWFUZZ_IO.
//
// The harness does not see what the code reads there. It makes no read of such code fail.
const char *qcowfuzz_path(const struct qcowfuzz_files *files);

// Returns the path of the file at `index`, as `qcowfuzz_path` does.
const char *qcowfuzz_file_path(const struct qcowfuzz_files *files, size_t index);

// Opens the file at `index`, as `qcowfuzz_path` writes it: for reading, and after QCOWFUZZ_OPEN_TO_WRITE for writing,
// too. Returns the descriptor, which the caller closes, or -1.
int qcowfuzz_file_open(const struct qcowfuzz_files *files,
                       size_t index);

// Creates a harness. `target` is the name of a fuzz target: "map_extents", "hostile", "raw_image", "refcounts",
// "writes" or "hostile_writes". The library copies `engine` and its texts. Without callbacks (or with a null pointer:
// then the code claims all features of qcow2), the caller answers step by step. Returns null on an error. The caller
// frees the harness by `qcowfuzz_free`.
struct qcowfuzz *qcowfuzz_new(const char *target,
                              const struct qcowfuzz_engine *engine);

// Frees a harness. A run that waits for an answer ends. Does nothing with a null pointer.
void qcowfuzz_free(struct qcowfuzz *handle);

// Begins the run of an input: any bytes. A run that waits for an answer ends without a verdict. Returns
// QCOWFUZZ_ASKS, QCOWFUZZ_NOTHING, QCOWFUZZ_FINDING or QCOWFUZZ_ERROR. If the harness asks, `question` becomes the
// first question.
int qcowfuzz_begin(struct qcowfuzz *handle,
                   const uint8_t *data,
                   size_t size,
                   struct qcowfuzz_question *question);

// Answers the question of a run. Returns as `qcowfuzz_begin` does: if the harness asks again, `question` becomes its
// next question. `answer` and `question` may be parts of one structure.
int qcowfuzz_answer(struct qcowfuzz *handle,
                    const struct qcowfuzz_reply *answer,
                    struct qcowfuzz_question *question);

// Runs an input: any bytes. The callbacks of the code under test answer all questions. Returns QCOWFUZZ_NOTHING,
// QCOWFUZZ_FINDING or QCOWFUZZ_ERROR. Calls of one harness do not nest: a callback may not run it.
int qcowfuzz_run(struct qcowfuzz *handle,
                 const uint8_t *data,
                 size_t size);

// Returns the fingerprint of the last finding: a short description of the bug, which is the same for the same bug. It
// is empty without a finding, and valid until the next run of the harness.
const char *qcowfuzz_fingerprint(struct qcowfuzz *handle);

// Returns the last finding in words: the fingerprint, and lines with the offsets and values. It is empty without a
// finding, and valid until the next run of the harness.
const char *qcowfuzz_report(struct qcowfuzz *handle);

// Fills `into` with the numbers of the last run without a finding. Returns 0 or QCOWFUZZ_ERROR.
int qcowfuzz_outcome(struct qcowfuzz *handle, struct qcowfuzz_counts *into);

// Prints the last finding to standard error: the report, and the lines by which ClusterFuzz names the bug.
void qcowfuzz_print(struct qcowfuzz *handle);

// Runs an input of libFuzzer or AFL++ in the target `target` with the code under test `engine`: the same ones in all
// calls of a thread. A finding is printed, and ends the process by `abort`, as both expect. Returns 0. Programs call
// it in `LLVMFuzzerTestOneInput`: see QCOWFUZZ_FUZZ_TARGET.
int qcowfuzz_test_one_input(const char *target,
                            const struct qcowfuzz_engine *engine,
                            const uint8_t *data,
                            size_t size);

// Generates the program of `seed` into `into`. Returns its length in bytes, or 0 if `capacity` is too small (16 KiB
// suffice) or inputs of the target are files.
size_t qcowfuzz_generate(struct qcowfuzz *handle,
                         uint64_t seed,
                         uint8_t *into,
                         size_t capacity);

// Mutates the input of `size` bytes in `data`, which has room for `capacity` bytes. The same seed gives the same
// child. Returns its length.
size_t qcowfuzz_mutate(struct qcowfuzz *handle,
                       uint8_t *data,
                       size_t size,
                       size_t capacity,
                       uint64_t seed);

// Crosses two inputs over: makes a child of the first one with parts of the second one. Returns its length.
size_t qcowfuzz_cross_over(struct qcowfuzz *handle,
                           const uint8_t *data,
                           size_t size,
                           const uint8_t *other,
                           size_t other_size,
                           uint8_t *into,
                           size_t capacity,
                           uint64_t seed);

// Returns the program of an input as text, which `qcowfuzz_assemble` reads. The caller frees it by
// `qcowfuzz_free_text`. Returns null on an error of the library.
char *qcowfuzz_disassemble(const uint8_t *data, size_t size);

// Frees a text of the library. Does nothing with a null pointer.
void qcowfuzz_free_text(char *text);

// Assembles the text of a program into `into`. Returns its length in bytes; 0 on an error, which names the line.
size_t qcowfuzz_assemble(const char *text,
                         uint8_t *into,
                         size_t capacity);

// Minimizes the input of `size` bytes in `data`, which has room for `capacity` bytes, to the smallest and plainest one
// that is still interesting. Without a callback, an input is interesting if it has the same fingerprint, and the
// harness runs each candidate. Returns the length of the smallest input; 0 if the input itself has no finding, or on
// another error.
size_t qcowfuzz_minimize(struct qcowfuzz *handle,
                         uint8_t *data,
                         size_t size,
                         size_t capacity,
                         qcowfuzz_is_interesting is_interesting,
                         void *context);

// Answers the questions of `qcowfuzz --engine-command` on standard input and output, until the input ends. The
// callbacks may print to standard error only. Returns 0, or QCOWFUZZ_ERROR on an error of the table or of a stream.
// A target of QCOWFUZZ_FUZZ_TARGET calls it if its first argument is `--engine`.
int qcowfuzz_serve(const struct qcowfuzz_engine *engine);

// Calls `qcowfuzz_serve`, and ends the process, if the first argument of the program is `--engine`. Programs call it
// in `LLVMFuzzerInitialize`: see QCOWFUZZ_FUZZ_TARGET. Returns 0.
int qcowfuzz_initialize(const int *argc,
                        const char *const *const *argv,
                        const struct qcowfuzz_engine *engine);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QCOWFUZZ_H */
