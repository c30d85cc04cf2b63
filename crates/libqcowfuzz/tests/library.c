/* Uses and misuses each function of the library. It is built with AddressSanitizer and UndefinedBehaviorSanitizer, and
 * ends with 0 if everything is as the header says. */
#include <qcowfuzz.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../examples/c/reader.h"

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: expected %s (last error: %s)\n", __LINE__, #condition, qcowfuzz_last_error());   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define ERROR_NAMES(text) EXPECT(strstr(qcowfuzz_last_error(), text))

static const char CLAIMS[] = "no compressed clusters\nno extended L2 entries\nno a qcow2 backing file\n"
                             "no a raw backing file\nno an external data file\n";

/* A reader that is called back. `open_disks` shows that each disk is closed; the last one is `last_disk`. */
static int open_disks;
static void *last_disk;
static jmp_buf left;
static int leaves_in; /* The kind of the question whose callback leaves by longjmp. */

static void maybe_leave(int kind) {
    if (leaves_in == kind) longjmp(left, 1);
}
static int read_file(void *files, uint64_t offset, void *into, size_t length) {
    return qcowfuzz_file_read(files, 0, offset, into, length);
}
static int open_image(void *context, const qcowfuzz_files *files, void **disk) {
    maybe_leave(QCOWFUZZ_OPEN);
    (void)context;
    *disk = reader_open(read_file, (void *)files);
    if (!*disk) return qcowfuzz_error(QCOWFUZZ_MALFORMED, "not an image of this reader");
    open_disks++;
    last_disk = *disk;
    return QCOWFUZZ_OK;
}
static uint64_t size(void *disk) { return reader_size(disk); }
static int read_disk(void *disk, uint64_t offset, uint8_t *into, size_t length) {
    maybe_leave(QCOWFUZZ_READ);
    return reader_read(disk, offset, into, length);
}
static int close_image(void *disk) {
    open_disks--;
    reader_close(disk);
    return QCOWFUZZ_OK;
}
static qcowfuzz_engine reader(void) {
    qcowfuzz_engine engine = {.struct_size = sizeof engine, .name = "reader", .claims = CLAIMS, .open = open_image,
                              .size = size, .read = read_disk, .close = close_image};
    return engine;
}

/* A cluster of zeros that stays allocated: the bug of the reader. */
static const char WITH_BUG[] =
    "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<20+0 rng_seed=0 blocks=append "
    "table=append tolerance=0\nwrite at=start+9 clusters=3\nwrite at=start+4 clusters=2\nzero at=start+4 clusters=1 keep=yes\n";
static uint8_t program[16384];
static size_t program_size;

static void versions(void) {
    EXPECT(qcowfuzz_abi() == QCOWFUZZ_ABI);
    EXPECT(strlen(qcowfuzz_version()) > 0);
}

static void a_harness_is_refused_with_a_reason(void) {
    qcowfuzz_engine engine = reader();
    EXPECT(!qcowfuzz_new(NULL, &engine));
    ERROR_NAMES("target");
    EXPECT(!qcowfuzz_new("nothing", &engine));
    ERROR_NAMES("map_extents");
    engine.claims = "no wings";
    EXPECT(!qcowfuzz_new("map_extents", &engine));
    ERROR_NAMES("wings");
    engine = reader(), engine.known = "[[finding";
    EXPECT(!qcowfuzz_new("map_extents", &engine));
    ERROR_NAMES("known");
    engine = reader(), engine.struct_size = 1 << 20;
    EXPECT(!qcowfuzz_new("map_extents", &engine));
    ERROR_NAMES("struct_size");
    engine = reader(), engine.size = NULL;
    EXPECT(!qcowfuzz_new("map_extents", &engine));
    ERROR_NAMES("size");
    qcowfuzz_free(NULL);
}

static void null_pointers_are_errors(void) {
    qcowfuzz_question question;
    qcowfuzz_reply reply = {0};
    qcowfuzz_file info;
    qcowfuzz_counts counts;
    uint8_t byte;
    EXPECT(qcowfuzz_begin(NULL, NULL, 0, &question) == QCOWFUZZ_ERROR);
    EXPECT(qcowfuzz_answer(NULL, &reply, &question) == QCOWFUZZ_ERROR);
    EXPECT(qcowfuzz_run(NULL, NULL, 0) == QCOWFUZZ_ERROR);
    ERROR_NAMES("null");
    EXPECT(!strcmp(qcowfuzz_fingerprint(NULL), "") && !strcmp(qcowfuzz_report(NULL), ""));
    EXPECT(qcowfuzz_outcome(NULL, &counts) == QCOWFUZZ_ERROR);
    qcowfuzz_print(NULL);
    EXPECT(qcowfuzz_generate(NULL, 1, &byte, 1) == 0);
    EXPECT(qcowfuzz_mutate(NULL, &byte, 1, 1, 1) == 1);
    EXPECT(qcowfuzz_cross_over(NULL, NULL, 0, NULL, 0, &byte, 1, 1) == 0);
    EXPECT(qcowfuzz_minimize(NULL, &byte, 1, 1, NULL, NULL) == 0);
    EXPECT(qcowfuzz_assemble(NULL, &byte, 1) == 0);
    qcowfuzz_free_text(NULL);
    EXPECT(qcowfuzz_emit(NULL, NULL) == -1);
    EXPECT(qcowfuzz_file_count(NULL) == 0 && qcowfuzz_file_length(NULL, 0) == 0);
    EXPECT(qcowfuzz_file_info(NULL, 0, &info) == -1);
    EXPECT(qcowfuzz_file_read(NULL, 0, 0, &byte, 1) == QCOWFUZZ_IO);
    EXPECT(qcowfuzz_file_write(NULL, 0, 0, &byte, 1) == QCOWFUZZ_IO);
    EXPECT(qcowfuzz_file_set_length(NULL, 0, 0) == QCOWFUZZ_IO && qcowfuzz_file_flush(NULL, 0) == QCOWFUZZ_IO);
    EXPECT(!qcowfuzz_file_bytes(NULL, 0, NULL) && !qcowfuzz_path(NULL) && !qcowfuzz_file_path(NULL, 0));
    EXPECT(qcowfuzz_file_open(NULL, 0) == -1);
    EXPECT(qcowfuzz_error(7, NULL) == 7);
}

static void inputs_are_made(qcowfuzz *harness) {
    uint8_t made[16384], again[16384], child[16384];
    size_t length = qcowfuzz_generate(harness, 1, made, sizeof made);
    EXPECT(length > 0 && qcowfuzz_generate(harness, 1, again, sizeof again) == length);
    EXPECT(!memcmp(made, again, length));
    EXPECT(qcowfuzz_generate(harness, 1, made, 1) == 0);
    ERROR_NAMES("room");
    length = qcowfuzz_mutate(harness, made, length, sizeof made, 2);
    EXPECT(length > 0);
    size_t crossed = qcowfuzz_cross_over(harness, made, length, program, program_size, child, sizeof child, 3);
    EXPECT(crossed > 0);
    /* Mutations stay in their room, however small. */
    for (size_t room = 0; room < 64; room++) {
        uint8_t *small = malloc(room + 1);
        memcpy(small, made, room);
        EXPECT(qcowfuzz_mutate(harness, small, room, room, room) <= room);
        EXPECT(qcowfuzz_cross_over(harness, made, length, program, program_size, small, room, room) <= room);
        free(small);
    }
    char *text = qcowfuzz_disassemble(program, program_size);
    size_t assembled = qcowfuzz_assemble(text, again, sizeof again);
    EXPECT(assembled == program_size && !memcmp(again, program, assembled));
    qcowfuzz_free_text(text);
    EXPECT(qcowfuzz_assemble("image nothing", again, sizeof again) == 0);
    ERROR_NAMES("qcowfuzz_assemble");
}

static void a_run_finds_the_bug(qcowfuzz *harness) {
    EXPECT(qcowfuzz_run(harness, program, program_size) == QCOWFUZZ_FINDING);
    EXPECT(!strncmp(qcowfuzz_fingerprint(harness), "data: zero-allocated", 20));
    EXPECT(strstr(qcowfuzz_report(harness), "guest offset"));
    EXPECT(open_disks == 0);
    qcowfuzz_counts counts;
    EXPECT(qcowfuzz_run(harness, NULL, 0) == QCOWFUZZ_NOTHING && qcowfuzz_outcome(harness, &counts) == 0);
    EXPECT(counts.images == 1 && !counts.unsupported && !strcmp(qcowfuzz_fingerprint(harness), ""));
}

static void a_minimized_input_has_the_bug(qcowfuzz *harness) {
    uint8_t small[16384];
    memcpy(small, program, program_size);
    size_t length = qcowfuzz_minimize(harness, small, program_size, sizeof small, NULL, NULL);
    EXPECT(length > 0 && length < program_size);
    EXPECT(qcowfuzz_run(harness, small, length) == QCOWFUZZ_FINDING);
    EXPECT(qcowfuzz_minimize(harness, small, 0, sizeof small, NULL, NULL) == 0);
    ERROR_NAMES("finding");
}

/* Interesting: a program that writes anywhere. */
static int writes(void *context, const uint8_t *data, size_t length) {
    ++*(int *)context;
    char *text = qcowfuzz_disassemble(data, length);
    int is_interesting = strstr(text, "\nwrite ") != NULL;
    qcowfuzz_free_text(text);
    maybe_leave(QCOWFUZZ_WRITE);
    return is_interesting;
}

static void a_callback_minimizes(qcowfuzz *harness) {
    uint8_t small[16384];
    int calls = 0;
    memcpy(small, program, program_size);
    size_t length = qcowfuzz_minimize(harness, small, program_size, sizeof small, writes, &calls);
    EXPECT(length > 0 && length < program_size && calls > 3);
    leaves_in = QCOWFUZZ_WRITE;
    if (!setjmp(left)) {
        qcowfuzz_minimize(harness, small, length, sizeof small, writes, &calls);
        EXPECT(!"a callback that leaves");
    }
    leaves_in = 0;
    a_minimized_input_has_the_bug(harness);
}

static void a_callback_may_leave(qcowfuzz *harness) {
    const int kinds[] = {QCOWFUZZ_OPEN, QCOWFUZZ_READ};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        leaves_in = kinds[i];
        if (!setjmp(left)) {
            qcowfuzz_run(harness, program, program_size);
            EXPECT(!"a callback that leaves");
        }
        leaves_in = 0;
        /* The code has left its disk, too. */
        if (open_disks > 0) close_image(last_disk);
        a_run_finds_the_bug(harness);
    }
}

/* A reader that answers step by step, from the bytes, the path or the descriptor of the file. */
enum way { BY_BYTES, BY_PATH, BY_DESCRIPTOR };

static int read_bytes(void *bytes, uint64_t offset, void *into, size_t length) {
    size_t size;
    const uint8_t *all = qcowfuzz_file_bytes(bytes, 0, &size);
    memset(into, 0, length);
    if (offset < size) memcpy(into, all + offset, length < size - offset ? length : size - offset);
    return 0;
}
static int read_path(void *file, uint64_t offset, void *into, size_t length) {
    memset(into, 0, length);
    return fseek(file, (long)offset, SEEK_SET) || (fread(into, 1, length, file) < length && ferror(file)) ? -1 : 0;
}

static void a_run_goes_step_by_step(enum way way) {
    qcowfuzz_engine facts = {.struct_size = sizeof facts, .name = "steps", .claims = CLAIMS};
    qcowfuzz *harness = qcowfuzz_new("map_extents", &facts);
    qcowfuzz_question question;
    FILE *file = NULL;
    int asked = 0, end = qcowfuzz_begin(harness, program, program_size, &question);
    for (; end == QCOWFUZZ_ASKS; asked++) {
        qcowfuzz_reply reply = {.code = QCOWFUZZ_OK};
        qcowfuzz_file info;
        switch (question.kind) {
        case QCOWFUZZ_OPEN:
            EXPECT(qcowfuzz_file_count(question.files) == 1 && qcowfuzz_file_info(question.files, 0, &info) == 0);
            EXPECT(info.length == qcowfuzz_file_length(question.files, 0) && !strcmp(info.format, "qcow2"));
            EXPECT(qcowfuzz_file_info(question.files, 1, &info) == -1);
            EXPECT(qcowfuzz_file_read(question.files, 1, 0, (uint8_t *)&info, 1) == QCOWFUZZ_IO);
            EXPECT(qcowfuzz_file_write(question.files, 0, 0, (uint8_t *)&info, 1) == QCOWFUZZ_IO);
            if (way == BY_PATH) file = fopen(qcowfuzz_path(question.files), "rb");
            if (way == BY_DESCRIPTOR) file = fdopen(qcowfuzz_file_open(question.files, 0), "rb");
            reply.disk = way == BY_BYTES ? reader_open(read_bytes, (void *)question.files) : reader_open(read_path, file);
            break;
        case QCOWFUZZ_SIZE: reply.size_bytes = reader_size(question.disk); break;
        case QCOWFUZZ_READ:
            reply.code = reader_read(question.disk, question.offset, question.buffer, question.length);
            reply.error = reply.code ? "cannot be read" : NULL;
            break;
        case QCOWFUZZ_CLOSE:
            reader_close(question.disk);
            if (file) fclose(file);
            break;
        default: reply.code = QCOWFUZZ_NO_ANSWER;
        }
        end = qcowfuzz_answer(harness, &reply, &question);
    }
    EXPECT(end == QCOWFUZZ_FINDING && asked > 3);
    EXPECT(qcowfuzz_answer(harness, &(qcowfuzz_reply){0}, &question) == QCOWFUZZ_ERROR);
    ERROR_NAMES("expected a run");
    /* A run that is not ended ends with the harness. */
    EXPECT(qcowfuzz_begin(harness, program, program_size, NULL) == QCOWFUZZ_ASKS);
    qcowfuzz_free(harness);
}

/* A map whose extents overlap is wrong, and so is a status that no map has. */
static int map_twice(void *disk, uint64_t start, uint64_t length, qcowfuzz_extents *into) {
    (void)start, (void)length;
    qcowfuzz_extent extent = {.length = reader_size(disk), .host_offset = QCOWFUZZ_NO_OFFSET, .status = QCOWFUZZ_HOLE};
    qcowfuzz_emit(into, &extent);
    return qcowfuzz_emit(into, &extent);
}
static int odd_status(void *disk, uint64_t offset, qcowfuzz_extent *run) {
    run->length = reader_size(disk) - offset, run->status = 99;
    return QCOWFUZZ_OK;
}

static void wrong_answers_are_findings(void) {
    qcowfuzz_engine engine = reader();
    engine.map = map_twice;
    qcowfuzz *harness = qcowfuzz_new("map_extents", &engine);
    EXPECT(qcowfuzz_run(harness, program, program_size) == QCOWFUZZ_FINDING);
    EXPECT(!strncmp(qcowfuzz_fingerprint(harness), "partition:", 10));
    qcowfuzz_free(harness);
    engine = reader(), engine.status = odd_status;
    harness = qcowfuzz_new("map_extents", &engine);
    EXPECT(qcowfuzz_run(harness, program, program_size) == QCOWFUZZ_FINDING);
    EXPECT(strstr(qcowfuzz_report(harness), "a status of 99"));
    qcowfuzz_free(harness);
}

static void *run_in_a_thread(void *unused) {
    (void)unused;
    qcowfuzz_engine facts = {.struct_size = sizeof facts, .name = "threads", .claims = CLAIMS};
    qcowfuzz *harness = qcowfuzz_new("map_extents", &facts);
    uint8_t input[16384];
    for (uint64_t seed = 0; seed < 50; seed++) {
        size_t length = qcowfuzz_generate(harness, seed, input, sizeof input);
        qcowfuzz_question question;
        int end = qcowfuzz_begin(harness, input, length, &question);
        while (end == QCOWFUZZ_ASKS) end = qcowfuzz_answer(harness, &(qcowfuzz_reply){.code = QCOWFUZZ_UNSUPPORTED}, &question);
        EXPECT(end == QCOWFUZZ_FINDING || end == QCOWFUZZ_NOTHING);
    }
    qcowfuzz_free(harness);
    return NULL;
}
static void *step_in_a_thread(void *harness) {
    qcowfuzz_question question;
    EXPECT(qcowfuzz_answer(harness, &(qcowfuzz_reply){0}, &question) == QCOWFUZZ_ERROR);
    ERROR_NAMES("thread");
    return NULL;
}

static void threads_have_harnesses_of_their_own(qcowfuzz *harness) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) EXPECT(!pthread_create(&threads[i], NULL, run_in_a_thread, NULL));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    qcowfuzz_question question;
    EXPECT(qcowfuzz_begin(harness, program, program_size, &question) == QCOWFUZZ_ASKS);
    EXPECT(!pthread_create(&threads[0], NULL, step_in_a_thread, harness));
    pthread_join(threads[0], NULL);
    a_run_finds_the_bug(harness);
}

static qcowfuzz *nested;
static int open_and_run(void *context, const qcowfuzz_files *files, void **disk) {
    (void)context, (void)files;
    qcowfuzz *harness = nested;
    nested = NULL;
    if (harness) EXPECT(qcowfuzz_run(harness, NULL, 0) >= 0);
    *disk = NULL;
    return QCOWFUZZ_UNSUPPORTED;
}
static void a_run_inside_a_run_ends_the_outer_one(void) {
    qcowfuzz_engine engine = reader();
    engine.open = open_and_run;
    nested = qcowfuzz_new("map_extents", &engine);
    qcowfuzz *harness = nested;
    EXPECT(qcowfuzz_run(harness, NULL, 0) == QCOWFUZZ_ERROR);
    ERROR_NAMES("one run at a time");
    qcowfuzz_free(harness);
}

int main(void) {
    program_size = qcowfuzz_assemble(WITH_BUG, program, sizeof program);
    EXPECT(program_size > 0);
    qcowfuzz_engine engine = reader();
    qcowfuzz *harness = qcowfuzz_new("map_extents", &engine);
    EXPECT(harness);
    versions();
    a_harness_is_refused_with_a_reason();
    null_pointers_are_errors();
    inputs_are_made(harness);
    a_run_finds_the_bug(harness);
    a_minimized_input_has_the_bug(harness);
    a_callback_minimizes(harness);
    a_callback_may_leave(harness);
    for (enum way way = BY_BYTES; way <= BY_DESCRIPTOR; way++) a_run_goes_step_by_step(way);
    wrong_answers_are_findings();
    threads_have_harnesses_of_their_own(harness);
    a_run_inside_a_run_ends_the_outer_one();
    qcowfuzz_free(harness);
    puts("all as expected");
    return 0;
}
