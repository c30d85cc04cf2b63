"""The line protocol of docs/engines.md, for implementations in Python that read data."""
import sys


def serve(name, claims, open_image):
    """Answers questions. `open_image(paths)` opens a chain and returns its size and a function of (start, length).

    The words of the command line are claims, too: a campaign excludes the feature of a hang so.
    """
    out = open(1, "wb", buffering=0)
    out.write("\n".join(["qcowfuzz-engine 1", f"name {name}", *claims, *sys.argv[1:], "answers read", "ready", ""]).encode())
    paths, answers, read = [], [], None
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            if verb == "image":
                paths.append(words[1])
            elif verb == "open":
                size, read = open_image(paths)
                answers.append(b"ok %d\n" % size)
            elif verb == "read":
                data = read(int(words[0]), int(words[1]))
                if len(data) != int(words[1]):
                    raise EOFError("a short read")
                answers.append(b"ok %d\n" % len(data) + data)
            elif verb == "end":
                out.write(b"".join(answers))
                paths, answers, read = [], [], None
        except Exception as error:  # An error of the implementation is its answer.
            answers.append(" ".join(f"error {type(error).__name__}: {error}\n".split()).encode() + b"\n")
