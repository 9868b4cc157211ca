// The worker of warm_kills.py in C++: it waits for its place before main(). This worker does what
// the one in Python does, at the top of warm_kills.py.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

#include "worker_runtime/env/standby.hpp"

namespace {

[[gnu::constructor(101)]] void wait_before_main() {
    static const char place_in_program = 0;
    ddprun::worker::wait_for_place(&place_in_program);
}

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

void tell(std::string_view what) {
    const int told = open(variable("TOLD").c_str(), O_WRONLY | O_CLOEXEC);
    (void)!write(told, what.data(), what.size());
    close(told);
}

}  // namespace

int main() {
    const std::string out = variable("OUT");
    // Held as long as anybody lives who has it.
    const int slot =
        open((out + "/slot" + variable("LOCAL_RANK")).c_str(), O_WRONLY | O_CREAT, 0600);
    if (flock(slot, LOCK_EX | LOCK_NB) != 0) {
        (void)open((out + "/overlap").c_str(), O_WRONLY | O_CREAT, 0600);
    }
    if (fork() == 0) {
        std::signal(SIGTERM, SIG_IGN);
        setsid();
        if (fork() != 0) {
            _exit(0);
        }
        tell("descendant\n");
        while (true) {
            pause();
        }
    }
    wait(nullptr);
    tell("worker\n");
    const int held = open((out + "/held").c_str(), O_RDONLY | O_CLOEXEC);
    return flock(held, LOCK_SH) == 0 ? 0 : 1;
}
