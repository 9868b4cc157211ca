// A library of standby_program.cpp: what it does when it is loaded.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <thread>

namespace {

[[gnu::constructor]] void initialise() {
    const char* const variable = std::getenv("STANDBY_DOES");
    const std::string_view does = variable == nullptr ? "" : variable;
    if (does == "thread") {
        std::thread([] { pause(); }).detach();
    } else if (does == "socket") {
        (void)socket(AF_UNIX, SOCK_STREAM, 0);
    } else if (does == "file") {
        (void)open(std::getenv("STANDBY_FILE"), O_WRONLY | O_CREAT, 0600);
    }
}

}  // namespace

/// To be called by the program, which loads the library for this.
int of_library() {
    return 3;
}
