// A callback in C++ may leave by an exception: the run ends, and the next one begins.
#include <qcowfuzz.h>

#include <cstdio>
#include <memory>
#include <stdexcept>

static int open_image(void *, const qcowfuzz_files *, void **) { throw std::runtime_error("as planned"); }
static uint64_t size(void *) { return 0; }

int main() {
    qcowfuzz_engine engine = {};
    engine.struct_size = sizeof engine;
    engine.name = "throws";
    engine.open = open_image;
    engine.size = size;
    std::unique_ptr<qcowfuzz, decltype(&qcowfuzz_free)> harness(qcowfuzz_new("map_extents", &engine), qcowfuzz_free);
    int caught = 0;
    for (int run = 0; run < 3; run++) {
        try {
            qcowfuzz_run(harness.get(), nullptr, 0);
        } catch (const std::runtime_error &) {
            caught++;
        }
    }
    std::puts(caught == 3 ? "all as expected" : "expected three exceptions");
    return caught == 3 ? 0 : 1;
}
