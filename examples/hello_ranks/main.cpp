#include <unistd.h>

#include <cstdio>
#include <cstdlib>

// The whole contract of a worker is its environment: this program needs no header of ddprun.

namespace {

/// The variable's value, or a dash where this program was started without a launcher.
const char* variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && value[0] != '\0' ? value : "-";
}

}  // namespace

int main() {
    char host[256] = "?";
    ::gethostname(host, sizeof host - 1);
    // One write of one line: lines of several workers never mix.
    std::printf(
        "hello from rank %s of %s: worker %s of %s on node %s of %s, generation %s, "
        "restart %s, host %s, pid %d\n",
        variable("RANK"), variable("WORLD_SIZE"), variable("LOCAL_RANK"),
        variable("LOCAL_WORLD_SIZE"), variable("GROUP_RANK"), variable("GROUP_WORLD_SIZE"),
        variable("DDPRUN_GENERATION"), variable("TORCHELASTIC_RESTART_COUNT"), host,
        static_cast<int>(::getpid()));
    return std::fflush(stdout) == 0 ? 0 : 1;
}
