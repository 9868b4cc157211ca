// The worker of the chaos watch: says when it lives, and with whom it must not.
//
// usage: chaos_worker FOLDER NODE
//
// Appends lines to FOLDER/history: monotonic nanoseconds, NODE, generation, RANK, WORLD_SIZE, pid,
// and what: `start`; `overlap`, another worker of this node was alive then; `stop`, told by
// SIGTERM; `end`, it exits 0 because FOLDER/end exists. One that is killed says nothing. A line is
// one write to a file opened for appending, so lines of several workers never mix.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

namespace {

constexpr long kLookEveryNs = 100'000'000;

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "-1";
}

bool say(int history, const std::string& node, const char* what) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    char line[256];
    const int size = std::snprintf(
        line, sizeof line, "%lld%09ld %s %s %s %s %d %s\n", static_cast<long long>(now.tv_sec),
        now.tv_nsec, node.c_str(), variable("DDPRUN_GENERATION").c_str(), variable("RANK").c_str(),
        variable("WORLD_SIZE").c_str(), static_cast<int>(::getpid()), what);
    return ::write(history, line, static_cast<std::size_t>(size)) == size;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: chaos_worker FOLDER NODE\n");
        return 2;
    }
    const std::string folder = argv[1];
    const std::string node = argv[2];
    sigset_t wanted;
    ::sigemptyset(&wanted);
    ::sigaddset(&wanted, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
    const int history =
        ::open((folder + "/history").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    // The kernel gives it back at the moment of the holder's death, however it died.
    const int alive =
        ::open((folder + "/alive-" + node).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (history < 0 || alive < 0) {
        std::perror(folder.c_str());
        return 1;
    }
    const bool is_alone = ::flock(alive, LOCK_EX | LOCK_NB) == 0;
    if (!say(history, node, is_alone ? "start" : "overlap")) {
        return 1;
    }
    const timespec look{.tv_sec = 0, .tv_nsec = kLookEveryNs};
    const std::string end = folder + "/end";
    for (;;) {
        if (::sigtimedwait(&wanted, nullptr, &look) == SIGTERM) {
            return say(history, node, "stop") ? 0 : 1;
        }
        if (::access(end.c_str(), F_OK) == 0) {
            return say(history, node, "end") ? 0 : 1;
        }
    }
}
