// The worker of the benchmarks: says when it came into main, then ends or waits.
//
// usage: stamp_worker FIFO exit|hold|tell [MIB]
//
// Rank 0 writes to MIB MiB of memory first. tell: waits for SIGTERM, says when it came in a second
// line, and ends. A line has monotonic nanoseconds, RANK, WORLD_SIZE, GROUP_RANK, pid; it is
// shorter than PIPE_BUF, so lines of several workers never mix.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

namespace {

int number(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? std::atoi(value) : -1;
}

/// One line with the moment `now`; false if it cannot be written.
bool stamp(const char* path, const timespec& now) {
    char line[128];
    const int size =
        std::snprintf(line, sizeof line, "%lld%09ld %d %d %d %d\n",
                      static_cast<long long>(now.tv_sec), now.tv_nsec, number("RANK"),
                      number("WORLD_SIZE"), number("GROUP_RANK"), static_cast<int>(::getpid()));
    const int fifo = ::open(path, O_WRONLY | O_CLOEXEC);
    if (fifo < 0 || ::write(fifo, line, static_cast<std::size_t>(size)) != size) {
        std::perror(path);
        return false;
    }
    ::close(fifo);
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc != 3 && argc != 4) {
        std::fprintf(stderr, "usage: stamp_worker FIFO exit|hold|tell [MIB]\n");
        return 2;
    }
    const std::size_t mebibytes =
        argc == 4 && number("RANK") == 0 ? static_cast<std::size_t>(std::atoi(argv[3])) : 0;
    const std::vector<char> memory(mebibytes << 20, 'x');
    sigset_t wanted;
    ::sigemptyset(&wanted);
    ::sigaddset(&wanted, SIGTERM);
    const bool tells = std::strcmp(argv[2], "tell") == 0;
    if (tells) {
        ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
    }
    if (!stamp(argv[1], now)) {
        return 1;
    }
    if (tells) {
        int signal = 0;
        ::sigwait(&wanted, &signal);
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        return stamp(argv[1], now) ? 0 : 1;
    }
    while (std::strcmp(argv[2], "hold") == 0) {
        ::pause();
    }
    return 0;
}
