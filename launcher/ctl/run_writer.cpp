#include "launcher/ctl/run_writer.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace ddprun::launcher {

namespace {

/// In the child. Writes one byte to `gone` once it has had the lock of `folder`.
[[noreturn]] void wait_for_lock(int folder, int gone, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) {
        int locked = 0;
        do {
            locked = ::flock(folder, LOCK_SH);
        } while (locked != 0 && errno == EINTR);
        if (locked == 0) {
            (void)!::write(gone, "", 1);
        }
    }
    ::_exit(0);
}

}  // namespace

RunWriter::RunWriter(const std::string& run) {
    const UniqueFd folder(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    std::array<int, 2> ends{};
    if (!folder.is_open() || ::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return;
    }
    gone_ = UniqueFd(ends[0]);
    const UniqueFd told(ends[1]);
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
        wait_for_lock(folder.get(), told.get(), parent);
    }
    if (child < 0) {
        gone_.reset();
        return;
    }
    child_ = child;
}

RunWriter::~RunWriter() {
    if (child_) {
        ::kill(*child_, SIGKILL);
        while (::waitpid(*child_, nullptr, 0) < 0 && errno == EINTR) {}
    }
}

bool RunWriter::is_gone() {
    char byte = 0;
    ssize_t count = 0;
    do {
        count = ::read(gone_.get(), &byte, 1);
    } while (count < 0 && errno == EINTR);
    if (count != 1) {
        gone_.reset();
    }
    return count == 1;
}

}  // namespace ddprun::launcher
