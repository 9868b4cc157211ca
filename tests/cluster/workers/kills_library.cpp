// A library of kills_worker.cpp: reports a standby when it is loaded, which is before it waits.

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace {

[[gnu::constructor]] void initialise() {
    const char* const told = std::getenv("TOLD");
    if (std::getenv("DDPRUN_STANDBY") != nullptr && told != nullptr) {
        const int file = open(told, O_WRONLY | O_CLOEXEC);
        const std::string line = std::to_string(getpid()) + "\n";
        (void)!write(file, line.data(), line.size());
        close(file);
    }
}

}  // namespace
