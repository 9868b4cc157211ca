// The worker of the launch benchmark: says when it came into main, then ends or waits.
//
// usage: stamp_worker FIFO exit|hold
//
// Writes one line into FIFO: monotonic nanoseconds at main, RANK, WORLD_SIZE, GROUP_RANK, pid. A
// line is shorter than PIPE_BUF, so lines of several workers never mix.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

int number(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? std::atoi(value) : -1;
}

}  // namespace

int main(int argc, char** argv) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc != 3) {
        std::fprintf(stderr, "usage: stamp_worker FIFO exit|hold\n");
        return 2;
    }
    char line[128];
    const int size =
        std::snprintf(line, sizeof line, "%lld%09ld %d %d %d %d\n",
                      static_cast<long long>(now.tv_sec), now.tv_nsec, number("RANK"),
                      number("WORLD_SIZE"), number("GROUP_RANK"), static_cast<int>(::getpid()));
    const int fifo = ::open(argv[1], O_WRONLY | O_CLOEXEC);
    if (fifo < 0 || ::write(fifo, line, static_cast<std::size_t>(size)) != size) {
        std::perror(argv[1]);
        return 1;
    }
    ::close(fifo);
    while (std::strcmp(argv[2], "hold") == 0) {
        ::pause();
    }
    return 0;
}
